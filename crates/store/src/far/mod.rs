//! The far tier of a store: packs of blocks at a location that many stores share.
//!
//! | module | what it does |
//! |---|---|
//! | `tier` | what the paths of the store use: lookups and reads |
//! | `outbox` | what waits to be written, and its publisher |
//! | `removal_notes` | the removals that are applied or pending |
//! | `promotions` | blocks that were hit twice |
//! | `prefetches` | blocks that are likely to be requested next |
//! | `reoffers` | blocks that are offered again when they are put again, because publishing failed |
//! | `timed_source` | how long requests take |
//! | `stats` | the counters |

pub(crate) mod outbox;
pub(crate) mod prefetches;
pub(crate) mod promotions;
pub(crate) mod removal_notes;
mod reoffers;
pub(crate) mod stats;
pub(crate) mod tier;
mod timed_source;
