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

use dalsegno_core::{ChainHash, Extent, KvLayout, NamespaceId, StoreId};
use dalsegno_extent::format::{RecordHeader, RecordKind};
use dalsegno_extent::{
    BlockRead, BlockTarget, Call, Cause, CodecPool, ExtentRead, ExtentTables, HeaderCache,
    HeaderRead, PinnedFile, PinnedRead, Reader, SourceIo, TransferStatsView, read_headers,
};
use dalsegno_io::FileId;
use quick_cache::Weighter;
use quick_cache::sync::Cache;

use crate::index::{FarIndex, FarPlace, RecordAt};
use crate::tier::Tier;

/// Memory of a cached header in addition to its tables and hashes.
const HEADER_BYTES: u64 = 512;

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

/// A verified header.
#[derive(Clone, Debug)]
struct FarExtent {
    extent: Arc<Extent>,
    tables: Arc<ExtentTables>,
}

#[derive(Clone, Copy, Debug)]
struct HeaderWeight;

impl Weighter<(FileId, u64), FarExtent> for HeaderWeight {
    fn weight(&self, _: &(FileId, u64), header: &FarExtent) -> u64 {
        let units = header.tables.units.as_ref().map_or(0, |units| u64::from(units.count()) * 8);
        let tables = header.tables.crcs.len() as u64 * 4 + units;
        HEADER_BYTES + tables + header.extent.hashes.len() as u64 * 32
    }
}

/// Reads blocks of packs.
#[derive(Debug)]
pub struct FarReader {
    io: Arc<SourceIo>,
    reader: Reader,
    index: Arc<FarIndex>,
    tier: Arc<dyn Tier>,
    headers: Cache<(FileId, u64), FarExtent, HeaderWeight>,
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
        // Headers are verified and cached here, so the reader itself reads and caches none.
        let none = Arc::new(HeaderCache::new(0));
        let reader =
            Reader::new(Arc::clone(&io), StoreId::default(), none, Arc::new(CodecPool::default()));
        let count = usize::try_from(header_bytes / (4 * HEADER_BYTES)).unwrap_or(usize::MAX);
        let headers = Cache::with_weighter(count.max(16), header_bytes, HeaderWeight);
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
        let mut results: Vec<Option<BlockRead>> = wanted.iter().map(|_| None).collect();
        let records = self.records(&wanted);
        let headers = self.headers(&records, call);
        let names: Vec<(FarPlace, ChainHash)> =
            wanted.iter().map(|one| (one.place, one.hash)).collect();
        let mut targets: Vec<Option<BlockTarget>> =
            wanted.into_iter().map(|one| Some(one.target)).collect();
        let (mut reads, mut positions) = (Vec::new(), Vec::new());
        for (record, header) in records.into_iter().zip(headers) {
            let header = header.and_then(|header| check_shape(header, shape));
            let header = match header {
                Ok(header) => header,
                Err(cause) => {
                    for at in &record.wanted {
                        self.io.stats.count_miss(cause, 1);
                        self.settle(shape, record.at, &names[*at].1, cause);
                        results[*at] = Some(lost(cause));
                    }
                    continue;
                }
            };
            let is_right = |at: &usize| {
                let (place, hash) = names[*at];
                header.extent.hashes.get(usize::from(place.block)) == Some(&hash)
            };
            let (right, wrong): (Vec<usize>, Vec<usize>) =
                record.wanted.iter().partition(|at| is_right(at));
            for at in wrong {
                self.io.stats.count_miss(Cause::WrongPlace, 1);
                self.settle(shape, record.at, &names[at].1, Cause::WrongPlace);
                results[at] = Some(lost(Cause::WrongPlace));
            }
            let of_target = |at: &usize| BlockTarget {
                block: u32::from(names[*at].0.block),
                ..targets[*at].take().expect("each block is read once")
            };
            let read = ExtentRead {
                extent: Arc::clone(&header.extent),
                layers: shape.layers.clone(),
                targets: right.iter().map(of_target).collect(),
            };
            let pinned = Some(pinned(record.at.file));
            reads.push(PinnedRead { read, pinned, tables: Some(header.tables) });
            positions.push((record.at, right));
        }
        let block_bytes = u64::from(shape.layers.end - shape.layers.start)
            * u64::from(shape.layout.slice_bytes());
        let read = self.reader.read(reads.into_iter(), call, &|_| None);
        for ((at, positions), blocks) in positions.into_iter().zip(read) {
            for (position, block) in positions.into_iter().zip(blocks) {
                match block.outcome {
                    Ok(()) => drop(self.used_bytes.fetch_add(block_bytes, Ordering::Relaxed)),
                    Err(cause) => self.settle(shape, at, &names[position].1, cause),
                }
                results[position] = Some(block);
            }
        }
        results.into_iter().map(|one| one.unwrap_or_else(|| lost(Cause::Recycled))).collect()
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

    /// The headers of records, from the cache or from the location.
    fn headers(&self, records: &[RecordRead], call: &Call) -> Vec<Result<FarExtent, Cause>> {
        let mut headers: Vec<Option<Result<FarExtent, Cause>>> = records
            .iter()
            .map(|record| self.headers.get(&(record.at.file, record.at.offset)).map(Ok))
            .collect();
        let missing: Vec<usize> = headers
            .iter()
            .enumerate()
            .filter(|(_, header)| header.is_none())
            .map(|(at, _)| at)
            .collect();
        let wanted: Vec<HeaderRead> = missing
            .iter()
            .map(|at| HeaderRead {
                pinned: pinned(records[*at].at.file),
                offset: records[*at].at.offset,
                bytes: records[*at].at.header_bytes as usize,
            })
            .collect();
        for (at, read) in missing.into_iter().zip(read_headers(&self.io, &wanted, call)) {
            let record = records[at].at;
            let header = read.and_then(|header| check_place(header, &record));
            if let Ok(header) = &header {
                self.headers.insert((record.file, record.offset), header.clone());
            }
            headers[at] = Some(header);
        }
        headers.into_iter().map(|header| header.expect("cached or read")).collect()
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

fn lost(cause: Cause) -> BlockRead {
    BlockRead { outcome: Err(cause), memory: Vec::new() }
}

/// Packs never change, so nothing keeps them in their place.
fn pinned(file: FileId) -> PinnedFile {
    PinnedFile { file, guard: Arc::new(()) }
}

/// Checks that a header is the one that the catalog names.
fn check_place(header: RecordHeader, at: &RecordAt) -> Result<FarExtent, Cause> {
    let is_here = header.store == at.writer.store
        && header.epoch == at.writer.open
        && header.segment == at.number
        && header.offset == at.offset
        && header.header_bytes() == at.header_bytes;
    let extent = header.extent().filter(|_| is_here).ok_or(Cause::WrongPlace)?;
    match header.kind {
        RecordKind::Extent { slice_crcs: crcs, units, .. } => Ok(FarExtent {
            extent: Arc::new(extent),
            tables: Arc::new(ExtentTables { crcs, units }),
        }),
        _ => Err(Cause::WrongPlace),
    }
}

fn check_shape(header: FarExtent, shape: &FarShape) -> Result<FarExtent, Cause> {
    let extent = &header.extent;
    let fits = extent.namespace == shape.namespace && extent.layout == shape.layout;
    if fits { Ok(header) } else { Err(Cause::WrongPlace) }
}
