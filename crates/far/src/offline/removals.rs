//! What the tombstones of a location removed.
//!
//! 1. At most [`MOST_BLOCKS`] removed blocks are remembered. Further ones count as present.

use std::collections::HashMap;
use std::sync::Arc;

use dalsegno_core::{ChainHash, NamespaceId};

use crate::format::{Catalog, KnownWriter};
use crate::names::WriterId;

/// Removed blocks that are remembered, about 100 bytes each.
const MOST_BLOCKS: usize = 1 << 20;

/// The packs to which a tombstone applies.
type KnownPacks = Arc<[KnownWriter]>;

/// The tombstones of all catalogs.
#[derive(Debug, Default)]
pub(super) struct RemovedBlocks {
    blocks: HashMap<(NamespaceId, ChainHash), Vec<KnownPacks>>,
    namespaces: HashMap<NamespaceId, Vec<KnownPacks>>,
    /// The newest pack of each writer to which any of them applies.
    newest: HashMap<WriterId, u64>,
}

impl RemovedBlocks {
    pub(super) fn add(&mut self, catalog: &Catalog) {
        if catalog.known.is_empty() {
            return;
        }
        let known: KnownPacks = catalog.known.as_slice().into();
        for one in known.iter() {
            let newest = self.newest.entry(one.writer).or_default();
            *newest = one.number.max(*newest);
        }
        for tombstone in catalog.tombstones() {
            if tombstone.hashes.is_empty() {
                self.namespaces.entry(tombstone.namespace).or_default().push(Arc::clone(&known));
            }
            for hash in &tombstone.hashes {
                if self.blocks.len() < MOST_BLOCKS {
                    let key = (tombstone.namespace, *hash);
                    self.blocks.entry(key).or_default().push(Arc::clone(&known));
                }
            }
        }
    }

    /// Whether a tombstone may apply to blocks of this pack.
    pub(super) fn may_apply(&self, writer: WriterId, number: u64) -> bool {
        self.newest.get(&writer).is_some_and(|newest| number <= *newest)
    }

    /// Whether a block of this pack was removed.
    pub(super) fn contains(
        &self,
        namespace: NamespaceId,
        hash: &ChainHash,
        writer: WriterId,
        number: u64,
    ) -> bool {
        let all = self.namespaces.get(&namespace).into_iter();
        let mut known = all.chain(self.blocks.get(&(namespace, *hash))).flatten();
        known.any(|known| covers(known, writer, number))
    }
}

fn covers(known: &[KnownWriter], writer: WriterId, number: u64) -> bool {
    known.iter().any(|one| one.writer == writer && number <= one.number)
}
