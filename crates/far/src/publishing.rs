//! How a publisher works, and what it counts.

use std::time::Duration;

use dalsegno_extent::Cause;

/// What became of publishing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct PublisherStats {
    /// Packs that were published.
    pub packs: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Their blocks.
    pub blocks: u64,
    /// Blocks of packs that could not be written.
    pub failed_blocks: u64,
    /// How often the location had no space.
    pub full: u64,
    /// Packs that were removed to stay within the bound.
    pub evicted_packs: u64,
    /// Bytes of this store's packs at the location, those that its earlier opens left included. Those of an open that
    /// ended less than ten minutes ago do not count yet.
    pub own_bytes: u64,
}

/// How a publisher works.
#[derive(Clone, Copy, Debug)]
pub struct PublisherOptions {
    /// Size of a full pack.
    pub pack_bytes: u64,
    /// Most bytes of this store's packs, those of its earlier opens included.
    pub capacity_bytes: u64,
    /// How long a pack waits to be full before it is published.
    pub flush: Duration,
}

/// Why an extent was not added to a pack.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refused {
    /// It is larger than a pack.
    TooLarge,
    /// All packs are being written, or there is no memory for another one.
    Busy,
    /// It could not be read.
    Unread(Cause),
}
