//! The threads of the far tier.
//!
//! | module | what it does |
//! |---|---|
//! | `local_store` | the store as these threads use it |
//! | `lanes` | starts and ends the threads, and publishes packs |
//! | `follow` | follows other stores, and applies what they removed, each removal once |
//! | `freshness` | whether removals may have been missed |
//! | `removal_duty` | publishes removals |
//! | `collect` | removes what dead stores left |
//! | `promote` | copies blocks to the log that were hit twice |
//! | `prefetch` | reads blocks into DRAM that are likely to be requested next |

pub(crate) mod collect;
pub(crate) mod follow;
mod freshness;
pub(crate) mod lanes;
pub(crate) mod local_store;
mod poll_pace;
mod prefetch;
mod promote;
mod removal_duty;
