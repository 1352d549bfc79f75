//! The on-disk index, a log-structured merge tree made for this store: `docs/formats/index.md`, `docs/decisions/0008`.
//!
//! Folders, from the bottom: `format` (bytes), `files` (the device), `table` (sorted files), `memtable`, `version`
//! (which tables are in use), `read` (lookups and scans), `maintenance` (flush, compaction, manifests), `index`
//! (extents and blocks).

mod files;
mod format;
pub mod fuzzing;
mod health;
mod index;
mod maintenance;
mod memtable;
mod read;
mod table;
mod verify;
mod version;
mod writer;

#[cfg(test)]
mod tests;

pub use crate::error::Shortage;
pub use files::notes::{NOTES_FILE, read_notes};
pub use index::on_disk::LsmIndex;
pub use index::open::LsmOptions;
pub use index::stats::LsmStats;
pub use maintenance::manifests::index_number;
pub use maintenance::pace::Pace;
pub use table::read_counts::LsmCounts;
pub use verify::{IndexCheck, IndexFault, verify_index};
