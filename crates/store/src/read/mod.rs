//! Loading blocks: gets and leases.

mod blocks;
mod get;
pub(crate) mod get_blocks;
mod get_call;
pub(crate) mod lease;
pub(crate) mod loader;
pub(crate) mod outcome;
mod plan;
mod prefetched;
mod serve;
mod settle;
mod tier_read;
