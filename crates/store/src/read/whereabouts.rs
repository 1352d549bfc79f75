//! Finding the blocks of a get, and bringing them to DRAM.

use dalsegno_core::{ChainHash, Deadline, NamespaceId};
use dalsegno_index::{Run, Scope};
use dalsegno_io::Memory;

use crate::block_key::BlockKey;
use crate::blocks::finder::FoundBlocks;
use crate::engine::Engine;
use crate::far::tier::FarBlock;
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
        let finder = &engine.front.recent.finder;
        let FoundBlocks { near, far } = finder.find(namespace, chain, scope, deadline);
        Self { near, far }
    }
}

/// Copies a block to DRAM, unless it was removed or evicted while it was read: see [`remove_unless_known`].
pub(super) fn bring_to_dram(
    engine: &Engine,
    key: BlockKey,
    memory: &[Memory],
    (mark, deadline): (RemovalMark, Deadline),
) {
    engine.front.recent.copy_in(key, memory, mark, deadline);
}

/// Removes a block from DRAM if it was removed or evicted while it was read. The mark is from before it was looked up.
pub(crate) fn remove_unless_known(
    engine: &Engine,
    key: BlockKey,
    (mark, deadline): (RemovalMark, Deadline),
) {
    engine.front.recent.remove_unless_known(key, mark, deadline);
}
