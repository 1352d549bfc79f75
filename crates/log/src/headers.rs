//! Tables of extents whose headers were read and verified, within a byte bound.
//!
//! 1. The sum of the entries' bytes never exceeds the bound.
//! 2. An entry is dropped by second chance: one that was used since the hand last passed stays for another round.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use dalsegno_core::ExtentId;
use parking_lot::Mutex;

use crate::format::Units;

/// What a header says of the payload.
#[derive(Debug, Default)]
pub(crate) struct Tables {
    /// crc32c of every slice, layer-major.
    pub(crate) crcs: Vec<u32>,
    /// Of a compressed extent.
    pub(crate) units: Option<Units>,
}

pub(crate) type SharedTables = Arc<Tables>;

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
    tables: SharedTables,
    used: bool,
}

fn cost(tables: &SharedTables) -> u64 {
    // Map entry, queue entry and allocation, roughly.
    let units = tables.units.as_ref().map_or(0, |units| 32 + u64::from(units.count()) * 8);
    96 + tables.crcs.len() as u64 * 4 + units
}

impl HeaderCache {
    pub(crate) fn new(bound: u64) -> Self {
        Self { bound, state: Mutex::default() }
    }

    pub(crate) fn get(&self, id: ExtentId) -> Option<SharedTables> {
        let mut state = self.state.lock();
        let entry = state.entries.get_mut(&id)?;
        entry.used = true;
        Some(Arc::clone(&entry.tables))
    }

    pub(crate) fn insert(&self, id: ExtentId, tables: SharedTables) {
        if cost(&tables) > self.bound {
            return;
        }
        let mut state = self.state.lock();
        state.bytes += cost(&tables);
        match state.entries.insert(id, Entry { tables, used: false }) {
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
            self.bytes -= cost(&entry.tables);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_bound_holds_and_used_entries_survive_a_round() {
        let cache = HeaderCache::new(10 * (96 + 40));
        let tables = Arc::new(Tables { crcs: vec![0; 10], units: None });
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
