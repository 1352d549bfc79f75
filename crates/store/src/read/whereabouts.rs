//! Finding blocks in the index of the log and in that of the far tier.
//!
//! 1. The log comes first: a block that both have is read from the log.
//! 2. Nothing waits for the far location.
//! 3. Blocks that are being removed are not found, also if the index still has them.

use dalsegno_core::{ChainHash, Deadline, NamespaceId};
use dalsegno_index::{Run, Scope};
use dalsegno_io::Memory;

use crate::block_key::BlockKey;
use crate::engine::Engine;
use crate::far::tier::{FarBlock, FarTier};
use crate::state::recent_removals::RemovalMark;

/// Where the wanted blocks are.
pub(crate) struct Whereabouts {
    /// Those in the log, in the order of the chain.
    pub(crate) near: Vec<Run>,
    /// The others that are at the far location, in the order of the chain.
    pub(crate) far: Vec<FarBlock>,
}

impl Whereabouts {
    /// Finds blocks: with [`Scope::Prefix`] up to the first one that is nowhere.
    pub(crate) fn find(
        engine: &Engine,
        namespace: NamespaceId,
        chain: &[ChainHash],
        scope: Scope,
        deadline: Deadline,
    ) -> Self {
        let mut all = Self { near: Vec::new(), far: Vec::new() };
        for part in engine.front.hidden.shown(namespace, chain) {
            if scope == Scope::Prefix && part.start > 0 {
                break;
            }
            let start = part.start;
            let found = Self::find_shown(engine, namespace, &chain[part], scope, deadline);
            all.near.extend(found.near.into_iter().map(|run| Run { at: run.at + start, ..run }));
            let far = found.far.into_iter();
            all.far.extend(far.map(|block| FarBlock { at: block.at + start, ..block }));
        }
        all
    }

    fn find_shown(
        engine: &Engine,
        namespace: NamespaceId,
        chain: &[ChainHash],
        scope: Scope,
        deadline: Deadline,
    ) -> Self {
        let near = engine.index.resolve(namespace, chain, scope, deadline);
        let mut found = Self { near, far: Vec::new() };
        let Some(far) = engine.far.as_ref().filter(|far| !far.is_suspended()) else { return found };
        match scope {
            Scope::Each => found.add_far(far, namespace, chain),
            Scope::Prefix => found.add_prefix(engine, far, namespace, chain, deadline),
        }
        found
    }

    /// How many blocks were found.
    pub(crate) fn count(&self) -> usize {
        blocks_of(&self.near) + self.far.len()
    }

    /// Adds the blocks that the log does not have.
    fn add_far(&mut self, far: &FarTier, namespace: NamespaceId, chain: &[ChainHash]) {
        let mut is_near = vec![false; chain.len()];
        for run in &self.near {
            is_near[run.at..run.at + run.count as usize].fill(true);
        }
        let others = chain.iter().enumerate().filter(|(at, _)| !is_near[*at]);
        self.far.extend(others.filter_map(|(at, hash)| {
            let place = far.find(namespace, hash)?;
            Some(FarBlock { at, place })
        }));
    }

    /// Extends the prefix in turns by what the far location has and what the log has.
    fn add_prefix(
        &mut self,
        engine: &Engine,
        far: &FarTier,
        namespace: NamespaceId,
        chain: &[ChainHash],
        deadline: Deadline,
    ) {
        let mut end = blocks_of(&self.near);
        while end < chain.len() {
            let before = end;
            while let Some(place) = chain.get(end).and_then(|hash| far.find(namespace, hash)) {
                self.far.push(FarBlock { at: end, place });
                end += 1;
            }
            if end == before || end == chain.len() {
                return;
            }
            let more = engine.index.resolve(namespace, &chain[end..], Scope::Prefix, deadline);
            let start = end;
            end += blocks_of(&more);
            self.near.extend(more.into_iter().map(|run| Run { at: run.at + start, ..run }));
            if end == start {
                return;
            }
        }
    }
}

/// Whether the log or the far location has a block.
fn is_known(engine: &Engine, key: BlockKey, deadline: Deadline) -> bool {
    engine.index.probe(key.0, &[key.1], deadline) == 1
        || engine.far.as_ref().is_some_and(|far| far.find(key.0, &key.1).is_some())
}

/// Copies a block to DRAM, unless it was removed or evicted while it was read: see [`remove_unless_known`].
pub(super) fn bring_to_dram(
    engine: &Engine,
    key: BlockKey,
    memory: &[Memory],
    terms: (RemovalMark, Deadline),
) {
    let dram = &engine.front.dram;
    if dram.is_off() {
        return;
    }
    dram.insert(key, memory);
    remove_unless_known(engine, key, terms);
}

/// Removes a block from DRAM if it was removed or evicted while it was read. The mark is from before it was looked up.
pub(crate) fn remove_unless_known(
    engine: &Engine,
    key: BlockKey,
    (mark, deadline): (RemovalMark, Deadline),
) {
    // One that was put again since its removal leaves as well: these bytes are from before.
    if engine.front.removals.is_removed_since(mark, &key) || !is_known(engine, key, deadline) {
        engine.front.dram.remove(key.0, &[key.1]);
    }
}

fn blocks_of(runs: &[Run]) -> usize {
    runs.iter().map(|run| run.count as usize).sum()
}
