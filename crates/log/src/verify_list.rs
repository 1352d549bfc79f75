//! What the segment list says that the files do not show: segments that are gone, and records that are.
//!
//! 1. Only what is certain is a finding. A gap between records may be what a crash or a failed put left. So a gap is a
//!    finding only in a segment that holds less than the list counted.
//! 2. A record whose header is damaged was found. It is reported as such, and not once more.

use std::collections::BTreeSet;
use std::ops::Range;

use dalsegno_core::SECTOR_BYTES;

use crate::format::{
    FormatError, LIST_FILE, ListedSegment, SegmentHeader, SegmentList, segment_file,
};
use crate::log::Core;
use crate::scan::Scan;
use crate::segment_list::{count_in, read_list};
use crate::verify::VerifyReport;

/// The list of a store, if it has one that says something.
pub(crate) fn list_of(core: &Core, report: &mut VerifyReport) -> Option<SegmentList> {
    match read_list(core) {
        Ok(Some(Ok(list))) => Some(list),
        // None, or what a crash left, or what a newer Dalsegno knows how to read.
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

/// Segments that the list names and whose file is not there.
pub(crate) fn note_missing(list: &SegmentList, numbers: &BTreeSet<u64>, report: &mut VerifyReport) {
    for listed in list.segments.iter().filter(|listed| !numbers.contains(&listed.segment)) {
        let what = match listed.records {
            0 => "the file is missing".to_owned(),
            _ => format!("the file is missing, with {}", contents(listed.records, listed.blocks)),
        };
        report.note(&segment_file(listed.segment), 0, what);
    }
}

/// The records that a segment's scan did not find, though the list counts them.
pub(crate) fn note_lost_records(
    listed: &ListedSegment,
    (name, header): (&str, &SegmentHeader),
    scan: &Scan,
    report: &mut VerifyReport,
) {
    let is_all_seen = scan.failure.is_none() && scan.unread_from.is_none();
    if listed.epoch != header.epoch || !is_all_seen {
        return;
    }
    let before = |offset: &u64| *offset < listed.end;
    let damaged = scan.damage.iter().filter(|(offset, _)| before(offset)).count() as u64;
    let (records, blocks) = count_in(scan.records.iter(), 0..listed.end);
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

/// Where no record is found before `end`, and none that is damaged.
fn gaps(end: u64, scan: &Scan) -> Vec<Range<u64>> {
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
