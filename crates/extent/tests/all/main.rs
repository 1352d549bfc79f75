//! Tests of reading, on a source in memory whose requests they see, hold and reorder.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod held_source;
mod records;
mod sinks;
mod waits;
