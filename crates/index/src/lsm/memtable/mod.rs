//! Memtables: the newest entries, in memory.

pub(crate) mod batch;
pub(crate) mod entries;
pub(crate) mod scan;
