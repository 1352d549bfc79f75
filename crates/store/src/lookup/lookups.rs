//! Finding blocks in the index.
//!
//! 1. A lookup touches no payload. It waits at most [`LOOKUP_TIMEOUT`] for an on-disk index, and never for the far
//!    location.
//! 2. While reads of the device are suspended, only blocks in DRAM and at the far location are present: a load could
//!    not deliver the others. Pool-only blocks are always present.
//! 3. A lookup names the blocks of a chain that only the far tier has, because gets of its parts follow.
//! 4. A lookup counts as a use, since a load follows if it finds the blocks. [`Lookups::peek`] and [`Lookups::locate`]
//!    are no use.
//! 5. [`Lookups::locate`] and [`Lookups::touch`] read memory only: they wait for no disk and no far location. A block
//!    whose index entry is not in memory ends the answer.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use dalsegno_core::{BlockTier, ChainHash, Clock, Deadline, NamespaceId, Result};
use dalsegno_index::Scope;

use crate::block_key::BlockKey;
use crate::blocks::finder::{Finder, FoundBlocks, are_found};
use crate::blocks::recent::RecentBlocks;
use crate::counters::{Counters, add};
use crate::device::Watched;
use crate::lookup::locate::{Located, located};
use crate::namespaces::table::NamespaceTable;
use crate::state::speeds::TierSpeeds;

/// How long a lookup may wait for files of the index. A working disk responds within some milliseconds. Blocks that are
/// not found in time count as absent.
pub(crate) const LOOKUP_TIMEOUT: Duration = Duration::from_millis(100);

/// How long the index may wait for a caller that gave no timeout.
pub(crate) fn lookup_limit(clock: &dyn Clock) -> Deadline {
    Deadline::At(clock.now().after(LOOKUP_TIMEOUT))
}

/// Looks blocks up for callers.
#[derive(Debug)]
pub(crate) struct Lookups {
    pub(crate) finder: Arc<Finder>,
    pub(crate) recent: Arc<RecentBlocks>,
    pub(crate) device: Arc<Watched>,
    pub(crate) namespaces: Arc<NamespaceTable>,
    pub(crate) speeds: Arc<TierSpeeds>,
    pub(crate) counters: Arc<Counters>,
    pub(crate) clock: Arc<dyn Clock>,
}

impl Lookups {
    /// See [`Store::probe`](crate::Store::probe).
    pub(crate) fn probe(&self, namespace: NamespaceId, chain: &[ChainHash]) -> usize {
        let found = self.finder.find_used(namespace, chain, Scope::Prefix, self.limit());
        let mut count = found.count();
        self.name_far(namespace, chain, &found);
        if self.device.is_suspended() {
            let present = self.present(namespace, &chain[..count], &found);
            count = present.into_iter().take_while(|present| *present).count();
        }
        add(&self.counters.probe_calls, 1);
        add(&self.counters.probe_asked_blocks, chain.len() as u64);
        add(&self.counters.probe_present_blocks, count as u64);
        count
    }

    /// See [`Store::contains`](crate::Store::contains).
    pub(crate) fn contains(&self, namespace: NamespaceId, hashes: &[ChainHash]) -> Vec<bool> {
        let found = self.finder.find_used(namespace, hashes, Scope::Each, self.limit());
        self.name_far(namespace, hashes, &found);
        self.present(namespace, hashes, &found)
    }

    /// See [`Store::peek`](crate::Store::peek).
    pub(crate) fn peek(&self, namespace: NamespaceId, hashes: &[ChainHash]) -> Vec<bool> {
        let found = self.finder.find(namespace, hashes, Scope::Each, self.limit());
        self.present(namespace, hashes, &found)
    }

    /// See [`Store::touch`](crate::Store::touch).
    pub(crate) fn touch(&self, namespace: NamespaceId, chain: &[ChainHash]) -> usize {
        let now = Deadline::At(self.clock.now());
        self.finder.find_used(namespace, chain, Scope::Prefix, now).count()
    }

    /// See [`Store::locate`](crate::Store::locate).
    pub(crate) fn locate(
        &self,
        namespace: NamespaceId,
        chain: &[ChainHash],
    ) -> Result<Vec<Located>> {
        let block_bytes = self.namespaces.get(namespace)?.layout().block_bytes();
        let now = Deadline::At(self.clock.now());
        let found = self.finder.find(namespace, chain, Scope::Prefix, now);
        let far = self.finder.responding_far();
        let is_suspended = self.device.is_suspended();
        let chain = &chain[..found.count()];
        let in_dram = self.recent.dram.holds_each(namespace, chain);
        let in_dram = found.are_pooled(chain.len()).into_iter().zip(in_dram).map(|(a, b)| a || b);
        let blocks = chain.iter().zip(found.are_near(chain.len())).zip(in_dram);
        let tiers = blocks.map_while(|((hash, is_near), is_in_dram)| {
            if is_in_dram {
                Some(BlockTier::Dram)
            } else if is_near && !is_suspended {
                Some(BlockTier::Log)
            } else if !is_near || far.is_some_and(|far| far.find(namespace, hash).is_some()) {
                Some(BlockTier::Far)
            } else {
                None
            }
        });
        Ok(located(tiers, block_bytes, &self.speeds))
    }

    /// How much the index has lost so far, without saying which blocks.
    pub(crate) fn losses(&self) -> u64 {
        self.finder.stored.index.losses()
    }

    /// Those of some blocks that neither the log nor the pool has, each once; `None` if that cannot be found out in
    /// time.
    pub(crate) fn absent(&self, keys: &[BlockKey]) -> Option<Vec<BlockKey>> {
        let (index, began) = (&self.finder.stored.index, self.clock.now());
        let limit = Deadline::At(began.after(LOOKUP_TIMEOUT));
        let mut seen = HashSet::with_capacity(keys.len());
        let mut gone = Vec::with_capacity(keys.len());
        // Blocks of an extent leave together, so neighbours mostly share a namespace.
        for group in keys.chunk_by(|a, b| a.0 == b.0) {
            let namespace = group[0].0;
            let hashes: Vec<ChainHash> = group.iter().map(|key| key.1).collect();
            // The pool comes first: a block that is stored meanwhile is in the index before it stops being pool-only.
            let pooled = self.recent.dram.pool_only(namespace, &hashes, Scope::Each);
            let runs = index.resolve(namespace, &hashes, Scope::Each, limit);
            let mut found = are_found(hashes.len(), &runs);
            for (at, _) in &pooled {
                found[*at] = true;
            }
            let left = group.iter().zip(found).filter(|(_, is_found)| !is_found);
            gone.extend(left.map(|(key, _)| *key).filter(|key| seen.insert(*key)));
        }
        // Blocks that were not found in time may be present.
        (self.clock.now() < began.after(LOOKUP_TIMEOUT)).then_some(gone)
    }

    fn limit(&self) -> Deadline {
        lookup_limit(self.clock.as_ref())
    }

    /// Names the blocks that only the far tier has: those that a get does not read itself are prefetched when it reads
    /// the first ones.
    fn name_far(&self, namespace: NamespaceId, hashes: &[ChainHash], found: &FoundBlocks) {
        if let Some(far) = self.finder.far.as_ref().filter(|_| !found.far.is_empty()) {
            far.name_chain(namespace, found.far.iter().map(|block| hashes[block.at]));
        }
    }

    /// Which of these blocks can be loaded, of those that were found.
    fn present(
        &self,
        namespace: NamespaceId,
        hashes: &[ChainHash],
        found: &FoundBlocks,
    ) -> Vec<bool> {
        let mut present = found.are_near(hashes.len());
        if self.device.is_suspended() {
            let far = self.finder.responding_far();
            let in_dram = self.recent.dram.holds_each(namespace, hashes);
            for ((hash, present), is_in_dram) in hashes.iter().zip(&mut present).zip(in_dram) {
                *present &=
                    is_in_dram || far.is_some_and(|far| far.find(namespace, hash).is_some());
            }
        }
        let others = found.far.iter().map(|block| block.at);
        for at in others.chain(found.pooled.iter().map(|block| block.at)) {
            present[at] = true;
        }
        present
    }
}
