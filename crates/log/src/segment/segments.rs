//! The segments of a log: reserves space, creates segments, and marks space that no record uses.
//!
//! 1. Plain reservations leave one segment free, so recycling always has space for the extents that it moves.
//! 2. A segment takes records only after its file, its header and its name are durable.

use std::sync::Arc;

use dalsegno_core::{Extent, Location, MIN_SEGMENTS, SECTOR_BYTES, StoreId};
use dalsegno_extent::format::{RecordHeader, RecordKind, RecordPlace, record_header_bytes};
use dalsegno_extent::{TrialFiles, write_unwatched};
use dalsegno_io::FileId;
use parking_lot::{Mutex, MutexGuard};

use super::files::SegmentFiles;
use super::pin::Pin;
use super::reservation::{Reservation, SpaceUse};
use super::slot::{Doubt, SegmentState, SegmentView, Slot};
use super::space::{OtherFiles, SpaceForOthers};
use super::table::{OpenSpace, SealPlace, SegmentTable};
use crate::device::LogDevice;
use crate::error::LogError;
use crate::stats::LogStats;

/// The segments of one log.
#[derive(Debug)]
pub struct Segments {
    files: SegmentFiles,
    stats: Arc<LogStats>,
    most: u32,
    table: Mutex<SegmentTable>,
    /// Held while a segment file is created, so that only one is.
    creating: Mutex<()>,
    /// Held while a checkpoint or a list is made, and while a segment file is removed, so that both see the same files.
    files_stay: Mutex<()>,
    others: SpaceForOthers,
}

/// Proof that no segment file is removed meanwhile.
pub(super) type FilesStay<'a> = MutexGuard<'a, ()>;

impl TrialFiles for Segments {
    /// The file of another segment.
    fn other_file(&self, file: FileId) -> Option<FileId> {
        self.table.lock().other_file(file)
    }
}

impl Segments {
    pub(crate) fn new(device: LogDevice, store: StoreId, segment_bytes: u64, most: u32) -> Self {
        let LogDevice { io, syncer, stats } = device;
        Self {
            files: SegmentFiles { io, syncer, store, segment_bytes },
            stats,
            most,
            table: Mutex::default(),
            creating: Mutex::default(),
            files_stay: Mutex::default(),
            others: SpaceForOthers::default(),
        }
    }

    pub(crate) fn table(&self) -> MutexGuard<'_, SegmentTable> {
        self.table.lock()
    }

    pub(super) fn files(&self) -> &SegmentFiles {
        &self.files
    }

    pub(super) fn keep_files(&self) -> FilesStay<'_> {
        self.files_stay.lock()
    }

    pub(crate) fn store(&self) -> StoreId {
        self.files.store
    }

    pub(crate) fn segment_bytes(&self) -> u64 {
        self.files.segment_bytes
    }

    /// All segments, by number.
    #[must_use]
    pub fn views(&self) -> Vec<SegmentView> {
        self.table.lock().slots.values().map(Slot::view).collect()
    }

    /// Number of segments.
    #[must_use]
    pub fn count(&self) -> usize {
        self.table.lock().slots.len()
    }

    /// Bytes of disk that the segment files take.
    #[must_use]
    pub fn disk_bytes(&self) -> u64 {
        self.count() as u64 * self.segment_bytes()
    }

    /// Gives no new segment this number or a smaller one, because an index may still refer to an earlier segment.
    pub fn begin_after(&self, number: u64) {
        let mut table = self.table.lock();
        table.next_number = table.next_number.max(number);
    }

    /// Keeps the segment of `location` from being recycled; `None` if it was recycled already.
    #[must_use]
    pub fn pin(&self, location: Location) -> Option<Pin> {
        let segment = {
            let table = self.table.lock();
            Arc::clone(&table.slots.get(&location.segment)?.segment)
        };
        segment.pin(location.epoch)
    }

    /// Whether a plain append of `bytes` finds space without recycling.
    #[must_use]
    pub fn has_space(&self, bytes: u64) -> bool {
        let table = self.table.lock();
        table.fits_open(bytes, self.segment_bytes()) || table.may_open(self.most, false)
    }

    /// Whether a plain append of `bytes` finds space without recycling and without creating a segment.
    #[must_use]
    pub fn has_space_now(&self, bytes: u64) -> bool {
        self.has_space(bytes) && self.needs_no_file(bytes)
    }

    /// Makes sure that a plain append of `bytes` finds space, as far as that works without recycling: creates a segment
    /// if necessary. `false` if a segment must be recycled first.
    ///
    /// # Errors
    ///
    /// As [`Writer::reserve`](crate::Writer::reserve), but never [`LogError::Full`].
    pub fn prepare(&self, bytes: u64) -> Result<bool, LogError> {
        loop {
            if !self.has_space(bytes) {
                self.table.lock().note_reclaim();
                return Ok(false);
            }
            if self.needs_no_file(bytes) {
                return Ok(true);
            }
            // The file system may refuse the segment; then there is no space after all.
            self.create_segment()?;
        }
    }

    /// From now on leaves space on disk for other files of the store.
    pub fn keep_space_for(&self, other_files: OtherFiles) {
        self.others.set(other_files);
    }

    /// Whether the file system has the space that is left for other files of the store; `false` if it does not say.
    #[must_use]
    pub fn has_space_for_others(&self) -> bool {
        self.fits_next_to_others(self.count() as u64, 0).unwrap_or(false)
    }

    /// The newest sequence number. It grows with every record, so it measures time in writes.
    #[must_use]
    pub fn newest_sequence(&self) -> u64 {
        self.table.lock().next_sequence
    }

    /// The [`Extent::born`] of an extent that is copied. Take it before the lookup that decides which blocks are
    /// visible. `None` if the copy keeps that of the original: some bytes could not be read, and a tombstone among them
    /// must still hide the block when they can.
    #[must_use]
    pub fn born_of_copies(&self) -> Option<u64> {
        let table = self.table.lock();
        (!table.is_partly_unread()).then_some(table.next_sequence)
    }

    /// The current round of uses, named by the first sequence number that it could give. A round lasts as long as one
    /// segment takes writes. Everything written before this log was opened is older.
    #[must_use]
    pub fn round(&self) -> u64 {
        self.table.lock().round()
    }

    /// Seals the open segment, so that it can be recycled; `false` if there is none. For a store without other
    /// segments.
    #[must_use]
    pub fn seal_open(&self) -> bool {
        let mut table = self.table.lock();
        if !table.has_open() {
            return false;
        }
        let seal = table.seal_open(self.segment_bytes());
        drop(table);
        self.write_seal(seal);
        true
    }

    /// Finds space for `bytes`, and opens or creates another segment if `space_use` allows it.
    pub(crate) fn reserve(&self, bytes: u64, space_use: SpaceUse) -> Result<Reservation, LogError> {
        self.files.syncer.check_writable()?;
        let relocating = space_use == SpaceUse::Reserve;
        let segment_bytes = self.segment_bytes();
        if bytes > segment_bytes - SECTOR_BYTES {
            return Err(LogError::TooLarge { bytes, segment_bytes });
        }
        loop {
            let mut table = self.table.lock();
            if let Some(space) = table.reserve_open(bytes, segment_bytes) {
                return Ok(reservation(&mut table, bytes, space, space_use));
            }
            if !table.may_open(self.most, relocating) {
                return Err(LogError::Full);
            }
            if table.count(SegmentState::Free) == 0 {
                if matches!(space_use, SpaceUse::Ready | SpaceUse::Merge { .. }) {
                    return Err(LogError::Full);
                }
                drop(table);
                self.create_segment()?;
                continue;
            }
            let seal = table.seal_open(segment_bytes);
            assert!(table.open_free(), "a free segment was counted");
            drop(table);
            self.write_seal(seal);
        }
    }

    /// Counts an extent that was written.
    pub(crate) fn count_written(&self, header: &RecordHeader) {
        let mut table = self.table.lock();
        table.note_record(header.segment, header.sequence, header.born);
        table.count_record(header.segment, header.hashes.len() as u64);
    }

    /// Makes sure that nothing claims that a merged extent is whole, as long as its segment lives.
    pub(crate) fn doubt(&self, extent: &Extent) {
        let doubt = Doubt { offset: extent.location.offset, sequence: extent.id.0 };
        self.table.lock().doubt(extent.location.segment, doubt);
    }

    /// Marks reserved space as a void.
    pub(crate) fn give_up(&self, place: &Reservation) {
        let payload_bytes = place.bytes() - u64::from(record_header_bytes(0, 0));
        if self.files.syncer.check_writable().is_ok() {
            let offset = place.place().offset;
            self.write_marker(place.pin(), offset, RecordKind::Void { payload_bytes });
        }
    }

    /// Whether an append needs no new segment file.
    fn needs_no_file(&self, bytes: u64) -> bool {
        let table = self.table.lock();
        table.fits_open(bytes, self.segment_bytes()) || table.count(SegmentState::Free) > 0
    }

    fn fits_next_to_others(&self, count: u64, bytes: u64) -> Option<bool> {
        self.others.fits(self.files.io.device.as_ref(), bytes, count, u64::from(self.most))
    }

    /// Creates one segment, durable with its name, unless another thread just did.
    fn create_segment(&self) -> Result<(), LogError> {
        // Its header will claim that all merges before it are durable.
        self.files.syncer.check_writable()?;
        let _one_at_a_time = self.creating.lock();
        let (number, first_sequence, count) = {
            let mut table = self.table.lock();
            if table.count(SegmentState::Free) > 0 {
                return Ok(());
            }
            table.next_number += 1;
            (table.next_number, table.first_sequence(), table.slots.len() as u64)
        };
        // Without its first few segments the store's other files are useless.
        let fits = || self.fits_next_to_others(count + 1, self.segment_bytes());
        if count >= MIN_SEGMENTS && fits() == Some(false) {
            self.pause_creation("no space for another segment next to the index");
            return Ok(());
        }
        match self.files.create(number, first_sequence) {
            Ok(segment) => {
                LogStats::count(&self.stats.segments_created);
                self.table.lock().slots.insert(number, Slot::free(segment));
                Ok(())
            }
            Err(error) if error.is_no_space() => {
                self.pause_creation("no space for another segment");
                Ok(())
            }
            Err(error) => Err(error.into()),
        }
    }

    fn pause_creation(&self, reason: &str) {
        LogStats::count(&self.stats.creations_refused);
        self.table.lock().pause_creation();
        tracing::warn!(reason, "segment not created; recycling older segments");
    }

    fn write_seal(&self, seal: Option<SealPlace>) {
        if let Some(SealPlace { pin, offset }) = seal {
            self.write_marker(&pin, offset, RecordKind::Seal);
        }
    }

    /// Writes a void or a seal without waiting for it. If the write fails, the next open only searches longer. The
    /// pin keeps the place from being recycled until the device is done.
    fn write_marker(&self, pin: &Arc<Pin>, offset: u64, kind: RecordKind) {
        let sequence = self.table.lock().take_sequence();
        let segment = pin.segment();
        let place = RecordPlace { segment: segment.number, epoch: segment.epoch(), offset };
        let header = place.bare_header(self.store(), sequence, kind);
        let mut bytes = vec![0; header.header_bytes() as usize];
        header.encode(&mut bytes);
        write_unwatched(&self.files.io, pin.pinned_file(), offset, &bytes);
    }
}

/// The reservation of space that was just taken from the open segment.
fn reservation(
    table: &mut SegmentTable,
    bytes: u64,
    OpenSpace { segment, offset }: OpenSpace,
    space_use: SpaceUse,
) -> Reservation {
    let sequence = table.take_sequence();
    // Noted before it is written: meanwhile, no tombstone that may have to hide it is dropped.
    let merge = match space_use {
        SpaceUse::Reserve => None,
        SpaceUse::Ready | SpaceUse::Creatable => {
            table.note_record(segment.number, sequence, sequence);
            None
        }
        SpaceUse::Merge { born } => {
            table.note_record(segment.number, sequence, born);
            Some(table.begin_merge(sequence))
        }
    };
    let place = RecordPlace { segment: segment.number, epoch: segment.epoch(), offset };
    Reservation::new(bytes, Arc::new(segment.pin_record(offset)), place, sequence, merge)
}
