//! Blocks in DRAM, and what was removed lately.
//!
//! 1. A block that was removed since its bytes were looked up does not enter, also if it was put again: the bytes are
//!    from before. No get finds them here in between.
//! 2. A block that was read is looked up after it entered. It leaves again if it was evicted while it was read,
//!    unless it is pool-only.

use std::sync::Arc;

use dalsegno_core::Deadline;
use dalsegno_io::Memory;

use crate::block_key::BlockKey;
use crate::blocks::finder::Finder;
use crate::keep::Keep;
use crate::state::arena::PlacedBlock;
use crate::state::dram::Dram;
use crate::state::recent_removals::{RecentRemovals, RemovalMark};

/// The DRAM tier, and the checks of what gets and prefetches bring into it. Puts keep blocks there themselves.
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
            self.dram
                .insert(key, memory, Keep::Stored, || self.removals.is_removed_since(mark, &key));
            self.remove_unless_known(key, deadline);
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
        self.dram.keep(key, block, Keep::Stored, || self.removals.is_removed_since(mark, &key));
        self.remove_unless_known(key, deadline);
    }

    fn remove_unless_known(&self, key: BlockKey, deadline: Deadline) {
        if !self.finder.knows(key, deadline) {
            self.dram.remove_copies(key.0, &[key.1]);
        }
    }
}
