//! Finding blocks and reading them.

pub(crate) mod arena;
pub(crate) mod copy;
pub(crate) mod dram;
pub(crate) mod failed_reads;
mod far_part;
pub(crate) mod gauge;
pub(crate) mod get;
pub(crate) mod get_blocks;
pub(crate) mod lease;
pub(crate) mod lease_share;
pub(crate) mod locate;
pub(crate) mod lookup;
pub(crate) mod outcome;
pub(crate) mod quarantine;
pub(crate) mod removal_feed;
mod run_parts;
pub(crate) mod speeds;
mod wanted;
pub(crate) mod whereabouts;
