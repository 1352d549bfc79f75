//! Counts the operations of the tree and the sectors that they read. The controller tunes the shape by them.
//!
//! 1. Only lookups that reach tables count: a lookup that a memtable answers costs the same in every shape.
//! 2. Counters grow only; each is one relaxed addition.

use std::sync::atomic::{AtomicU64, Ordering};

use dalsegno_core::SECTOR_BYTES;
use serde::Serialize;

use crate::lsm::format::keys::KIND_POINT;

/// Operations and reads since the index was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct LsmCounts {
    /// Entries written, of all kinds.
    pub written_entries: u64,
    /// Lookups of one key, or of the extents at one place, that tables answered.
    pub point_hits: u64,
    /// Lookups of a key or place that the index does not hold.
    pub point_misses: u64,
    /// Scans started.
    pub scans: u64,
    /// Entries that scans passed, in memtables and tables.
    pub scanned_entries: u64,
    /// Sectors of 4 KiB that lookups of points read from tables.
    pub point_sectors: u64,
    /// Sectors that lookups of order entries read, by key or by place.
    pub order_sectors: u64,
    /// Of the sectors of both kinds of lookups, those that did not hold the wanted entry.
    pub vain_sectors: u64,
    /// Sectors that scans read.
    pub scan_sectors: u64,
}

/// Why a block is read.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Purpose {
    Point,
    Order,
    Scan,
}

impl Purpose {
    /// The purpose of looking up `key`.
    pub(crate) fn of_lookup(key: &[u8]) -> Self {
        if key.first() == Some(&KIND_POINT) { Self::Point } else { Self::Order }
    }
}

/// The counters behind [`LsmCounts`].
#[derive(Debug, Default)]
pub(crate) struct ReadCounts {
    written: AtomicU64,
    hits: AtomicU64,
    misses: AtomicU64,
    scans: AtomicU64,
    scanned: AtomicU64,
    useless: AtomicU64,
    /// By purpose.
    sectors: [AtomicU64; 3],
}

fn add(counter: &AtomicU64, value: u64) {
    counter.fetch_add(value, Ordering::Relaxed);
}

impl ReadCounts {
    pub(crate) fn count_written(&self, entries: usize) {
        add(&self.written, entries as u64);
    }

    pub(crate) fn count_lookup(&self, found: bool) {
        add(if found { &self.hits } else { &self.misses }, 1);
    }

    pub(crate) fn count_scan(&self) {
        add(&self.scans, 1);
    }

    pub(crate) fn count_scanned(&self) {
        add(&self.scanned, 1);
    }

    pub(crate) fn count_read(&self, purpose: Purpose, bytes: u64) {
        add(&self.sectors[purpose as usize], bytes / SECTOR_BYTES);
    }

    /// Sectors that were read for a purpose.
    pub(crate) fn sectors(&self, purpose: Purpose) -> u64 {
        self.sectors[purpose as usize].load(Ordering::Relaxed)
    }

    /// Counts the sectors that were read for a purpose since `before` as useless. Reads of other threads may be among
    /// them: the count serves means only.
    pub(crate) fn count_useless(&self, purpose: Purpose, before: u64) {
        add(&self.useless, self.sectors(purpose) - before);
    }

    pub(crate) fn view(&self) -> LsmCounts {
        let get = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let [point_sectors, order_sectors, scan_sectors] =
            [0, 1, 2].map(|purpose| get(&self.sectors[purpose]));
        LsmCounts {
            written_entries: get(&self.written),
            point_hits: get(&self.hits),
            point_misses: get(&self.misses),
            scans: get(&self.scans),
            scanned_entries: get(&self.scanned),
            point_sectors,
            order_sectors,
            scan_sectors,
            vain_sectors: get(&self.useless),
        }
    }
}
