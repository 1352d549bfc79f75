//! Keeps the segment list, from which `verify` learns what should be there.
//!
//! 1. The list never claims more than is on disk: it counts settled and synced records only. It does not count a record
//!    that reaches the disk after its call gave up, so a segment may hold more than the list says.
//! 2. The list is removed, durably, before anything that it names goes: a segment's file, or a record that becomes a
//!    void.
//! 3. A count holds for one epoch of a segment, so recycling a segment needs no new list.
//! 4. A count that is larger than what opening finds stays until the segment is recycled or the loss is written off. So
//!    does a segment that is not found.

use std::sync::Arc;

use dalsegno_core::{Extent, Location, SECTOR_BYTES, StoreId};
use dalsegno_extent::format::{
    FormatError, LIST_FILE, RecordKind, RecordPlace, SECTOR, SegmentList, record_header_bytes,
};
use dalsegno_extent::{DeviceIo, read_at, write_at};
use dalsegno_io::{IoError, OpenMode};

use super::segments::Segments;
use crate::device::LogDevice;
use crate::error::LogError;
use crate::sync::Syncer;

/// Longer than a list of as many segments as a store may have.
const MAX_LIST_BYTES: u64 = 4 << 20;

/// The segment list of one store.
#[derive(Debug)]
pub struct SegmentListFile {
    device: LogDevice,
    segments: Arc<Segments>,
}

/// Which records a new list counts.
#[derive(Clone, Copy, PartialEq, Eq)]
enum ListedRecords {
    /// All that are in the log, which syncs their segments.
    All,
    /// Those that the list counts already.
    Known,
}

impl SegmentListFile {
    pub(crate) fn new(device: LogDevice, segments: Arc<Segments>) -> Self {
        Self { device, segments }
    }

    /// Lists all segments and what they hold, unless the list says so already. Syncs the segments with newly counted
    /// records first. `verify` compares the files with the list.
    ///
    /// # Errors
    ///
    /// The device's error. Then the store may have no list, and `verify` finds less.
    pub fn update(&self) -> Result<(), LogError> {
        self.write_if_changed(ListedRecords::All)
    }

    /// Lists segments that are not on the list yet. Syncs no segment, so it counts no more records than before.
    ///
    /// # Errors
    ///
    /// As [`Self::update`].
    pub fn add_new_segments(&self) -> Result<(), LogError> {
        self.write_if_changed(ListedRecords::Known)
    }

    /// Forgets that a segment, or records of it, are lost, because a repair dealt with it.
    pub fn write_off(&self, segment: u64) {
        self.segments.table().write_off(segment);
    }

    /// Makes sure that no later open takes a merged extent for durable that was found not to be whole. If it
    /// `is_replaced`, other extents hold all its live blocks, and its record becomes a void. Call it before anything is
    /// written. Does nothing in a read-only log.
    pub fn doubt(&self, extent: &Extent, is_replaced: bool) {
        if self.device.syncer.is_read_only() {
            return;
        }
        if is_replaced {
            match self.make_void(extent) {
                Ok(()) => return,
                Err(error) => tracing::debug!(%error, "torn merge not voided; it stays in doubt"),
            }
        }
        self.segments.doubt(extent);
    }

    /// Removes the list durably, before something goes that it names.
    pub(super) fn remove(&self) -> Result<(), LogError> {
        match self.device.io.device.remove(LIST_FILE) {
            Err(error) if !error.is_not_found() => return Err(error.into()),
            _ => self.device.syncer.sync_names()?,
        }
        self.segments.table().list = None;
        Ok(())
    }

    /// Removes the list if it counts, or may count, the record at a place.
    fn remove_if_counted(&self, location: &Location) -> Result<(), LogError> {
        let counts = |list: &SegmentList| {
            let listed = list.get(location.segment);
            listed.is_some_and(|it| it.epoch == location.epoch && location.offset < it.end)
        };
        let is_counted = self.segments.table().list.as_ref().is_none_or(counts);
        if is_counted { self.remove() } else { Ok(()) }
    }

    /// Writes a void in the place of an extent, and makes it durable.
    fn make_void(&self, extent: &Extent) -> Result<(), LogError> {
        self.device.syncer.check_writable()?;
        let Some(pin) = self.segments.pin(extent.location) else { return Ok(()) };
        self.remove_if_counted(&extent.location)?;
        let sequence = self.segments.table().take_sequence();
        let payload_bytes = extent.total_bytes() - u64::from(record_header_bytes(0, 0));
        let Location { segment, epoch, offset, .. } = extent.location;
        let place = RecordPlace { segment, epoch, offset };
        let kind = RecordKind::Void { payload_bytes };
        let header = place.bare_header(self.segments.store(), sequence, kind);
        let mut bytes = vec![0; header.header_bytes() as usize];
        header.encode(&mut bytes);
        let call = self.device.io.own_call();
        write_at(&self.device.io, pin.segment().file, offset, &bytes, &call)?;
        self.segments.table().uncount_extent(segment, extent.block_count().into());
        Ok(pin.sync(&self.device.syncer, &call)?)
    }

    fn write_if_changed(&self, records: ListedRecords) -> Result<(), LogError> {
        self.device.syncer.check_writable()?;
        // A segment stays until the list names it.
        let _files = self.segments.keep_files();
        let mut unsynced = Vec::new();
        let list = {
            let table = self.segments.table();
            let newly_counted = (records == ListedRecords::All).then_some(&mut unsynced);
            let list = table.to_list(self.segments.store(), newly_counted);
            let is_known = |old: &SegmentList| {
                *old == list || (records == ListedRecords::Known && old.names_same(&list))
            };
            if table.list.as_ref().is_some_and(is_known) {
                return Ok(());
            }
            list
        };
        for segment in unsynced {
            // Through the gate, which remembers a failed sync: no checkpoint may call lost bytes durable.
            segment.sync(&self.device.syncer, &self.device.io.own_call())?;
        }
        self.segments.table().list = None;
        self.write(&list)?;
        self.segments.table().list = Some(list);
        Ok(())
    }

    fn write(&self, list: &SegmentList) -> Result<(), LogError> {
        replace_file(&self.device.io, &self.device.syncer, LIST_FILE, &list.encode())
    }
}

/// Writes a small file again, durably. Its first sector is written last, over zeros, so it is recognized if a crash
/// interrupted that.
pub(crate) fn replace_file(
    io: &DeviceIo,
    syncer: &Syncer,
    name: &str,
    bytes: &[u8],
) -> Result<(), LogError> {
    match io.device.remove(name) {
        Err(error) if !error.is_not_found() => return Err(error.into()),
        _ => {}
    }
    let mode = OpenMode::Create { bytes: bytes.len() as u64 };
    let opened = io.device.open(name, mode)?;
    let (header, body) = bytes.split_at(SECTOR);
    let write = |offset, bytes: &[u8]| -> Result<(), IoError> {
        write_at(io, opened.file, offset, bytes, &io.own_call())
    };
    let largest = io.pool.largest();
    let offsets = (SECTOR_BYTES..).step_by(largest);
    let written = offsets
        .zip(body.chunks(largest))
        .try_for_each(|(offset, part)| write(offset, part))
        // The header claims that the entries are there.
        .and_then(|()| syncer.sync_file(opened.file))
        .and_then(|()| write(0, header))
        .and_then(|()| syncer.sync_file(opened.file))
        .and_then(|()| syncer.sync_names());
    io.device.close(opened.file);
    Ok(written?)
}

/// Reads a small file, at most `limit` bytes of it. `None` if there is no such file; the inner error says why it cannot
/// be whole.
///
/// # Errors
///
/// If the device fails to read it.
pub(crate) fn read_file(
    io: &DeviceIo,
    name: &str,
    limit: u64,
) -> Result<Option<Result<Vec<u8>, FormatError>>, LogError> {
    let opened = match io.device.open(name, OpenMode::Read) {
        Err(error) if error.is_not_found() => return Ok(None),
        opened => opened?,
    };
    if !opened.bytes.is_multiple_of(SECTOR_BYTES) {
        io.device.close(opened.file);
        return Ok(Some(Err(FormatError::Truncated)));
    }
    let mut bytes = vec![0; usize::try_from(opened.bytes.min(limit)).expect("bounded")];
    let (mut offset, mut read) = (0, Ok(()));
    for part in bytes.chunks_mut(io.pool.largest()) {
        read = read_at(io, opened.file, offset, part, &io.own_call());
        if read.is_err() {
            break;
        }
        offset += part.len() as u64;
    }
    io.device.close(opened.file);
    read?;
    Ok(Some(Ok(bytes)))
}

/// Reads the list of a store. `None` if there is no list; the inner error says why the list is not valid.
///
/// # Errors
///
/// If the device fails to read it.
pub(crate) fn read_list(
    io: &DeviceIo,
    store: StoreId,
) -> Result<Option<Result<SegmentList, FormatError>>, LogError> {
    let Some(bytes) = read_file(io, LIST_FILE, MAX_LIST_BYTES)? else { return Ok(None) };
    let decoded = bytes.and_then(|bytes| SegmentList::decode(&bytes));
    Ok(Some(match decoded {
        Ok(list) if list.store != store => Err(FormatError::Place("store")),
        decoded => decoded,
    }))
}
