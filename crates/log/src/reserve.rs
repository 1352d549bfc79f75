//! Room in segments: reserving it, getting new segments, marking what was given up.
//!
//! 1. Plain reservations leave one segment free, so that recycling always has room to move what it keeps.
//! 2. A segment takes records only after its file, its header and its name are durable.

use std::sync::Arc;
use std::time::Duration;

use dalsegno_core::{ChainHash, MIN_SEGMENTS, NamespaceId};
use dalsegno_io::{IoError, Operation};

use crate::call::Call;
use crate::error::LogError;
use crate::format::{RecordHeader, RecordKind, SegmentHeader, record_header_bytes, segment_file};
use crate::log::Core;
use crate::segment::{Pin, Segment, SegmentState, Slot};
use crate::stats::LogStats;
use crate::sync::{SyncCall, Unsynced};

/// A sync that takes longer than this has failed: nobody may wait for it for ever.
pub(crate) const SYNC_LIMIT: Duration = Duration::from_secs(60);
/// After the file system refused a segment, room is made this many times before it is asked again.
pub(crate) const CREATION_PAUSE: u32 = 16;

/// Room in a segment, which it pins.
#[derive(Debug)]
pub struct Reservation {
    pub(crate) bytes: u64,
    pub(crate) pin: Arc<Pin>,
    pub(crate) epoch: u64,
    pub(crate) offset: u64,
    pub(crate) sequence: u64,
}

/// Which room a record may take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Room {
    /// What is there now.
    Ready,
    /// The same, for an extent made of others, of which the newest was born then.
    Merging { born: u64 },
    /// Also a new segment, whose creation is waited for.
    Creatable,
    /// Also the reserve that plain appends leave: for what is moved on, and for tombstones.
    Reserve,
}

impl Core {
    /// Finds room for `bytes`, switching to another segment, or creating one if `room` says so.
    pub(crate) fn reserve(&self, bytes: u64, room: Room) -> Result<Reservation, LogError> {
        self.check_writable()?;
        let relocating = room == Room::Reserve;
        let segment_bytes = self.options.segment_bytes;
        if bytes > segment_bytes - dalsegno_core::SECTOR_BYTES {
            return Err(LogError::TooLarge { bytes, segment_bytes });
        }
        loop {
            let mut segments = self.segments.lock();
            if let Some((segment, offset)) = segments.reserve_open(bytes, segment_bytes) {
                let sequence = segments.take_sequence();
                // Before it is written: a tombstone that may have to hide it must not be given up meanwhile.
                match room {
                    Room::Reserve => {}
                    Room::Ready | Room::Creatable => {
                        segments.note_record(segment.number, sequence, sequence);
                    }
                    Room::Merging { born } => {
                        segments.note_record(segment.number, sequence, born);
                        assert!(segments.merging.is_none(), "one extent is merged at a time");
                        segments.merging = Some(sequence);
                    }
                }
                let epoch = segment.epoch();
                let pin = Arc::new(segment.pin_record(offset));
                return Ok(Reservation { bytes, pin, epoch, offset, sequence });
            }
            if !segments.may_open(self.options.segment_count, relocating) {
                return Err(LogError::Full);
            }
            if segments.count(SegmentState::Free) == 0 {
                if matches!(room, Room::Ready | Room::Merging { .. }) {
                    return Err(LogError::Full);
                }
                drop(segments);
                self.create_segment()?;
                continue;
            }
            let seal = segments.seal_open(segment_bytes);
            assert!(segments.open_free(), "a free segment was counted");
            drop(segments);
            if let Some((pin, offset)) = seal {
                self.write_marker(pin, offset, RecordKind::Seal);
            }
        }
    }

    /// Whether an append needs no new segment file.
    pub(crate) fn has_space_now(&self, bytes: u64) -> bool {
        let segments = self.segments.lock();
        segments.fits_open(bytes, self.options.segment_bytes)
            || segments.count(SegmentState::Free) > 0
    }

    /// Creates one segment file, durable with its name, unless another thread just did.
    pub(crate) fn create_segment(&self) -> Result<(), LogError> {
        // Its header would say of what was merged before that it is durable.
        self.check_writable()?;
        let _one_at_a_time = self.creating.lock();
        let (number, first_sequence, count) = {
            let mut segments = self.segments.lock();
            if segments.count(SegmentState::Free) > 0 {
                return Ok(());
            }
            segments.next_number += 1;
            (segments.next_number, segments.first_sequence(), segments.slots.len() as u64)
        };
        // Without the few segments that a store needs its other files are of no use.
        let has_space = || self.has_space_for_others(count + 1, self.options.segment_bytes);
        if count >= MIN_SEGMENTS && has_space() == Some(false) {
            self.refuse_creation(
                "the file system has no room for another segment beside the index",
            );
            return Ok(());
        }
        let name = segment_file(number);
        match self.create_file(&name, number, first_sequence) {
            Ok(segment) => {
                LogStats::add(&self.stats.segments_created, 1);
                self.segments.lock().slots.insert(number, Slot::free(segment));
                Ok(())
            }
            Err(error) => {
                // Half a segment helps nobody; if it cannot be removed either, opening will find it damaged.
                drop(self.device.remove(&name));
                if error.is_no_space() {
                    self.refuse_creation("the file system has no room for another segment");
                    return Ok(());
                }
                Err(error.into())
            }
        }
    }

    fn refuse_creation(&self, why: &str) {
        LogStats::add(&self.stats.creations_refused, 1);
        self.segments.lock().creation_blocked = CREATION_PAUSE;
        tracing::warn!("{why}; recycling earlier ones");
    }

    fn create_file(
        &self,
        name: &str,
        number: u64,
        first_sequence: u64,
    ) -> Result<Arc<Segment>, IoError> {
        let bytes = self.options.segment_bytes;
        let opened = self.device.open(name, dalsegno_io::OpenMode::Create { bytes })?;
        let segment = Segment::new(number, opened.file, 1);
        let ready = self
            .write_segment_header(&segment, 1, first_sequence, false)
            .and_then(|()| self.sync_names());
        match ready {
            Ok(()) => Ok(segment),
            Err(error) => {
                self.device.close(opened.file);
                Err(error)
            }
        }
    }

    /// Writes and syncs a segment's header: from now on only records of `epoch` count, but while `carrying` any
    /// tombstones, and nothing else.
    pub(crate) fn write_segment_header(
        &self,
        segment: &Segment,
        epoch: u64,
        first_sequence: u64,
        carrying: bool,
    ) -> Result<(), IoError> {
        let header = SegmentHeader {
            store: self.store,
            segment: segment.number,
            epoch,
            segment_bytes: self.options.segment_bytes,
            first_sequence,
            carrying,
        };
        let mut sector = [0; crate::format::SECTOR];
        header.encode(&mut sector);
        let call = self.patient_call();
        self.transfer(Operation::Write, segment.file, 0, &mut sector, &call)?;
        self.sync_file(segment.file)
    }

    /// Writes a void or a seal. Best effort: without it, opening the store searches a little longer. So nobody waits
    /// for it; the pin keeps its place what it is until the device is done.
    pub(crate) fn write_marker(&self, pin: Arc<Pin>, offset: u64, kind: RecordKind) {
        let sequence = self.segments.lock().take_sequence();
        let at = (pin.segment.number, pin.segment.epoch(), offset);
        let header = self.bare_header(at, sequence, kind);
        let mut bytes = vec![0; header.header_bytes() as usize];
        header.encode(&mut bytes);
        self.write_unwatched(pin, offset, &bytes, self.patient_call().deadline);
    }

    /// The header of a record without blocks, at (segment, epoch, offset).
    pub(crate) fn bare_header(
        &self,
        (segment, epoch, offset): (u64, u64, u64),
        sequence: u64,
        kind: RecordKind,
    ) -> RecordHeader {
        RecordHeader {
            store: self.store,
            segment,
            epoch,
            offset,
            sequence,
            born: sequence,
            namespace: NamespaceId::default(),
            lineage: ChainHash::default(),
            parent: ChainHash::default(),
            first_block_index: 0,
            hashes: Vec::new(),
            kind,
        }
    }

    /// For the log's own work, which waits long but not for ever.
    pub(crate) fn patient_call(&self) -> Call {
        let call = Call::background();
        let limit = call.at_most(SYNC_LIMIT, self.clock.as_ref());
        call.until(limit)
    }

    /// Marks reserved room as dead.
    pub(crate) fn give_up(&self, place: Reservation) {
        let payload_bytes = place.bytes - u64::from(record_header_bytes(0, 0));
        if self.check_writable().is_ok() {
            self.write_marker(place.pin, place.offset, RecordKind::Void { payload_bytes });
        }
    }

    /// Makes everything written to the segment so far durable, together with whoever else waits for that. A call that
    /// is over leaves the sync to those who come after it.
    pub(crate) fn sync_segment(&self, segment: &Segment, call: &Call) -> Result<(), Unsynced> {
        segment.gate.pass(&SyncCall { core: self, file: segment.file, call })
    }
}
