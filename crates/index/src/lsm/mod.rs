//! The index as a log-structured merge tree of our own: `docs/formats/index.md`, docs/decisions/0008.

mod block;
mod cache;
mod changes;
mod counts;
mod device_files;
mod file;
mod filter;
#[cfg(feature = "fuzzing")]
pub mod fuzzing;
mod health;
mod index;
mod install;
mod keys;
mod maintain;
mod manifest;
mod memtable;
mod merge;
mod notes;
mod open;
mod places;
mod scratch;
mod table;
mod table_index;
mod table_iter;
mod table_reader;
mod table_writer;
mod tree;
mod upkeep;
mod varint;
mod verify;
mod version;
mod walk;

#[cfg(test)]
mod tests;

pub use counts::LsmCounts;
pub use index::LsmIndex;
pub use notes::{NOTES_FILE, read_notes};
pub use open::{LsmOptions, index_number};
pub use table::Shortage;
pub(crate) use table::TableError;
pub use tree::Pace;
pub use upkeep::LsmStats;
pub use verify::{IndexCheck, IndexFault, verify_index};
