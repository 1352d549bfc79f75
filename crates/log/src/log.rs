//! The log as a whole: composes its owners, and opens them.

use std::sync::Arc;

use dalsegno_core::{Clock, ExtentId, Limits, Location, StoreId};
use dalsegno_extent::format::StoreHeader;
use dalsegno_extent::{
    BlockRead, BlocksRead, CodecPool, CompressedExtent, Compressor, DeviceIo, ExtentRead,
    HeaderCache, HeaderName, IoBounds, PinnedFile, Reader, SourceIo, read_stored,
};
use dalsegno_io::{BufferPool, Call, Device};

use crate::device::LogDevice;
use crate::error::LogError;
use crate::recovery::{Recovered, SegmentOpener, StoreFiles, open_store, recover};
use crate::segment::{Checkpoint, Recycler, Removals, SegmentListFile, Segments, make_checkpoint};
use crate::stats::LogStats;
use crate::writer::Writer;

/// Threads that read headers at open by default.
const SCAN_THREADS: u32 = 4;

/// How a log is opened.
#[derive(Clone, Debug)]
pub struct LogOptions {
    /// The bounds of the store.
    pub limits: Limits,
    /// Threads that read headers at open.
    pub scan_threads: u32,
    /// Writes nothing, to look at a store.
    pub read_only: bool,
}

impl LogOptions {
    /// The options of a store with these limits, to read and write it.
    #[must_use]
    pub fn new(limits: Limits) -> Self {
        Self { limits, scan_threads: SCAN_THREADS, read_only: false }
    }
}

/// A tensor log over one device. Cheap to clone: clones share one log.
#[derive(Clone, Debug)]
pub struct Log {
    owners: Arc<Owners>,
}

/// The parts of a log. Each holds what it uses.
#[derive(Debug)]
struct Owners {
    options: LogOptions,
    device: LogDevice,
    reader: Reader,
    segments: Arc<Segments>,
    writer: Arc<Writer>,
    compressor: Arc<Compressor>,
    removals: Arc<Removals>,
    list: Arc<SegmentListFile>,
    recycler: Recycler,
    store_files: StoreFiles,
}

impl Log {
    /// Opens the log of `device`, and reads the headers of all records.
    ///
    /// `new_store` is the id to use if the device holds no store yet. [`Self::open_with_checkpoint`] skips the headers
    /// that an index has indexed.
    ///
    /// # Errors
    ///
    /// [`LogError::Format`] if a newer Dalsegno wrote the store; [`LogError::Io`] if the device fails as a whole.
    /// Damage of single files is no error: [`Recovered`] reports it.
    pub fn open(
        device: Arc<dyn Device>,
        clock: Arc<dyn Clock>,
        pool: BufferPool,
        options: LogOptions,
        new_store: StoreId,
    ) -> Result<(Self, Recovered), LogError> {
        Self::open_with_checkpoint(device, clock, pool, options, new_store, |_| None)
    }

    /// As [`Self::open`]. `checkpoint` is called with the store's id, and returns the last result of
    /// [`Self::checkpoint`]. The log then reads and returns only later records, and the removals that the checkpoint
    /// knew separately.
    ///
    /// # Errors
    ///
    /// As [`Self::open`]. An invalid checkpoint counts as none.
    pub fn open_with_checkpoint(
        device: Arc<dyn Device>,
        clock: Arc<dyn Clock>,
        pool: BufferPool,
        options: LogOptions,
        new_store: StoreId,
        checkpoint: impl FnOnce(StoreId) -> Option<Vec<u8>>,
    ) -> Result<(Self, Recovered), LogError> {
        let limits = &options.limits;
        let bounds = IoBounds { depth: limits.io_depth, request_bytes: limits.io_request_bytes };
        let device = LogDevice::new(DeviceIo::new(device, clock, pool, bounds), options.read_only);
        let segment_bytes = limits.segment_bytes;
        let new = StoreHeader { store: new_store, segment_bytes, is_compressed: false };
        let header = open_store(&device.io, &device.syncer, new)?;
        if !options.read_only {
            // A killed process may have created a segment without making its name durable.
            device.syncer.sync_names()?;
        }
        let checkpoint = checkpoint(header.store).and_then(|bytes| Checkpoint::decode(&bytes));
        let mut checkpoint = checkpoint.unwrap_or_default();
        checkpoint.forget_impossible(segment_bytes);
        let owners = Owners::new(device, options, header);
        let opener = SegmentOpener {
            io: &owners.device.io,
            syncer: &owners.device.syncer,
            store: header.store,
            segment_bytes,
            durability: owners.options.limits.durability,
            checkpoint: &checkpoint,
        };
        let recovered = recover(&opener, &owners.segments, owners.options.scan_threads)?;
        Ok((Self { owners: Arc::new(owners) }, recovered))
    }

    /// The store's id.
    #[must_use]
    pub fn store(&self) -> StoreId {
        self.owners.segments.store()
    }

    /// The options with which it was opened.
    #[must_use]
    pub fn options(&self) -> &LogOptions {
        &self.owners.options
    }

    /// The counters.
    #[must_use]
    pub fn stats(&self) -> &LogStats {
        &self.owners.device.stats
    }

    /// The segments: their states and their space.
    #[must_use]
    pub fn segments(&self) -> &Segments {
        &self.owners.segments
    }

    /// Appends extents.
    #[must_use]
    pub fn writer(&self) -> &Arc<Writer> {
        &self.owners.writer
    }

    /// Compresses extents.
    #[must_use]
    pub fn compressor(&self) -> &Compressor {
        &self.owners.compressor
    }

    /// Removes blocks.
    #[must_use]
    pub fn removals(&self) -> &Removals {
        &self.owners.removals
    }

    /// Recycles segments.
    #[must_use]
    pub fn recycler(&self) -> &Recycler {
        &self.owners.recycler
    }

    /// The segment list, which says what the store should hold.
    #[must_use]
    pub fn segment_list(&self) -> &SegmentListFile {
        &self.owners.list
    }

    /// The store's header and namespace descriptors.
    #[must_use]
    pub fn store_files(&self) -> &StoreFiles {
        &self.owners.store_files
    }

    /// Reads blocks of several extents, and returns one outcome for each target, in the given order: see
    /// [`Reader::begin`]. The blocks of an extent whose segment was recycled are lost.
    #[must_use]
    pub fn read(&self, reads: Vec<ExtentRead>, call: &Call) -> Vec<Vec<BlockRead>> {
        let pinned = |read: ExtentRead| {
            let pinned = self.pinned_file(read.extent.location);
            read.in_file(self.store(), pinned)
        };
        self.owners.reader.begin(reads.into_iter().map(pinned), call).finish()
    }

    /// Plans to read blocks of extents whose files the caller has pinned: see [`Reader::begin`].
    #[must_use]
    pub fn begin_read<'a>(
        &'a self,
        reads: impl ExactSizeIterator<Item = (ExtentRead, PinnedFile)>,
        call: &'a Call,
    ) -> BlocksRead<'a> {
        let reads = reads.map(|(read, pinned)| read.in_file(self.store(), Some(pinned)));
        self.owners.reader.begin(reads, call)
    }

    /// Reads a compressed extent in its stored form; `None` if the extent is plain, gone, or not fully intact: then
    /// read it block by block. The result takes memory outside of every bound, so only the thread that reclaims may use
    /// this.
    #[must_use]
    pub fn read_compressed(&self, extent: &dalsegno_core::Extent) -> Option<CompressedExtent> {
        let Owners { segments, device, .. } = &*self.owners;
        let pinned = self.pinned_file(extent.location).filter(|_| extent.is_compressed())?;
        read_stored(&device.io, &pinned, segments.store(), extent)
    }

    /// The file of an extent, which stays in its place as long as this lives; `None` if it was recycled already.
    #[must_use]
    pub fn pinned_file(&self, location: Location) -> Option<PinnedFile> {
        self.owners.segments.pin(location).map(|pin| Arc::new(pin).pinned_file())
    }

    /// What reads the files of [`Self::pinned_file`].
    #[must_use]
    pub fn source(&self) -> &SourceIo {
        &self.owners.device.io
    }

    /// Drops the cached header of an extent that is gone.
    pub fn forget(&self, id: ExtentId) {
        self.owners.reader.forget(HeaderName::Extent(id));
    }

    /// Makes a checkpoint for an index that knows all records without pins, and makes these records durable. So the
    /// index never refers to a record that a crash takes back.
    ///
    /// One caller may make checkpoints at a time: a second one would not wait for the syncs of the first.
    ///
    /// # Errors
    ///
    /// As [`Writer::append`] if a sync fails.
    pub fn checkpoint(&self) -> Result<Vec<u8>, LogError> {
        make_checkpoint(&self.owners.segments, &self.owners.device.syncer)
    }

    /// Stops all writing, as a failed sync does.
    pub fn poison(&self, why: &str) {
        self.owners.device.syncer.poison(&why);
    }

    /// Whether writing has stopped because a sync failed.
    #[must_use]
    pub fn is_poisoned(&self) -> bool {
        self.owners.device.syncer.is_poisoned()
    }

    /// Fails if writing has stopped.
    ///
    /// # Errors
    ///
    /// [`LogError::Poisoned`], or [`IoError::Closed`](dalsegno_io::IoError::Closed) after [`Self::close`].
    pub fn check_writable(&self) -> Result<(), LogError> {
        self.owners.device.syncer.check_writable()
    }

    /// Stops all writing, including that of a layer-wise put that a caller still holds.
    pub fn close(&self) {
        self.owners.device.syncer.close();
    }

    /// Closes the log and all its files, so that it can be opened again.
    pub fn release(self) {
        self.close();
        for slot in self.owners.segments.table().slots.values() {
            self.owners.device.io.device.close(slot.segment.file);
        }
    }
}

impl Owners {
    fn new(device: LogDevice, options: LogOptions, header: StoreHeader) -> Self {
        let (limits, store) = (&options.limits, header.store);
        let (segment_bytes, most) = (limits.segment_bytes, limits.segment_count);
        let segments = Arc::new(Segments::new(device.clone(), store, segment_bytes, most));
        let headers = Arc::new(HeaderCache::new(limits.header_cache_bytes));
        let codecs = Arc::new(CodecPool::default());
        let reader = Reader::new(
            Arc::clone(&device.io.transfers),
            Arc::clone(&headers),
            Arc::clone(&codecs),
            Some(Arc::<Segments>::clone(&segments)),
        );
        let (clock, transfers) = (Arc::clone(&device.io.clock), Arc::clone(&device.io.stats));
        let bytes = limits.compression_bytes;
        let compressor =
            Arc::new(Compressor::new(clock, transfers, codecs, bytes, header.is_compressed));
        let compressor_of = Arc::clone(&compressor);
        let store_files = StoreFiles::new(device.clone(), compressor_of, store, segment_bytes);
        let removals = Arc::new(Removals::new(device.clone(), Arc::clone(&segments)));
        let list = Arc::new(SegmentListFile::new(device.clone(), Arc::clone(&segments)));
        let (removals_of, list_of) = (Arc::clone(&removals), Arc::clone(&list));
        let recycler = Recycler::new(device.clone(), Arc::clone(&segments), removals_of, list_of);
        let durability = limits.durability;
        let writer =
            Arc::new(Writer::new(device.clone(), Arc::clone(&segments), headers, durability));
        Self {
            options,
            device,
            reader,
            segments,
            writer,
            compressor,
            removals,
            list,
            recycler,
            store_files,
        }
    }
}
