//! Reads on a source in memory, whose requests the tests see, hold and reorder.

mod held_source;
mod records;
mod waits;
