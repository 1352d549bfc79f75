//! Blocks that some put is writing right now, so that a second put of them does not write them again.

use std::collections::HashSet;

use dalsegno_core::{ChainHash, NamespaceId};
use parking_lot::Mutex;

type Key = (NamespaceId, ChainHash);

#[derive(Debug, Default)]
pub(crate) struct Pending {
    keys: Mutex<HashSet<Key>>,
}

/// Keys that this put has claimed; given back when dropped.
pub(crate) struct Claim<'a> {
    pending: &'a Pending,
    keys: Vec<Key>,
}

impl Pending {
    pub(crate) fn claim(&self) -> Claim<'_> {
        Claim { pending: self, keys: Vec::new() }
    }
}

impl Claim<'_> {
    /// Claims one more key; `false` if another put has it, or this one already.
    pub(crate) fn take(&mut self, key: Key) -> bool {
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
