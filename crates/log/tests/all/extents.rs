//! Extents of every shape are read back exactly, in whole and in part, however they are written and read.

use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use dalsegno_core::{
    ChainHash, Class, Clock, Compression, Deadline, Durability, EngineChoice, Extent, KvLayout,
    Limits, NamespaceId, StoreId,
};
use dalsegno_extent::{BlockTarget, ExtentRead, NewExtent};
use dalsegno_io::{
    BufferPool, Call, DirectoryOptions, Lender, LocalDirectory, Memory, SystemClock, lend,
};
use dalsegno_log::{Append, Log, LogOptions, Payload, SpaceUse};

use crate::append_of;
use crate::limits::limits;
use proptest::prelude::*;

/// The shape of an extent, how it is written, and the layout of its memory.
#[derive(Clone, Debug)]
struct Written {
    layers: u32,
    slice_bytes: usize,
    blocks: usize,
    how: How,
    timed: bool,
    layout: Layout,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum How {
    Whole,
    /// As if it was merged from others.
    Merged,
    /// With elements of this width.
    Compressed(u32),
}

/// The layout of a caller's memory: its distance from an aligned address, and its largest piece, in bytes.
#[derive(Clone, Copy, Debug)]
struct Layout {
    skew: usize,
    piece: usize,
}

/// A part of an extent to be read; any number selects a part that exists.
#[derive(Clone, Debug)]
struct Wanted {
    extent: usize,
    layers: (usize, usize),
    blocks: u64,
    timed: bool,
    layout: Layout,
}

fn layout() -> impl Strategy<Value = Layout> {
    let skew = prop_oneof![3 => Just(0_usize), 1 => Just(512), 1 => 1_usize..4096];
    let piece = prop_oneof![2 => Just(usize::MAX), 1 => Just(4096_usize), 1 => 1000_usize..20_000];
    (skew, piece).prop_map(|(skew, piece)| Layout { skew, piece })
}

fn written() -> impl Strategy<Value = Written> {
    let slice_bytes = prop_oneof![
        3 => 1_usize..10_000,
        2 => (1_usize..5).prop_map(|sectors| sectors * 4096),
        1 => (1_usize..40).prop_map(|parts| parts * 512),
    ];
    let how = prop_oneof![
        1 => Just(How::Whole),
        1 => Just(How::Merged),
        3 => prop::sample::select(vec![1, 2, 4]).prop_map(How::Compressed),
    ];
    (1_u32..7, slice_bytes, 1_usize..9, how, any::<bool>(), layout()).prop_map(
        |(layers, slice_bytes, blocks, how, timed, layout)| Written {
            layers,
            slice_bytes,
            blocks,
            how,
            timed,
            layout,
        },
    )
}

fn wanted() -> impl Strategy<Value = Wanted> {
    (any::<usize>(), (any::<usize>(), any::<usize>()), any::<u64>(), any::<bool>(), layout())
        .prop_map(|(extent, layers, blocks, timed, layout)| Wanted {
            extent,
            layers,
            blocks,
            timed,
            layout,
        })
}

/// Bytes that start at the layout's distance from an aligned address.
struct Buffer {
    bytes: Vec<u8>,
    start: usize,
    layout: Layout,
}

impl Buffer {
    fn new(content: &[u8], layout: Layout) -> Self {
        let mut bytes = vec![0; content.len() + 2 * 4096];
        let start = bytes.as_ptr().align_offset(4096) + layout.skew;
        bytes[start..start + content.len()].copy_from_slice(content);
        bytes.truncate(start + content.len());
        Self { bytes, start, layout }
    }

    fn content(&self) -> &[u8] {
        &self.bytes[self.start..]
    }

    fn lend<'env>(&'env mut self, lender: &Lender<'env>) -> Vec<Memory> {
        let mut memory = lender.exclusive(&mut self.bytes[self.start..]);
        let mut pieces = Vec::new();
        while memory.len() > self.layout.piece {
            pieces.push(memory.split_to(self.layout.piece));
        }
        pieces.push(memory);
        pieces
    }
}

struct Rig {
    log: Log,
    clock: Arc<SystemClock>,
    _directory: tempfile::TempDir,
}

impl Rig {
    fn new(header_cache_bytes: u64) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let clock = Arc::new(SystemClock::new());
        let pool = BufferPool::new(16 << 20, 256 << 10).unwrap();
        let options =
            DirectoryOptions { engine: EngineChoice::Psync, ..DirectoryOptions::default() };
        let shared: Arc<dyn Clock> = Arc::<SystemClock>::clone(&clock);
        let device =
            LocalDirectory::open(directory.path(), options, &pool, Arc::clone(&shared)).unwrap();
        let options = LogOptions::new(Limits {
            segment_bytes: 1 << 20,
            segment_count: 8,
            durability: Durability::None,
            io_depth: 4,
            io_request_bytes: 256 << 10,
            header_cache_bytes,
            compression_bytes: 8 << 20,
            ..limits()
        });
        let (log, _) =
            Log::open(Arc::new(device), shared, pool, options, StoreId([1; 16])).unwrap();
        log.store_files().allow_compression().unwrap();
        Self { log, clock, _directory: directory }
    }

    fn call(&self, timed: bool) -> Call {
        if !timed {
            return Call::of(Class::Need);
        }
        Call::of(Class::Need).until(Deadline::At(self.clock.now().after(Duration::from_secs(60))))
    }

    fn append(&self, extent: NewExtent, blocks: Vec<Vec<Memory>>, how: How, call: &Call) -> Append {
        if let How::Compressed(width) = how {
            let compression = Compression::zstd(width).unwrap();
            let budget = self.log.compressor().budget(&extent, call).unwrap();
            if let Some(compressed) =
                self.log.compressor().compress(&extent, &blocks, compression, budget, call).unwrap()
            {
                assert!(compressed.total_bytes(&extent) * 21 <= extent.total_bytes() * 20);
                return append_of(&self.log, extent, Payload::Compressed(compressed));
            }
        }
        if how == How::Merged {
            let bytes = extent.total_bytes();
            assert!(self.log.segments().prepare(bytes).unwrap());
            let place = self.log.writer().reserve(bytes, SpaceUse::Merge { born: 1 }).unwrap();
            return Append::new(extent, Payload::Plain(blocks), place);
        }
        append_of(&self.log, extent, Payload::Plain(blocks))
    }

    fn write(&self, number: usize, written: &Written) -> Extent {
        let seed = u8::try_from(number + 1).unwrap();
        let slice_bytes = u32::try_from(written.slice_bytes).unwrap();
        let extent = NewExtent {
            namespace: NamespaceId([seed; 16]),
            lineage: ChainHash([seed; 32]),
            first_block_index: 0,
            parent: ChainHash::default(),
            layout: KvLayout::new(written.layers, slice_bytes).unwrap(),
            hashes: (0..written.blocks)
                .map(|block| ChainHash([u8::try_from(block).unwrap(); 32]))
                .collect(),
            born: (written.how == How::Merged).then_some(1),
        };
        let call = self.call(written.timed);
        let layers = 0..written.layers as usize;
        let mut blocks: Vec<Buffer> = (0..written.blocks)
            .map(|block| Buffer::new(&bytes(number, written, &layers, block), written.layout))
            .collect();
        lend(|lender| {
            let blocks = blocks.iter_mut().map(|block| block.lend(lender)).collect();
            let append = self.append(extent, blocks, written.how, &call);
            self.log.writer().append(vec![append], &call).remove(0).unwrap().extent
        })
    }

    /// Reads parts of extents in one call and compares every byte.
    fn read(&self, extents: &[(Written, Extent)], wanted: &[Wanted]) {
        let timed = wanted.iter().any(|wanted| wanted.timed);
        let mut parts: Vec<Part> = wanted.iter().map(|wanted| Part::new(extents, wanted)).collect();
        let outcomes = lend(|lender| {
            let reads = parts.iter_mut().map(|part| part.read(extents, lender)).collect();
            let results = self.log.read(reads, &self.call(timed));
            results
                .into_iter()
                .map(|blocks| blocks.into_iter().map(|b| b.outcome).collect())
                .collect::<Vec<Vec<_>>>()
        });
        for (part, outcomes) in parts.iter().zip(outcomes) {
            let written = &extents[part.extent].0;
            assert_eq!(outcomes.len(), part.blocks.len());
            for ((block, buffer), outcome) in part.blocks.iter().zip(&part.buffers).zip(outcomes) {
                assert_eq!(outcome, Ok(()));
                let right = bytes(part.extent, written, &part.layers, *block);
                assert!(buffer.content() == right, "block {block} of {part:?}, {written:?}");
            }
        }
    }
}

/// The contents of a block: the wanted layers, one after the other.
fn bytes(extent: usize, written: &Written, layers: &Range<usize>, block: usize) -> Vec<u8> {
    let slice = |layer: usize| {
        let start = extent * 7919 + layer * 104_729 + block * 1_299_709;
        (0..written.slice_bytes).map(move |i| ((start + i) % 253).to_le_bytes()[0])
    };
    layers.clone().flat_map(slice).collect()
}

/// A part of one extent, with the memory for it.
struct Part {
    extent: usize,
    layers: Range<usize>,
    blocks: Vec<usize>,
    buffers: Vec<Buffer>,
}

impl std::fmt::Debug for Part {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "layers {:?}, blocks {:?} of {}", self.layers, self.blocks, self.extent)
    }
}

impl Part {
    fn new(extents: &[(Written, Extent)], wanted: &Wanted) -> Self {
        let extent = wanted.extent % extents.len();
        let written = &extents[extent].0;
        let first = wanted.layers.0 % written.layers as usize;
        let layers = first..first + 1 + wanted.layers.1 % (written.layers as usize - first);
        let blocks: Vec<usize> =
            (0..written.blocks).filter(|block| wanted.blocks >> block & 1 == 1).collect();
        let len = layers.len() * written.slice_bytes;
        let buffers = blocks.iter().map(|_| Buffer::new(&vec![0xee; len], wanted.layout)).collect();
        Self { extent, layers, blocks, buffers }
    }

    fn read<'env>(
        &'env mut self,
        extents: &[(Written, Extent)],
        lender: &Lender<'env>,
    ) -> ExtentRead {
        let layer = |layer: usize| u32::try_from(layer).unwrap();
        let targets =
            self.blocks.iter().zip(&mut self.buffers).map(|(block, buffer)| BlockTarget {
                block: u32::try_from(*block).unwrap(),
                number: 0,
                memory: buffer.lend(lender),
                outlives_call: false,
                copy: Vec::new(),
            });
        ExtentRead {
            extent: Arc::new(extents[self.extent].1.clone()),
            layers: layer(self.layers.start)..layer(self.layers.end),
            targets: targets.collect(),
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 96, ..ProptestConfig::default() })]

    #[test]
    fn every_part_of_every_extent_is_read_back_exactly(
        written in prop::collection::vec(written(), 1..5),
        wanted in prop::collection::vec(prop::collection::vec(wanted(), 1..5), 1..8),
        header_cache_bytes in prop_oneof![Just(0_u64), Just(1 << 20)],
    ) {
        let rig = Rig::new(header_cache_bytes);
        let extents: Vec<(Written, Extent)> = written
            .into_iter()
            .enumerate()
            .map(|(number, written)| {
                let extent = rig.write(number, &written);
                (written, extent)
            })
            .collect();
        for parts in &wanted {
            rig.read(&extents, parts);
        }
        let misses: u64 = rig.log.stats().view().transfers.misses.values().sum();
        prop_assert_eq!(misses, 0);
    }
}
