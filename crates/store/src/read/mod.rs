//! Loading blocks: gets and leases.

mod far_part;
pub(crate) mod get;
pub(crate) mod get_blocks;
pub(crate) mod lease;
pub(crate) mod loader;
pub(crate) mod outcome;
mod run_parts;
mod wanted;
