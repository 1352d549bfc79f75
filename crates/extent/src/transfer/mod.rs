//! Moves bytes between memory and files, in few large requests; knows nothing of segments.

mod device_io;
mod plan;
mod pump;
mod record_write;
mod single;
mod slices;

pub use device_io::{DeviceIo, IoBounds, PinnedFile, SourceIo, offline_io};
pub(crate) use plan::{Chunk, WantedUnit, cut, finish};
pub use plan::{Piece, PlanRules};
pub(crate) use pump::{LOOK, Pump};
pub use record_write::{RecordWrite, write_all, write_one};
pub use single::{
    check_reads, read_at, read_first_sector, start_sync, sync, write_at, write_unwatched,
};
pub(crate) use slices::take_front;
pub use slices::{into_slices, payload_pieces, pieces_of};
