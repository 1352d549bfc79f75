//! Loading blocks: gets, loads and leases.

mod blocks;
mod delivery;
mod get;
mod get_call;
pub(crate) mod lease;
pub(crate) mod load;
pub(crate) mod loader;
pub(crate) mod outcome;
mod plan;
mod prefetched;
mod serve;
mod served_blocks;
mod settle;
mod tier_read;
