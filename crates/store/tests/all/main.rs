//! Tests of stores that need no process of their own.
//!
//! They are one program, because each program compiles helpers and generic code again.
#![expect(clippy::disallowed_methods, reason = "plays the world outside of the crate")]
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod basics;
mod compressed;
mod far;
#[path = "../support/far_host.rs"]
mod far_host;
mod far_in_flight;
mod far_reads;
mod far_removals;
mod far_restarts;
mod far_site;
mod faults;
mod hanging;
mod hanging_removals;
#[path = "../support/held_tier.rs"]
mod held_tier;
mod index_files;
mod layers;
mod loads;
mod lost_parts;
mod merging;
mod namespaces;
mod pool_only;
mod removal_watch;
mod repair;
mod scrub;
#[path = "../support/mod.rs"]
mod support;
mod suspended;
mod transfers;
mod tuning;
mod verify_index;
