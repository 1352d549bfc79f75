//! Reading blocks of extents, and verifying every slice.

mod extent_reading;
mod header_cache;
mod headers;
mod read_pump;
mod reader;
mod record_copy;
mod salvage;
mod units;

pub use extent_reading::{BlockOutcome, BlockRead, BlockTarget};
pub use header_cache::{HeaderCache, HeaderName, VerifiedHeader};
pub use headers::{HeaderRead, HeadersRead};
pub use reader::{BlocksRead, ExtentRead, PinnedRead, Reader};
pub use record_copy::RecordMemory;
