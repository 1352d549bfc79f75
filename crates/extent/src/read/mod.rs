//! Reading blocks of extents, and verifying every slice.

mod extent_reading;
mod header_cache;
mod read_pump;
mod reader;
mod record_copy;
mod salvage;
mod slice_arrival;
mod units;
mod wanted;

pub use header_cache::{HeaderCache, HeaderName, VerifiedHeader};
pub use reader::{BlocksRead, Reader, wait_for_all, wait_for_first};
pub use record_copy::RecordMemory;
pub use wanted::{
    BlockOutcome, BlockRead, BlockTarget, ExtentRead, PlacedRecord, RecordRead, TrialFiles,
    WantedRecord,
};

#[cfg(test)]
mod tests;
