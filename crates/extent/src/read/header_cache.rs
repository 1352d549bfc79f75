//! Caches the tables of verified extent headers, within a byte bound.
//!
//! 1. The sum of the entries' bytes never exceeds the bound.
//! 2. Eviction is second chance: an entry that was used since the hand last passed stays for another round.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use dalsegno_core::ExtentId;
use parking_lot::Mutex;

use crate::format::Units;

/// What an extent's header says about its payload.
#[derive(Debug, Default)]
pub struct ExtentTables {
    /// crc32c of every slice, layer-major.
    pub crcs: Vec<u32>,
    /// The units of a compressed extent.
    pub units: Option<Units>,
}

/// Tables of verified headers, within a bound on their bytes.
#[derive(Debug)]
pub struct HeaderCache {
    bound: u64,
    state: Mutex<CacheState>,
}

#[derive(Debug, Default)]
struct CacheState {
    entries: HashMap<ExtentId, CacheEntry>,
    order: VecDeque<ExtentId>,
    bytes: u64,
}

#[derive(Debug)]
struct CacheEntry {
    tables: Arc<ExtentTables>,
    used: bool,
}

fn cost(tables: &Arc<ExtentTables>) -> u64 {
    // 96 and 32 bytes are rough costs of the map entry, the queue entry and the allocations.
    let units = tables.units.as_ref().map_or(0, |units| 32 + u64::from(units.count()) * 8);
    96 + tables.crcs.len() as u64 * 4 + units
}

impl HeaderCache {
    /// A cache of at most `bound` bytes.
    #[must_use]
    pub fn new(bound: u64) -> Self {
        Self { bound, state: Mutex::default() }
    }

    /// The tables of an extent's header, if they are cached. Counts as a use.
    #[must_use]
    pub fn get(&self, id: ExtentId) -> Option<Arc<ExtentTables>> {
        let mut state = self.state.lock();
        let entry = state.entries.get_mut(&id)?;
        entry.used = true;
        Some(Arc::clone(&entry.tables))
    }

    /// Caches the tables of a header that was verified.
    pub fn insert(&self, id: ExtentId, tables: Arc<ExtentTables>) {
        if cost(&tables) > self.bound {
            return;
        }
        let mut state = self.state.lock();
        state.bytes += cost(&tables);
        match state.entries.insert(id, CacheEntry { tables, used: false }) {
            Some(old) => state.bytes -= cost(&old.tables),
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

    /// Removes an extent. Its entry in the queue goes when the hand passes.
    pub fn remove(&self, id: ExtentId) {
        let mut state = self.state.lock();
        state.drop_entry(id);
        if state.order.len() > 2 * state.entries.len() + 16 {
            let CacheState { entries, order, .. } = &mut *state;
            order.retain(|id| entries.contains_key(id));
        }
    }
}

impl CacheState {
    fn drop_entry(&mut self, id: ExtentId) {
        if let Some(entry) = self.entries.remove(&id) {
            self.bytes -= cost(&entry.tables);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_cache_keeps_its_bound_and_used_entries_survive_a_round() {
        let cache = HeaderCache::new(10 * (96 + 40));
        let tables = Arc::new(ExtentTables { crcs: vec![0; 10], units: None });
        for i in 0..10 {
            cache.insert(ExtentId(i), Arc::clone(&tables));
        }
        assert!(cache.get(ExtentId(0)).is_some());
        cache.insert(ExtentId(10), tables);
        assert!(cache.get(ExtentId(0)).is_some(), "used");
        assert!(cache.get(ExtentId(1)).is_none(), "oldest unused");
        assert!(cache.state.lock().bytes <= cache.bound);
    }
}
