//! Every version must open the index in `tests/golden/index-v1`. The worked example of `docs/formats/index.md` is its
//! dump.
//!
//! `UPDATE_GOLDEN=1 cargo test -p dalsegno-index golden` rewrites the worked example and creates missing golden
//! files. Existing ones never change: a new format gets a new folder.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use dalsegno_core::{
    ChainHash, Clock, Deadline, EngineChoice, Extent, ExtentId, KvLayout, Location, NamespaceId,
    StoreId,
};
use dalsegno_index::{Index, LsmIndex, LsmOptions, Placement, ScanPlace, Scope};
use dalsegno_io::{BufferPool, DirectoryOptions, LocalDirectory, SystemClock};
use dalsegno_policy::recency::Use;

use crate::dump;

const STORE: StoreId = StoreId(*b"dalsegno golden1");
const NAMESPACE: NamespaceId = NamespaceId(*b"golden namespace");
const TABLE: &str = "index-0000000000000001.table";
const MANIFEST: &str = "index-0000000000000002.manifest";
const MARKER: &str = "<!-- worked example: kept in step by crates/index/tests/all/golden.rs -->\n";
/// The block that is removed.
const REMOVED: ChainHash = hash(0x44);

const fn hash(byte: u8) -> ChainHash {
    ChainHash([byte; 32])
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn golden() -> PathBuf {
    root().join("tests/golden/index-v1")
}

fn is_update() -> bool {
    std::env::var_os("UPDATE_GOLDEN").is_some()
}

fn open(dir: &Path, read_only: bool) -> (LsmIndex, Option<Vec<u8>>) {
    let pool = BufferPool::new(4 << 20, 1 << 20).unwrap();
    let options = DirectoryOptions {
        engine: EngineChoice::Psync,
        depth: 1,
        read_only,
        ..DirectoryOptions::default()
    };
    let clock: Arc<dyn Clock> = Arc::new(SystemClock::new());
    let device = LocalDirectory::open(dir, options, &pool, Arc::clone(&clock)).unwrap();
    let options = LsmOptions { read_only, ..LsmOptions::default() };
    LsmIndex::open(Arc::new(device), clock, STORE, options).unwrap()
}

/// The extents of the document: two of one lineage, and one that forks off after its second block.
fn extents() -> [Extent; 3] {
    let extent = |sequence: u64, lineage: u8, first: u32, parent: u8, hashes: &[u8]| Extent {
        id: ExtentId(sequence),
        born: sequence,
        namespace: NAMESPACE,
        lineage: hash(lineage),
        first_block_index: first,
        parent: hash(parent),
        layout: KvLayout::new(2, 6000).unwrap(),
        location: Location {
            segment: 1,
            epoch: 1,
            // Each takes a header and two rows of two slices. The last one is smaller.
            offset: 4096 + (sequence - 1) * (4096 + 2 * 12_288),
            header_bytes: 4096,
            compressed_bytes: 0,
        },
        hashes: hashes.iter().map(|byte| hash(*byte)).collect(),
    };
    [
        extent(1, 0x11, 0, 0, &[0x11, 0x22]),
        extent(2, 0x11, 2, 0x22, &[0x33, 0x44]),
        extent(3, 0x55, 2, 0x22, &[0x55]),
    ]
}

/// The log's checkpoint of the same history: one open segment, and the tombstone in it.
fn checkpoint() -> Vec<u8> {
    let mut checkpoint = 1_u32.to_le_bytes().to_vec();
    let (tombstone, end, sequence) = (81_920_u64, 86_016, 4);
    let counts = [sequence + 1, 1, 1];
    let segment = [1, 1, 0, end, end, 1, sequence];
    let removal = [1, tombstone, sequence, 1];
    for field in counts.iter().chain(&segment).chain(&removal) {
        checkpoint.extend_from_slice(&field.to_le_bytes());
    }
    checkpoint.extend_from_slice(&NAMESPACE.0);
    checkpoint.extend_from_slice(&REMOVED.0);
    checkpoint
}

/// Writes the index of the worked example.
fn write_index(dir: &Path) {
    let (index, found) = open(dir, false);
    assert_eq!(found, None, "a new index");
    for extent in extents() {
        let parent = (extent.parent != ChainHash::default()).then_some(extent.parent);
        let (lineage, first_block_index) = (extent.lineage, extent.first_block_index);
        let placement = index.place(NAMESPACE, parent, extent.hashes[0], 0, Deadline::Never);
        assert_eq!(placement, Placement { lineage, first_block_index });
        let blocks = extent.block_count();
        let used = Use::written(extent.id.0);
        assert_eq!(index.insert(extent, used, &|_| true, Deadline::Never), blocks);
    }
    assert_eq!(index.remove_blocks(NAMESPACE, &[REMOVED]).blocks, 1);
    index.freeze(checkpoint());
    while index.step() {}
}

/// The files of a folder, by name.
fn files(dir: &Path) -> Vec<(String, Vec<u8>)> {
    let entries = fs::read_dir(dir).unwrap().map(|entry| entry.unwrap());
    let mut files: Vec<_> = entries
        .map(|entry| (entry.file_name().into_string().unwrap(), fs::read(entry.path()).unwrap()))
        .collect();
    files.sort();
    files
}

/// Checks that an index holds the result of the history and nothing else.
fn check_history(index: &LsmIndex) {
    let [first, second, fork] = extents();
    assert_eq!(index.counts(), (3, 4), "extents and blocks");
    assert!(index.lsm_stats().tables == 1 && !index.is_damaged());
    let chain = [0x11, 0x22, 0x33, 0x44].map(hash);
    let found = |hashes: &[ChainHash], scope| {
        let runs = index.resolve(NAMESPACE, hashes, scope, Deadline::Never);
        let run = |run: &dalsegno_index::Run| {
            (run.at, Extent::clone(&run.extent), run.first_block, run.count)
        };
        runs.iter().map(run).collect::<Vec<_>>()
    };
    let whole = [(0, first.clone(), 0, 2), (2, second.clone(), 0, 1)];
    assert_eq!(found(&chain, Scope::Prefix), whole);
    assert_eq!(
        index.probe(NAMESPACE, &chain, Deadline::Never),
        3,
        "the removed block is the fourth"
    );
    assert_eq!(found(&[hash(0x55)], Scope::Each), [(0, fork.clone(), 0, 1)]);
    assert_eq!(found(&[REMOVED, hash(0x66)], Scope::Each), []);
    assert_eq!(found(&[hash(0x11)], Scope::Each), [(0, first.clone(), 0, 1)]);
    assert_eq!(
        index.probe(NamespaceId::default(), &chain, Deadline::Never),
        0,
        "another namespace"
    );
    assert_eq!(index.live_blocks(&second).unwrap(), [true, false]);
    assert_eq!(index.orphan_descendants(&first, 9), 2, "the second and the fork");
    let ids = |extents: Vec<Arc<Extent>>| extents.iter().map(|e| e.id.0).collect::<Vec<_>>();
    assert_eq!(
        ids(index.scan(ScanPlace { namespace: NAMESPACE, lineage: hash(0), first: 0 }, 9)),
        [1, 2, 3]
    );
    let bytes: u64 = [&first, &second, &fork].map(Extent::total_bytes).iter().sum();
    assert_eq!(index.live_bytes(1), bytes);
}

#[test]
fn the_golden_index_opens_and_finds_exactly_its_blocks() {
    let dir = tempfile::tempdir().unwrap();
    for (name, bytes) in files(&golden()) {
        fs::write(dir.path().join(name), bytes).unwrap();
    }
    for read_only in [true, false, true] {
        let (index, found) = open(dir.path(), read_only);
        assert_eq!(found, Some(checkpoint()), "read only: {read_only}");
        check_history(&index);
        let next = index.place(NAMESPACE, Some(hash(0x33)), hash(0x77), 0, Deadline::Never);
        assert_eq!(next, Placement { lineage: hash(0x77), first_block_index: 3 }, "a fork");
    }
}

#[test]
fn the_present_writer_writes_the_golden_bytes() {
    let dir = tempfile::tempdir().unwrap();
    write_index(dir.path());
    let written = files(dir.path());
    assert_eq!(written.iter().map(|(name, _)| name).collect::<Vec<_>>(), [TABLE, MANIFEST]);
    for (name, bytes) in &written {
        let path = golden().join(name);
        if is_update() && !path.exists() {
            fs::create_dir_all(golden()).unwrap();
            fs::write(&path, bytes).unwrap();
        }
        assert!(fs::read(path).unwrap() == *bytes, "{name} differs from the golden one");
    }
}

#[test]
fn the_worked_example_in_the_document_is_the_golden_index() {
    let document = root().join("docs/formats/index.md");
    let text = fs::read_to_string(&document).unwrap();
    let (before, example) = text.split_once(MARKER).expect("the document has its marker");
    let read = |name: &str| fs::read(golden().join(name)).unwrap();
    let expected = dump::worked_example(&read(TABLE), &read(MANIFEST));
    if is_update() {
        fs::write(document, format!("{before}{MARKER}{expected}")).unwrap();
        return;
    }
    assert!(example == expected, "run: UPDATE_GOLDEN=1 cargo test -p dalsegno-index golden");
}
