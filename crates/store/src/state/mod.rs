//! What an open store keeps in memory for all of its paths. Nothing here reads or writes a device.

pub(crate) mod arena;
pub(crate) mod byte_share;
pub(crate) mod dram;
pub(crate) mod failed_reads;
pub(crate) mod held_block;
pub(crate) mod hidden_blocks;
pub(crate) mod recent_removals;
pub(crate) mod removal_feed;
pub(crate) mod speeds;
mod tier_blocks;
