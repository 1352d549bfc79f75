//! Compressed extents: which bytes are read, what damage costs, and which stores may hold them.

use std::os::unix::fs::FileExt as _;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use dalsegno_core::{
    ChainHash, Class, Clock, Compression, Deadline, Durability, EngineChoice, Extent, KvLayout,
    Limits, NamespaceId, Stopped, StoreId,
};
use dalsegno_extent::{
    BlockOutcome, BlockTarget, Cause, ExtentRead, NewExtent,
    format::{RecordHeader, RecordKind, segment_file},
};
use dalsegno_io::{
    BufferPool, Call, DirectoryOptions, IoError, LocalDirectory, Memory, SystemClock, lend,
};
use dalsegno_log::{Log, LogError, LogOptions, Payload, Recovered};

use crate::append_of;
use crate::limits::limits;

const LAYERS: u32 = 3;
const SLICE_BYTES: u32 = 40_000;
const BLOCKS: u32 = 10;

fn parts() -> (Arc<dyn Clock>, BufferPool) {
    (Arc::new(SystemClock::new()), BufferPool::new(16 << 20, 256 << 10).unwrap())
}

fn device(dir: &Path, clock: &Arc<dyn Clock>, pool: &BufferPool) -> Arc<LocalDirectory> {
    let options = DirectoryOptions { engine: EngineChoice::Psync, ..DirectoryOptions::default() };
    Arc::new(LocalDirectory::open(dir, options, pool, Arc::clone(clock)).unwrap())
}

fn open(dir: &Path) -> (Log, Recovered) {
    let (clock, pool) = parts();
    let options = LogOptions::new(Limits {
        segment_bytes: 8 << 20,
        segment_count: 4,
        durability: Durability::None,
        io_depth: 4,
        io_request_bytes: 256 << 10,
        header_cache_bytes: 0,
        compression_bytes: 4 << 20,
        ..limits()
    });
    Log::open(device(dir, &clock, &pool), clock, pool, options, StoreId([1; 16])).unwrap()
}

fn new_extent() -> NewExtent {
    NewExtent {
        namespace: NamespaceId([9; 16]),
        lineage: ChainHash([1; 32]),
        first_block_index: 0,
        parent: ChainHash::default(),
        layout: KvLayout::new(LAYERS, SLICE_BYTES).unwrap(),
        hashes: (0..BLOCKS).map(|block| ChainHash([1 + block.to_le_bytes()[0]; 32])).collect(),
        born: None,
    }
}

/// Numbers of two bytes, of which the upper one varies little.
fn block(number: u32) -> Vec<u8> {
    let bytes = (0..LAYERS * SLICE_BYTES / 2).flat_map(|i| {
        let noise = (i ^ number << 20).wrapping_mul(2_654_435_761) >> 11;
        [noise.to_le_bytes()[0], 0x3c + (noise >> 8 & 3).to_le_bytes()[0]]
    });
    bytes.collect()
}

fn encode(log: &Log, blocks: &[Vec<u8>], call: &Call) -> Result<bool, LogError> {
    let extent = new_extent();
    lend(|lender| {
        let blocks: Vec<Vec<Memory>> = blocks.iter().map(|b| vec![lender.shared(b)]).collect();
        let budget = log.compressor().budget(&extent, &Call::of(Class::Need)).unwrap();
        let compressed = log.compressor().compress(
            &extent,
            &blocks,
            Compression::zstd(2).unwrap(),
            budget,
            call,
        )?;
        let Some(compressed) = compressed else { return Ok(false) };
        let append = append_of(log, extent, Payload::Compressed(compressed));
        log.writer().append(vec![append], &Call::of(Class::Need)).remove(0).map(|_| true)
    })
}

/// A store with one compressed extent, reopened.
fn store(dir: &Path) -> (Log, Extent) {
    let (log, _) = open(dir);
    log.store_files().allow_compression().unwrap();
    let blocks: Vec<Vec<u8>> = (0..BLOCKS).map(block).collect();
    assert!(encode(&log, &blocks, &Call::of(Class::Need)).unwrap());
    drop(log);
    let (log, mut recovered) = open(dir);
    assert_eq!(recovered.faults, []);
    let extent = recovered.extents.remove(0);
    assert!(
        extent.is_compressed() && extent.total_bytes() * 10 < u64::from(BLOCKS) * 3 * 40_000 * 8
    );
    (log, extent)
}

/// Reads one layer of some blocks, and checks the bytes of the hits.
fn read(log: &Log, extent: &Extent, layer: u32, blocks: &[u32]) -> Vec<BlockOutcome> {
    let mut out = vec![vec![0_u8; SLICE_BYTES as usize]; blocks.len()];
    let outcomes: Vec<BlockOutcome> = lend(|lender| {
        let targets = blocks.iter().zip(&mut out);
        let targets = targets
            .map(|(block, bytes)| BlockTarget {
                block: *block,
                number: 0,
                memory: vec![lender.exclusive(bytes)],
                outlives_call: false,
                copy: Vec::new(),
            })
            .collect();
        let read =
            ExtentRead { extent: Arc::new(extent.clone()), layers: layer..layer + 1, targets };
        let results = log.read(vec![read], &Call::of(Class::Need));
        results.into_iter().flatten().map(|block| block.outcome).collect()
    });
    let at = (layer * SLICE_BYTES) as usize;
    for ((number, bytes), outcome) in blocks.iter().zip(&out).zip(&outcomes) {
        assert!(outcome.is_err() || *bytes == block(*number)[at..][..SLICE_BYTES as usize]);
    }
    outcomes
}

fn read_at(dir: &Path, extent: &Extent, offset: u64, len: usize) -> Vec<u8> {
    let file = std::fs::File::open(dir.join(segment_file(extent.location.segment))).unwrap();
    let mut bytes = vec![0; len];
    file.read_exact_at(&mut bytes, offset).unwrap();
    bytes
}

fn write_at(dir: &Path, extent: &Extent, offset: u64, bytes: &[u8]) {
    let path = dir.join(segment_file(extent.location.segment));
    std::fs::OpenOptions::new()
        .write(true)
        .open(path)
        .unwrap()
        .write_all_at(bytes, offset)
        .unwrap();
}

fn header(dir: &Path, extent: &Extent) -> RecordHeader {
    let location = extent.location;
    RecordHeader::decode(&read_at(dir, extent, location.offset, location.header_bytes as usize))
        .unwrap()
}

fn payload_offset(extent: &Extent) -> u64 {
    extent.location.offset + u64::from(extent.location.header_bytes)
}

fn findings(dir: &Path) -> Vec<String> {
    let (clock, pool) = parts();
    let report = dalsegno_log::verify(device(dir, &clock, &pool), clock, pool, &|_, _| ()).unwrap();
    assert_eq!((report.extents, report.slices), (1, u64::from(BLOCKS * LAYERS)));
    report.findings.into_iter().map(|finding| finding.what).collect()
}

#[test]
fn reading_a_layer_or_a_prefix_reads_and_decompresses_no_other_units() {
    let dir = tempfile::tempdir().unwrap();
    let (log, extent) = store(dir.path());
    let read_of = |layer, blocks: &[u32]| {
        let before = log.stats().view();
        assert!(read(&log, &extent, layer, blocks).iter().all(Result::is_ok));
        let after = log.stats().view();
        let header = u64::from(extent.location.header_bytes);
        (
            after.transfers.read_bytes - before.transfers.read_bytes - header,
            after.transfers.codec.decoded_bytes - before.transfers.codec.decoded_bytes,
        )
    };
    let all: Vec<u32> = (0..BLOCKS).collect();
    let row = u64::from(BLOCKS * SLICE_BYTES);
    let (stored, decoded) = read_of(1, &all);
    assert!(stored < extent.payload_bytes() / 3 + 8192 && decoded == row, "{stored} {decoded}");
    let (stored, decoded) = read_of(2, &[0]);
    assert!(stored <= 48 << 10 && decoded == u64::from(SLICE_BYTES), "{stored} {decoded}");
    assert_eq!(read_of(0, &[4, 9]).1, 2 * u64::from(SLICE_BYTES));
    assert_eq!(findings(dir.path()), Vec::<String>::new());
}

#[test]
fn a_damaged_unit_costs_its_blocks_and_names_its_cause() {
    let dir = tempfile::tempdir().unwrap();
    let (log, extent) = store(dir.path());
    let at = payload_offset(&extent) + 100;
    let byte = read_at(dir.path(), &extent, at, 1)[0];
    write_at(dir.path(), &extent, at, &[byte ^ 1]);
    // A unit holds one slice of this size.
    assert_eq!(read(&log, &extent, 0, &[0, 1]), [Err(Cause::Codec), Ok(())]);
    assert_eq!(read(&log, &extent, 1, &[0, 1]), [Ok(()), Ok(())]);
    assert_eq!(log.stats().view().transfers.misses["codec"], 1);
    assert_eq!(findings(dir.path()), ["a unit of layer 0: checksum differs"]);
}

#[test]
fn garbage_with_a_valid_checksum_is_a_miss() {
    let dir = tempfile::tempdir().unwrap();
    let (log, extent) = store(dir.path());
    let mut header = header(dir.path(), &extent);
    let len = header.units().unwrap().table[0].bytes as usize;
    let good = read_at(dir.path(), &extent, payload_offset(&extent), len);
    let mut state = 88_172_645_463_325_252_u64;
    for round in 0..40 {
        let mut bytes = good.clone();
        // In every second case the lengths at the front stay.
        for byte in bytes.iter_mut().skip(round % 2 * 8).step_by(1 + round) {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            *byte ^= state.to_le_bytes()[3] | 1;
        }
        let RecordKind::Extent { units: Some(units), .. } = &mut header.kind else {
            unreachable!()
        };
        units.table[0].crc = dalsegno_core::crc32c(&bytes);
        let mut encoded = vec![0; extent.location.header_bytes as usize];
        header.encode(&mut encoded);
        write_at(dir.path(), &extent, extent.location.offset, &encoded);
        write_at(dir.path(), &extent, payload_offset(&extent), &bytes);
        let outcome = read(&log, &extent, 0, &[0])[0];
        assert!(matches!(outcome, Err(Cause::Codec | Cause::SliceChecksum)), "{outcome:?}");
        assert!(!findings(dir.path()).is_empty());
    }
}

#[test]
fn noise_stays_plain_and_so_do_all_extents_of_a_store_without_compression() {
    let dir = tempfile::tempdir().unwrap();
    let (log, _) = open(dir.path());
    let blocks: Vec<Vec<u8>> = (0..BLOCKS).map(block).collect();
    assert!(!encode(&log, &blocks, &Call::of(Class::Need)).unwrap());
    assert_eq!(std::fs::read(dir.path().join("store.meta")).unwrap()[8], 1);
    log.store_files().allow_compression().unwrap();
    assert_eq!(std::fs::read(dir.path().join("store.meta")).unwrap()[8], 2);
    let mut state = 7_u64;
    let mut noise = || {
        state =
            state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        state.to_le_bytes()[7]
    };
    let noise: Vec<Vec<u8>> =
        blocks.iter().map(|block| block.iter().map(|_| noise()).collect()).collect();
    assert!(!encode(&log, &noise, &Call::of(Class::Need)).unwrap());
    let codec = log.stats().view().transfers.codec;
    assert_eq!((codec.encoded_bytes, codec.not_shrunk_bytes), (0, u64::from(BLOCKS) * 120_000));
}

#[test]
fn a_call_that_ends_stops_compression_and_frees_its_budget() {
    let dir = tempfile::tempdir().unwrap();
    let (log, _) = open(dir.path());
    log.store_files().allow_compression().unwrap();
    let (clock, _) = parts();
    let over = Call::of(Class::Need).until(Deadline::At(clock.now().after(Duration::ZERO)));
    let blocks: Vec<Vec<u8>> = (0..BLOCKS).map(block).collect();
    assert!(matches!(
        encode(&log, &blocks, &over),
        Err(LogError::Io(IoError::Stopped(Stopped::Deadline)))
    ));
    let first = log.compressor().try_budget(&new_extent()).unwrap();
    let others: Vec<_> =
        std::iter::from_fn(|| log.compressor().try_budget(&new_extent())).collect();
    assert!(matches!(log.compressor().budget(&new_extent(), &over), Err(Stopped::Deadline)));
    drop((first, others));
    assert!(log.compressor().budget(&new_extent(), &Call::of(Class::Need)).is_ok());
}

#[test]
fn a_copy_has_the_bytes_of_the_original_and_damage_is_not_copied() {
    let dir = tempfile::tempdir().unwrap();
    let (log, extent) = store(dir.path());
    let new = NewExtent { born: Some(extent.born), ..new_extent() };
    let compressed = log.read_compressed(&extent).unwrap();
    let append = append_of(&log, new, Payload::Compressed(compressed));
    let copy = log.writer().append(vec![append], &Call::of(Class::Need)).remove(0).unwrap().extent;
    assert_eq!((copy.total_bytes(), copy.born), (extent.total_bytes(), extent.born));
    write_at(dir.path(), &extent, payload_offset(&extent) + extent.payload_bytes() / 2, &[0; 64]);
    assert!(log.read_compressed(&extent).is_none());
    let all: Vec<u32> = (0..BLOCKS).collect();
    for layer in 0..LAYERS {
        assert!(read(&log, &copy, layer, &all).iter().all(Result::is_ok), "layer {layer}");
    }
    assert_eq!(log.stats().view().transfers.codec.encoded_bytes, 0);
}
