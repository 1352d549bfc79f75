//! Reads blocks of packs, and verifies them as the log does.
//!
//! 1. A block is a hit only if the record's header names this writer, pack, offset, namespace and block, and every
//!    wanted slice has the header's checksum.
//! 2. A read fetches the wanted blocks and the headers of their records, never a whole pack. Headers are cached, within
//!    a bound on their bytes.
//! 3. A block that is damaged is not found any more, nor are the blocks of a pack that is gone.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use dalsegno_core::{ChainHash, KvLayout, NamespaceId, StoreId};
use dalsegno_extent::format::RecordHeader;
use dalsegno_extent::{
    BlockRead, BlockTarget, BlocksRead, Cause, CodecPool, ExtentRead, HeaderCache, HeaderName,
    HeaderRead, HeadersRead, PinnedFile, PinnedRead, Reader, SourceIo, TransferStatsView,
    VerifiedHeader,
};
use dalsegno_io::{Call, FileId};

use crate::index::{FarIndex, FarPlace, RecordAt};
use crate::tier::Tier;

/// A block to read.
#[derive(Debug)]
pub struct FarWanted {
    /// Where it is.
    pub place: FarPlace,
    /// Its name.
    pub hash: ChainHash,
    /// Where its bytes go. The number of the block is taken from the place.
    pub target: BlockTarget,
}

/// What all blocks of a read have in common.
#[derive(Clone, Debug)]
pub struct FarShape {
    /// Their namespace.
    pub namespace: NamespaceId,
    /// Its layout.
    pub layout: KvLayout,
    /// The wanted layers.
    pub layers: Range<u32>,
}

/// Reads blocks of packs.
#[derive(Debug)]
pub struct FarReader {
    io: Arc<SourceIo>,
    reader: Reader,
    index: Arc<FarIndex>,
    tier: Arc<dyn Tier>,
    headers: Arc<HeaderCache>,
    used_bytes: AtomicU64,
}

/// The wanted blocks of one record.
struct RecordRead {
    at: RecordAt,
    /// By position in the request, in the order of the record's blocks.
    wanted: Vec<usize>,
}

impl FarReader {
    /// A reader of the packs of `tier`, through `io`, that keeps at most `header_bytes` of headers.
    #[must_use]
    pub fn new(
        io: Arc<SourceIo>,
        tier: Arc<dyn Tier>,
        index: Arc<FarIndex>,
        header_bytes: u64,
    ) -> Self {
        let headers = Arc::new(HeaderCache::new(header_bytes));
        // Headers are verified here, so the reader itself reads none.
        let reader = Reader::new(
            Arc::clone(&io),
            StoreId::default(),
            Arc::clone(&headers),
            Arc::new(CodecPool::default()),
        );
        Self { io, reader, index, tier, headers, used_bytes: AtomicU64::new(0) }
    }

    /// Counters of its requests: bytes fetched, and misses by cause.
    #[must_use]
    pub fn stats(&self) -> TransferStatsView {
        self.io.stats.view()
    }

    /// Bytes of the blocks that were hits.
    #[must_use]
    pub fn used_bytes(&self) -> u64 {
        self.used_bytes.load(Ordering::Relaxed)
    }

    /// Reads blocks, and returns one result for each, in order.
    pub fn read(&self, shape: &FarShape, wanted: Vec<FarWanted>, call: &Call) -> Vec<BlockRead> {
        self.begin(shape.clone(), wanted, call).finish()
    }

    /// Plans to read blocks. Nothing is sent yet.
    #[must_use]
    pub fn begin<'a>(
        &'a self,
        shape: FarShape,
        wanted: Vec<FarWanted>,
        call: &'a Call,
    ) -> FarReading<'a> {
        let records = self.records(&wanted);
        let headers: Vec<Option<Arc<VerifiedHeader>>> =
            records.iter().map(|record| self.headers.get(name_of(record.at))).collect();
        let missing = records.iter().zip(&headers).filter(|(_, header)| header.is_none());
        let of_record = |(record, _): (&RecordRead, _)| HeaderRead {
            pinned: pinned(record.at.file),
            offset: record.at.offset,
            bytes: record.at.header_bytes as usize,
        };
        let reading = HeadersRead::new(&self.io, missing.map(of_record).collect(), call);
        let results = wanted.iter().map(|_| None).collect();
        let step = FarStep::Headers { records, headers, reading };
        FarReading {
            reader: self,
            shape,
            call,
            wanted: wanted.into_iter().map(Some).collect(),
            results,
            step,
        }
    }

    /// Groups blocks by record. Blocks whose pack is not indexed any more are left out.
    fn records(&self, wanted: &[FarWanted]) -> Vec<RecordRead> {
        let mut groups: BTreeMap<(u32, u16), Vec<usize>> = BTreeMap::new();
        for (at, FarWanted { place, .. }) in wanted.iter().enumerate() {
            groups.entry((place.pack, place.record)).or_default().push(at);
        }
        let mut records = Vec::with_capacity(groups.len());
        for mut group in groups.into_values() {
            group.sort_by_key(|at| wanted[*at].place.block);
            match self.index.record(wanted[group[0]].place) {
                Some(at) => records.push(RecordRead { at, wanted: group }),
                None => self.io.stats.count_miss(Cause::Recycled, group.len() as u64),
            }
        }
        records
    }

    /// Keeps a header that was read, if it is the one that the catalog names.
    fn keep_header(
        &self,
        read: Result<RecordHeader, Cause>,
        at: RecordAt,
    ) -> Result<Arc<VerifiedHeader>, Cause> {
        let header = read.and_then(|header| check_place(header, &at))?;
        self.headers.insert(name_of(at), Arc::clone(&header));
        Ok(header)
    }

    /// Forgets what a miss showed to be damaged or gone.
    fn settle(&self, shape: &FarShape, at: RecordAt, hash: &ChainHash, cause: Cause) {
        if cause == Cause::Recycled {
            if let Some(file) = self.index.remove_pack(at.writer, at.number) {
                self.tier.forget(file);
            }
        } else if cause.is_damage() {
            self.index.forget(shape.namespace, hash);
        }
    }
}

/// A block that was not read, with its memory.
fn lost(cause: Cause, target: BlockTarget) -> BlockRead {
    BlockRead { outcome: Err(cause), memory: target.memory, copy: target.copy }
}

/// Blocks that are being read.
pub struct FarReading<'a> {
    reader: &'a FarReader,
    shape: FarShape,
    call: &'a Call,
    /// Those that are not being read yet.
    wanted: Vec<Option<FarWanted>>,
    results: Vec<Option<BlockRead>>,
    step: FarStep<'a>,
}

/// How far the read of blocks is.
enum FarStep<'a> {
    /// The headers of records are being read, of those that are not cached.
    Headers {
        records: Vec<RecordRead>,
        headers: Vec<Option<Arc<VerifiedHeader>>>,
        reading: HeadersRead<'a>,
    },
    /// The blocks are being read.
    Blocks { records: Vec<PlannedRecord>, reading: BlocksRead<'a> },
}

/// The blocks of a record that are being read, by position in the request and by name.
struct PlannedRecord {
    at: RecordAt,
    blocks: Vec<(usize, ChainHash)>,
}

impl FarReading<'_> {
    /// Sends what may be in flight, and takes what has arrived; returns whether all is done. Does not wait.
    pub fn advance(&mut self) -> bool {
        if let FarStep::Headers { reading, .. } = &mut self.step
            && reading.advance()
        {
            self.plan_blocks();
        }
        match &mut self.step {
            FarStep::Headers { .. } => false,
            FarStep::Blocks { reading, .. } => reading.advance(),
        }
    }

    /// Waits for all blocks, and returns one result for each, in order.
    pub fn finish(mut self) -> Vec<BlockRead> {
        self.plan_blocks();
        let Self { reader, shape, wanted, mut results, step, .. } = self;
        let FarStep::Blocks { records, reading } = step else { unreachable!("planned above") };
        let block_bytes = u64::from(shape.layers.end - shape.layers.start)
            * u64::from(shape.layout.slice_bytes());
        let read = reading.finish(&|_| None, &mut || false);
        for (PlannedRecord { at, blocks }, read) in records.into_iter().zip(read) {
            for ((position, hash), block) in blocks.into_iter().zip(read) {
                match block.outcome {
                    Ok(()) => drop(reader.used_bytes.fetch_add(block_bytes, Ordering::Relaxed)),
                    Err(cause) => reader.settle(&shape, at, &hash, cause),
                }
                results[position] = Some(block);
            }
        }
        // Of packs that are not indexed any more.
        let gone = |one: Option<FarWanted>| {
            lost(Cause::Recycled, one.expect("neither read nor lost").target)
        };
        let ended = results.into_iter().zip(wanted);
        ended.map(|(read, wanted)| read.unwrap_or_else(|| gone(wanted))).collect()
    }

    /// Waits for the headers that are missing, and plans to read the blocks.
    fn plan_blocks(&mut self) {
        let FarStep::Headers { records, headers, reading } = &mut self.step else { return };
        let (records, headers) = (std::mem::take(records), std::mem::take(headers));
        let mut read = reading.finish().into_iter();
        let (mut reads, mut planned) = (Vec::new(), Vec::new());
        for (record, header) in records.into_iter().zip(headers) {
            let header = match header {
                Some(header) => Ok(header),
                None => self.reader.keep_header(read.next().expect("one per header"), record.at),
            };
            match header.and_then(|header| check_shape(header, &self.shape)) {
                Ok(header) => self.plan_record(record, header, (&mut reads, &mut planned)),
                Err(cause) => {
                    record.wanted.into_iter().for_each(|at| self.lose(at, record.at, cause));
                }
            }
        }
        let reading = self.reader.reader.begin(reads.into_iter(), self.call);
        self.step = FarStep::Blocks { records: planned, reading };
    }

    /// Plans to read those blocks of a record that are where the index says.
    fn plan_record(
        &mut self,
        record: RecordRead,
        header: Arc<VerifiedHeader>,
        (reads, planned): (&mut Vec<PinnedRead>, &mut Vec<PlannedRecord>),
    ) {
        let (mut targets, mut blocks) = (Vec::new(), Vec::new());
        for at in record.wanted {
            let FarWanted { place, hash, .. } = self.wanted[at].as_ref().expect("read once");
            if header.extent.hashes.get(usize::from(place.block)) != Some(hash) {
                self.lose(at, record.at, Cause::WrongPlace);
                continue;
            }
            let FarWanted { place, hash, target } = self.wanted[at].take().expect("as above");
            targets.push(BlockTarget { block: u32::from(place.block), ..target });
            blocks.push((at, hash));
        }
        let layers = self.shape.layers.clone();
        let read = ExtentRead { extent: Arc::clone(&header.extent), layers, targets };
        let pinned = Some(pinned(record.at.file));
        reads.push(PinnedRead { read, pinned, header: Some(header) });
        planned.push(PlannedRecord { at: record.at, blocks });
    }

    /// Makes a block a miss.
    fn lose(&mut self, at: usize, record: RecordAt, cause: Cause) {
        let FarWanted { hash, target, .. } = self.wanted[at].take().expect("lost once");
        self.reader.io.stats.count_miss(cause, 1);
        self.reader.settle(&self.shape, record, &hash, cause);
        self.results[at] = Some(lost(cause, target));
    }
}

/// The name of a record's header in the cache.
fn name_of(at: RecordAt) -> HeaderName {
    HeaderName::Place(at.file, at.offset)
}

/// Packs never change, so nothing keeps them in their place.
fn pinned(file: FileId) -> PinnedFile {
    PinnedFile { file, guard: Arc::new(()) }
}

/// Checks that a header is the one that the catalog names.
fn check_place(header: RecordHeader, at: &RecordAt) -> Result<Arc<VerifiedHeader>, Cause> {
    let is_here = header.store == at.writer.store
        && header.epoch == at.writer.open
        && header.segment == at.number
        && header.offset == at.offset
        && header.header_bytes() == at.header_bytes;
    let extent = VerifiedHeader::of(header).filter(|_| is_here);
    extent.map(Arc::new).ok_or(Cause::WrongPlace)
}

fn check_shape(
    header: Arc<VerifiedHeader>,
    shape: &FarShape,
) -> Result<Arc<VerifiedHeader>, Cause> {
    let extent = &header.extent;
    let fits = extent.namespace == shape.namespace && extent.layout == shape.layout;
    if fits { Ok(header) } else { Err(Cause::WrongPlace) }
}
