//! The store: composes log, index, DRAM tier and policies into the one public Rust API of Dalsegno.
//!
//! 1. A get returns exactly the bytes that were put under the same namespace and chain hash, or a miss.
//! 2. A block becomes visible only after its bytes are in the log (with durability `batch`: durable in it).
//! 3. Damage, a full disk, a slow or failing device are misses with a counted cause. Only a wrong call is an error.
//! 4. Everything is bounded by [`Limits`]: disk, DRAM, files, queues, threads, waits with a
//!    timeout.

#![forbid(unsafe_code)]

mod api;
mod block_key;
mod blocks;

mod counters;
mod device;
mod error;
mod far;
mod far_work;
mod jobs;
mod keep;
mod load;
mod lookup;
mod namespaces;
mod offline;
mod open;
mod put;
mod read;
mod remove;
mod rewrite;
mod sizes;
mod state;
mod stats;
mod terms;
mod tuning;
mod upkeep;

pub use api::layer_writer::{
    GatheredBlocks, GatheredLayer, GatheredPut, LayerHost, LayerSlices, LayerSpan, LayerWork,
    LayerWriter,
};
pub use api::load::{Load, LoadLayers, LoadTarget};
pub use api::pool::{Arrival, Pool, PoolBlock, PoolPut, PoolUse};
pub use api::removal_watch::{MAX_WATCHED_BLOCKS, RemovalWatch, Removals};
pub use api::store::Store;
pub use counters::{MergeStats, ScrubStats};
pub use dalsegno_core::IndexTuning;
pub use dalsegno_core::{
    Admission, BlockTier, ChainHash, Compression, Config, DramAdmission, Durability, EngineChoice,
    Error, ErrorKind, FarOptions, FarWrite, IndexChoice, KvLayout, Limits, Namespace,
    NamespaceBuilder, NamespaceId, Result, StoreId, format_bytes, parse_bytes, to_hex,
};
/// Mooncake's client, which a program gives to the stores of its process.
pub mod mooncake {
    pub use dalsegno_far_mooncake::{
        Client, ClientError, Connect, MooncakeLocation, set_connector,
    };
}

pub use dalsegno_extent::offline::{Inspection, ShownField, ShownPart, ShownRecord};
pub use dalsegno_extent::{Cause, CompressionStats};
pub use dalsegno_index::Scope;
pub use dalsegno_io::{
    Backing, CopyMark, Lender, LineQueue, Memory, PagePart, PageShape, PagedBlocks, PagedMemory,
    Region, StopSignal, StreamPoint, flush_lines, lend, spawn,
};
pub use dalsegno_policy::schedule::{EngineId, Phase};
pub use device::{ClassStats, DeviceStats, ScheduleStats};
pub use error::{absolute, forked, no_thread};
pub use far::stats::FarStats;
pub use jobs::transfers::{Direction, MAX_CALLBACKS, Transfer, TransferLanes, TransferState};
pub use keep::Keep;
pub use load::place_copies::{PlaceCopies, PlacedSource};
pub use load::progress::{LayerOrder, LayerOutcome, LoadEnd, LoadProgress};
pub use load::target::PageTarget;
pub use lookup::locate::Located;
pub use namespaces::registrar::RegisterOptions;
pub use offline::far::{
    FarPlace, far_doctor, far_inspect, far_prune, far_survey, far_verify, is_far_location,
    is_far_url,
};
pub use offline::info::{ExtentRow, IndexRow, NamespaceRow, StoreInfo, info, inspect, list};
pub use offline::repair::{RepairReport, repair};
pub use offline::verify::{Finding, VerifyReport, verify};
pub use put::report::{PutOutcome, PutReport};
pub use put::writer::Put;
pub use read::lease::{Acquired, Lease, LeasedBlock};
pub use read::outcome::{GetReport, Outcome};
pub use sizes::{check_blocks, check_get, check_pages};
pub use state::arena::ArenaBacking;
pub use stats::Stats;
pub use terms::{Cancel, LayerTimes, LoadTiming, Terms};
pub use tuning::tuner::{DecisionRow, IndexStats};

/// What tests and simulations use in addition: a store of their own parts, and the rules of its background work.
pub mod testing {
    pub use dalsegno_io::Executor;
    pub use dalsegno_policy::merging::MergeRules;

    pub use crate::api::test_access::{HeldSpace, applied, hold_space, step_far};
    pub use crate::far_work::lanes::FarStep;
    pub use crate::open::parts::{Parts, Tiers};
    pub use crate::tuning::tuner::Tuner;
    pub use crate::upkeep::scrubber::ScrubRules;
}
