//! Settings that choose one of a few alternatives.

use serde::{Deserialize, Serialize};

/// Whether a put waits until its bytes are durable.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Durability {
    /// A put returns when its bytes are written. A crash of the machine may lose the newest puts, but a get never
    /// returns wrong bytes.
    #[default]
    None,
    /// A put returns after `fdatasync`. Concurrent puts share one.
    Batch,
}

/// Which I/O engine reads and writes the files.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum EngineChoice {
    /// `io_uring` if the kernel allows it, otherwise `psync`.
    #[default]
    Auto,
    /// Linux `io_uring`. Opening fails if it is missing or forbidden.
    Uring,
    /// A pool of threads that call `preadv` and `pwritev`.
    Psync,
}

/// Which blocks a put writes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Admission {
    /// All blocks.
    #[default]
    All,
    /// Blocks that are put for the second time while the filter remembers the first. Reduces flash wear.
    SecondPut,
}

/// When a block enters the DRAM tier.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum DramAdmission {
    /// When it is read from the log.
    #[default]
    Get,
    /// When it is put.
    Put,
}

/// Where the index is stored.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum IndexChoice {
    /// In memory: about 150 bytes per block, rebuilt from the log's headers at every open.
    #[default]
    Memory,
    /// In files next to the log: bounded memory and a fast open, for any number of blocks.
    Lsm,
}

/// When a block is written to the far tier. Writing never delays a put.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum FarWrite {
    /// In the background, after it was put.
    #[default]
    Put,
    /// In the background, when it is put again.
    SecondPut,
    /// When it is evicted from the log.
    Evict,
}
