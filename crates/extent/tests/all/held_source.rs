//! A source in memory whose reads a test can hold, reorder and fail.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use dalsegno_core::{ChainHash, Class, Clock, Compression, KvLayout, NamespaceId, StoreId};
use dalsegno_extent::format::{NewExtent, RecordHeader, RecordPlace, SECTOR, Units};
use dalsegno_extent::{
    BlockRead, BlockTarget, CompressedExtent, Compressor, ExtentRead, HeaderCache, IoBounds,
    PinnedFile, PlacedRecord, Reader, RecordRead, SourceIo, WantedRecord,
};
use dalsegno_io::{BufferPool, Call, FileId, Geometry, IoError, Memory, Request, Source};
use parking_lot::Mutex;

pub(crate) const STORE: StoreId = StoreId([7; 16]);
pub(crate) const FILE: FileId = FileId(3);
pub(crate) const NAMESPACE: NamespaceId = NamespaceId([1; 16]);
pub(crate) const LAYERS: u32 = 3;
pub(crate) const SLICE: usize = 8192;

/// The range of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SeenRequest {
    pub(crate) offset: u64,
    pub(crate) bytes: u64,
}

/// A source in memory.
#[derive(Debug, Default)]
pub(crate) struct HeldSource {
    files: Mutex<BTreeMap<u64, Vec<u8>>>,
    /// Sectors that cannot be read.
    bad: Mutex<BTreeSet<u64>>,
    /// Sectors whose reads are refused.
    refused: Mutex<BTreeSet<u64>>,
    /// The requests that wait; `None` if none is held.
    held: Mutex<Option<Vec<Request>>>,
    seen: Mutex<Vec<SeenRequest>>,
}

impl HeldSource {
    /// Holds requests from now on.
    pub(crate) fn hold(&self) {
        *self.held.lock() = Some(Vec::new());
    }

    /// How many requests wait.
    pub(crate) fn waiting(&self) -> usize {
        self.held.lock().as_ref().map_or(0, Vec::len)
    }

    /// Serves the newest request that waits; `false` if none does.
    pub(crate) fn serve_newest(&self) -> bool {
        let newest = self.held.lock().as_mut().and_then(Vec::pop);
        newest.map(|request| self.serve(request)).is_some()
    }

    /// Serves the oldest request that waits; `false` if none does.
    pub(crate) fn serve_oldest(&self) -> bool {
        let oldest =
            self.held.lock().as_mut().filter(|held| !held.is_empty()).map(|held| held.remove(0));
        oldest.map(|request| self.serve(request)).is_some()
    }

    /// Serves all requests from now on.
    pub(crate) fn go_on(&self) {
        let held = self.held.lock().take();
        held.into_iter().flatten().for_each(|request| self.serve(request));
    }

    /// Fails all reads of a sector.
    pub(crate) fn break_sector(&self, offset: u64) {
        self.bad.lock().insert(offset / SECTOR as u64);
    }

    /// Refuses all reads of a sector, as a device that is suspended.
    pub(crate) fn refuse(&self, offset: u64) {
        self.refused.lock().insert(offset / SECTOR as u64);
    }

    /// Inverts a byte.
    pub(crate) fn damage(&self, offset: u64) {
        let mut files = self.files.lock();
        let byte = &mut files.get_mut(&FILE.0).unwrap()[usize::try_from(offset).unwrap()];
        *byte = !*byte;
    }

    /// How many requests there were.
    pub(crate) fn seen(&self) -> usize {
        self.seen.lock().len()
    }

    /// The requests so far, in order.
    pub(crate) fn take_seen(&self) -> Vec<SeenRequest> {
        std::mem::take(&mut self.seen.lock())
    }

    fn serve(&self, mut request: Request) {
        let result = self.fill(&mut request);
        request.complete(result);
    }

    fn fill(&self, request: &mut Request) -> Result<(), IoError> {
        let (files, bad) = (self.files.lock(), self.bad.lock());
        let mut at = usize::try_from(request.offset).unwrap();
        let sectors = request.offset / SECTOR as u64..(request.offset + request.bytes()) / 4096;
        if self.refused.lock().range(sectors.clone()).next().is_some() {
            return Err(IoError::Suspended);
        }
        if bad.range(sectors).next().is_some() {
            let source = std::io::Error::from_raw_os_error(5);
            return Err(IoError::Os { operation: "read", file: "file".into(), source });
        }
        let file = &files[&request.file.0];
        for memory in &mut request.memory {
            let len = memory.len();
            memory.as_mut_slice().copy_from_slice(&file[at..at + len]);
            at += len;
        }
        Ok(())
    }
}

impl Source for HeldSource {
    fn submit(&self, requests: Vec<Request>) {
        for request in requests {
            let seen = SeenRequest { offset: request.offset, bytes: request.bytes() };
            self.seen.lock().push(seen);
            if let Some(held) = &mut *self.held.lock() {
                held.push(request);
                continue;
            }
            self.serve(request);
        }
    }

    fn geometry(&self) -> Geometry {
        Geometry { memory_align: SECTOR, engine: "held", direct: true, places: 64 }
    }
}

/// A reader of one file with records.
pub(crate) struct Rig {
    pub(crate) source: Arc<HeldSource>,
    pub(crate) reader: Reader,
    pub(crate) headers: Arc<HeaderCache>,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) pool: BufferPool,
}

impl Rig {
    /// One whose calls have at most `depth` requests in flight.
    pub(crate) fn new(depth: u32) -> Self {
        Self::with_requests(depth, 64 << 10)
    }

    /// As [`Self::new`], with requests of so many bytes.
    pub(crate) fn with_requests(depth: u32, request_bytes: usize) -> Self {
        let source = Arc::new(HeldSource::default());
        source.files.lock().insert(FILE.0, vec![0; SECTOR]);
        let clock: Arc<dyn Clock> = Arc::new(dalsegno_io::SystemClock::new());
        let pool = BufferPool::new(16 << 20, 1 << 20).unwrap();
        let io = Arc::new(SourceIo {
            source: Arc::<HeldSource>::clone(&source),
            clock: Arc::clone(&clock),
            pool: pool.clone(),
            bounds: IoBounds { depth, request_bytes: request_bytes as u64 },
            stats: Arc::default(),
        });
        let headers = Arc::new(HeaderCache::new(1 << 20));
        let reader = Reader::new(io, Arc::clone(&headers), Arc::default(), None);
        Self { source, reader, headers, clock, pool }
    }

    /// Writes a record behind the others.
    pub(crate) fn write(&self, blocks: &[u8], compression: Compression) -> RecordHeader {
        let mut files = self.source.files.lock();
        let file = files.get_mut(&FILE.0).unwrap();
        let offset = file.len() as u64;
        let extent = NewExtent {
            namespace: NAMESPACE,
            lineage: ChainHash::default(),
            first_block_index: 0,
            parent: ChainHash::default(),
            layout: KvLayout::new(LAYERS, u32::try_from(SLICE).unwrap()).unwrap(),
            hashes: blocks.iter().copied().map(hash).collect(),
            born: None,
        };
        let owned = |bytes| vec![Memory::owned(bytes, ())];
        let blocks: Vec<_> = blocks.iter().map(|block| owned(block_bytes(*block))).collect();
        let place = RecordPlace { segment: 5, epoch: 2, offset };
        let (crcs, units, payload) = self.stored(&extent, &blocks, compression);
        let header = extent.header(STORE, place, offset + 1, crcs, units);
        let mut bytes = vec![0; header.header_bytes() as usize];
        header.encode(&mut bytes);
        file.extend(bytes);
        file.extend(payload);
        header
    }

    fn stored(
        &self,
        extent: &NewExtent,
        blocks: &[Vec<Memory>],
        compression: Compression,
    ) -> (Vec<u32>, Option<Units>, Vec<u8>) {
        let (stats, codecs) = (Arc::default(), Arc::default());
        let compressor = Compressor::new(Arc::clone(&self.clock), stats, codecs, 8 << 20, true);
        let budget = compressor.own_budget();
        let call = Call::of(Class::Need);
        let compressed = compressor.compress(extent, blocks, compression, budget, &call).unwrap();
        if let Some(CompressedExtent { slice_crcs, units, payload }) = compressed {
            return (slice_crcs, Some(units), payload.as_slice().to_vec());
        }
        let slice = |block: &Vec<Memory>, layer: usize| {
            block[0].as_slice()[layer * SLICE..(layer + 1) * SLICE].to_vec()
        };
        let slices: Vec<Vec<u8>> = (0..LAYERS as usize)
            .flat_map(|layer| blocks.iter().map(move |block| slice(block, layer)))
            .collect();
        (slices.iter().map(|one| dalsegno_core::crc32c(one)).collect(), None, slices.concat())
    }

    /// Reads records, and checks the bytes of every hit and that all memory comes back.
    pub(crate) fn read(&self, reads: Vec<RecordRead>) -> Vec<Vec<BlockRead>> {
        let call = Call::of(Class::Need);
        let read = self.reader.begin(reads.into_iter(), &call).finish();
        for block in read.iter().flatten() {
            assert_eq!(bytes_of(block).len(), LAYERS as usize * SLICE);
        }
        read
    }
}

/// Waits until something happens on another thread.
pub(crate) fn until(what: &str, happened: impl Fn() -> bool) {
    for _ in 0..20_000 {
        if happened() {
            return;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    panic!("{what}: not in 20 s");
}

/// Bytes at the end of a compressed payload that no unit uses.
pub(crate) fn padding(header: &RecordHeader) -> u64 {
    let units = header.units().unwrap();
    let used: u64 = units.table.iter().map(|unit| u64::from(unit.bytes)).sum();
    header.payload_bytes() - used
}

pub(crate) fn hash(block: u8) -> ChainHash {
    ChainHash([block; 32])
}

/// The bytes of a block; they shrink.
pub(crate) fn block_bytes(block: u8) -> Vec<u8> {
    let byte = |at: usize| u8::try_from((at / 64 + usize::from(block) * 31) % 253).unwrap();
    (0..LAYERS as usize * SLICE).map(byte).collect()
}

pub(crate) fn bytes_of(read: &BlockRead) -> Vec<u8> {
    read.memory.iter().flat_map(|memory| memory.as_slice().to_vec()).collect()
}

pub(crate) fn target(block: u32) -> BlockTarget {
    let memory = vec![Memory::zeroed(LAYERS as usize * SLICE)];
    BlockTarget { block, number: block, memory, outlives_call: true, copy: Vec::new() }
}

fn pinned() -> PinnedFile {
    PinnedFile { file: FILE, guard: Arc::new(()) }
}

/// The read of some blocks of an extent that is known.
pub(crate) fn known(header: &RecordHeader, blocks: &[u32]) -> RecordRead {
    let extent = Arc::new(header.extent().unwrap());
    let targets = blocks.iter().copied().map(target).collect();
    ExtentRead { extent, layers: 0..LAYERS, targets }.in_file(STORE, Some(pinned()))
}

/// The read of some blocks of a record of which the place is known, with their names.
pub(crate) fn placed(header: &RecordHeader, blocks: &[(u32, u8)]) -> RecordRead {
    let extent = header.extent().unwrap();
    let placed = PlacedRecord {
        place: RecordPlace { segment: header.segment, epoch: header.epoch, offset: header.offset },
        header_bytes: header.header_bytes(),
        namespace: extent.namespace,
        layout: extent.layout,
        plain_blocks: (!extent.is_compressed()).then(|| extent.block_count()),
        hashes: blocks.iter().map(|(_, name)| hash(*name)).collect(),
    };
    RecordRead {
        store: STORE,
        record: WantedRecord::Placed(placed),
        pinned: Some(pinned()),
        layers: 0..LAYERS,
        targets: blocks.iter().map(|(block, _)| target(*block)).collect(),
    }
}
