//! What the model knows about the tree and the machine.
//!
//! 1. Constants are measured means, so they include the effect of caches.
//! 2. A constant is the cost of one action of the tree. All are in one unit.

/// The present tree.
#[derive(Clone, Debug, PartialEq)]
pub struct Facts {
    /// Bytes of the runs of each level, newest first. If empty, the mean tree is assumed.
    pub levels: Vec<Vec<u64>>,
    /// Entries in all runs. Superseded ones may be counted.
    pub entries: u64,
    /// Bytes of an entry on disk, on average.
    pub entry_bytes: u64,
    /// Bytes of a page, the unit that a lookup reads.
    pub page_bytes: u64,
    /// Bytes after which the memtable is flushed.
    pub memtable_bytes: u64,
    /// Memory for filters, in bits per entry of the whole tree.
    pub filter_bits_per_entry: f64,
    /// Costs of the machine.
    pub constants: Constants,
}

/// The unit of costs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unit {
    /// Pages read and written.
    Io,
    /// Nanoseconds.
    Nanoseconds,
}

impl Unit {
    /// The name in log lines.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Io => "I/O",
            Self::Nanoseconds => "ns",
        }
    }
}

/// The costs of the tree's actions on a machine.
///
/// Only ratios matter. On a device without a cache `read` dominates, as in the paper. With the page cache a read is a
/// copy, as cheap as a few tens of filter queries. Then the number of runs costs a miss more than its false positives
/// do, and compaction costs mostly processor time.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Constants {
    /// The unit of the others.
    pub unit: Unit,
    /// Reading the wanted entry in one run.
    pub read: f64,
    /// Reading one run after a false positive of its filter.
    pub false_positive: f64,
    /// Reading the start of a range in one run.
    pub begin: f64,
    /// Reading the next page, as a range does.
    pub scan: f64,
    /// Writing one page of a memtable.
    pub flush: f64,
    /// Compacting one page of entries: reading, comparing and writing it.
    pub merge: f64,
    /// Querying the filter of one run.
    pub filter: f64,
    /// Finding the page of one run that may hold a key.
    pub seek: f64,
}

impl Constants {
    /// The constants of the paper: every page counts one, compacted ones too, and memory is free.
    #[must_use]
    pub fn io() -> Self {
        Self {
            unit: Unit::Io,
            read: 1.0,
            false_positive: 1.0,
            begin: 1.0,
            scan: 1.0,
            flush: 1.0,
            merge: 1.0,
            filter: 0.0,
            seek: 0.0,
        }
    }

    /// Time on a device without a cache: 4 KiB random reads at 172 MB/s, sequential reads at 2.4 GB/s and writes at 2.8
    /// GB/s (fio with direct I/O on a virtio disk). Processor time is an estimate: a compaction takes 100 ns for each
    /// of 50 entries in a page. Measure where it matters.
    #[must_use]
    pub fn device_ns() -> Self {
        let unit = Unit::Nanoseconds;
        let (read, merge) = (24_000.0, 8_000.0);
        let (false_positive, begin, flush) = (read, read, merge);
        Self {
            unit,
            read,
            false_positive,
            begin,
            scan: 1_700.0,
            flush,
            merge,
            filter: 60.0,
            seek: 300.0,
        }
    }

    /// Time if the page cache holds the tables: a read is a system call and a copy. All are estimates. Measure where it
    /// matters.
    #[must_use]
    pub fn cached_ns() -> Self {
        Self {
            read: 1_500.0,
            false_positive: 1_500.0,
            begin: 1_500.0,
            scan: 1_000.0,
            ..Self::device_ns()
        }
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

    /// Whether the model can use the sizes.
    pub(super) fn usable(&self) -> bool {
        let sizes = [self.entry_bytes, self.page_bytes, self.memtable_bytes];
        self.entries > 0 && sizes.iter().all(|bytes| *bytes > 0)
    }
}

/// A count as a number of the model.
#[expect(clippy::cast_precision_loss, reason = "a model needs no more than 53 bits of a count")]
pub(super) fn number(count: u64) -> f64 {
    count as f64
}
