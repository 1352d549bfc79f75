//! The arena: where blocks lie in memory that many processes read, and how a reader finds out that its place was
//! reused.
//!
//! 1. Nothing here does I/O, reads a clock, or touches the bytes of blocks. State goes in, decisions come out.
//! 2. Every structure is bounded by the number of units of its arena.
//!
//! A *unit* is 64 KiB of an arena. A *place* is a range of units for one block.

#![forbid(unsafe_code)]

mod generations;
mod header;
mod places;

pub use generations::{Generations, Stamp, is_current};
pub use header::ArenaHeader;
pub use places::{Place, Places, UNIT_BYTES};
