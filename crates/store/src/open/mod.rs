//! Opening a store: its directory, its log and index, and everything in front of them.

pub(crate) mod assemble;
pub(crate) mod directory;
pub(crate) mod far_location;
pub(crate) mod fill_index;
pub(crate) mod log_and_index;
mod meters;
pub(crate) mod open_store;
pub(crate) mod parts;
mod shared_parts;
mod workers;
