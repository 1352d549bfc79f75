//! What every store of a world is opened with.

use std::sync::Arc;

use dalsegno_core::{
    ChainHash, KvLayout, ManualClock, Namespace, NamespaceId, SpaceFacts, StoreId,
};
use dalsegno_io::BufferPool;
use dalsegno_store::testing::{Executor, Parts, ScrubRules};
use dalsegno_store::{Compression, Error, RegisterOptions, Store};

use crate::blocks::Blocks;
use crate::device::SimDevice;
use crate::history::Style;

/// Settings, namespaces and memory; the same before and after an outage.
#[derive(Debug)]
pub(crate) struct Setup {
    pub(crate) style: Style,
    pub(crate) clock: Arc<ManualClock>,
    pub(crate) pool: BufferPool,
    pub(crate) namespaces: Vec<Namespace>,
    blocks: Blocks,
}

impl Setup {
    /// One namespace for each shape of the style.
    pub(crate) fn new(style: &Style, blocks: &Blocks, pool: &BufferPool) -> Self {
        let namespaces = (0_u64..).zip(&style.shapes).map(|(salt, (layers, slice_bytes))| {
            let layout = KvLayout::new(*layers, *slice_bytes).expect("a style's shapes are valid");
            Namespace::builder(layout).field("salt", salt.to_string()).build().expect("one field")
        });
        Self {
            style: style.clone(),
            clock: Arc::new(ManualClock::default()),
            pool: pool.clone(),
            namespaces: namespaces.collect(),
            blocks: blocks.clone(),
        }
    }

    /// Opens a store with the settings of `style`, which may differ from those of the world.
    pub(crate) fn open_store(&self, device: Arc<SimDevice>, style: &Style) -> Result<Store, Error> {
        let space =
            SpaceFacts { free_bytes: 1 << 40, own_bytes: 0, existing_segment_bytes: Some(1 << 20) };
        let mut limits = style.config.validate(space)?;
        if let Some(bytes) = style.memtable_bytes {
            limits.index_memory_bytes = 8 * bytes;
        }
        Store::open_parts(Parts {
            device,
            clock: Arc::<ManualClock>::clone(&self.clock),
            pool: self.pool.clone(),
            limits,
            lock: None,
            new_store: StoreId([7; 16]),
            tiers: dalsegno_store::testing::Tiers::default(),
            executor: Executor::Inline,
            merging: style.merging,
            scrubbing: ScrubRules::default(),
        })
    }

    /// Registers all namespaces, with plain extents or the compression of the style.
    pub(crate) fn register(&self, store: &Store, is_plain: bool) -> Result<(), Error> {
        let compression = if is_plain { Compression::PLAIN } else { self.style.compression };
        for namespace in &self.namespaces {
            store.register(namespace, RegisterOptions { compression: Some(compression) })?;
        }
        Ok(())
    }

    pub(crate) fn id(&self, namespace: usize) -> NamespaceId {
        self.namespaces[namespace].id()
    }

    pub(crate) fn layout(&self, namespace: usize) -> KvLayout {
        self.namespaces[namespace].layout()
    }

    /// Numbers and ids of all namespaces.
    pub(crate) fn ids(&self) -> impl Iterator<Item = (usize, NamespaceId)> {
        self.namespaces.iter().map(Namespace::id).enumerate()
    }

    /// Bytes of a block in a namespace.
    pub(crate) fn block_bytes(&self, namespace: usize) -> usize {
        usize::try_from(self.layout(namespace).block_bytes()).expect("64-bit addresses")
    }

    /// The bytes that a block of a namespace must have.
    pub(crate) fn block(&self, namespace: usize, hash: ChainHash) -> Arc<[u8]> {
        self.blocks.bytes(namespace as u64, hash, self.block_bytes(namespace))
    }
}
