//! The bytes of extents: their format, and how they move between memory and files of a device.
//!
//! An extent is a record of consecutive blocks: a header with a checksum for every slice, and a payload, plain or
//! compressed. The crate knows no segments, no index and no store. A caller says in which file an extent lies, and
//! keeps the file and the extent's place while it is read or written ([`PinnedFile`]).
//!
//! 1. Every returned byte was verified with a checksum from a header that names this store, segment, epoch and offset.
//! 2. A header is written after all of its payload.
//! 3. Every call has a deadline, a way to cancel it, and a bound on its requests in flight.

#![forbid(unsafe_code)]

mod compress;
mod error;
pub mod format;
pub mod offline;
mod read;
mod stats;
mod transfer;

pub use compress::{
    CodecPool, CompressedExtent, CompressionBudget, Compressor, UnitCodec, read_stored,
};
pub use error::Cause;
pub use format::NewExtent;
pub use read::{
    BlockOutcome, BlockRead, BlockTarget, BlocksRead, ExtentRead, HeaderCache, HeaderName,
    PlacedRecord, Reader, RecordMemory, RecordRead, SliceSink, TrialFiles, VerifiedHeader,
    WantedRecord, wait_for_all, wait_for_first,
};
pub use stats::{CompressionStats, TransferStats, TransferStatsView};
pub use transfer::{
    DeviceIo, IoBounds, Piece, PinnedFile, PlanRules, RecordWrite, SourceIo, check_reads,
    into_slices, offline_io, payload_pieces, pieces_of, read_at, read_first_sector, start_sync,
    sync, write_all, write_at, write_one, write_unwatched,
};
