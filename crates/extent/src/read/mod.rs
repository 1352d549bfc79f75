//! Reading blocks of extents, and verifying every slice.

mod extent_reading;
mod header_cache;
mod read_pump;
mod reader;
mod record_copy;
mod salvage;
mod slice_arrival;
mod slice_sink;
mod units;
mod wanted;

pub use header_cache::{HeaderCache, HeaderName, VerifiedHeader};
pub use reader::{BlocksRead, Reader, wait_for_all, wait_for_first};
pub use record_copy::RecordMemory;
pub use slice_sink::SliceSink;
pub use wanted::{
    BlockOutcome, BlockRead, BlockTarget, ExtentRead, PlacedRecord, RecordRead, TrialFiles,
    WantedRecord,
};
