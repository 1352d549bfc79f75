//! Slice checksums of extents whose headers were read and verified, within a byte bound.
//!
//! 1. The sum of the entries' bytes never exceeds the bound.
//! 2. An entry is dropped by second chance: one that was used since the hand last passed stays for another round.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use dalsegno_core::ExtentId;
use parking_lot::Mutex;

/// crc32c of every slice, layer-major.
pub(crate) type SliceCrcs = Arc<[u32]>;

#[derive(Debug)]
pub(crate) struct HeaderCache {
    bound: u64,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    entries: HashMap<ExtentId, Entry>,
    order: VecDeque<ExtentId>,
    bytes: u64,
}

#[derive(Debug)]
struct Entry {
    crcs: SliceCrcs,
    used: bool,
}

fn cost(crcs: &SliceCrcs) -> u64 {
    // Map entry, queue entry and allocation, roughly.
    96 + crcs.len() as u64 * 4
}

impl HeaderCache {
    pub(crate) fn new(bound: u64) -> Self {
        Self { bound, state: Mutex::default() }
    }

    pub(crate) fn get(&self, id: ExtentId) -> Option<SliceCrcs> {
        let mut state = self.state.lock();
        let entry = state.entries.get_mut(&id)?;
        entry.used = true;
        Some(Arc::clone(&entry.crcs))
    }

    pub(crate) fn insert(&self, id: ExtentId, crcs: SliceCrcs) {
        if cost(&crcs) > self.bound {
            return;
        }
        let mut state = self.state.lock();
        state.bytes += cost(&crcs);
        match state.entries.insert(id, Entry { crcs, used: false }) {
            Some(old) => state.bytes -= cost(&old.crcs),
            None => state.order.push_back(id),
        }
        while state.bytes > self.bound {
            let Some(oldest) = state.order.pop_front() else { break };
            match state.entries.get_mut(&oldest) {
                Some(entry) if entry.used => {
                    entry.used = false;
                    state.order.push_back(oldest);
                }
                Some(_) => state.drop_entry(oldest),
                None => {}
            }
        }
    }

    /// Forgets an extent; its place in the queue goes when the hand passes.
    pub(crate) fn remove(&self, id: ExtentId) {
        let mut state = self.state.lock();
        state.drop_entry(id);
        if state.order.len() > 2 * state.entries.len() + 16 {
            let State { entries, order, .. } = &mut *state;
            order.retain(|id| entries.contains_key(id));
        }
    }
}

impl State {
    fn drop_entry(&mut self, id: ExtentId) {
        if let Some(entry) = self.entries.remove(&id) {
            self.bytes -= cost(&entry.crcs);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_bound_holds_and_used_entries_survive_a_round() {
        let cache = HeaderCache::new(10 * (96 + 40));
        let crcs: SliceCrcs = Arc::from(vec![0; 10]);
        for i in 0..10 {
            cache.insert(ExtentId(i), Arc::clone(&crcs));
        }
        assert!(cache.get(ExtentId(0)).is_some());
        cache.insert(ExtentId(10), crcs);
        assert!(cache.get(ExtentId(0)).is_some(), "used");
        assert!(cache.get(ExtentId(1)).is_none(), "oldest unused");
        assert!(cache.state.lock().bytes <= cache.bound);
    }
}
