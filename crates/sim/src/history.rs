//! Random histories: what callers do to a store, as a function of a seed.

use std::fmt;
use std::time::Duration;

use dalsegno_core::{ChainHash, Config, Durability, IndexChoice};
use dalsegno_store::Compression;
use dalsegno_store::testing::MergeRules;

use crate::blocks::chain_hashes;
use crate::random::Random;

/// A quarter of a segment, the largest extent.
const EXTENT_BYTES: u64 = 256 << 10;

/// Parameters of histories.
#[derive(Clone, Debug)]
pub struct Style {
    /// The store's settings.
    pub config: Config,
    /// Shapes of blocks, each in its own namespace: layers and bytes per slice.
    pub shapes: Vec<(u32, u32)>,
    /// Number of chains.
    pub chains: usize,
    /// Blocks of the longest chain.
    pub blocks: usize,
    /// Actions of a history.
    pub actions: usize,
    /// Whether the capacity is so small that blocks are dropped for space.
    pub evicts: bool,
    /// Parameters of merging.
    pub merging: MergeRules,
    /// Compression of extents. After every third open they are plain.
    pub compression: Compression,
    /// Bytes of the on-disk index's memtable, if fewer than the settings allow.
    pub memtable_bytes: Option<u64>,
}

impl Style {
    /// Settings for small stores: 1 MiB segments, no DRAM tier, little staging memory.
    #[must_use]
    pub fn config(capacity: u64, durability: Durability) -> Config {
        Config {
            capacity: Some(capacity),
            segment: Some(1 << 20),
            dram: Some(0),
            staging: Some(16 << 20),
            transfer_threads: Some(1),
            durability,
            ..Config::default()
        }
    }

    /// Few small blocks in a store that never drops one.
    #[must_use]
    pub fn roomy(durability: Durability) -> Self {
        Self {
            config: Self::config(65 << 20, durability),
            shapes: vec![(2, 6000), (1, 4096), (3, 1000)],
            chains: 8,
            blocks: 8,
            actions: 40,
            evicts: false,
            merging: MergeRules::default(),
            compression: Compression::PLAIN,
            memtable_bytes: None,
        }
    }

    /// Blocks that exceed four segments of 1 MiB several times.
    #[must_use]
    pub fn crowded(durability: Durability) -> Self {
        Self {
            config: Self::config(5 << 20, durability),
            shapes: vec![(2, 40_000), (1, 65_536), (1, 1000)],
            chains: 24,
            blocks: 5,
            actions: 60,
            evicts: true,
            merging: MergeRules::default(),
            compression: Compression::PLAIN,
            memtable_bytes: None,
        }
    }

    /// The same with an on-disk index, with so little memory that short histories flush and compact it.
    #[must_use]
    pub fn indexed_in_files(mut self) -> Self {
        self.config.index = IndexChoice::Lsm;
        self.config.index_memory = Some(1 << 20);
        // Space for the files.
        self.config.capacity = self.config.capacity.map(|bytes| bytes + (4 << 20));
        self
    }

    /// The same with an on-disk index that flushes after every few puts.
    #[must_use]
    pub fn flushing_often(self) -> Self {
        Self { memtable_bytes: Some(4 << 10), ..self.indexed_in_files() }
    }

    /// The same, with a merge after every put if possible.
    #[must_use]
    pub fn merging_at_once(mut self) -> Self {
        self.merging = MergeRules {
            most_extents: 1,
            pile_extents: 2,
            quiet: Duration::ZERO,
            spare_percent: 100,
            ..MergeRules::default()
        };
        self
    }

    /// The same with compressed and plain extents; half of the blocks are compressible.
    ///
    /// # Panics
    ///
    /// Never: elements of two bytes exist.
    #[must_use]
    pub fn compressed(mut self) -> Self {
        self.compression = Compression::zstd(2).expect("a width that exists");
        self
    }

    /// How many blocks of a namespace are put layer by layer in one call: those that fit into one extent.
    pub(crate) fn extent_blocks(&self, namespace: usize) -> usize {
        let (layers, slice_bytes) = self.shapes[namespace];
        let block_bytes = u64::from(layers) * u64::from(slice_bytes);
        usize::try_from(EXTENT_BYTES / block_bytes).expect("64-bit addresses")
    }
}

/// Consecutive blocks of a chain: those from `first` on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Part {
    /// Number of the namespace.
    pub namespace: usize,
    /// The hashes of the chain up to the last block.
    pub chain: Vec<ChainHash>,
    /// Position of the first block.
    pub first: usize,
}

impl Part {
    /// The hashes of the blocks.
    #[must_use]
    pub fn hashes(&self) -> &[ChainHash] {
        &self.chain[self.first..]
    }
}

/// One action of a caller.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// Puts blocks. With a timeout, their bytes are staged.
    Put(Part, Timed),
    /// Puts blocks layer by layer, and commits if true.
    PutLayers(Part, bool),
    /// Gets blocks, each independently.
    Get(Part, Timed),
    /// Loads blocks by layer, up to the first miss; into pages, or into memory.
    Load(Part, bool),
    /// Probes how much of a chain is present.
    Probe(Part),
    /// Removes blocks.
    Remove(Part),
    /// Removes a namespace's blocks.
    RemoveAll(usize),
    /// Closes the store and opens it again.
    Reopen,
}

/// Whether a call has a timeout.
pub type Timed = bool;

impl fmt::Display for Part {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} blocks of namespace {}:", self.hashes().len(), self.namespace)?;
        self.hashes().iter().try_for_each(|hash| write!(f, " {:.8}", hash.to_string()))
    }
}

impl fmt::Display for Action {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Put(part, _) => write!(f, "put {part}"),
            Self::PutLayers(part, true) => write!(f, "put layer by layer {part}"),
            Self::PutLayers(part, false) => write!(f, "put layer by layer, and give up, {part}"),
            Self::Get(part, _) => write!(f, "get {part}"),
            Self::Load(part, true) => write!(f, "load into pages {part}"),
            Self::Load(part, false) => write!(f, "load by layer {part}"),
            Self::Probe(part) => write!(f, "probe {part}"),
            Self::Remove(part) => write!(f, "remove {part}"),
            Self::RemoveAll(namespace) => write!(f, "remove namespace {namespace}"),
            Self::Reopen => write!(f, "close and open"),
        }
    }
}

/// A history.
#[must_use]
pub fn history(seed: u64, style: &Style) -> Vec<Action> {
    let mut random = Random::new(seed);
    (0..style.actions).map(|_| action(&mut random, style)).collect()
}

fn action(random: &mut Random, style: &Style) -> Action {
    let timed = random.percent(30);
    let part = part(random, style);
    match random.below(100) {
        0..45 => Action::Put(part, timed),
        45..55 => Action::PutLayers(part, random.percent(75)),
        55..70 => Action::Get(part, timed),
        70..75 => {
            let into_pages = random.below(2) == 0;
            Action::Load(part, into_pages)
        }
        75..80 => Action::Probe(part),
        80..92 => Action::Remove(part),
        92..94 => Action::RemoveAll(part.namespace),
        _ => Action::Reopen,
    }
}

fn part(random: &mut Random, style: &Style) -> Part {
    let namespace = random.below(style.shapes.len());
    let name = random.below(style.chains) as u64;
    let blocks = 1 + random.below(style.blocks);
    let first = if random.percent(60) { 0 } else { random.below(blocks) };
    Part { namespace, chain: chain_hashes(name, blocks), first }
}
