//! The log as a whole: what it is made of, and how it is opened.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use dalsegno_core::{Clock, Durability, ExtentId, Limits, Location, StoreId};
use dalsegno_io::{BufferPool, Device, IoError};
use parking_lot::Mutex;

use crate::checkpoint::Checkpoint;
use crate::compressed::{Room, UnitCodecs};
use crate::error::LogError;
use crate::headers::HeaderCache;
use crate::plan::Rules;
use crate::recover::{self, Recovered};
use crate::segment::{Pin, SegmentView, Segments};
use crate::stats::LogStats;

/// The bounds of a log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LogOptions {
    /// Size of a segment file.
    pub segment_bytes: u64,
    /// Most segment files.
    pub segment_count: u32,
    /// Whether an append waits for a sync.
    pub durability: Durability,
    /// Requests that one call keeps in flight.
    pub io_depth: u32,
    /// Largest request.
    pub io_request_bytes: u64,
    /// Bytes of verified headers kept in memory.
    pub header_cache_bytes: u64,
    /// Bytes of compressed extents that wait to be written.
    pub compression_bytes: u64,
    /// Threads that read headers at open.
    pub scan_threads: u32,
    /// Nothing is written; for looking at a store.
    pub read_only: bool,
}

/// Files of a store beside its segments, which may grow.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OtherFiles {
    /// What they may take when all segments are there; with fewer it is less, in proportion.
    pub most_bytes: u64,
    /// What they take now. To be written anew they need as much again.
    pub used_bytes: u64,
    /// What they may need soon, however few segments there are.
    pub soon_bytes: u64,
}

impl OtherFiles {
    /// Bytes that are to be left for them when there are `count` of `most` segments.
    fn wanted(self, count: u64, most: u64) -> u64 {
        let share = self.most_bytes / most.max(1) * count.min(most);
        let wanted =
            share.max(2 * self.used_bytes).max(self.used_bytes.saturating_add(self.soon_bytes));
        wanted.min(self.most_bytes).saturating_sub(self.used_bytes)
    }
}

/// Threads that read headers at open, as a rule.
const SCAN_THREADS: u32 = 4;

impl From<&Limits> for LogOptions {
    fn from(limits: &Limits) -> Self {
        Self {
            segment_bytes: limits.segment_bytes,
            segment_count: limits.segment_count,
            durability: limits.durability,
            io_depth: limits.io_depth,
            io_request_bytes: limits.io_request_bytes,
            header_cache_bytes: limits.header_cache_bytes,
            compression_bytes: limits.compression_bytes,
            scan_threads: SCAN_THREADS,
            read_only: false,
        }
    }
}

/// What every part of the log shares.
#[derive(Debug)]
pub(crate) struct Core {
    pub(crate) device: Arc<dyn Device>,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) pool: BufferPool,
    pub(crate) options: LogOptions,
    pub(crate) store: StoreId,
    pub(crate) segments: Mutex<Segments>,
    /// Held while a segment file is created, so that only one is.
    pub(crate) creating: Mutex<()>,
    /// Held while a checkpoint is made, which syncs files, and while a segment goes for good.
    pub(crate) checkpointing: Mutex<()>,
    /// What room other files of the store are left.
    pub(crate) other_files: Mutex<OtherFiles>,
    pub(crate) headers: HeaderCache,
    pub(crate) stats: LogStats,
    pub(crate) codecs: UnitCodecs,
    pub(crate) compression_budget: Arc<Room>,
    /// Whether the store's header says that there may be compressed extents.
    compressed: AtomicBool,
    poisoned: AtomicBool,
    closed: AtomicBool,
}

/// A tensor log over one device. Cheap to share: clones speak to the same log.
#[derive(Clone, Debug)]
pub struct Log {
    pub(crate) core: Arc<Core>,
}

impl Log {
    /// Opens the log of `device`, reading the headers of all records.
    ///
    /// `new_store` is the id to use if the device holds no store yet. [`Self::open_with_checkpoint`] spares the headers
    /// of what an index has taken in.
    ///
    /// # Errors
    ///
    /// [`LogError::Format`] if a newer Dalsegno wrote the store; [`LogError::Io`] if the device fails as a whole.
    /// Damage of single files is no error: it is told in [`Recovered`].
    pub fn open(
        device: Arc<dyn Device>,
        clock: Arc<dyn Clock>,
        pool: BufferPool,
        options: LogOptions,
        new_store: StoreId,
    ) -> Result<(Self, Recovered), LogError> {
        Self::open_with_checkpoint(device, clock, pool, options, new_store, |_| None)
    }

    /// As [`Self::open`]; `checkpoint` is asked, once the store's id is known, for what [`Log::checkpoint`] said last.
    /// Then only what came later is read and told in [`Recovered`]; and the removals that the checkpoint knew, apart.
    ///
    /// # Errors
    ///
    /// As [`Self::open`]. A checkpoint that cannot be understood counts as none.
    pub fn open_with_checkpoint(
        device: Arc<dyn Device>,
        clock: Arc<dyn Clock>,
        pool: BufferPool,
        options: LogOptions,
        new_store: StoreId,
        checkpoint: impl FnOnce(StoreId) -> Option<Vec<u8>>,
    ) -> Result<(Self, Recovered), LogError> {
        let mut core = Core::new(device, clock, pool, options);
        let header = crate::meta::open_store(&core, new_store)?;
        core.store = header.store;
        core.set_compressed(header.is_compressed);
        if !options.read_only {
            // A process that was killed may have created a segment without making its name durable.
            core.sync_names()?;
        }
        let mut checkpoint =
            checkpoint(core.store).and_then(|it| Checkpoint::decode(&it)).unwrap_or_default();
        checkpoint.forget_impossible(options.segment_bytes);
        let recovered = recover::recover(&core, &checkpoint)?;
        Ok((Self { core: Arc::new(core) }, recovered))
    }

    /// The store's id.
    #[must_use]
    pub fn store(&self) -> StoreId {
        self.core.store
    }

    /// The bounds it was opened with.
    #[must_use]
    pub fn options(&self) -> LogOptions {
        self.core.options
    }

    /// The counters.
    #[must_use]
    pub fn stats(&self) -> &LogStats {
        &self.core.stats
    }

    /// All segments, by number.
    #[must_use]
    pub fn segments(&self) -> Vec<SegmentView> {
        self.core.segments.lock().slots.values().map(crate::segment::Slot::view).collect()
    }

    /// Gives no new segment this number or a smaller one: an index may still lead to what had it and is gone.
    pub fn begin_after(&self, number: u64) {
        let mut segments = self.core.segments.lock();
        segments.next_number = segments.next_number.max(number);
    }

    /// Stops all writing, as a failed sync does.
    pub fn poison(&self, why: &str) {
        self.core.poison(&why);
    }

    /// Lets go of all files: the log is opened anew.
    pub fn release(self) {
        self.close();
        for slot in self.core.segments.lock().slots.values() {
            self.core.device.close(slot.segment.file);
        }
    }

    /// Bytes of disk that the segment files take.
    #[must_use]
    pub fn disk_bytes(&self) -> u64 {
        self.core.segments.lock().slots.len() as u64 * self.core.options.segment_bytes
    }

    /// Whether writing has stopped because a sync failed.
    #[must_use]
    pub fn is_poisoned(&self) -> bool {
        self.core.poisoned.load(Ordering::Acquire)
    }

    /// Forgets what was remembered of an extent that is gone.
    pub fn forget(&self, id: ExtentId) {
        self.core.headers.remove(id);
    }

    /// Keeps the segment of `location` from being recycled; `None` if that happened already.
    #[must_use]
    pub fn pin(&self, location: Location) -> Option<Pin> {
        self.core.pin(location)
    }

    /// Whether a plain append of `bytes` would find room without recycling.
    #[must_use]
    pub fn has_space(&self, bytes: u64) -> bool {
        let segments = self.core.segments.lock();
        let options = &self.core.options;
        segments.fits_open(bytes, options.segment_bytes)
            || segments.may_open(options.segment_count, false)
    }

    /// Whether [`Log::reserve_now`] finds room.
    #[must_use]
    pub fn has_space_now(&self, bytes: u64) -> bool {
        self.has_space(bytes) && self.core.has_space_now(bytes)
    }

    /// Makes sure, as far as it can without recycling, that a plain append of `bytes` finds room: creates a segment if
    /// there has to be one. `false` if something must be recycled first.
    ///
    /// # Errors
    ///
    /// As [`Log::reserve`], but never [`LogError::Full`].
    pub fn prepare(&self, bytes: u64) -> Result<bool, LogError> {
        loop {
            if !self.has_space(bytes) {
                // Each time something is recycled for want of room brings the next question to the file system closer.
                let mut segments = self.core.segments.lock();
                segments.creation_blocked = segments.creation_blocked.saturating_sub(1);
                return Ok(false);
            }
            if self.core.has_space_now(bytes) {
                return Ok(true);
            }
            // The file system may refuse; then there is no room after all.
            self.core.create_segment()?;
        }
    }

    /// Leaves room on disk for other files of the store, from now on.
    pub fn keep_space_for(&self, other_files: OtherFiles) {
        *self.core.other_files.lock() = other_files;
    }

    /// Whether other files of the store find the room that they are left, as far as the file system says.
    #[must_use]
    pub fn has_space_for_others(&self) -> bool {
        let count = self.core.segments.lock().slots.len();
        self.core.has_space_for_others(count as u64, 0).unwrap_or(false)
    }

    /// The newest sequence number: grows with every record, so it measures time in writes.
    #[must_use]
    pub fn newest_sequence(&self) -> u64 {
        self.core.segments.lock().next_sequence
    }

    /// What [`dalsegno_core::Extent::born`] is for an extent that is copied: to be asked before it is looked up which
    /// of its blocks are visible. `None` if the copy keeps that of the original: the record of a removal may lie where
    /// nothing could be read, and must still hide the block when it can.
    #[must_use]
    pub fn born_of_copies(&self) -> Option<u64> {
        let segments = self.core.segments.lock();
        let is_unread = segments.is_one_missing
            || !segments.missing.is_empty()
            || segments.slots.values().any(|slot| slot.oldest_born() == 0);
        (!is_unread).then_some(segments.next_sequence)
    }

    /// The round of uses that goes on now, named by the first sequence number it could give; one lasts as long as a
    /// segment takes writes. Everything that was written before this log was opened is older.
    #[must_use]
    pub fn round(&self) -> u64 {
        self.core.segments.lock().round
    }

    /// Writes nothing more, not even for a layer-wise put that somebody still holds.
    pub fn close(&self) {
        self.core.closed.store(true, Ordering::Release);
    }

    /// Fails if writing has stopped.
    ///
    /// # Errors
    ///
    /// [`LogError::Poisoned`].
    pub fn check_writable(&self) -> Result<(), LogError> {
        self.core.check_writable()
    }
}

impl Core {
    /// A core without a store yet.
    pub(crate) fn new(
        device: Arc<dyn Device>,
        clock: Arc<dyn Clock>,
        pool: BufferPool,
        options: LogOptions,
    ) -> Self {
        Self {
            device,
            clock,
            pool,
            options,
            store: StoreId::default(),
            segments: Mutex::default(),
            creating: Mutex::default(),
            checkpointing: Mutex::default(),
            other_files: Mutex::default(),
            headers: HeaderCache::new(options.header_cache_bytes),
            stats: LogStats::default(),
            codecs: UnitCodecs::default(),
            compression_budget: Room::new(options.compression_bytes),
            compressed: AtomicBool::new(false),
            poisoned: AtomicBool::new(false),
            closed: AtomicBool::new(false),
        }
    }

    /// A core that only reads, of a store that is not known yet.
    pub(crate) fn offline(
        device: Arc<dyn Device>,
        clock: Arc<dyn Clock>,
        pool: BufferPool,
    ) -> Self {
        let options = LogOptions {
            segment_bytes: 0,
            segment_count: 0,
            durability: Durability::None,
            io_depth: 8,
            io_request_bytes: pool.largest() as u64,
            header_cache_bytes: 0,
            compression_bytes: 0,
            scan_threads: SCAN_THREADS,
            read_only: true,
        };
        Self::new(device, clock, pool, options)
    }

    pub(crate) fn pin(&self, location: Location) -> Option<Pin> {
        let segment = {
            let segments = self.segments.lock();
            Arc::clone(&segments.slots.get(&location.segment)?.segment)
        };
        segment.pin(location.epoch)
    }

    pub(crate) fn check_writable(&self) -> Result<(), LogError> {
        assert!(!self.options.read_only, "a log opened for looking is never written");
        if self.closed.load(Ordering::Acquire) {
            return Err(LogError::Io(IoError::Closed));
        }
        if self.poisoned.load(Ordering::Acquire) { Err(LogError::Poisoned) } else { Ok(()) }
    }

    /// Whether compressed extents may be written.
    pub(crate) fn is_compressed(&self) -> bool {
        self.compressed.load(Ordering::Acquire)
    }

    pub(crate) fn set_compressed(&self, is_compressed: bool) {
        self.compressed.store(is_compressed, Ordering::Release);
    }

    pub(crate) fn poison(&self, why: &dyn std::fmt::Display) {
        if !self.poisoned.swap(true, Ordering::AcqRel) {
            tracing::error!(
                "writing stops, since something may not be durable: {why}; reads go on, reopen the store to recover"
            );
        }
    }

    /// Whether the file system has room for `bytes` and for what other files of the store want beside so many segments;
    /// none if it does not say.
    pub(crate) fn has_space_for_others(&self, count: u64, bytes: u64) -> Option<bool> {
        let wanted = self.other_files.lock().wanted(count, u64::from(self.options.segment_count));
        if wanted == 0 {
            return Some(true);
        }
        let space = self.device.space().ok()?;
        Some(space.free_bytes >= bytes.saturating_add(wanted))
    }

    pub(crate) fn rules(&self, allow_direct: bool) -> Rules {
        Rules {
            limit: usize::try_from(self.options.io_request_bytes).expect("64-bit addresses"),
            memory_align: self.device.geometry().memory_align,
            allow_direct,
        }
    }
}
