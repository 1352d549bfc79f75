//! The counters of the far tier.

use std::collections::BTreeMap;

use dalsegno_far::{PublisherStats, TierRequests};
use serde::Serialize;

/// What the far tier holds, and what it did since the store was opened.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct FarStats {
    /// `"working"`; `"suspended"` while the location does not respond, or `"away"` while its directory is not there or
    /// its file system is not mounted. Its blocks are misses then.
    pub reads: &'static str,
    /// How often another directory was at the path than before, and was used from then on.
    pub reopened: u64,
    /// How often reads were suspended.
    pub suspensions: u64,
    /// Reads that were refused meanwhile.
    pub refused_requests: u64,
    /// Packs of all stores that are indexed.
    pub packs: u64,
    /// Bytes of these packs.
    pub pack_bytes: u64,
    /// Blocks that are found there.
    pub blocks: u64,
    /// Blocks that another pack has, too.
    pub duplicate_blocks: u64,
    /// Blocks of packs that were forgotten to bound the memory of the index.
    pub forgotten_blocks: u64,
    /// Bytes of memory of the index, about.
    pub index_bytes: u64,
    /// Bytes of blocks that were hits.
    pub used_bytes: u64,
    /// Bytes that were fetched for them, including padding and headers.
    pub fetched_bytes: u64,
    /// Read requests sent to the location.
    pub read_requests: u64,
    /// Blocks that were found there and lost while reading, by cause.
    pub misses: BTreeMap<&'static str, u64>,
    /// Blocks copied to the log because they were hit twice.
    pub promoted_blocks: u64,
    /// Blocks that the local disk could not return, and that were read from the far tier instead.
    pub rescued_blocks: u64,
    /// Blocks that were read into DRAM before they were requested, because the beginning of their chain was read here.
    pub prefetched_blocks: u64,
    /// Prefetched blocks that a get used within ten seconds.
    pub prefetch_used_blocks: u64,
    /// Blocks that were to be prefetched and were not: DRAM had no place, the read failed, or too many chains waited.
    pub prefetch_dropped_blocks: u64,
    /// Bytes of read requests that the location has not completed.
    pub in_flight_bytes: u64,
    /// Read requests that succeeded, by the microseconds that they took: up to this bound and above the one before.
    pub requests_by_us: BTreeMap<String, u64>,
    /// Extents that wait to be written there.
    pub waiting_extents: u64,
    /// Blocks that were not written there because too many waited, or they could not be read in time.
    pub dropped_blocks: u64,
    /// Blocks that were not written there because they are there already.
    pub present_blocks: u64,
    /// Objects and folders at the location that cannot be used now: damaged, too large, of another user or of a newer
    /// Dalsegno. Each costs only itself.
    pub bad_objects: u64,
    /// Those of them that are catalogs. The blocks of each are misses.
    pub bad_catalogs: u64,
    /// The one of them that was found last, and why it cannot be used; none if there is none.
    pub newest_bad_object: Option<String>,
    /// Removals of other stores that were applied here.
    pub applied_removals: u64,
    /// Removals of this store that other hosts do not know yet, because the location has not responded.
    pub pending_removals: u64,
    /// Polls after which everything was applied here that others had removed.
    pub complete_polls: u64,
    /// Polls that failed.
    pub failed_polls: u64,
    /// Folders that this store removed, of stores that gave no sign of life for a day, and emptied ones of other opens.
    pub collected_writers: u64,
    /// Packs in such folders that this store removed.
    pub collected_packs: u64,
    /// The requests that were sent to an object store; none for a directory.
    pub requests: Option<TierRequests>,
    /// What this store published.
    pub published: PublisherStats,
}
