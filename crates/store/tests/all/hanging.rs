//! A device that hangs: no call with a timeout waits for it, and nothing is wrong afterwards.

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::support::hanging::{Hanging, Hung, hanging, hanging_with_pool};
use crate::support::{block, chain, config, get, namespace, open, put};
use dalsegno_store::{
    Cancel, ChainHash, Config, Durability, ErrorKind, Keep, LayerSpan, LayerWriter, Memory,
    NamespaceId, Put, PutOutcome, PutReport, Scope, Store, Terms, lend,
};

/// Bytes of a block: four fill an extent, sixteen a segment.
const BYTES: usize = 60 << 10;
/// The timeout of a call, and what it may take on a busy machine: far below the minute that a sync may take.
const TIMEOUT: Duration = Duration::from_millis(200);
const AT_MOST: Duration = Duration::from_secs(30);
/// Longer than any machine is slow.
const PATIENCE: Duration = Duration::from_secs(40);

fn settings(durability: Durability) -> Config {
    Config { segment: Some(1 << 20), extent: Some(256 << 10), durability, ..config(5 << 20) }
}

fn space(store: &Store) -> NamespaceId {
    namespace(store, 2, 30 << 10, "hanging")
}

/// A store that must evict for every new segment, with some blocks in use, so that they move.
fn crowded(dir: &Path, config: &Config) -> (Arc<Hanging>, Store, NamespaceId) {
    let (device, store) = hanging(dir, config);
    let ns = space(&store);
    for name in 0..30 {
        assert_eq!(put(&store, ns, &chain(name, 4), 0, BYTES).count(PutOutcome::Stored), 4);
        if name % 3 == 0 {
            get(&store, ns, &chain(name, 4), BYTES, &Terms::default());
        }
    }
    assert!(store.stats().evicted_blocks > 0, "the store is full");
    (device, store, ns)
}

fn put_within(store: &Store, ns: NamespaceId, chain: &[ChainHash], terms: &Terms) -> PutReport {
    let blocks: Vec<Vec<u8>> = chain.iter().map(|hash| block(*hash, BYTES)).collect();
    let started = Instant::now();
    let report = lend(|lender| {
        let blocks = blocks.iter().map(|b| vec![lender.shared(b)]).collect();
        store.put_batch(ns, Put { chain, first: 0, blocks, keep: Keep::Stored }, terms).unwrap()
    });
    assert!(started.elapsed() < AT_MOST, "a put took {:?}", started.elapsed());
    report
}

/// Everything that is served is right, and new blocks find space.
fn check_well(store: &Store, ns: NamespaceId) {
    assert!(!store.stats().poisoned);
    for name in 0..200 {
        get(store, ns, &chain(name, 4), BYTES, &Terms::default());
    }
    for name in 1000..1020 {
        let report = put(store, ns, &chain(name, 4), 0, BYTES);
        assert_eq!(report.count(PutOutcome::Stored), 4, "{report:?}");
        assert_eq!(get(store, ns, &chain(name, 4), BYTES, &Terms::default()), 4);
    }
}

/// A writer of blocks, all layers of which are stored.
fn by_layer(store: &Store, ns: NamespaceId, chain: &[ChainHash]) -> LayerWriter {
    let blocks: Vec<Vec<u8>> = chain.iter().map(|hash| block(*hash, BYTES)).collect();
    let span = LayerSpan { chain, first: 0, count: chain.len() };
    let writer = store.layer_writer(ns, span, &Terms::default()).unwrap();
    for (layer, at) in (0..BYTES).step_by(BYTES / 2).enumerate() {
        lend(|lender| {
            let slices = blocks.iter().map(|b| vec![lender.shared(&b[at..][..BYTES / 2])]);
            let layer = u32::try_from(layer).unwrap();
            writer.store_layer(layer, slices.collect(), &Terms::default()).unwrap();
        });
    }
    writer
}

#[test]
fn a_put_into_a_full_store_ends_at_its_deadline_while_the_device_hangs() {
    for durability in [Durability::Batch, Durability::None] {
        let dir = tempfile::tempdir().unwrap();
        let config = settings(durability);
        let (device, store, ns) = crowded(dir.path(), &config);
        device.hang(Hung::Everything);
        for name in 100..108 {
            let report = put_within(&store, ns, &chain(name, 4), &Terms::within(TIMEOUT));
            assert_eq!(report.count(PutOutcome::Failed), 4, "{report:?}");
            assert_eq!(store.probe(ns, &chain(name, 4)).unwrap(), 0);
        }
        device.go_on();
        check_well(&store, ns);
        store.close();
        let store = open(dir.path(), &config);
        assert_eq!(store.stats().open_faults, 0);
        check_well(&store, ns);
    }
}

#[test]
fn a_put_that_waits_for_space_can_be_cancelled() {
    let dir = tempfile::tempdir().unwrap();
    let (device, store, ns) = crowded(dir.path(), &settings(Durability::Batch));
    // Until the open segment is full: requests in flight are waited for.
    device.hang(Hung::Everything);
    for name in 100..105 {
        put_within(&store, ns, &chain(name, 4), &Terms::within(TIMEOUT));
    }
    let cancel = Cancel::default();
    let terms = Terms { timeout: None, cancel: Some(cancel.clone()) };
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| put_within(&store, ns, &chain(110, 4), &terms));
        std::thread::sleep(TIMEOUT);
        assert!(!waiting.is_finished());
        cancel.cancel();
        assert_eq!(waiting.join().unwrap().count(PutOutcome::Failed), 4);
    });
    device.go_on();
    check_well(&store, ns);
}

#[test]
fn a_put_does_not_wait_beyond_its_deadline_for_a_new_segment_or_a_sync() {
    for hung in [Hung::Creation, Hung::Syncs] {
        let dir = tempfile::tempdir().unwrap();
        let config = settings(Durability::Batch);
        let (device, store) = hanging(dir.path(), &config);
        let ns = space(&store);
        device.hang(hung);
        let report = put_within(&store, ns, &chain(1, 4), &Terms::within(TIMEOUT));
        assert_eq!(report.count(PutOutcome::Failed), 4, "{hung:?}");
        let started = Instant::now();
        let layers =
            by_layer(&store, ns, &chain(2, 4)).commit(Keep::Stored, &Terms::within(TIMEOUT));
        assert_eq!(layers.unwrap_err().kind(), ErrorKind::Unavailable, "{hung:?}");
        assert!(started.elapsed() < AT_MOST);
        device.go_on();
        check_well(&store, ns);
        // Now with a segment that is open already.
        device.hang(hung);
        let mut failed = 0;
        for name in 20..28 {
            let report = put_within(&store, ns, &chain(name, 4), &Terms::within(TIMEOUT));
            failed += report.count(PutOutcome::Failed);
        }
        assert!(failed > 0 || hung == Hung::Creation, "{hung:?}");
        device.go_on();
        check_well(&store, ns);
        store.close();
        check_well(&open(dir.path(), &config), ns);
    }
}

#[test]
fn a_removal_ends_at_its_deadline_and_becomes_durable_when_the_device_resumes() {
    let dir = tempfile::tempdir().unwrap();
    let config = settings(Durability::Batch);
    let (device, store, ns) = crowded(dir.path(), &config);
    let gone = chain(29, 4);
    assert_eq!(store.probe(ns, &gone).unwrap(), 4);
    device.hang(Hung::Everything);
    let started = Instant::now();
    let late = store.remove(ns, Some(&gone), &Terms::within(TIMEOUT));
    assert_eq!(late.unwrap_err().kind(), ErrorKind::Unavailable);
    assert!(started.elapsed() < AT_MOST);
    assert_eq!(store.probe(ns, &gone).unwrap(), 0, "gone immediately all the same");
    device.go_on();
    // Behind the one that was left to the store, since removals run one by one.
    store.remove(ns, Some(&chain(28, 1)), &Terms::default()).unwrap();
    drop(store);
    let store = open(dir.path(), &config);
    assert_eq!(store.probe(ns, &gone).unwrap(), 0);
    check_well(&store, ns);
}

#[test]
fn layers_do_not_wait_for_the_device_and_a_commit_ends_at_its_deadline() {
    let dir = tempfile::tempdir().unwrap();
    let (device, store) = hanging(dir.path(), &settings(Durability::Batch));
    let (ns, chain) = (space(&store), chain(1, 2));
    device.hang(Hung::Everything);
    let started = Instant::now();
    let writer = by_layer(&store, ns, &chain);
    let late = writer.commit(Keep::Stored, &Terms::within(TIMEOUT));
    assert_eq!(late.unwrap_err().kind(), ErrorKind::Unavailable);
    assert!(started.elapsed() < AT_MOST);
    assert_eq!(
        writer.commit(Keep::Stored, &Terms::default()).unwrap_err().kind(),
        ErrorKind::Invalid
    );
    device.go_on();
    assert_eq!(by_layer(&store, ns, &chain).commit(Keep::Stored, &Terms::default()).unwrap(), 2);
    assert_eq!(get(&store, ns, &chain, BYTES, &Terms::default()), 2);
}

#[test]
fn a_call_without_timeout_is_throttled_while_all_staging_memory_is_in_use() {
    let dir = tempfile::tempdir().unwrap();
    let (_, store, pool) = hanging_with_pool(dir.path(), &settings(Durability::None));
    let ns = space(&store);
    assert_eq!(put(&store, ns, &chain(0, 4), 0, BYTES).count(PutOutcome::Stored), 4);
    get(&store, ns, &chain(0, 4), BYTES, &Terms::default());
    let throttled = |store: &Store| store.stats().log.transfers.misses["throttled"];
    let before = throttled(&store);
    // As calls do that time out while the device hangs.
    let small = std::iter::from_fn(|| pool.try_take(4096));
    let large = std::iter::from_fn(|| pool.try_take(pool.largest()));
    let held: Vec<Memory> = large.chain(small).collect();
    let started = Instant::now();
    let mut blocks = vec![vec![0_u8; BYTES + 1]; 4];
    let report = lend(|lender| {
        let targets = blocks.iter_mut().map(|b| vec![lender.exclusive(&mut b[1..])]).collect();
        store.get_batch(ns, &chain(0, 4), targets, Scope::Each, &Terms::default()).unwrap()
    });
    assert_eq!(report.hit_blocks(), 0);
    assert!(started.elapsed() < 4 * AT_MOST, "it took {:?}", started.elapsed());
    assert_eq!(throttled(&store), before + 4);
    let cancel = Cancel::default();
    let terms = Terms { timeout: None, cancel: Some(cancel.clone()) };
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| put_within(&store, ns, &chain(30, 4), &terms));
        std::thread::sleep(TIMEOUT);
        cancel.cancel();
        assert_eq!(waiting.join().unwrap().count(PutOutcome::Failed), 4);
    });
    drop(held);
    check_well(&store, ns);
}

/// The blocks of a chain in owned memory, for a transfer.
fn owned(chain: &[ChainHash]) -> Vec<Vec<Memory>> {
    chain.iter().map(|hash| vec![Memory::owned(block(*hash, BYTES), ())]).collect()
}

fn wait_for_kept(device: &Hanging, count: usize) {
    let started = Instant::now();
    while device.kept() < count {
        assert!(started.elapsed() < PATIENCE, "no request reached the device");
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn regression_hanging_stores_delay_no_load_and_hanging_loads_no_store() {
    let dir = tempfile::tempdir().unwrap();
    let (device, store, pool) = hanging_with_pool(dir.path(), &settings(Durability::None));
    let ns = space(&store);
    put(&store, ns, &chain(0, 4), 0, BYTES);
    let threads = u64::from(store.limits().transfer_threads);
    let store_one = |name| {
        let chain = chain(name, 4);
        let blocks = owned(&chain);
        store.submit_put(ns, chain, 0, blocks, Keep::Stored, Some(PATIENCE))
    };
    let load_one = || {
        let out = (0..4).map(|_| vec![pool.try_take(BYTES).unwrap()]).collect();
        store.submit_get(ns, chain(0, 4), out, Scope::Each, Some(PATIENCE))
    };
    device.hang(Hung::Writes);
    let stores: Vec<_> = (1..=threads).map(store_one).collect();
    wait_for_kept(&device, stores.len());
    let load = load_one();
    assert!(load.wait(Some(PATIENCE / 2)), "a load waits for stores");
    assert_eq!(load.take().unwrap().unwrap().hit_blocks(), 4);
    device.go_on();
    for transfer in stores {
        assert!(transfer.wait(None));
    }
    device.hang(Hung::Reads);
    let loads: Vec<_> = (0..threads).map(|_| load_one()).collect();
    wait_for_kept(&device, loads.len());
    let transfer = store_one(100);
    assert!(transfer.wait(Some(PATIENCE / 2)), "a store waits for loads");
    assert_eq!(transfer.take().unwrap().unwrap().count(PutOutcome::Stored), 4);
    device.go_on();
    for transfer in loads {
        assert!(transfer.wait(None));
    }
    check_well(&store, ns);
}

#[test]
fn regression_a_slow_sync_of_a_removal_fails_no_put_of_another_tenant() {
    let dir = tempfile::tempdir().unwrap();
    let config = settings(Durability::None);
    let (device, store) = hanging(dir.path(), &config);
    let (ns, other) = (space(&store), namespace(&store, 2, 30 << 10, "another tenant"));
    for name in 0..30 {
        put(&store, ns, &chain(name, 4), 0, BYTES);
    }
    let gone = chain(29, 4);
    std::thread::scope(|scope| {
        device.hang(Hung::NextSync);
        let removal = scope.spawn(|| store.remove(ns, Some(&gone), &Terms::default()));
        wait_for_kept(&device, 1);
        let evicted = store.stats().evicted_blocks;
        for name in 100..112 {
            let chain = chain(name, 4);
            let transfer = store.submit_put(
                other,
                chain.clone(),
                0,
                owned(&chain),
                Keep::Stored,
                Some(PATIENCE / 2),
            );
            assert!(transfer.wait(None));
            let report = transfer.take().unwrap().unwrap();
            if report.count(PutOutcome::Stored) < 4 {
                device.go_on();
                panic!("a put waits for the removal: {report:?}");
            }
        }
        assert!(store.stats().evicted_blocks > evicted, "space was freed meanwhile");
        assert!(!removal.is_finished());
        device.go_on();
        assert_eq!(removal.join().unwrap().unwrap(), 4);
    });
    store.close();
    let store = open(dir.path(), &config);
    assert_eq!(store.probe(ns, &gone).unwrap(), 0);
    check_well(&store, ns);
}
