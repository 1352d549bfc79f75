//! What callers hold: the store, its transfers and writers.

pub(crate) mod door;
pub(crate) mod gathered;
pub(crate) mod layer_writer;
pub(crate) mod load;
pub(crate) mod pool;
pub(crate) mod removal_watch;
pub(crate) mod store;
pub(crate) mod test_access;
