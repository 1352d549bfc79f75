//! Opens all segments of a store.
//!
//! 1. A record counts only with a valid header that names its own place and the segment's epoch.
//! 2. Damage never stops the opening. It costs the bytes that it hit, and is reported.
//! 3. Opening writes nothing but what a later append writes anyway.

use std::collections::HashSet;

use dalsegno_core::{ChainHash, Extent, NamespaceId, SECTOR_BYTES};
use dalsegno_extent::format::{LIST_FILE, RecordHeader, RecordKind, SegmentList, segment_number};
use dalsegno_io::{DirEntry, share_work};
use parking_lot::Mutex;

use super::open_segment::{OpenedSegment, SegmentContents, SegmentFault, SegmentOpener};
use crate::error::LogError;
use crate::segment::{Checkpoint, SegmentTable, Segments, Slot, Tally, Tombstone, read_list};

/// More sequence numbers than any number of records that could not be read: the numbers of these are never used again.
const UNREAD_SEQUENCES: u64 = 1 << 32;

/// A removal of blocks.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Removal {
    /// The blocks' namespace.
    pub namespace: NamespaceId,
    /// The blocks; the whole namespace if empty.
    pub hashes: Vec<ChainHash>,
    /// Only extents with a smaller `born` lose the blocks.
    pub kills_before: u64,
}

/// What the log holds when it is opened.
#[derive(Debug, Default)]
pub struct Recovered {
    /// All extents, in the order in which they were written.
    pub extents: Vec<Extent>,
    /// All removals, except those that the checkpoint knew.
    pub removals: Vec<Removal>,
    /// Removals that the checkpoint knew.
    pub checkpoint_removals: Vec<Removal>,
    /// Merged extents with a smaller sequence number are durable.
    pub merged_before: u64,
    /// The damage that was found.
    pub faults: Vec<SegmentFault>,
    /// Whether a segment is readable that the checkpoint should know but does not: it could not be read at the time.
    pub is_one_back: bool,
}

/// Opens all segments of a store into its table, with `threads` threads.
pub(crate) fn recover(
    opener: &SegmentOpener<'_>,
    segments: &Segments,
    threads: u32,
) -> Result<Recovered, LogError> {
    let files: Vec<(u64, DirEntry)> = opener
        .io
        .device
        .list()?
        .into_iter()
        .filter_map(|entry| Some((segment_number(&entry.name)?, entry)))
        .collect();
    let queue = Mutex::new(files.into_iter());
    let found = Mutex::new(Vec::new());
    share_work("dalsegno-scan", threads, || {
        loop {
            let Some((number, entry)) = queue.lock().next() else { return };
            let segment = opener.open(number, &entry);
            found.lock().push(segment);
        }
    });
    let mut found = found.into_inner().into_iter().collect::<Result<Vec<_>, _>>()?;
    found.sort_unstable_by_key(|segment| segment.number);
    let mut table = segments.table();
    table.list = match read_list(opener.io, opener.store) {
        Ok(read) => read.and_then(Result::ok),
        Err(error) => {
            tracing::warn!(file = LIST_FILE, %error, "segment list cannot be read");
            None
        }
    };
    Ok(install(&mut table, found, opener.checkpoint))
}

/// Puts the opened segments into the table.
fn install(
    table: &mut SegmentTable,
    found: Vec<OpenedSegment>,
    checkpoint: &Checkpoint,
) -> Recovered {
    let mut recovered = Recovered::default();
    table.next_sequence = checkpoint.next_sequence;
    // The checkpoint would be believed of a second segment with the same number.
    table.next_number = checkpoint.segments.last().map_or(0, |known| known.number);
    for OpenedSegment { number, contents, faults } in found {
        table.next_number = table.next_number.max(number);
        recovered.faults.extend(faults);
        match contents {
            SegmentContents::Nothing => {}
            SegmentContents::Unopened => table.unread.unopened += 1,
            SegmentContents::Records { slot, first_sequence, records } => {
                recovered.merged_before = recovered.merged_before.max(first_sequence);
                // Records with numbers before that may be lost or unread. A merge of one of them is durable, though.
                table.next_sequence = table.next_sequence.max(first_sequence.saturating_sub(1));
                recovered.is_one_back |= is_back(&slot, first_sequence, &records, checkpoint);
                let tally = tally_of(&slot, &records, checkpoint, table.list.as_ref());
                table.slots.insert(number, Slot { tally, ..slot });
                for record in records {
                    install_record(table, number, record, &mut recovered);
                }
            }
        }
    }
    table.note_missing();
    take_checkpoint_removals(&mut recovered, table, checkpoint);
    if !recovered.faults.is_empty() {
        table.unread.claim_limit = Some(recovered.merged_before);
        table.next_sequence += UNREAD_SEQUENCES;
    }
    table.finish_opening();
    recovered.extents.sort_unstable_by_key(|extent| extent.id);
    recovered.extents.dedup_by_key(|extent| extent.id);
    recovered
}

/// Whether the checkpoint should know a segment but does not, because it could not be read when the checkpoint was
/// made.
fn is_back(
    slot: &Slot,
    first_sequence: u64,
    records: &[RecordHeader],
    checkpoint: &Checkpoint,
) -> bool {
    // No checkpoint knows a damaged segment. A segment that came after the checkpoint has newer records only.
    let is_older = |record: &RecordHeader| record.sequence <= checkpoint.next_sequence;
    let has_gaps = slot.first_gap.is_some() && first_sequence <= checkpoint.next_sequence;
    let has_older = has_gaps || records.iter().any(is_older);
    slot.state.is_sound() && has_older && checkpoint.lacks(slot.segment.number)
}

fn install_record(
    table: &mut SegmentTable,
    segment: u64,
    record: RecordHeader,
    recovered: &mut Recovered,
) {
    table.next_sequence = table.next_sequence.max(record.sequence);
    match record.kind {
        RecordKind::Extent { .. } => {
            table.note_record(segment, record.sequence, record.born);
            recovered.extents.extend(record.extent());
        }
        RecordKind::Tombstone { kills_before } => {
            let RecordHeader { namespace, hashes, offset, .. } = record;
            let removal = Removal { namespace, hashes: hashes.clone(), kills_before };
            recovered.removals.push(removal);
            let tombstone = Tombstone { segment, offset, namespace, hashes, kills_before };
            table.tombstones.push(tombstone);
        }
        RecordKind::Void { .. } | RecordKind::Seal => {}
    }
}

/// What a segment holds, whose records were read from the checkpoint on.
fn tally_of(
    slot: &Slot,
    records: &[RecordHeader],
    checkpoint: &Checkpoint,
    list: Option<&SegmentList>,
) -> Option<Tally> {
    let (number, epoch) = (slot.segment.number, slot.segment.epoch());
    let from = checkpoint.segment(number, epoch).map_or(SECTOR_BYTES, |known| known.replay_from);
    let listed = list.and_then(|list| list.get(number)).filter(|listed| listed.epoch == epoch);
    // A segment with a damaged header has no epoch.
    (epoch > 0).then(|| Tally::of(records, epoch, from, listed)).flatten()
}

/// Adds the removals that the checkpoint knew.
fn take_checkpoint_removals(
    recovered: &mut Recovered,
    table: &mut SegmentTable,
    checkpoint: &Checkpoint,
) {
    if checkpoint.tombstones.is_empty() {
        return;
    }
    let read: HashSet<&Removal> = recovered.removals.iter().collect();
    // An index that is rebuilt got the removals of the old one, though their tombstones may be unreadable now.
    let is_rebuilt = checkpoint.segments.is_empty();
    // A gap may hold a copy, of the segment's next life or of another segment.
    let has_gap = table.slots.values().any(|slot| slot.first_gap.is_some());
    for tombstone in &checkpoint.tombstones {
        let slot = table.slots.get(&tombstone.segment);
        // What the checkpoint says about a segment that cannot be read still holds.
        let is_unopened = slot.is_none() && table.unread.unopened > 0;
        let is_unread = is_unopened || slot.is_some_and(|slot| slot.segment.epoch() == 0);
        let known = slot.and_then(|s| checkpoint.segment(tombstone.segment, s.segment.epoch()));
        let Tombstone { namespace, hashes, kills_before, .. } = tombstone;
        let (namespace, kills_before) = (*namespace, *kills_before);
        let removal = Removal { namespace, hashes: hashes.clone(), kills_before };
        let may_be_there = is_rebuilt || has_gap || known.is_some();
        if is_unread || (may_be_there && !read.contains(&removal)) {
            table.tombstones.push(tombstone.clone());
        }
        recovered.checkpoint_removals.push(removal);
    }
}
