//! The on-disk index, and what its owner does for it: freezing, flushing, compacting, and following the log.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use dalsegno_core::{Clock, Shape, StoreId};
use dalsegno_io::{Device, IoError};

use crate::error::Shortage;
use crate::lsm::files::device_files::DeviceFiles;
use crate::lsm::files::notes::{NOTES_FILE, write_notes};
use crate::lsm::files::table_files::TableFiles;
use crate::lsm::health::{Health, StopCause};
use crate::lsm::index::lookup::Lookup;
use crate::lsm::index::open::{LsmOptions, find_newest, remove_others};
use crate::lsm::index::stats::LsmStats;
use crate::lsm::maintenance::directory::IndexDirectory;
use crate::lsm::maintenance::manifests::Manifests;
use crate::lsm::maintenance::pace::Pace;
use crate::lsm::maintenance::steps::{Maintenance, TreeBounds};
use crate::lsm::read::reader::TreeReader;
use crate::lsm::table::block_cache::BlockCache;
use crate::lsm::version::levels::Version;
use crate::lsm::version::snapshot::Snapshots;
use crate::lsm::writer::MemtableWriter;
use crate::usage::Usage;

/// Bytes of one write.
const REQUEST_BYTES: usize = 1 << 20;

/// An index on disk. Its memory does not grow with its blocks.
#[derive(Debug)]
pub struct LsmIndex {
    pub(super) lookup: Lookup,
    pub(super) writer: MemtableWriter,
    pub(super) maintenance: Maintenance,
    snapshots: Arc<Snapshots>,
    directory: Arc<IndexDirectory>,
}

/// What an index is built from.
pub(crate) struct IndexParts {
    pub(crate) files: Arc<dyn TableFiles>,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) store: StoreId,
    pub(crate) shape: Shape,
    pub(crate) version: Version,
    /// The number of the next file.
    pub(crate) next_number: u64,
}

impl LsmIndex {
    /// Opens the index of a store. `clock` is the clock of the deadlines that calls have. Also returns the checkpoint,
    /// that is the part of the log that it holds; `None` if it knows nothing.
    ///
    /// # Errors
    ///
    /// If the device fails or there are no file descriptors. Then nothing has changed. Damage is no error: then the
    /// index is empty and keeps the part of its checkpoint that is true without tables.
    pub fn open(
        device: Arc<dyn Device>,
        clock: Arc<dyn Clock>,
        store: StoreId,
        options: LsmOptions,
    ) -> Result<(Self, Option<Vec<u8>>), IoError> {
        let files = DeviceFiles::new(device, Arc::clone(&clock), options.read_only);
        Self::open_in(Arc::new(files), clock, store, options)
    }

    /// Like [`Self::open`], over any files.
    pub(crate) fn open_in(
        files: Arc<dyn TableFiles>,
        clock: Arc<dyn Clock>,
        store: StoreId,
        options: LsmOptions,
    ) -> Result<(Self, Option<Vec<u8>>), IoError> {
        let entries = files.list()?;
        let found = find_newest(&files, &entries, store, &options)?;
        let parts = IndexParts {
            files,
            clock,
            store,
            shape: options.shape.or(found.shape).unwrap_or_default(),
            version: found.version,
            next_number: found.next_number,
        };
        let bounds = options.bounds();
        let index = Self::new(parts, bounds, options.cache_bytes, options.without_tables);
        if !options.read_only && index.maintenance.renew().is_ok() {
            let version = &index.snapshots.current().version;
            remove_others(index.directory.files.as_ref(), &entries, version);
        }
        Ok((index, found.checkpoint))
    }

    /// An index of one version; `without_tables` is [`LsmOptions::without_tables`].
    pub(crate) fn new(
        parts: IndexParts,
        bounds: TreeBounds,
        cache_bytes: u64,
        without_tables: fn(&[u8]) -> Vec<u8>,
    ) -> Self {
        let IndexParts { files, clock, store, shape, version, next_number } = parts;
        let usage = Usage::restore(version.sums.clone());
        let snapshots = Arc::new(Snapshots::new(version));
        let health = Arc::new(Health::default());
        let directory = Arc::new(IndexDirectory::new(files, store, REQUEST_BYTES, next_number));
        let cache = BlockCache::new(cache_bytes);
        let counts = Arc::clone(cache.counts());
        let manifests = Manifests::new(
            Arc::clone(&directory),
            Arc::clone(&snapshots),
            Arc::clone(&health),
            shape,
            without_tables,
        );
        let maintenance = Maintenance::new(
            Arc::clone(&directory),
            Arc::clone(&snapshots),
            Arc::clone(&health),
            manifests,
            bounds,
        );
        let reader = TreeReader::new(Arc::clone(&snapshots), cache);
        let lookup = Lookup::new(reader, usage, health);
        let writer =
            MemtableWriter::new(Arc::clone(&snapshots), counts, clock, bounds.memtable_bytes);
        Self { lookup, writer, maintenance, snapshots, directory }
    }

    /// Whether the memtable is full, so that [`Self::freeze`] is due.
    #[must_use]
    pub fn is_full(&self) -> bool {
        self.writer.is_full()
    }

    /// Whether the index accepts no entries until [`Self::step`] has flushed a memtable.
    #[must_use]
    pub fn is_stalled(&self) -> bool {
        self.writer.is_stalled()
    }

    /// Starts a new memtable; the old one waits for a flush. `checkpoint` is the part of the log that the index holds.
    /// It was made before this call, so all entries that it covers are in the index.
    pub fn freeze(&self, checkpoint: Vec<u8>) {
        let writer = self.writer.lock();
        let sums = self.lookup.usage.read().sums();
        writer.freeze(checkpoint, sums);
    }

    /// Does one step that is due, a flush or a compaction; `false` if none is due, or if it failed.
    pub fn step(&self) -> bool {
        // Maintenance records and logs its errors.
        self.maintenance.step(&self.lookup).unwrap_or(false)
    }

    /// Sets the pace of compactions, once and for good.
    pub fn set_pace(&self, pace: Arc<dyn Pace>) {
        self.maintenance.set_pace(pace);
    }

    /// Whether a memtable waits for a flush.
    #[must_use]
    pub fn has_frozen(&self) -> bool {
        self.snapshots.has_frozen()
    }

    /// Drops the tables for the next open, which then rebuilds the index. Until then they still serve reads, and
    /// nothing is written.
    pub fn condemn(&self) {
        self.maintenance.condemn();
    }

    /// Like [`Self::condemn`], and the tables serve no reads any more.
    pub(crate) fn empty(&self) {
        tracing::error!("removal cannot read the index; the index stays empty until the next open");
        self.maintenance.empty();
    }

    /// Drops all tables. Of the checkpoint [`LsmOptions::without_tables`] remains, now and at every open until a flush.
    /// `false` if that could not be written: then nothing has changed, or nothing is written any more.
    #[must_use]
    pub fn reset(&self) -> bool {
        self.maintenance.reset()
    }

    /// Whether any entry is in a table.
    #[must_use]
    pub fn has_tables(&self) -> bool {
        self.lookup.reader.has_tables()
    }

    /// The shape that the next flush and the steps after it follow.
    #[must_use]
    pub fn shape(&self) -> Shape {
        self.maintenance.shape()
    }

    /// Bits of filter per entry, on average over all tables.
    #[must_use]
    pub fn filter_bits(&self) -> f64 {
        self.maintenance.mean_filter_bits()
    }

    /// Changes the shape. The steps after the next flush follow it.
    pub fn set_shape(&self, shape: Shape) {
        self.maintenance.set_shape(shape);
    }

    /// Whether a table is damaged, so that the index should be rebuilt.
    #[must_use]
    pub fn is_damaged(&self) -> bool {
        self.lookup.health.is_damaged()
    }

    /// Whether writing a manifest failed. It may be durable or not, so no other is written.
    #[must_use]
    pub fn is_unsure(&self) -> bool {
        self.lookup.health.stop_cause() == Some(StopCause::Unsure)
    }

    /// Whether nothing is written any more. The next open rebuilds the index.
    #[must_use]
    pub fn has_failed(&self) -> bool {
        self.lookup.health.is_stopped()
    }

    /// Which space was missing for the last write, unless a write succeeded since.
    #[must_use]
    pub fn shortage(&self) -> Option<Shortage> {
        self.lookup.health.shortage()
    }

    /// To be called when space on disk was freed.
    pub fn has_space_again(&self) {
        self.lookup.health.has_space_again();
    }

    /// Bytes that may wait in memory to be written.
    #[must_use]
    pub fn waiting_bytes(&self) -> u64 {
        self.writer.most_waiting_bytes()
    }

    /// Bytes of its tables.
    #[must_use]
    pub fn disk_bytes(&self) -> u64 {
        self.snapshots.current().version.bytes()
    }

    /// Whether a caller waits for the tables to be dropped. Then a compaction must not wait for anything.
    #[must_use]
    pub fn is_urgent(&self) -> bool {
        self.maintenance.is_urgent()
    }

    /// Whether a removal emptied the index because it could not be read.
    #[must_use]
    pub fn is_emptied(&self) -> bool {
        self.lookup.is_emptied()
    }

    /// Whether a read failed since the index was opened, though the entry may be readable again.
    #[must_use]
    pub fn has_missed(&self) -> bool {
        self.lookup.health.has_missed()
    }

    /// Drops the entries of segments that no longer exist or have another epoch. `segments` are all segments with their
    /// epochs. `false` if a segment is back that the index took for gone.
    #[must_use]
    pub fn align(&self, segments: &[(u64, u64)]) -> bool {
        self.lookup.usage.write().align(segments)
    }

    /// The newest segment that the index ever referenced, as far as it knows; it may be gone.
    #[must_use]
    pub fn newest_segment(&self) -> Option<u64> {
        self.lookup.usage.read().newest()
    }

    /// Replaces the notes of the index. Best effort.
    pub fn write_notes(&self, text: &str) {
        if self.has_failed() {
            return;
        }
        if let Err(error) = write_notes(self.directory.files.as_ref(), text) {
            tracing::debug!(file = NOTES_FILE, %error, "index notes not written");
        }
    }

    /// What the index consists of, and what it did.
    #[must_use]
    pub fn lsm_stats(&self) -> LsmStats {
        let snapshot = self.snapshots.current();
        let counters = self.maintenance.counters();
        let (asked, upkeep_sectors) = self.lookup.reader.counts();
        let tables = || snapshot.version.tables();
        LsmStats {
            shape: Some(self.shape()),
            runs: snapshot.version.levels.iter().map(|runs| runs.len() as u64).collect(),
            run_bytes: snapshot.version.sizes(),
            tables: tables().count() as u64,
            table_bytes: tables().map(|table| table.file_bytes()).sum(),
            entries: tables().map(|table| table.entries()).sum(),
            points: tables().map(|table| table.points()).sum(),
            pinned_bytes: tables().map(|table| table.memory_bytes()).sum(),
            buffer_bytes: self.maintenance.buffer_bytes(),
            asked,
            upkeep_sectors,
            flushes: counters.flushes.load(Ordering::Relaxed),
            flushed_bytes: counters.flushed_bytes.load(Ordering::Relaxed),
            merges: counters.merges.load(Ordering::Relaxed),
            merged_bytes: counters.merged_bytes.load(Ordering::Relaxed),
            merge_read_bytes: counters.merge_read_bytes.load(Ordering::Relaxed),
            forgotten_tables: counters.forgotten_tables.load(Ordering::Relaxed),
            damaged: self.is_damaged(),
        }
    }
}
