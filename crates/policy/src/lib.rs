//! Pure decisions: state in, decision out.
//!
//! 1. Nothing here does I/O, reads a clock, starts a thread or draws a random number. The store, the simulator and the
//!    benches call the same code, and equal inputs give equal decisions.
//! 2. The parameters of its constructor bound every structure.

#![forbid(unsafe_code)]

mod admission;
pub mod breaker;
pub mod first_token;
pub mod fluid;
mod lists;
pub mod merging;
pub mod recency;
pub mod reclaim;
mod s3fifo;
pub mod schedule;
pub mod succession;
pub mod tuning;

pub use admission::AdmissionFilter;
pub use s3fifo::{S3Fifo, S3FifoStats};
