//! What the model knows of the tree and of the machine under it.
//!
//! 1. Constants are means as they were measured, so whatever the caches catch is in them already.
//! 2. A constant is a cost of one thing the tree does, all in one unit; the model never mixes two.

/// The tree as it is now.
#[derive(Clone, Debug, PartialEq)]
pub struct Facts {
    /// Bytes of the runs of each level, newest first. Without any, the tree is taken for what it is on average.
    pub levels: Vec<Vec<u64>>,
    /// Entries in all runs; the newest version of each is meant, but old ones may be counted.
    pub entries: u64,
    /// Bytes of an entry on disk, on average.
    pub entry_bytes: u64,
    /// Bytes of a page, the unit a look-up reads.
    pub page_bytes: u64,
    /// Bytes after which the memtable is flushed.
    pub memtable_bytes: u64,
    /// Memory for filters, in bits per entry of the whole tree.
    pub filter_bits_per_entry: f64,
    /// What the machine's work costs.
    pub constants: Constants,
}

/// What costs are counted in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unit {
    /// Pages read and written.
    Io,
    /// Nanoseconds.
    Nanoseconds,
}

impl Unit {
    /// The name that log lines carry.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Io => "I/O",
            Self::Nanoseconds => "ns",
        }
    }
}

/// What the machine's work costs.
///
/// Only ratios decide. On a bare device `read` dwarfs everything, and the model is the paper's. In
/// the page cache a read is a copy, no dearer than asking a few tens of filters: then the number of runs
/// costs a miss more than its false positives do, and what merging costs is mostly the processor's
/// time.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Constants {
    /// In what the rest is counted.
    pub unit: Unit,
    /// Reading in one run what is looked for.
    pub read: f64,
    /// Reading in one run that it is not there although the filter did not deny it.
    pub vain: f64,
    /// Reading where a range begins, in one run.
    pub begin: f64,
    /// Reading the next page, as a range does.
    pub scan: f64,
    /// Writing one page of a memtable.
    pub flush: f64,
    /// Merging one page of entries: reading it, comparing, writing it.
    pub merge: f64,
    /// Asking the filter of one run.
    pub filter: f64,
    /// Finding in one run the page that may hold a key.
    pub seek: f64,
}

impl Constants {
    /// The paper's: every page counts one, merged ones too, and memory is free.
    #[must_use]
    pub fn io() -> Self {
        Self {
            unit: Unit::Io,
            read: 1.0,
            vain: 1.0,
            begin: 1.0,
            scan: 1.0,
            flush: 1.0,
            merge: 1.0,
            filter: 0.0,
            seek: 0.0,
        }
    }

    /// Time on a device without a cache: 4 KiB random reads at 172 MB/s, sequential reads at
    /// 2.4 GB/s and writes at 2.8 GB/s (fio with direct I/O on a virtio disk). What the processor
    /// does is an estimate: 50 entries a page at 100 ns when merged. Measure where it matters.
    #[must_use]
    pub fn device_ns() -> Self {
        let unit = Unit::Nanoseconds;
        let (read, merge) = (24_000.0, 8_000.0);
        let (vain, begin, flush) = (read, read, merge);
        Self { unit, read, vain, begin, scan: 1_700.0, flush, merge, filter: 60.0, seek: 300.0 }
    }

    /// Time where the page cache holds the tables: a read is a system call and a copy. Estimates
    /// all of them; measure where it matters.
    #[must_use]
    pub fn cached_ns() -> Self {
        Self { read: 1_500.0, vain: 1_500.0, begin: 1_500.0, scan: 1_000.0, ..Self::device_ns() }
    }
}

impl Facts {
    /// Entries in a page.
    pub(super) fn page_entries(&self) -> f64 {
        number(self.page_bytes) / number(self.entry_bytes)
    }

    /// How many full memtables the tree holds, at least one.
    pub(super) fn memtables(&self) -> f64 {
        (number(self.entries) * number(self.entry_bytes) / number(self.memtable_bytes)).max(1.0)
    }

    /// Entries that make a memtable full.
    pub(super) fn memtable_entries(&self) -> f64 {
        number(self.entries) / self.memtables()
    }

    /// Whether the sizes can be reckoned with.
    pub(super) fn usable(&self) -> bool {
        let sizes = [self.entry_bytes, self.page_bytes, self.memtable_bytes];
        self.entries > 0 && sizes.iter().all(|bytes| *bytes > 0)
    }
}

/// A count to reckon with.
#[expect(clippy::cast_precision_loss, reason = "a model needs no more than 53 bits of a count")]
pub(super) fn number(count: u64) -> f64 {
    count as f64
}
