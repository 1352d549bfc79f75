//! Compressed namespaces: every byte is returned and takes less space, through merging, eviction, reopening and damage.

use crate::support;
use std::os::unix::fs::FileExt as _;
use std::path::Path;
use std::time::Duration;

use crate::support::{chain, open_with, setups, soon};
use dalsegno_store::{
    ChainHash, Compression, Config, ErrorKind, Keep, KvLayout, LayerSpan, Memory, Namespace,
    NamespaceId, Put, PutReport, RegisterOptions, Scope, Store, Terms, info, lend, list, verify,
};

const LAYERS: u32 = 3;
const SLICE: u32 = 8192;
const BLOCK: usize = (LAYERS * SLICE) as usize;

fn namespace() -> Namespace {
    let layout = KvLayout::new(LAYERS, SLICE).unwrap();
    Namespace::builder(layout).field("salt", "compressed").build().unwrap()
}

fn zstd() -> Compression {
    Compression::zstd(2).unwrap()
}

/// Numbers of two bytes, of which the upper one varies little.
fn block(hash: ChainHash) -> Vec<u8> {
    let mut block = support::block(hash, BLOCK);
    block.iter_mut().skip(1).step_by(2).for_each(|byte| *byte = 0x3c | *byte & 3);
    block
}

fn put(store: &Store, id: NamespaceId, chain: &[ChainHash], first: usize) -> PutReport {
    let blocks: Vec<Vec<u8>> = chain[first..].iter().map(|hash| block(*hash)).collect();
    lend(|lender| {
        let blocks: Vec<Vec<Memory>> = blocks.iter().map(|b| vec![lender.shared(b)]).collect();
        store
            .put_batch(id, Put { chain, first, blocks, keep: Keep::Stored }, &Terms::default())
            .unwrap()
    })
}

/// Gets blocks; checks every byte of every hit and returns how many lead.
fn get(store: &Store, id: NamespaceId, chain: &[ChainHash], terms: &Terms) -> usize {
    let mut out = vec![vec![0xee_u8; BLOCK]; chain.len()];
    let report = lend(|lender| {
        let targets = out.iter_mut().map(|b| vec![lender.exclusive(b)]).collect();
        store.get_batch(id, chain, targets, Scope::Prefix, terms).unwrap()
    });
    for ((hash, bytes), outcome) in chain.iter().zip(&out).zip(&report.outcomes) {
        assert!(!outcome.is_hit() || *bytes == block(*hash), "{hash}");
    }
    report.leading_blocks()
}

fn check(store: &Store, id: NamespaceId, chain: &[ChainHash]) {
    let within = Terms::within(Duration::from_secs(20));
    assert_eq!(get(store, id, chain, &Terms::default()), chain.len());
    assert_eq!(get(store, id, chain, &within), chain.len());
    let middle = &chain[chain.len() / 3..chain.len() / 2];
    assert_eq!(get(store, id, middle, &Terms::default()), middle.len());
}

/// The bytes that the blocks take on disk, and their size.
fn percent_stored(dir: &Path) -> u64 {
    let found = info(dir).unwrap();
    found.stored_bytes * 100 / found.block_bytes
}

#[test]
fn compressed_blocks_take_less_space_and_stay_compressed_after_later_registrations() {
    for setup in setups() {
        let dir = tempfile::tempdir().unwrap();
        let config = setup.config(64 << 20);
        let id = namespace().id();
        let (one, two) = (chain(1, 60), chain(2, 60));
        let store = support::open(dir.path(), &config);
        store.register(&namespace(), RegisterOptions { compression: Some(zstd()) }).unwrap();
        assert_eq!(put(&store, id, &one, 0).kept(), [true; 60]);
        check(&store, id, &one);
        let codec = store.stats().log.transfers.codec;
        assert_eq!(codec.encoded_bytes, 60 * BLOCK as u64);
        assert!(codec.encoded_stored_bytes * 10 < codec.encoded_bytes * 7, "{codec:?}");
        assert!(codec.decoded_bytes > codec.encoded_bytes && codec.decode_ns > 0, "{codec:?}");
        store.close();
        assert!(percent_stored(dir.path()) < 75, "{}", percent_stored(dir.path()));
        assert_eq!(info(dir.path()).unwrap().namespaces[0].codec, "zstd");
        // It is remembered.
        let store = support::open(dir.path(), &config);
        store.register(&namespace(), RegisterOptions::default()).unwrap();
        check(&store, id, &one);
        put(&store, id, &two, 0);
        assert_eq!(store.stats().log.transfers.codec.encoded_bytes, 60 * BLOCK as u64);
        store
            .register(&namespace(), RegisterOptions { compression: Some(Compression::PLAIN) })
            .unwrap();
        put(&store, id, &chain(3, 20), 0);
        assert_eq!(store.stats().log.transfers.codec.encoded_bytes, 60 * BLOCK as u64);
        store.close();
        let store = support::open(dir.path(), &config);
        store.register(&namespace(), RegisterOptions::default()).unwrap();
        for chain in [one, two, chain(3, 20)] {
            check(&store, id, &chain);
        }
        store.close();
        assert_eq!(list(dir.path()).unwrap().1.iter().filter(|row| !row.compressed).count(), 1);
        assert_eq!(verify(dir.path(), &|_, _| ()).unwrap().findings, []);
    }
}

#[test]
fn blocks_that_came_layer_by_layer_are_compressed_like_others() {
    let dir = tempfile::tempdir().unwrap();
    let store = support::open(dir.path(), &support::config(64 << 20));
    store.register(&namespace(), RegisterOptions { compression: Some(zstd()) }).unwrap();
    let (id, chain) = (namespace().id(), chain(1, 20));
    let writer = store
        .layer_writer(id, LayerSpan { chain: &chain, first: 0, count: 20 }, &Terms::default())
        .unwrap();
    for layer in 0..LAYERS {
        let at = (layer * SLICE) as usize;
        let slices: Vec<Vec<u8>> =
            chain.iter().map(|hash| block(*hash)[at..][..SLICE as usize].to_vec()).collect();
        lend(|lender| {
            let slices = slices.iter().map(|slice| vec![lender.shared(slice)]).collect();
            writer.store_layer(layer, slices, &Terms::default()).unwrap();
        });
    }
    assert_eq!(writer.commit(Keep::Stored, &Terms::default()).unwrap(), 20);
    check(&store, id, &chain);
    assert!(store.stats().log.transfers.codec.encoded_bytes > 0);
}

#[test]
fn a_damaged_unit_is_a_miss_with_its_cause_and_can_be_put_again() {
    let dir = tempfile::tempdir().unwrap();
    let config = support::config(64 << 20);
    let store = support::open(dir.path(), &config);
    store.register(&namespace(), RegisterOptions { compression: Some(zstd()) }).unwrap();
    let (id, chain) = (namespace().id(), chain(1, 60));
    put(&store, id, &chain, 0);
    store.close();
    let row = list(dir.path()).unwrap().1.remove(0);
    let path = dir.path().join(dalsegno_extent::format::segment_file(row.segment));
    let file = std::fs::OpenOptions::new().read(true).write(true).open(path).unwrap();
    let at = row.offset + row.bytes - 9000;
    let mut byte = [0];
    file.read_exact_at(&mut byte, at).unwrap();
    file.write_all_at(&[byte[0] ^ 0x10], at).unwrap();
    assert_eq!(verify(dir.path(), &|_, _| ()).unwrap().findings.len(), 1);
    let store = support::open(dir.path(), &config);
    store.register(&namespace(), RegisterOptions::default()).unwrap();

    assert!(get(&store, id, &chain, &Terms::default()) < 60);
    let stats = store.stats();
    // A unit holds slices of eight blocks: 64 KiB.
    assert!((1..=8).contains(&stats.quarantined_blocks), "{stats:?}");
    assert_eq!(stats.log.transfers.misses["codec"], stats.quarantined_blocks);
    put(&store, id, &chain, 0);
    check(&store, id, &chain);
}

#[test]
fn a_compressed_store_holds_more_blocks_and_relocates_them() {
    for setup in setups() {
        let mut held = Vec::new();
        for compression in [Compression::PLAIN, zstd()] {
            let dir = tempfile::tempdir().unwrap();
            let config = Config { segment: Some(1 << 20), ..setup.config(9 << 20) };
            let store = support::open(dir.path(), &config);
            store
                .register(&namespace(), RegisterOptions { compression: Some(compression) })
                .unwrap();
            let id = namespace().id();
            let favourite = chain(1000, 10);
            put(&store, id, &favourite, 0);
            for name in 0..120 {
                put(&store, id, &chain(name, 10), 0);
                assert_eq!(get(&store, id, &favourite, &Terms::default()), 10, "{name}");
            }
            let stats = store.stats();
            assert!(stats.log.segments_recycled > 5 && stats.relocated_bytes > 0, "{stats:?}");
            if !compression.is_plain() {
                // A block that moves is not compressed again.
                assert_eq!(stats.log.transfers.codec.encoded_bytes, stats.put_bytes, "{stats:?}");
            }
            for name in 0..120 {
                get(&store, id, &chain(name, 10), &Terms::default());
            }
            held.push(stats.blocks);
            store.close();
            assert_eq!(verify(dir.path(), &|_, _| ()).unwrap().findings, []);
        }
        assert!(held[1] * 10 > held[0] * 12, "{held:?}");
    }
}

#[test]
fn small_extents_are_compressed_when_they_are_merged() {
    for setup in setups() {
        let dir = tempfile::tempdir().unwrap();
        let store = open_with(dir.path(), &setup.config(64 << 20), soon());
        store.register(&namespace(), RegisterOptions { compression: Some(zstd()) }).unwrap();
        let (id, whole) = (namespace().id(), chain(7, 64));
        for count in 1..=whole.len() {
            put(&store, id, &whole[..count], count - 1);
        }
        for _ in 0..400 {
            std::thread::sleep(Duration::from_millis(50));
            if store.stats().extents <= 16 {
                break;
            }
        }
        let merging = store.stats().merging;
        assert!(merging.merges > 0 && merging.skipped_damaged == 0, "{merging:?}");
        check(&store, id, &whole);
        store.close();
        let rows = list(dir.path()).unwrap().1;
        assert!(
            rows.len() <= 16 && rows.iter().any(|row| row.compressed && row.blocks > 8),
            "{rows:?}"
        );
        let store = open_with(dir.path(), &setup.config(64 << 20), soon());
        store.register(&namespace(), RegisterOptions::default()).unwrap();
        check(&store, id, &whole);
    }
}

#[test]
fn a_put_that_times_out_during_compression_fails_and_leaves_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let store = support::open(dir.path(), &support::config(64 << 20));
    store.register(&namespace(), RegisterOptions { compression: Some(zstd()) }).unwrap();
    let (id, chain) = (namespace().id(), chain(1, 40));
    let blocks: Vec<Vec<u8>> = chain.iter().map(|hash| block(*hash)).collect();
    let report = lend(|lender| {
        let blocks: Vec<Vec<Memory>> = blocks.iter().map(|b| vec![lender.shared(b)]).collect();
        let put = Put { chain: &chain, first: 0, blocks, keep: Keep::Stored };
        store.put_batch(id, put, &Terms::within(Duration::ZERO)).unwrap()
    });
    assert_eq!(report.kept(), [false; 40]);
    assert_eq!(store.probe(id, &chain).unwrap(), 0);
    put(&store, id, &chain, 0);
    check(&store, id, &chain);
}

#[test]
fn an_unknown_version_is_refused_and_a_plain_store_keeps_its_version() {
    let dir = tempfile::tempdir().unwrap();
    let config = support::config(64 << 20);
    let path = dir.path().join("store.meta");
    let store = support::open(dir.path(), &config);
    store.register(&namespace(), RegisterOptions::default()).unwrap();
    put(&store, namespace().id(), &chain(1, 4), 0);
    assert_eq!(std::fs::read(&path).unwrap()[8], 1);
    store.register(&namespace(), RegisterOptions { compression: Some(zstd()) }).unwrap();
    assert_eq!(std::fs::read(&path).unwrap()[8], 2);
    store.close();
    let mut sector = std::fs::read(&path).unwrap();
    sector[8] = 3;
    let crc = dalsegno_core::crc32c(&sector[..4092]);
    sector[4092..].copy_from_slice(&crc.to_le_bytes());
    std::fs::write(&path, sector).unwrap();
    let error = Store::open(dir.path(), &config).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Incompatible);
}
