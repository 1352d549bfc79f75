//! Finding blocks in the index of the log and in that of the far tier.
//!
//! 1. The log comes first: a block that both have is read from the log.
//! 2. Nothing waits for the far location.
//! 3. Blocks that are being removed are not found, also if the index still has them.

use std::sync::Arc;

use dalsegno_core::{ChainHash, Deadline, NamespaceId};
use dalsegno_index::{Run, Scope};

use crate::block_key::BlockKey;
use crate::blocks::indexed_log::IndexedLog;
use crate::far::tier::{FarBlock, FarTier};
use crate::state::hidden_blocks::HiddenBlocks;

/// Finds blocks.
#[derive(Debug)]
pub(crate) struct Finder {
    pub(crate) stored: Arc<IndexedLog>,
    /// What is being removed, and that an on-disk index still has.
    pub(crate) hidden: Arc<HiddenBlocks>,
    /// Blocks beyond this host, if the store has a far tier.
    pub(crate) far: Option<Arc<FarTier>>,
}

/// Where blocks were found.
#[derive(Debug, Default)]
pub(crate) struct FoundBlocks {
    /// Those in the log, in the order of the chain.
    pub(crate) near: Vec<Run>,
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
        let near = self.stored.index.resolve(namespace, chain, scope, deadline);
        let mut found = FoundBlocks { near, far: Vec::new() };
        let Some(far) = self.responding_far() else { return found };
        match scope {
            Scope::Each => found.add_far(far, namespace, chain),
            Scope::Prefix => {
                self.extend_prefix(&mut found, far, namespace, chain, deadline);
            }
        }
        found
    }

    /// Extends the prefix in turns by what the far location has and what the log has.
    fn extend_prefix(
        &self,
        found: &mut FoundBlocks,
        far: &FarTier,
        namespace: NamespaceId,
        chain: &[ChainHash],
        deadline: Deadline,
    ) {
        let mut end = blocks_of(&found.near);
        while end < chain.len() {
            let before = end;
            while let Some(place) = chain.get(end).and_then(|hash| far.find(namespace, hash)) {
                found.far.push(FarBlock { at: end, place });
                end += 1;
            }
            if end == before || end == chain.len() {
                return;
            }
            let rest = &chain[end..];
            let more = self.stored.index.resolve(namespace, rest, Scope::Prefix, deadline);
            let start = end;
            end += blocks_of(&more);
            found.near.extend(more.into_iter().map(|run| Run { at: run.at + start, ..run }));
            if end == start {
                return;
            }
        }
    }
}

impl FoundBlocks {
    /// How many blocks were found.
    pub(crate) fn count(&self) -> usize {
        blocks_of(&self.near) + self.far.len()
    }

    /// Which of the blocks that were looked up, `count` of them, are in the log.
    pub(crate) fn are_near(&self, count: usize) -> Vec<bool> {
        are_found(count, &self.near)
    }

    /// Adds the blocks that the log does not have.
    fn add_far(&mut self, far: &FarTier, namespace: NamespaceId, chain: &[ChainHash]) {
        let is_near = self.are_near(chain.len());
        let others = chain.iter().enumerate().filter(|(at, _)| !is_near[*at]);
        self.far.extend(others.filter_map(|(at, hash)| {
            let place = far.find(namespace, hash)?;
            Some(FarBlock { at, place })
        }));
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
