//! Lookups and scans over memtables and tables.

pub(crate) mod merge;
pub(crate) mod order_scan;
pub(crate) mod place_cursor;
pub(crate) mod reader;
