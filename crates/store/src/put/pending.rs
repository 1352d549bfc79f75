//! Blocks that a put is writing right now, so that a second put does not write them again.

use std::collections::HashSet;

use parking_lot::Mutex;

use crate::block_key::BlockKey;

#[derive(Debug, Default)]
pub(crate) struct Pending {
    keys: Mutex<HashSet<BlockKey>>,
}

/// Blocks that this put has claimed; released when dropped.
pub(crate) struct Claim<'a> {
    pending: &'a Pending,
    keys: Vec<BlockKey>,
}

impl Pending {
    pub(crate) fn claim(&self) -> Claim<'_> {
        Claim { pending: self, keys: Vec::new() }
    }
}

impl Claim<'_> {
    /// Claims one more block; `false` if another put has it, or this one already.
    pub(crate) fn take(&mut self, key: BlockKey) -> bool {
        let taken = self.pending.keys.lock().insert(key);
        if taken {
            self.keys.push(key);
        }
        taken
    }
}

impl Drop for Claim<'_> {
    fn drop(&mut self) {
        let mut keys = self.pending.keys.lock();
        for key in &self.keys {
            keys.remove(key);
        }
    }
}
