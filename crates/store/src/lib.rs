//! The store: composes log, index, DRAM tier and policies into the one public Rust API of Dalsegno.
//!
//! 1. A get returns exactly the bytes that were put under the same namespace and chain hash, or a miss.
//! 2. A block becomes visible only after its bytes are in the log (with durability `batch`: durable in it).
//! 3. Damage, a full disk, a slow or failing device are misses with a counted cause; only a wrong call is an error.
//! 4. Everything is bounded by [`Limits`]: disk, DRAM, files, queues, threads, waits with a
//!    timeout.

#![forbid(unsafe_code)]

mod dram;
mod failed_reads;
mod get;
mod lane;
mod layers;
mod look_up;
mod merge;
mod merge_row;
mod merge_walk;
mod offline;
mod open;
mod open_log;
mod pending;
mod put;
mod rebuild;
mod reclaim;
mod register;
mod removal;
mod removal_watch;
mod repair;
mod rewrite;
mod room;
mod scrub;
mod stats;
mod store;
mod terms;
mod transfer;
mod tuner;
mod upkeep;
mod verify;
mod watch;

pub use dalsegno_core::IndexTuning;
pub use dalsegno_core::{
    Admission, ChainHash, Compression, Config, DramAdmission, Durability, EngineChoice, Error,
    ErrorKind, IndexChoice, KvLayout, Limits, Namespace, NamespaceBuilder, NamespaceId, Result,
    StoreId, format_bytes, parse_bytes, to_hex,
};
pub use dalsegno_index::Scope;
pub use dalsegno_io::{Lender, Memory, lend};
pub use dalsegno_log::{CompressionStats, Inspection, ShownField, ShownPart, ShownRecord};
pub use dalsegno_policy::merging::MergeRules;
pub use get::{GetReport, Outcome};
pub use layers::LayerWriter;
pub use offline::{ExtentRow, IndexRow, NamespaceRow, StoreInfo, info, inspect, list};
pub use open::Parts;
pub use put::{Put, PutOutcome, PutReport};
pub use removal_watch::{MAX_WATCHED_BLOCKS, RemovalWatch, Removals};
pub use repair::{RepairReport, repair};
pub use scrub::{ScrubRules, ScrubStats};
pub use stats::{MergeStats, Stats};
pub use store::Store;
pub use terms::{Cancel, Terms};
pub use transfer::{MAX_CALLBACKS, Transfer, TransferState};
pub use tuner::{DecisionRow, IndexStats, Tuner};
pub use verify::{Finding, VerifyReport, verify};
pub use watch::DeviceStats;
