//! Blocks in DRAM, and what was removed lately.
//!
//! 1. A block that enters is looked up afterwards. It leaves again if it was removed or evicted while it was read.
//! 2. A block that was put again since its removal leaves as well: the bytes that were read are from before.

use std::sync::Arc;

use dalsegno_core::Deadline;
use dalsegno_io::Memory;

use crate::block_key::BlockKey;
use crate::blocks::finder::Finder;
use crate::state::arena::PlacedBlock;
use crate::state::dram::Dram;
use crate::state::recent_removals::{RecentRemovals, RemovalMark};

/// The DRAM tier, and the checks of what enters it.
#[derive(Debug)]
pub(crate) struct RecentBlocks {
    pub(crate) dram: Arc<Dram>,
    /// What was removed lately, for work that is in progress.
    pub(crate) removals: Arc<RecentRemovals>,
    pub(crate) finder: Arc<Finder>,
}

impl RecentBlocks {
    /// Copies a block that was read to DRAM. `mark` is from before it was looked up.
    pub(crate) fn copy_in(
        &self,
        key: BlockKey,
        memory: &[Memory],
        mark: RemovalMark,
        deadline: Deadline,
    ) {
        if !self.dram.is_off() {
            self.dram.insert(key, memory);
            self.remove_unless_known(key, mark, deadline);
        }
    }

    /// Keeps a block that was read into its place. `mark` is from before it was looked up.
    pub(crate) fn keep(
        &self,
        key: BlockKey,
        block: Arc<PlacedBlock>,
        mark: RemovalMark,
        deadline: Deadline,
    ) {
        self.dram.keep(key, block);
        self.remove_unless_known(key, mark, deadline);
    }

    fn remove_unless_known(&self, key: BlockKey, mark: RemovalMark, deadline: Deadline) {
        if self.removals.is_removed_since(mark, &key) || !self.finder.knows(key, deadline) {
            self.dram.remove(key.0, &[key.1]);
        }
    }
}
