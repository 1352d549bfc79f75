//! The tensor log: extents in recycled segments, with a checksum for every slice.
//!
//! The format is docs/formats/log.md. The log knows nothing of chains, hits or eviction: the store decides what to
//! write, what to keep and which segment to give up.
//!
//! 1. A record is visible to nobody before all its bytes are written; with durability `batch`, before they are synced.
//! 2. A segment is recycled only when nobody reads or writes it: every reader and writer holds a pin.
//! 3. Every byte handed out was checked against the crc in a header that names this store, segment, epoch and offset.
//! 4. After the first failed sync nothing is written any more.

#![forbid(unsafe_code)]

mod append;
mod call;
mod checkpoint;
mod compressed;
mod copy;
mod error;
pub mod format;
#[cfg(feature = "fuzzing")]
#[doc(hidden)]
pub mod fuzzing;
mod headers;
mod inspect;
mod layerwise;
mod log;
mod merge;
mod meta;
mod plan;
mod pump;
mod read;
mod read_units;
mod recover;
mod recycle;
mod renew;
mod reserve;
mod salvage;
mod scan;
mod segment;
mod segment_list;
mod stats;
mod sync;
mod tombstones;
mod unit_codec;
mod verify;
mod verify_list;
mod verify_units;
mod write;

pub use append::{Append, Appended, NewExtent};
pub use call::{Call, Cancel};
pub use checkpoint::removals_of;
pub use compressed::{CompressedExtent, CompressionBudget};
pub use error::{Cause, LogError};
pub use inspect::{Inspection, ShownField, ShownPart, ShownRecord, inspect};
pub use layerwise::LayerAppend;
pub use log::{Log, LogOptions, OtherFiles};
pub use merge::{CompressedMerge, MergeAppend};
pub use meta::{allow_compression, read_namespaces, store_header, write_namespace};
pub use read::{BlockOutcome, BlockRead, ExtentRead, Target};
pub use recover::{Recovered, Removal, SegmentFault};
pub use reserve::Reservation;
pub use segment::{Pin, SegmentState, SegmentView};
pub use stats::{CompressionStats, LogStats, LogStatsView};
pub use verify::{Finding, VerifyReport, verify};
