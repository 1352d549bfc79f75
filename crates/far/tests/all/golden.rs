//! Every version must read the objects in `tests/golden/pack-v3`. The catalog 7 and the list 1 are the worked examples
//! of `docs/formats/pack.md`. The catalogs in `tests/golden/pack-v1` and `tests/golden/pack-v2`, of versions that
//! are not read any more, are refused with a message.
//!
//! `UPDATE_GOLDEN=1 cargo test -p dalsegno-far golden` writes missing files. An existing one is never changed: a new
//! format gets a new folder.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use dalsegno_core::{ChainHash, Class, Clock, KvLayout, ManualClock, NamespaceId, StoreId};
use dalsegno_extent::format::{NewExtent, RecordPlace};
use dalsegno_extent::{BlockTarget, IoBounds, PinnedFile, SourceIo};
use dalsegno_far::format::{Catalog, RemovalList};
use dalsegno_far::{
    FarIndex, FarReader, FarShape, FarWanted, Follower, Member, MemoryLocation, Object, Publisher,
    PublisherOptions, Removal, RemovalId, Tier, WriterId, wait_for,
};
use dalsegno_io::{BufferPool, Call, Memory, Source};

const LIMIT: Duration = Duration::from_secs(1);
const SLICE_BYTES: u32 = 4096;
const NAMESPACE: NamespaceId = NamespaceId([1; 16]);
const WRITER: WriterId = WriterId { store: StoreId([7; 16]), open: 9 };
/// A pack of two blocks, and the removal of the second one.
const OBJECTS: [Object; 3] = [Object::Pack(112), Object::Catalog(7), Object::Removals(1)];
/// What the writer had applied.
const APPLIED: RemovalId = RemovalId { by: WriterId { open: 3, ..WRITER }, number: 2 };

fn golden_of(version: &str, name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/golden").join(version).join(name)
}

fn golden(object: Object) -> PathBuf {
    golden_of("pack-v3", &WRITER.object(object).file())
}

fn layout() -> KvLayout {
    KvLayout::new(1, SLICE_BYTES).unwrap()
}

fn hash(block: u8) -> ChainHash {
    ChainHash([block; 32])
}

/// Byte `i` of block `b` is `(b * 4 + i) mod 251`.
fn bytes_of(block: u8) -> Vec<u8> {
    let byte = |at: usize| u8::try_from((usize::from(block) * 4 + at) % 251).unwrap();
    (0..SLICE_BYTES as usize).map(byte).collect()
}

fn io_of(source: Arc<dyn Source>, clock: &Arc<dyn Clock>) -> SourceIo {
    SourceIo {
        source,
        clock: Arc::clone(clock),
        pool: BufferPool::new(4 << 20, 1 << 20).unwrap(),
        bounds: IoBounds { depth: 8, request_bytes: 1 << 20 },
        stats: Arc::default(),
    }
}

fn new_clock() -> Arc<dyn Clock> {
    Arc::new(ManualClock::default())
}

fn publish(tier: &dyn Tier, clock: &Arc<dyn Clock>, object: Object, bytes: Vec<u8>) {
    let memory = vec![Memory::owned(bytes, ())];
    wait_for(clock, LIMIT, |ask| tier.publish(WRITER.object(object), memory, ask)).unwrap();
}

/// The objects as this version writes them.
fn written() -> Vec<Vec<u8>> {
    let clock = new_clock();
    let tier: Arc<dyn Tier> = Arc::new(MemoryLocation::new(Arc::clone(&clock)).mount());
    let index = Arc::new(FarIndex::new(1 << 20));
    let options = PublisherOptions { pack_bytes: 12_288, capacity_bytes: u64::MAX, flush: LIMIT };
    let (of_tier, of_clock) = (Arc::clone(&tier), Arc::clone(&clock));
    let member = Member { tier: of_tier, index, clock: of_clock, writer: WRITER };
    let mut publisher = Publisher::new(member, options);
    publisher.describe(NAMESPACE, &[0; 4096]).unwrap();
    let new = NewExtent {
        namespace: NAMESPACE,
        lineage: ChainHash([2; 32]),
        first_block_index: 0,
        parent: ChainHash::default(),
        layout: layout(),
        hashes: vec![hash(0), hash(1)],
        born: None,
    };
    let crcs = [0, 1].map(|block| dalsegno_core::crc32c(&bytes_of(block))).to_vec();
    let place = RecordPlace { segment: 3, epoch: 1, offset: 0 };
    let header = new.header(WRITER.store, place, 5, crcs, None);
    let mut record = vec![0; header.header_bytes() as usize];
    header.encode(&mut record);
    record.extend([0, 1].map(bytes_of).concat());
    let log = Arc::new(MemoryLocation::new(Arc::clone(&clock)).mount());
    publish(&*log, &clock, Object::Pack(3), record);
    let pinned = PinnedFile { file: log.file(WRITER.object(Object::Pack(3))), guard: Arc::new(()) };
    let extent = header.extent().unwrap();
    publisher.set_applied([APPLIED].into_iter().collect());
    let io = io_of(log, &clock);
    for _ in 1..=7 {
        publisher.add(&io, &pinned, WRITER.store, &extent).unwrap();
        while publisher.advance() > 0 {}
    }
    let id = RemovalId { by: WRITER, number: 1 };
    let removal = Removal { id, namespace: NAMESPACE, hashes: vec![hash(1)] };
    publisher.publish_removals(&[removal]).unwrap();
    let fetch = |object| {
        wait_for(&clock, LIMIT, |ask| tier.fetch(WRITER.object(object), 1 << 20, ask)).unwrap()
    };
    OBJECTS.map(fetch).to_vec()
}

#[test]
fn this_version_writes_the_golden_files() {
    for (object, bytes) in OBJECTS.into_iter().zip(written()) {
        let path = golden(object);
        if std::env::var_os("UPDATE_GOLDEN").is_some() && !path.exists() {
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(&path, &bytes).unwrap();
        }
        assert!(fs::read(&path).unwrap() == bytes, "{object} differs");
    }
}

#[test]
fn the_golden_files_are_read() {
    let clock = new_clock();
    let location = MemoryLocation::new(Arc::clone(&clock));
    let tier: Arc<dyn Tier> = Arc::new(location.mount());
    for object in OBJECTS {
        let bytes = fs::read(golden(object)).unwrap();
        if let Object::Catalog(number) = object {
            let catalog = Catalog::decode(&bytes).unwrap();
            assert_eq!((catalog.writer, catalog.number), (WRITER, number));
            assert!(catalog.encode() == bytes);
            assert_eq!(catalog.applied.iter().collect::<Vec<_>>(), [APPLIED]);
        }
        if let Object::Removals(number) = object {
            let list = RemovalList::decode(&bytes).unwrap();
            assert_eq!((list.writer, list.number), (WRITER, number));
            assert!(list.encode() == bytes);
        }
        publish(&*tier, &clock, object, bytes);
    }
    let index = Arc::new(FarIndex::new(1 << 20));
    let own = WriterId { open: 1, ..WRITER };
    let of_clock = Arc::clone(&clock);
    let member = Member { tier, index, clock: of_clock, writer: own };
    let mut follower = Follower::new(member.clone());
    let polled = follower.poll();
    assert_eq!((polled.catalogs, polled.removals.len(), polled.bad.now), (1, 1, 0));
    assert!(member.index.find(NAMESPACE, &hash(1)).is_none(), "it was removed");
    let place = member.index.find(NAMESPACE, &hash(0)).unwrap();
    let of_tier: Arc<dyn Source> = Arc::clone(&member.tier) as Arc<dyn Source>;
    let reader = FarReader::new(Arc::new(io_of(of_tier, &clock)), member, 1 << 20);
    let memory = vec![Memory::zeroed(SLICE_BYTES as usize)];
    let target = BlockTarget { block: 0, number: 0, memory, outlives_call: true, copy: Vec::new() };
    let shape = FarShape { namespace: NAMESPACE, layout: layout(), layers: 0..1 };
    let wanted = [FarWanted { place, hash: hash(0) }];
    let read = reader.read(&shape, &wanted, vec![target], &Call::of(Class::Need)).remove(0);
    read.outcome.unwrap();
    assert!(read.memory[0].as_slice() == bytes_of(0));
}

#[test]
fn catalogs_of_older_versions_are_refused_with_a_message_and_cost_only_their_blocks() {
    let clock = new_clock();
    let location = MemoryLocation::new(Arc::clone(&clock));
    let tier: Arc<dyn Tier> = Arc::new(location.mount());
    for (version, number, at) in [(1, 7, 7), (1, 8, 8), (2, 7, 9)] {
        let file = Object::Catalog(number).to_string();
        let bytes = fs::read(golden_of(&format!("pack-v{version}"), &file)).unwrap();
        let error = Catalog::decode(&bytes).unwrap_err().to_string();
        assert_eq!(error, format!("format version {version} is older than this build reads"));
        publish(&*tier, &clock, Object::Catalog(at), bytes);
    }
    let index = Arc::new(FarIndex::new(1 << 20));
    let own = WriterId { open: 1, ..WRITER };
    let polled = Follower::new(Member { tier, index, clock, writer: own }).poll();
    assert_eq!((polled.bad.new, polled.catalogs), (3, 0));
    assert!(polled.bad.newest.unwrap().reason.contains("older than this build reads"));
    assert!(polled.failure.is_none() && polled.at_location.is_some());
}
