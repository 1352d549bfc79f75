//! Finding blocks in the index of the log, among the pool-only blocks of DRAM, and in the index of the far tier.
//!
//! 1. The log comes first, then the pool, then the far location: a block that several have is found in the first one.
//! 2. DRAM is asked only about blocks that the index lacks, and only if it has pool-only blocks.
//! 3. Nothing waits for the far location.
//! 4. Blocks that are being removed are not found, also if the index still has them.

use std::sync::Arc;

use dalsegno_core::{ChainHash, Deadline, NamespaceId};
use dalsegno_index::{Run, Scope};

use crate::block_key::BlockKey;
use crate::blocks::indexed_log::IndexedLog;
use crate::far::tier::{FarBlock, FarTier};
use crate::state::arena::PlacedBlock;
use crate::state::dram::Dram;
use crate::state::hidden_blocks::HiddenBlocks;

/// Finds blocks.
#[derive(Debug)]
pub(crate) struct Finder {
    pub(crate) stored: Arc<IndexedLog>,
    /// What is being removed, and that an on-disk index still has.
    pub(crate) hidden: Arc<HiddenBlocks>,
    /// Has the pool-only blocks.
    pub(crate) dram: Arc<Dram>,
    /// Blocks beyond this host, if the store has a far tier.
    pub(crate) far: Option<Arc<FarTier>>,
}

/// A pool-only block that was found. Its place stays until this is dropped.
#[derive(Debug)]
pub(crate) struct PooledBlock {
    /// The position in the hashes that were looked up.
    pub(crate) at: usize,
    pub(crate) block: Arc<PlacedBlock>,
}

/// Where blocks were found.
#[derive(Debug, Default)]
pub(crate) struct FoundBlocks {
    /// Those in the log, in the order of the chain.
    pub(crate) near: Vec<Run>,
    /// Pool-only blocks, in the order of the chain.
    pub(crate) pooled: Vec<PooledBlock>,
    /// The others that are at the far location, in the order of the chain.
    pub(crate) far: Vec<FarBlock>,
}

impl Finder {
    /// Finds blocks: with [`Scope::Prefix`] up to the first one that is nowhere.
    pub(crate) fn find(
        &self,
        namespace: NamespaceId,
        chain: &[ChainHash],
        scope: Scope,
        deadline: Deadline,
    ) -> FoundBlocks {
        let mut all = FoundBlocks::default();
        for part in self.hidden.shown(namespace, chain) {
            if scope == Scope::Prefix && part.start > 0 {
                break;
            }
            let start = part.start;
            let found = self.find_shown(namespace, &chain[part], scope, deadline);
            all.near.extend(found.near.into_iter().map(|run| Run { at: run.at + start, ..run }));
            let pooled = found.pooled.into_iter();
            all.pooled.extend(pooled.map(|one| PooledBlock { at: one.at + start, ..one }));
            let far = found.far.into_iter();
            all.far.extend(far.map(|block| FarBlock { at: block.at + start, ..block }));
        }
        all
    }

    /// Finds blocks, and notes that those of the log were used.
    pub(crate) fn find_used(
        &self,
        namespace: NamespaceId,
        chain: &[ChainHash],
        scope: Scope,
        deadline: Deadline,
    ) -> FoundBlocks {
        let found = self.find(namespace, chain, scope, deadline);
        self.stored.note_use(&found.near, deadline);
        found
    }

    /// Whether the log or the far location has a block.
    pub(crate) fn knows(&self, (namespace, hash): BlockKey, deadline: Deadline) -> bool {
        self.stored.index.probe(namespace, &[hash], deadline) == 1
            || self.far.as_ref().is_some_and(|far| far.find(namespace, &hash).is_some())
    }

    /// The far tier, if the location responds.
    pub(crate) fn responding_far(&self) -> Option<&FarTier> {
        self.far.as_deref().filter(|far| !far.is_suspended())
    }

    fn find_shown(
        &self,
        namespace: NamespaceId,
        chain: &[ChainHash],
        scope: Scope,
        deadline: Deadline,
    ) -> FoundBlocks {
        if let Some(far) = &self.far {
            far.note_use();
        }
        let near = self.stored.index.resolve(namespace, chain, scope, deadline);
        let mut found = FoundBlocks { near, ..FoundBlocks::default() };
        let far = self.responding_far();
        if far.is_none() && !self.dram.has_pool_only() {
            return found;
        }
        match scope {
            Scope::Each => self.add_others(&mut found, far, namespace, chain),
            Scope::Prefix => self.extend_prefix(&mut found, far, namespace, chain, deadline),
        }
        found
    }

    /// Adds the blocks that the log does not have.
    fn add_others(
        &self,
        found: &mut FoundBlocks,
        far: Option<&FarTier>,
        namespace: NamespaceId,
        chain: &[ChainHash],
    ) {
        let mut is_found = found.are_near(chain.len());
        for (at, block) in self.dram.pool_only(namespace, chain, Scope::Each) {
            if !std::mem::replace(&mut is_found[at], true) {
                found.pooled.push(PooledBlock { at, block });
            }
        }
        let Some(far) = far else { return };
        let others = chain.iter().enumerate().filter(|(at, _)| !is_found[*at]);
        found.far.extend(others.filter_map(|(at, hash)| {
            let place = far.find(namespace, hash)?;
            Some(FarBlock { at, place })
        }));
    }

    /// Extends the prefix in turns by what the pool, the far location and the log have.
    fn extend_prefix(
        &self,
        found: &mut FoundBlocks,
        far: Option<&FarTier>,
        namespace: NamespaceId,
        chain: &[ChainHash],
        deadline: Deadline,
    ) {
        let mut end = blocks_of(&found.near);
        while end < chain.len() {
            let before = end;
            for (at, block) in self.dram.pool_only(namespace, &chain[before..], Scope::Prefix) {
                found.pooled.push(PooledBlock { at: before + at, block });
                end += 1;
            }
            let place_of = |hash| far?.find(namespace, hash);
            while let Some(place) = chain.get(end).and_then(place_of) {
                found.far.push(FarBlock { at: end, place });
                end += 1;
            }
            if end == before || end == chain.len() {
                return;
            }
            let start = end;
            let more =
                self.stored.index.resolve(namespace, &chain[start..], Scope::Prefix, deadline);
            end += blocks_of(&more);
            found.near.extend(more.into_iter().map(|run| Run { at: run.at + start, ..run }));
        }
    }
}

impl FoundBlocks {
    /// How many blocks were found.
    pub(crate) fn count(&self) -> usize {
        blocks_of(&self.near) + self.pooled.len() + self.far.len()
    }

    /// Which of the blocks that were looked up, `count` of them, are in the log.
    pub(crate) fn are_near(&self, count: usize) -> Vec<bool> {
        are_found(count, &self.near)
    }

    /// Which of them are pool-only.
    pub(crate) fn are_pooled(&self, count: usize) -> Vec<bool> {
        let mut pooled = vec![false; count];
        self.pooled.iter().for_each(|block| pooled[block.at] = true);
        pooled
    }
}

/// Which of `count` blocks the index found.
pub(crate) fn are_found(count: usize, runs: &[Run]) -> Vec<bool> {
    let mut found = vec![false; count];
    for run in runs {
        found[run.at..run.at + run.count as usize].fill(true);
    }
    found
}

fn blocks_of(runs: &[Run]) -> usize {
    runs.iter().map(|run| run.count as usize).sum()
}
