//! Which memtables and tables are in use, and in what order.

pub(crate) mod levels;
pub(crate) mod run;
pub(crate) mod run_source;
pub(crate) mod snapshot;
