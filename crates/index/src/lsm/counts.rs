//! What was asked of the tree and what that read: for whoever tunes its shape, and for whoever looks.
//!
//! 1. Only what tables were asked for counts: what a memtable answers costs the same in every shape.
//! 2. Counters grow only; each is one relaxed addition.

use std::sync::atomic::{AtomicU64, Ordering};

use dalsegno_core::SECTOR_BYTES;
use serde::Serialize;

use super::keys::KIND_POINT;

/// Operations and reads since the index was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct LsmCounts {
    /// Entries written, of all kinds.
    pub written_entries: u64,
    /// Look-ups of one key, or of the extents at one place, that tables answered.
    pub point_hits: u64,
    /// Look-ups of a key or place of which there is nothing.
    pub point_misses: u64,
    /// Scans begun.
    pub scans: u64,
    /// Entries that scans passed over, in memory or tables.
    pub scanned_entries: u64,
    /// Sectors of 4 KiB read from tables to look up points.
    pub point_sectors: u64,
    /// Sectors read to look up entries of order, by key or by place.
    pub order_sectors: u64,
    /// Of the sectors of both kinds of look-ups, those that did not hold what was looked for.
    pub vain_sectors: u64,
    /// Sectors read by scans.
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
    /// Of a look-up of this key.
    pub(super) fn look_up(key: &[u8]) -> Self {
        if key.first() == Some(&KIND_POINT) { Self::Point } else { Self::Order }
    }
}

/// The counters behind [`LsmCounts`].
#[derive(Debug, Default)]
pub(crate) struct Counts {
    written: AtomicU64,
    hits: AtomicU64,
    misses: AtomicU64,
    scans: AtomicU64,
    scanned: AtomicU64,
    vain: AtomicU64,
    /// By purpose.
    sectors: [AtomicU64; 3],
}

fn add(counter: &AtomicU64, value: u64) {
    counter.fetch_add(value, Ordering::Relaxed);
}

impl Counts {
    pub(super) fn wrote(&self, entries: usize) {
        add(&self.written, entries as u64);
    }

    pub(super) fn looked_up(&self, found: bool) {
        add(if found { &self.hits } else { &self.misses }, 1);
    }

    pub(super) fn began_scan(&self) {
        add(&self.scans, 1);
    }

    pub(super) fn scanned(&self) {
        add(&self.scanned, 1);
    }

    pub(super) fn read(&self, purpose: Purpose, bytes: u64) {
        add(&self.sectors[purpose as usize], bytes / SECTOR_BYTES);
    }

    /// What has been read for a purpose.
    pub(super) fn sectors(&self, purpose: Purpose) -> u64 {
        self.sectors[purpose as usize].load(Ordering::Relaxed)
    }

    /// Notes that what was read for a purpose since `before` was read in vain. Who reads at the same time may be
    /// counted too: the count is for means.
    pub(super) fn in_vain(&self, purpose: Purpose, before: u64) {
        add(&self.vain, self.sectors(purpose) - before);
    }

    pub(super) fn view(&self) -> LsmCounts {
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
            vain_sectors: get(&self.vain),
        }
    }
}
