//! Reading blocks of extents, and verifying every slice.

mod extent_reading;
mod header_cache;
mod read_pump;
mod reader;
mod salvage;
mod units;

pub use extent_reading::{BlockOutcome, BlockRead, BlockTarget};
pub use header_cache::{ExtentTables, HeaderCache};
pub use reader::ExtentRead;
pub use reader::{PinnedRead, Reader};
