//! The tensor log: extents in recycled segments, with a checksum for every slice.
//!
//! The format is docs/formats/log.md. The log does not know chains, hits or eviction: the store decides which blocks to
//! write, which to keep, and which segment to reclaim.
//!
//! 1. A record is visible only after all its bytes are written; with durability `batch`, only after they are synced.
//! 2. A segment is recycled only while no reader or writer uses it: each of them holds a pin.
//! 3. Every returned byte was verified with a checksum from a header that names this store, segment, epoch and offset.
//! 4. After the first failed sync, nothing is written any more.

#![forbid(unsafe_code)]

mod device;
mod error;
#[doc(hidden)]
pub mod fuzzing;
mod log;
mod offline;
mod recovery;
mod scan;
mod segment;
mod stats;
mod sync;
mod writer;

pub use error::LogError;
pub use log::{Log, LogOptions};
pub use offline::{Finding, VerifyReport, inspect, verify};
pub use recovery::{Recovered, Removal, SegmentFault, StoreFiles, store_header};
pub use segment::{
    OtherFiles, Recycler, Removals, Reservation, SegmentListFile, SegmentState, SegmentView,
    Segments, SpaceUse, removals_of,
};
pub use stats::{LogStats, LogStatsView};
pub use writer::{Append, Appended, Payload, Writer};
