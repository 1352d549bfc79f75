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
use std::time::Duration;

use dalsegno_core::{ChainHash, KvLayout, NamespaceId};
use dalsegno_extent::format::RecordPlace;
use dalsegno_extent::{
    BlockOutcome, BlockRead, BlockTarget, BlocksRead, Cause, CodecPool, HeaderCache, PinnedFile,
    PlacedRecord, Reader, RecordRead, SliceSink, SourceIo, TransferStatsView, WantedRecord,
};
use dalsegno_io::Call;

use crate::index::{FarPlace, RecordAt};
use crate::member::Member;

/// A block to read.
#[derive(Clone, Copy, Debug)]
pub struct FarWanted {
    /// Where it is.
    pub place: FarPlace,
    /// Its name.
    pub hash: ChainHash,
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
    member: Member,
    used_bytes: AtomicU64,
}

impl FarReader {
    /// A reader of the packs that `member` finds, through `io`, that keeps at most `header_bytes` of headers.
    #[must_use]
    pub fn new(io: Arc<SourceIo>, member: Member, header_bytes: u64) -> Self {
        let headers = Arc::new(HeaderCache::new(header_bytes));
        let reader = Reader::new(Arc::clone(&io), headers, Arc::new(CodecPool::default()), None);
        Self { io, reader, member, used_bytes: AtomicU64::new(0) }
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

    /// Reads blocks, and returns one result for each, in order: see [`Self::begin`].
    pub fn read(
        &self,
        shape: &FarShape,
        wanted: &[FarWanted],
        targets: Vec<BlockTarget>,
        call: &Call,
    ) -> Vec<BlockRead> {
        self.begin(shape.clone(), wanted, targets, call).finish()
    }

    /// Plans to read blocks, each to its target. The number of a block is taken from its place. Nothing is sent yet.
    ///
    /// # Panics
    ///
    /// If there is not one target for each block.
    #[must_use]
    pub fn begin<'a>(
        &'a self,
        shape: FarShape,
        wanted: &[FarWanted],
        targets: Vec<BlockTarget>,
        call: &'a Call,
    ) -> FarReading<'a> {
        assert_eq!(wanted.len(), targets.len(), "one target for each block");
        let mut results = Vec::new();
        results.resize_with(wanted.len(), || None);
        let mut groups: BTreeMap<(u32, u16), Vec<GroupedBlock>> = BTreeMap::new();
        for (at, (wanted, target)) in wanted.iter().zip(targets).enumerate() {
            let block = u32::from(wanted.place.block);
            let target = BlockTarget { block, ..target };
            let group = groups.entry((wanted.place.pack, wanted.place.record)).or_default();
            group.push(GroupedBlock { at, wanted: *wanted, target });
        }
        let (mut records, mut reads) = (Vec::new(), Vec::new());
        for group in groups.into_values().flat_map(apart) {
            if let Some(at) = self.member.index.record(group[0].wanted.place) {
                let (record, read) = record_read(&shape, at, group);
                records.push(record);
                reads.push(read);
            } else {
                // The pack is no longer indexed.
                self.io.stats.count_miss(Cause::Recycled, group.len() as u64);
                for GroupedBlock { at, target, .. } in group {
                    results[at] = Some(target.lost(Cause::Recycled));
                }
            }
        }
        let reading = self.reader.begin(reads.into_iter(), call);
        FarReading { reader: self, shape, records, results, reading }
    }

    /// Counts a block that was read, or forgets what its miss showed to be damaged or gone.
    fn settle(&self, shape: &FarShape, at: RecordAt, hash: &ChainHash, outcome: BlockOutcome) {
        match outcome {
            Ok(()) => {
                let layers = u64::from(shape.layers.end - shape.layers.start);
                let bytes = layers * u64::from(shape.layout.slice_bytes());
                self.used_bytes.fetch_add(bytes, Ordering::Relaxed);
            }
            Err(Cause::Recycled) => {
                if let Some(file) = self.member.index.remove_pack(at.writer, at.number) {
                    self.member.tier.forget(file);
                }
            }
            Err(cause) if cause.is_damage() => {
                self.member.index.forget(shape.namespace, hash);
            }
            Err(_) => {}
        }
    }
}

/// A wanted block with its position in the request.
struct GroupedBlock {
    at: usize,
    wanted: FarWanted,
    target: BlockTarget,
}

/// The blocks of a record, sorted. A block that is wanted several times is in as many groups, because the requests of
/// one read do not overlap.
fn apart(mut group: Vec<GroupedBlock>) -> Vec<Vec<GroupedBlock>> {
    group.sort_by_key(|block| block.target.block);
    let mut groups: Vec<Vec<GroupedBlock>> = Vec::with_capacity(1);
    for block in group {
        let number = block.target.block;
        let is_behind =
            |one: &&mut Vec<GroupedBlock>| one.last().is_none_or(|last| last.target.block < number);
        match groups.iter_mut().find(is_behind) {
            Some(one) => one.push(block),
            None => groups.push(vec![block]),
        }
    }
    groups
}

/// The wanted blocks of a record, by position in the request and by name.
struct FarRecord {
    at: RecordAt,
    blocks: Vec<(usize, ChainHash)>,
}

/// Blocks that are being read.
pub struct FarReading<'a> {
    reader: &'a FarReader,
    shape: FarShape,
    records: Vec<FarRecord>,
    /// By position in the request: blocks of packs that are no longer indexed.
    results: Vec<Option<BlockRead>>,
    reading: BlocksRead<'a>,
}

impl<'a> FarReading<'a> {
    /// The read of the blocks as the call waits for it.
    pub fn as_read(&mut self) -> &mut BlocksRead<'a> {
        &mut self.reading
    }

    /// See [`BlocksRead::report_to`].
    pub fn report_to(&mut self, sink: &Arc<dyn SliceSink>) {
        self.reading.report_to(sink);
    }

    /// See [`BlocksRead::took`].
    #[must_use]
    pub fn took(&self) -> Duration {
        self.reading.took()
    }

    /// Waits for all blocks, and returns one result for each, in order.
    ///
    /// # Panics
    ///
    /// Never, because each block is read or lost.
    pub fn finish(self) -> Vec<BlockRead> {
        let Self { reader, shape, records, mut results, reading } = self;
        let read = reading.finish();
        for (FarRecord { at, blocks }, read) in records.into_iter().zip(read) {
            for ((position, hash), block) in blocks.into_iter().zip(read) {
                reader.settle(&shape, at, &hash, block.outcome);
                results[position] = Some(block);
            }
        }
        results.into_iter().map(|read| read.expect("read or lost")).collect()
    }
}

/// The read of some blocks of a record, sorted by block.
fn record_read(
    shape: &FarShape,
    at: RecordAt,
    group: Vec<GroupedBlock>,
) -> (FarRecord, RecordRead) {
    let (mut blocks, mut hashes, mut targets) = (Vec::new(), Vec::new(), Vec::new());
    for GroupedBlock { at, wanted, target } in group {
        blocks.push((at, wanted.hash));
        hashes.push(wanted.hash);
        targets.push(target);
    }
    let FarShape { namespace, layout, layers } = shape.clone();
    let RecordAt { writer, number, file, offset, header_bytes, plain_blocks } = at;
    let place = RecordPlace { segment: number, epoch: writer.open, offset };
    let placed = PlacedRecord { place, header_bytes, namespace, layout, plain_blocks, hashes };
    let read = RecordRead {
        store: writer.store,
        record: WantedRecord::Placed(placed),
        // Packs never change, so nothing keeps them in their place.
        pinned: Some(PinnedFile { file, guard: Arc::new(()) }),
        layers,
        targets,
    };
    (FarRecord { at, blocks }, read)
}
