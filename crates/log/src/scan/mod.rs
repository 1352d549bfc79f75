//! Walks the record headers of a segment's file; knows nothing of the log's segments.

mod records;
mod window;

pub(crate) use records::{ScanEnd, SegmentScan, scan_records, scan_tombstones};
