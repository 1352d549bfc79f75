//! Reads a memtable in the order of its keys, a few entries at a time.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;

use crate::error::TableError;
use crate::lsm::format::keys::{ForkKey, OrderKey};
use crate::lsm::memtable::entries::Memtable;
use crate::lsm::table::source::Source;

/// Entries that a scan takes from a memtable at a time. They are few, since most scans look at one place.
const SCAN_AHEAD: usize = 4;

/// A memtable as a source, a few entries at a time.
pub(crate) struct MemtableScan {
    memtable: Arc<Memtable>,
    /// Keys, and the slots of their values.
    waiting: VecDeque<(Vec<u8>, Option<u32>)>,
    /// Where the entries after the waiting ones begin.
    next: Option<OrderKey>,
    /// The value of the first waiting entry.
    value: Vec<u8>,
}

impl MemtableScan {
    pub(crate) fn orders(memtable: Arc<Memtable>, from: OrderKey) -> Self {
        let (waiting, value) = (VecDeque::new(), Vec::new());
        let mut scan = Self { memtable, waiting, next: Some(from), value };
        scan.refill();
        scan.take_value();
        scan
    }

    pub(crate) fn forks(memtable: Arc<Memtable>, range: &Range<ForkKey>, limit: usize) -> Self {
        let forks = memtable.forks(range, limit).into_iter();
        let waiting = forks.map(|fork| (fork.encode().to_vec(), None)).collect();
        Self { memtable, waiting, next: None, value: Vec::new() }
    }

    fn refill(&mut self) {
        let Some(from) = self.next.take() else { return };
        let entries = self.memtable.orders(&from, SCAN_AHEAD);
        if entries.len() == SCAN_AHEAD {
            let last = entries[SCAN_AHEAD - 1].0;
            self.next = Some(OrderKey { sequence: last.sequence.saturating_add(1), ..last });
        }
        let entries = entries.into_iter().map(|(key, slot)| (key.encode().to_vec(), Some(slot)));
        self.waiting.extend(entries);
    }

    fn take_value(&mut self) {
        self.value.clear();
        if let Some((_, Some(slot))) = self.waiting.front() {
            self.memtable.value_to(*slot, &mut self.value);
        }
    }
}

impl Source for MemtableScan {
    fn key(&self) -> Option<&[u8]> {
        self.waiting.front().map(|(key, _)| &key[..])
    }

    fn value(&self) -> &[u8] {
        &self.value
    }

    fn advance(&mut self) -> Result<(), TableError> {
        self.waiting.pop_front();
        if self.waiting.is_empty() {
            self.refill();
        }
        self.take_value();
        Ok(())
    }
}
