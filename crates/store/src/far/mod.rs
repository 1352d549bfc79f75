//! The far tier of a store: packs of blocks at a location that many stores share.
//!
//! | module | what it does |
//! |---|---|
//! | `tier` | what the paths of the store use: lookups, reads, and offers of extents |
//! | `lanes` | the threads that publish and follow, and what they do |
//! | `follow` | follows other stores, and applies what they removed, each removal once |
//! | `freshness` | whether removals may have been missed |
//! | `removal_notes`, `removal_duty` | the removals that are applied or pending, and the thread that publishes them |
//! | `collect` | removes what dead stores left |
//! | `promotions`, `promote` | blocks that were hit twice, and the thread that copies them to the log |
//! | `prefetches`, `prefetch` | blocks that are likely to be requested next, and the thread that reads them into DRAM |
//! | `reoffers` | blocks that are offered again when they are put again, because publishing failed |
//! | `timed_source` | how long requests take |
//! | `stats` | the counters |

pub(crate) mod collect;
pub(crate) mod follow;
mod freshness;
pub(crate) mod lanes;
mod prefetch;
mod prefetches;
mod promote;
pub(crate) mod promotions;
mod removal_duty;
pub(crate) mod removal_notes;
mod reoffers;
pub(crate) mod stats;
pub(crate) mod tier;
mod timed_source;
