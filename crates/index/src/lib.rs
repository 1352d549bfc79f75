//! The index: from chain hashes to extents.
//!
//! [`Index`] is what the store needs of any index. [`LsmIndex`] is on disk and keeps little in memory. [`MemoryIndex`]
//! is rebuilt from the log's headers at every open, and is the model that the on-disk index is tested against.

#![forbid(unsafe_code)]

mod ancestry;
mod answers;
mod error;
mod index;
mod lsm;
mod memory;
mod usage;

pub use ancestry::{lift_ancestors, note_use, raise_parent};
pub use answers::{Placement, Removed, Run, Scope, Unread};
pub use index::{Index, ScanPlace};
#[doc(hidden)]
pub use lsm::fuzzing;
pub use lsm::{
    IndexCheck, IndexFault, LsmCounts, LsmIndex, LsmOptions, LsmStats, NOTES_FILE, Pace, Shortage,
    index_number, read_notes, verify_index,
};
pub use memory::MemoryIndex;
