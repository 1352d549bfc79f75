//! Which blocks a store has: what the paths share to find them, to keep recent ones in memory, and to drop them.
//!
//! | module | what it does |
//! |---|---|
//! | `indexed_log` | the log, with the index of what it holds |
//! | `finder` | finds blocks in the log and in the far tier |
//! | `recent` | blocks in DRAM, and what was removed lately |
//! | `dropper` | drops blocks that are damaged, evicted or removed |

pub(crate) mod dropper;
pub(crate) mod finder;
pub(crate) mod indexed_log;
pub(crate) mod recent;
