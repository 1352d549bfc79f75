//! Every version must open the store in `tests/golden/log-v1`. The worked example of `docs/formats/log.md` is its dump.
//!
//! `UPDATE_GOLDEN=1 cargo test -p dalsegno-log golden` rewrites the worked example, and writes missing
//! golden files. An existing one is never changed: a new format gets a new folder.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use dalsegno_core::{
    ChainHash, Class, Compression, Durability, EngineChoice, Extent, KvLayout, Limits, Namespace,
    StoreId,
};
use dalsegno_extent::{BlockTarget, ExtentRead, NewExtent};
use dalsegno_io::{BufferPool, Call, DirectoryOptions, LocalDirectory, SystemClock, lend};
use dalsegno_log::{Log, LogOptions, Payload, Recovered};

use crate::append_of;
use crate::dump;
use crate::limits::limits;

const SEGMENT_BYTES: u64 = 1 << 20;
const SEGMENT: &str = "segment-0000000000000001.log";
const LAYERS: u32 = 2;
const SLICE_BYTES: usize = 6000;
const BLOCKS: usize = 2;
const MARKER: &str = "<!-- worked example: kept in step by crates/log/tests/all/golden.rs -->\n";

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn golden() -> PathBuf {
    root().join("tests/golden/log-v1")
}

/// A store with one compressed extent. Its files are only read, because versions of zstd may compress the same bytes
/// differently.
fn golden_compressed() -> PathBuf {
    root().join("tests/golden/log-v2")
}

fn is_update() -> bool {
    std::env::var_os("UPDATE_GOLDEN").is_some()
}

fn namespace() -> Namespace {
    let layout = KvLayout::new(LAYERS, u32::try_from(SLICE_BYTES).unwrap()).unwrap();
    Namespace::builder(layout).field("model", "worked example").build().unwrap()
}

fn hashes() -> Vec<ChainHash> {
    vec![ChainHash([0x11; 32]), ChainHash([0x22; 32])]
}

/// The contents according to the document: byte `i` of slice (`l`, `b`) is `(l * 16 + b * 4 + i) mod 251`.
fn block(block: usize) -> Vec<u8> {
    let slice = |layer: usize| {
        (0..SLICE_BYTES).map(move |i| u8::try_from((layer * 16 + block * 4 + i) % 251).unwrap())
    };
    (0..LAYERS as usize).flat_map(slice).collect()
}

fn open(dir: &Path) -> (Log, Recovered) {
    let clock = Arc::new(SystemClock::new());
    let pool = BufferPool::new(16 << 20, 1 << 20).unwrap();
    let options = DirectoryOptions { engine: EngineChoice::Psync, ..DirectoryOptions::default() };
    let device =
        LocalDirectory::open(dir, options, &pool, Arc::<SystemClock>::clone(&clock)).unwrap();
    let options = LogOptions::new(Limits {
        segment_bytes: SEGMENT_BYTES,
        segment_count: 4,
        durability: Durability::Batch,
        io_depth: 8,
        io_request_bytes: 1 << 20,
        header_cache_bytes: 0,
        compression_bytes: 8 << 20,
        ..limits()
    });
    Log::open(Arc::new(device), clock, pool, options, StoreId(*b"dalsegno golden1")).unwrap()
}

/// Writes the store of the worked example, plain or compressed.
fn write_store(dir: &Path, compression: Compression) {
    let (log, recovered) = open(dir);
    assert!(recovered.extents.is_empty(), "a new store");
    if !compression.is_plain() {
        log.store_files().allow_compression().unwrap();
    }
    assert!(log.store_files().write_namespace(&namespace(), compression).unwrap());
    let blocks = [block(0), block(1)];
    let extent = NewExtent {
        namespace: namespace().id(),
        lineage: hashes()[0],
        first_block_index: 0,
        parent: ChainHash::default(),
        layout: namespace().layout(),
        hashes: hashes(),
        born: None,
    };
    let appended = lend(|lender| {
        let call = Call::of(Class::Need);
        let blocks: Vec<_> = blocks.iter().map(|block| vec![lender.shared(block)]).collect();
        let budget = log.compressor().budget(&extent, &call).unwrap();
        let compressed =
            log.compressor().compress(&extent, &blocks, compression, budget, &call).unwrap();
        let payload = compressed.map_or(Payload::Plain(blocks), Payload::Compressed);
        let append = append_of(&log, extent, payload);
        log.writer().append(vec![append], &Call::of(Class::Need)).remove(0).unwrap()
    });
    assert_eq!(appended.extent.hashes, hashes());
}

/// The files of a store, by name, without trailing zeros of whole sectors, and their full sizes.
fn files(dir: &Path) -> Vec<(String, Vec<u8>, u64)> {
    let mut files: Vec<_> = fs::read_dir(dir)
        .unwrap()
        .map(|entry| {
            let entry = entry.unwrap();
            let mut bytes = fs::read(entry.path()).unwrap();
            let size = bytes.len() as u64;
            let used = bytes.iter().rposition(|byte| *byte != 0).map_or(0, |last| last + 1);
            bytes.truncate(used.next_multiple_of(4096));
            (entry.file_name().into_string().unwrap(), bytes, size)
        })
        .collect();
    files.sort();
    files
}

/// One line per file: its full size and its name.
fn manifest(files: &[(String, Vec<u8>, u64)]) -> String {
    let lines: Vec<String> =
        files.iter().map(|(name, _, size)| format!("{size} {name}\n")).collect();
    lines.concat()
}

/// Writes the golden store at full size, because the folder keeps no trailing zeros.
fn expand(golden: &Path, dir: &Path) {
    for line in fs::read_to_string(golden.join("manifest.txt")).unwrap().lines() {
        let (size, name) = line.split_once(' ').unwrap();
        let mut bytes = fs::read(golden.join(name)).unwrap();
        bytes.resize(size.parse().unwrap(), 0);
        fs::write(dir.join(name), bytes).unwrap();
    }
}

#[test]
fn the_golden_store_opens_and_serves_exactly_its_bytes() {
    let extent = opens_and_serves(&golden(), Compression::PLAIN);
    assert!(!extent.is_compressed());
}

#[test]
fn the_golden_store_with_a_compressed_extent_opens_and_serves_exactly_its_bytes() {
    let compression = Compression::zstd(2).unwrap();
    if is_update() && !golden_compressed().exists() {
        let dir = tempfile::tempdir().unwrap();
        write_store(dir.path(), compression);
        fs::create_dir_all(golden_compressed()).unwrap();
        let written = files(dir.path());
        for (name, bytes, _) in &written {
            fs::write(golden_compressed().join(name), bytes).unwrap();
        }
        fs::write(golden_compressed().join("manifest.txt"), manifest(&written)).unwrap();
    }
    let extent = opens_and_serves(&golden_compressed(), compression);
    assert!(extent.is_compressed());
}

#[test]
fn the_compressed_lines_of_the_document_are_those_of_the_golden_segment() {
    let text = fs::read_to_string(root().join("docs/formats/log.md")).unwrap();
    let segment = fs::read(golden_compressed().join(SEGMENT)).unwrap();
    for (at, len) in [(0x10c0, 16), (0x1150, 8), (0x1158, 8)] {
        let hex: Vec<String> = segment[at..at + len].iter().map(|b| format!("{b:02x}")).collect();
        let line = format!("    {at:06x}  {:<47}  ", hex.join(" "));
        assert!(text.contains(&line), "{line}");
    }
}

fn opens_and_serves(golden: &Path, compression: Compression) -> Extent {
    let dir = tempfile::tempdir().unwrap();
    expand(golden, dir.path());
    let (log, recovered) = open(dir.path());
    assert_eq!(recovered.faults, []);
    assert_eq!(recovered.removals, []);
    assert_eq!(log.store_files().read_namespaces().unwrap(), [(namespace(), compression)]);
    let [extent] = &recovered.extents[..] else { panic!("one extent: {recovered:?}") };
    assert_eq!((extent.namespace, &extent.hashes), (namespace().id(), &hashes()));
    let mut out = vec![vec![0_u8; SLICE_BYTES * LAYERS as usize]; BLOCKS];
    lend(|lender| {
        let targets = (0_u32..).zip(&mut out);
        let targets = targets
            .map(|(block, bytes)| BlockTarget {
                block,
                number: 0,
                memory: vec![lender.exclusive(bytes)],
                outlives_call: false,
                copy: Vec::new(),
            })
            .collect();
        let read = ExtentRead { extent: Arc::new(extent.clone()), layers: 0..LAYERS, targets };
        let results = log.read(vec![read], &Call::of(Class::Need));
        assert!(results.iter().flatten().all(|block| block.outcome == Ok(())));
    });
    assert_eq!(out, [block(0), block(1)]);
    extent.clone()
}

#[test]
fn the_present_writer_writes_the_golden_bytes() {
    let dir = tempfile::tempdir().unwrap();
    write_store(dir.path(), Compression::PLAIN);
    let written = files(dir.path());
    let keep = |name: &str, bytes: &[u8]| {
        let path = golden().join(name);
        if is_update() && !path.exists() {
            fs::create_dir_all(golden()).unwrap();
            fs::write(path, bytes).unwrap();
        }
    };
    keep("manifest.txt", manifest(&written).as_bytes());
    for (name, bytes, _) in &written {
        keep(name, bytes);
        assert!(
            fs::read(golden().join(name)).unwrap() == *bytes,
            "{name} differs from the golden one"
        );
    }
    assert_eq!(fs::read_to_string(golden().join("manifest.txt")).unwrap(), manifest(&written));
}

#[test]
fn the_worked_example_in_the_document_is_the_golden_segment() {
    let document = root().join("docs/formats/log.md");
    let text = fs::read_to_string(&document).unwrap();
    let (before, example) = text.split_once(MARKER).expect("the document has its marker");
    let segment = fs::read(golden().join(SEGMENT)).unwrap();
    let expected = dump::worked_example(&segment);
    if is_update() {
        fs::write(document, format!("{before}{MARKER}{expected}")).unwrap();
        return;
    }
    assert!(example == expected, "run: UPDATE_GOLDEN=1 cargo test -p dalsegno-log golden");
}
