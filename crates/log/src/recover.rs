//! Opening: what the headers on disk say.
//!
//! 1. Nothing is trusted because of its name: a segment counts only with a valid header of this store, a record only
//!    with a valid header that names its own place and the segment's epoch.
//! 2. Damage never stops the opening; it costs the bytes it hit and is told.
//! 3. Nothing is written but what a later append writes anyway.
//! 4. With durability `batch` the extents that are told are durable.

use std::collections::HashSet;

use dalsegno_core::{ChainHash, Durability, Extent, NamespaceId, SECTOR_BYTES};
use dalsegno_io::{DirEntry, FileId, IoError, OpenMode, Opened, Operation, share_work};
use parking_lot::Mutex;

use crate::call::Call;
use crate::checkpoint::{Checkpoint, SegmentCheckpoint};
use crate::error::LogError;
use crate::format::{
    FormatError, LIST_FILE, RecordHeader, RecordKind, SECTOR, SECTOR_CRC_AT, STORE_FILE,
    SegmentHeader, all_zero, segment_number,
};
use crate::log::Core;
use crate::meta::read_sector;
use crate::scan::{Scan, ScanEnd, scan_records, scan_tombstones};
use crate::segment::{Segment, SegmentState, Segments, Slot};
use crate::segment_list::{read_list, tally_of};
use crate::tombstones::Tombstone;

/// More sequence numbers than any number of records that could not be read: theirs are never given out again.
const UNREAD_SEQUENCES: u64 = 1 << 32;

/// A namespace, the hashes of the blocks that were removed, and before which sequence number they were put.
pub type Removal = (NamespaceId, Vec<ChainHash>, u64);

/// What the log holds when it is opened.
#[derive(Debug, Default)]
pub struct Recovered {
    /// All extents, in the order they were written.
    pub extents: Vec<Extent>,
    /// Removals: extents of the namespace with `born` below the number lose these hashes (all, if there are none).
    pub removals: Vec<Removal>,
    /// Removals that the checkpoint knew.
    pub checkpoint_removals: Vec<Removal>,
    /// Extents that were made of several others are durable if their sequence number is smaller than this.
    pub merged_before: u64,
    /// What was found damaged.
    pub faults: Vec<SegmentFault>,
    /// Whether a segment is there that the checkpoint should know and does not: it could not be read when that was
    /// made.
    pub is_one_back: bool,
}

/// Damage found at open.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SegmentFault {
    /// The file.
    pub file: String,
    /// Byte offset in it.
    pub offset: u64,
    /// What is wrong there.
    pub what: String,
}

struct Found {
    slot: Option<Slot>,
    first_sequence: u64,
    number: u64,
    records: Vec<RecordHeader>,
    faults: Vec<SegmentFault>,
    /// Its file cannot be opened: who knows what is in it.
    is_missing: bool,
}

pub(crate) fn recover(core: &Core, checkpoint: &Checkpoint) -> Result<Recovered, LogError> {
    let files: Vec<(u64, DirEntry)> = core
        .device
        .list()?
        .into_iter()
        .filter_map(|entry| Some((segment_number(&entry.name)?, entry)))
        .collect();
    let queue = Mutex::new(files.into_iter());
    let found = Mutex::new(Vec::new());
    share_work("dalsegno-scan", core.options.scan_threads, || {
        loop {
            let Some((number, entry)) = queue.lock().next() else { return };
            let segment = open_segment(core, number, &entry, checkpoint);
            found.lock().push(segment);
        }
    });
    let mut found = found.into_inner().into_iter().collect::<Result<Vec<_>, _>>()?;
    found.sort_unstable_by_key(|segment| segment.number);
    core.segments.lock().list = match read_list(core) {
        Ok(read) => read.and_then(Result::ok),
        Err(error) => {
            tracing::warn!("{LIST_FILE} cannot be read: {error}");
            None
        }
    };
    Ok(install(core, found, checkpoint))
}

/// Puts what was found into the log's tables.
fn install(core: &Core, found: Vec<Found>, checkpoint: &Checkpoint) -> Recovered {
    let mut recovered = Recovered::default();
    let mut segments = core.segments.lock();
    segments.next_sequence = checkpoint.next_sequence;
    // Of another segment of this number the checkpoint would be believed.
    segments.next_number = checkpoint.segments.last().map_or(0, |known| known.number);
    for Found { slot, first_sequence, number, records, faults, is_missing } in found {
        segments.is_one_missing |= is_missing;
        recovered.merged_before = recovered.merged_before.max(first_sequence);
        // Records with numbers before that may be lost or unread; but what was merged with one of them is durable.
        segments.next_sequence = segments.next_sequence.max(first_sequence.saturating_sub(1));
        segments.next_number = segments.next_number.max(number);
        recovered.faults.extend(faults);
        if let Some(mut slot) = slot {
            slot.tally = tally_of(&slot, &records, checkpoint, segments.list.as_ref());
            // What is damaged is in no checkpoint. What came after the checkpoint has newer records alone.
            let is_older = |record: &RecordHeader| record.sequence <= checkpoint.next_sequence;
            let has_gaps = slot.first_gap.is_some() && first_sequence <= checkpoint.next_sequence;
            let has_older = has_gaps || records.iter().any(is_older);
            recovered.is_one_back |=
                slot.state != SegmentState::Damaged && has_older && checkpoint.lacks(number);
            segments.slots.insert(number, slot);
        }
        for record in records {
            segments.next_sequence = segments.next_sequence.max(record.sequence);
            match &record.kind {
                RecordKind::Extent { .. } => {
                    segments.note_record(number, record.sequence, record.born);
                    recovered.extents.extend(record.extent());
                }
                RecordKind::Tombstone { kills_before } => {
                    let (namespace, hashes) = (record.namespace, record.hashes);
                    recovered.removals.push((namespace, hashes.clone(), *kills_before));
                    let kills_before = *kills_before;
                    segments.tombstones.push(Tombstone {
                        segment: number,
                        offset: record.offset,
                        namespace,
                        hashes,
                        kills_before,
                    });
                }
                RecordKind::Void { .. } | RecordKind::Seal => {}
            }
        }
    }
    segments.note_missing();
    take_removals(&mut recovered, &mut segments, checkpoint);
    let newest = segments
        .slots
        .values()
        .filter(|slot| slot.state == SegmentState::Open)
        .max_by_key(|slot| slot.newest_sequence)
        .map(|slot| slot.segment.number);
    for (number, slot) in &mut segments.slots {
        if slot.state == SegmentState::Open && Some(*number) != newest {
            slot.state = SegmentState::Sealed;
        }
    }
    segments.open = newest;
    if !recovered.faults.is_empty() {
        segments.told = Some(recovered.merged_before);
        segments.next_sequence += UNREAD_SEQUENCES;
    }
    segments.round = segments.next_sequence + 1;
    recovered.extents.sort_unstable_by_key(|extent| extent.id);
    recovered.extents.dedup_by_key(|extent| extent.id);
    recovered
}

/// Takes in the removals that the checkpoint knew.
fn take_removals(recovered: &mut Recovered, segments: &mut Segments, checkpoint: &Checkpoint) {
    if checkpoint.tombstones.is_empty() {
        return;
    }
    let read: HashSet<&Removal> = recovered.removals.iter().collect();
    // An index that is built anew was handed what the old one knew, though it may be read no more.
    let is_anew = checkpoint.segments.is_empty();
    // A copy may lie there, of the segment's next life or of another one.
    let has_gap = segments.slots.values().any(|slot| slot.first_gap.is_some());
    for tombstone in &checkpoint.tombstones {
        let slot = segments.slots.get(&tombstone.segment);
        // Of a segment that cannot be read, what was known of it still holds.
        let is_missing = slot.is_none() && segments.is_one_missing;
        let is_unread = is_missing || slot.is_some_and(|slot| slot.segment.epoch() == 0);
        let known = slot.and_then(|s| checkpoint.segment(tombstone.segment, s.segment.epoch()));
        let Tombstone { namespace, hashes, kills_before, .. } = tombstone;
        let removal = (*namespace, hashes.clone(), *kills_before);
        let may_lie_there = is_anew || has_gap || known.is_some();
        if is_unread || (may_lie_there && !read.contains(&removal)) {
            segments.tombstones.push(tombstone.clone());
        }
        recovered.checkpoint_removals.push(removal);
    }
}

fn open_segment(
    core: &Core,
    number: u64,
    entry: &DirEntry,
    checkpoint: &Checkpoint,
) -> Result<Found, LogError> {
    let mode = if core.options.read_only { OpenMode::Read } else { OpenMode::ReadWrite };
    let fault = |offset, what: String| SegmentFault { file: entry.name.clone(), offset, what };
    let opened = match open_file(core, &entry.name, mode)? {
        Ok(opened) => opened,
        Err(error) => {
            let faults = vec![fault(0, error.to_string())];
            return Ok(Found { faults, is_missing: true, ..Found::none(number) });
        }
    };
    let mut read = read_segment_header(core, number, opened.file, opened.bytes);
    if matches!(read, Err(FormatError::Unreadable)) {
        core.check_reads(opened.file)?;
        read = read_segment_header(core, number, opened.file, opened.bytes);
    }
    let header = match read {
        Ok(header) => header,
        Err(FormatError::Newer(version)) => {
            let source = FormatError::Newer(version);
            return Err(LogError::Format { file: entry.name.clone(), source });
        }
        Err(FormatError::Unfinished) => {
            // A crash came between creating the file and writing its header: nothing was ever in it.
            core.device.close(opened.file);
            if !core.options.read_only {
                core.device.remove(&entry.name)?;
            }
            return Ok(Found::none(number));
        }
        Err(FormatError::Magic | FormatError::Place("store")) => {
            // Not ours: whoever put it there keeps it.
            core.device.close(opened.file);
            let faults = vec![fault(0, "not a segment of this store; left alone".to_owned())];
            return Ok(Found { faults, ..Found::none(number) });
        }
        Err(damage) => {
            let mut found = given_up(core, number, &opened)?;
            if let Some(slot) = found.slot.as_mut().filter(|_| damage == FormatError::Unreadable) {
                slot.first_gap = Some(0);
            }
            return Ok(Found { faults: vec![fault(0, damage.to_string())], ..found });
        }
    };
    if header.carrying {
        // A crash came while it was recycled.
        let first_sequence = header.first_sequence;
        return Ok(Found { first_sequence, ..given_up(core, number, &opened)? });
    }
    let mut found = scan_segment(core, &opened, &header, checkpoint.segment(number, header.epoch))?;
    for fault in &mut found.faults {
        entry.name.clone_into(&mut fault.file);
    }
    Ok(found)
}

/// Opens a file; an error inside if it is this one that cannot be opened, and nothing is wrong with the device.
fn open_file(core: &Core, name: &str, mode: OpenMode) -> Result<Result<Opened, IoError>, LogError> {
    match core.device.open(name, mode) {
        Err(error) if error.is_out_of_files() => Err(error.into()),
        Err(_) => {
            read_sector(core, STORE_FILE)?;
            Ok(core.device.open(name, mode))
        }
        opened => Ok(opened),
    }
}

/// A segment whose extents are lost. What it says is removed stays so.
fn given_up(core: &Core, number: u64, opened: &Opened) -> Result<Found, LogError> {
    let segment = Segment::new(number, opened.file, 0);
    let slot = Slot { state: SegmentState::Damaged, ..Slot::free(segment) };
    let records = scan_tombstones(core, opened.file, number, SECTOR_BYTES..opened.bytes)?;
    Ok(Found { slot: Some(slot), records, ..Found::none(number) })
}

/// Reads the headers of a segment's records, but for those that the checkpoint knows.
///
/// # Errors
///
/// If the device fails. What is only bad, here or there, is no error.
fn scan_segment(
    core: &Core,
    opened: &Opened,
    header: &SegmentHeader,
    known: Option<&SegmentCheckpoint>,
) -> Result<Found, LogError> {
    let fault = |offset, what: String| SegmentFault { file: String::new(), offset, what };
    let mut found = Found::none(header.segment);
    let start = known.map_or(SECTOR_BYTES, |known| known.replay_from);
    let bytes = opened.bytes.min(core.options.segment_bytes);
    let is_cut = opened.bytes != core.options.segment_bytes;
    let scan = if known.is_some_and(SegmentCheckpoint::is_whole) {
        Scan { end: ScanEnd::Sealed, cursor: core.options.segment_bytes, ..Scan::default() }
    } else {
        scan_records(core, opened.file, header, start..bytes)
    };
    let Scan { mut records, damage, end, cursor, first_gap, unread_from, failure } = scan;
    if let Some(failure) = failure {
        return Err(failure);
    }
    if let Some(from) = unread_from {
        records.extend(scan_tombstones(core, opened.file, header.segment, from..bytes)?);
    }
    found.faults.extend(damage.into_iter().map(|(offset, error)| fault(offset, error.to_string())));
    if is_cut {
        found.faults.push(fault(opened.bytes, format!("the file has {} bytes", opened.bytes)));
    }
    let oldest_known = known.map_or(u64::MAX, |known| known.oldest_born);
    let mut state = match end {
        _ if is_cut => SegmentState::Damaged,
        _ if known.is_some_and(|known| known.sealed) => SegmentState::Sealed,
        ScanEnd::Sealed => SegmentState::Sealed,
        // A segment's new life begins with the tombstones of the old ones.
        ScanEnd::Open
            if oldest_known == u64::MAX && records.iter().all(RecordHeader::is_tombstone) =>
        {
            SegmentState::Free
        }
        ScanEnd::Open => SegmentState::Open,
    };
    // A process that was killed may have written the header, or extents, without making them durable. With durability
    // `batch` a put says present of them; and those that were moved or merged take the place of what they were. A void
    // may lie over one that is not whole, which nobody doubts from here on.
    let is_batch = core.options.durability == Durability::Batch;
    let is_promised = |record: &RecordHeader| match record.kind {
        RecordKind::Extent { .. } => is_batch || record.extent().is_some_and(|e| e.is_moved()),
        RecordKind::Void { .. } => true,
        RecordKind::Tombstone { .. } | RecordKind::Seal => false,
    };
    let promises = records.iter().any(is_promised);
    if (state == SegmentState::Free || promises)
        && !core.options.read_only
        && let Err(error) = core.sync_file(opened.file)
    {
        // Whatever the reason: these extents are told.
        core.poison(&error);
        found.faults.push(fault(0, error.to_string()));
        state = SegmentState::Damaged;
    }
    let segment = Segment::new(header.segment, opened.file, header.epoch);
    let newest_sequence = known.map_or(0, |known| known.newest_sequence).max(header.first_sequence);
    // What was there when the checkpoint was made may be unreadable now, and whole.
    let cursor = match state {
        SegmentState::Sealed => core.options.segment_bytes,
        _ => known.map_or(cursor, |known| known.cursor.max(cursor)),
    };
    let of_file = Slot::free(segment);
    let slot = Slot { state, cursor, oldest_known, newest_sequence, first_gap, ..of_file };
    let first_sequence = header.first_sequence;
    Ok(Found { slot: Some(slot), first_sequence, records, ..found })
}

impl Found {
    fn none(number: u64) -> Self {
        let (slot, records, faults) = (None, Vec::new(), Vec::new());
        Self { slot, first_sequence: 0, number, records, faults, is_missing: false }
    }
}

/// Reads and checks a segment's header.
pub(crate) fn read_segment_header(
    core: &Core,
    number: u64,
    file: FileId,
    file_bytes: u64,
) -> Result<SegmentHeader, FormatError> {
    if file_bytes == 0 {
        return Err(FormatError::Unfinished);
    }
    // The first record's sector comes along: a header that was wiped later has records behind it.
    let mut sectors = [0; 2 * SECTOR];
    let read =
        |bytes: &mut [u8]| core.transfer(Operation::Read, file, 0, bytes, &Call::background());
    match read(&mut sectors) {
        Ok(()) => {}
        Err(IoError::Short { .. }) if file_bytes < sectors.len() as u64 => {
            return Err(FormatError::Truncated);
        }
        Err(_) => {
            // It may be the record's sector that is bad, which is no reason to give the segment up.
            read(&mut sectors[..SECTOR]).map_err(|_| FormatError::Unreadable)?;
            sectors[SECTOR..].fill(0xff);
        }
    }
    // Where the device tears sectors, the checksum at its end may be all that came of a file's first header.
    if all_zero(&sectors[..SECTOR_CRC_AT]) && all_zero(&sectors[SECTOR..]) {
        return Err(FormatError::Unfinished);
    }
    let sector = &sectors[..SECTOR];
    let header = SegmentHeader::decode(sector).map_err(|error| match error {
        // The rest says that it is ours, so only the magic number is damaged.
        FormatError::Magic if sector[16..32] == core.store.0 => FormatError::Checksum,
        other => other,
    })?;
    let differs = [
        ("store", header.store != core.store),
        ("segment", header.segment != number),
        ("segment_bytes", header.segment_bytes != core.options.segment_bytes),
    ];
    match differs.into_iter().find(|(_, differs)| *differs) {
        Some((field, _)) => Err(FormatError::Place(field)),
        None => Ok(header),
    }
}
