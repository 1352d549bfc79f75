//! Compares the files with the segment list: finds missing segments and missing records.
//!
//! 1. Only a certain loss is a finding. A crash or a failed put may leave a gap between records, so a gap is a finding
//!    only in a segment that holds fewer records than the list counted.
//! 2. A record whose header is damaged was found. The check reports it as damaged, not as missing.

use std::collections::BTreeSet;
use std::ops::Range;

use dalsegno_core::SECTOR_BYTES;
use dalsegno_extent::format::{
    FormatError, LIST_FILE, ListedSegment, SegmentHeader, SegmentList, segment_file,
};

use super::offline_store::OfflineStore;
use super::report::VerifyReport;
use crate::scan::SegmentScan;
use crate::segment::{RecordCount, read_list};

/// The list of a store, if it has a valid one.
pub(crate) fn list_of(store: &OfflineStore, report: &mut VerifyReport) -> Option<SegmentList> {
    match read_list(&store.io, store.store) {
        Ok(Some(Ok(list))) => Some(list),
        // There is none, a crash left it unfinished, or a newer Dalsegno wrote it.
        Ok(None | Some(Err(FormatError::Unfinished | FormatError::Newer(_)))) => None,
        Ok(Some(Err(damage))) => {
            let cost = "no block is lost, and the list is written again when the store is closed";
            report.note(LIST_FILE, 0, format!("{damage}: {cost}"));
            None
        }
        Err(error) => {
            report.note(LIST_FILE, 0, error);
            None
        }
    }
}

/// Notes segments on the list whose file is missing.
pub(crate) fn note_missing(list: &SegmentList, numbers: &BTreeSet<u64>, report: &mut VerifyReport) {
    for listed in list.segments.iter().filter(|listed| !numbers.contains(&listed.segment)) {
        let what = match listed.records {
            0 => "the file is missing".to_owned(),
            _ => format!("the file is missing, with {}", contents(listed.records, listed.blocks)),
        };
        report.note(&segment_file(listed.segment), 0, what);
    }
}

/// Notes records that the list counts and the segment's scan did not find.
pub(crate) fn note_lost_records(
    name: &str,
    header: &SegmentHeader,
    listed: &ListedSegment,
    scan: &SegmentScan,
    report: &mut VerifyReport,
) {
    let is_all_seen = scan.failure.is_none() && scan.unread_from.is_none();
    if listed.epoch != header.epoch || !is_all_seen {
        return;
    }
    let before = |offset: &u64| *offset < listed.end;
    let damaged = scan.damage.iter().filter(|(offset, _)| before(offset)).count() as u64;
    let RecordCount { records, blocks } = RecordCount::of(scan.records.iter(), 0..listed.end);
    let lost = listed.records.saturating_sub(records + damaged);
    if lost == 0 {
        return;
    }
    let what = if damaged == 0 {
        contents(lost, listed.blocks.saturating_sub(blocks))
    } else {
        contents(lost, 0)
    };
    let gaps = gaps(listed.end, scan);
    let place = gaps.first().map_or(SECTOR_BYTES, |gap| gap.start);
    let which = if gaps.len() > 1 {
        format!("in this gap between records or in one of {} behind it", gaps.len() - 1)
    } else {
        "in this gap between records".to_owned()
    };
    report.note(name, place, format!("{what} lost: no header is found {which}"));
}

/// The ranges before `end` that hold neither a record nor a damaged one.
fn gaps(end: u64, scan: &SegmentScan) -> Vec<Range<u64>> {
    let (mut gaps, mut at) = (Vec::new(), SECTOR_BYTES);
    for record in &scan.records {
        gaps.push(at..record.offset.min(end));
        at = record.offset + u64::from(record.header_bytes()) + record.payload_bytes();
    }
    gaps.push(at..end);
    let is_damaged = |gap: &Range<u64>| scan.damage.iter().any(|(offset, _)| gap.contains(offset));
    gaps.retain(|gap| !gap.is_empty() && !is_damaged(gap));
    gaps
}

fn contents(records: u64, blocks: u64) -> String {
    let count = |count: u64, one: &str| {
        let plural = if count == 1 { "" } else { "s" };
        format!("{count} {one}{plural}")
    };
    match blocks {
        0 => count(records, "record"),
        _ => format!("{} of {}", count(records, "record"), count(blocks, "block")),
    }
}
