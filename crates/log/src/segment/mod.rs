//! The segments of a log: their states, their space, their durability, and what outlives them.

mod carry;
mod checkpoint;
mod files;
mod list_file;
mod pin;
mod recycler;
mod removals;
mod reservation;
mod segments;
mod slot;
mod space;
mod table;
mod tally;
mod tombstones;

pub use checkpoint::removals_of;
pub(crate) use checkpoint::{Checkpoint, SegmentCheckpoint, make_checkpoint};
pub use list_file::SegmentListFile;
pub(crate) use list_file::{read_file, read_list, replace_file};
pub(crate) use pin::{Pin, Segment};
pub use recycler::Recycler;
pub use removals::Removals;
pub use reservation::{Reservation, SpaceUse};
pub use segments::Segments;
pub(crate) use slot::Slot;
pub use slot::{SegmentState, SegmentView};
pub use space::OtherFiles;
pub(crate) use table::SegmentTable;
pub(crate) use tally::{RecordCount, Tally};
pub(crate) use tombstones::Tombstone;
