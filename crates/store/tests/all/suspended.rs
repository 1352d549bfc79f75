//! A hanging device gets no requests until it responds: it costs misses, not time, and the counters show it.

use std::time::{Duration, Instant};

use crate::support::hanging::{Hanging, Hung, hanging};
use crate::support::{block, chain, config, get, namespace, put};
use dalsegno_store::{
    ChainHash, Config, ErrorKind, IndexChoice, Keep, NamespaceId, Outcome, PutOutcome, Scope,
    Store, Terms, lend,
};

const BYTES: usize = 60 << 10;
const CHAINS: u64 = 24;
const SMALL: u32 = 512;
const MANY: u64 = 3000;
const TIMEOUT: Duration = Duration::from_millis(200);
/// What a call may take in addition to its timeout on a busy machine.
const SLACK: Duration = Duration::from_secs(20);
/// After this time without a response writes are suspended, and reads long before.
const STALL: Duration = Duration::from_millis(5200);
/// A device that works again is detected within this time.
const RECOVERY: Duration = Duration::from_secs(60);

fn indexes() -> [Config; 2] {
    [IndexChoice::Memory, IndexChoice::Lsm].map(|index| Config {
        index,
        index_memory: Some(1 << 20),
        segment: Some(1 << 20),
        extent: Some(256 << 10),
        ..config(64 << 20)
    })
}

fn space(store: &Store) -> NamespaceId {
    namespace(store, 2, 30 << 10, "suspended")
}

/// A store with blocks, opened again: an on-disk index has them in tables, and no table in memory.
fn filled(dir: &std::path::Path, config: &Config) -> (std::sync::Arc<Hanging>, Store, NamespaceId) {
    let (_, store) = hanging(dir, config);
    let ns = space(&store);
    for name in 0..CHAINS {
        assert_eq!(put(&store, ns, &chain(name, 4), 0, BYTES).count(PutOutcome::Stored), 4);
    }
    store.close();
    let (device, store) = hanging(dir, config);
    let ns = space(&store);
    (device, store, ns)
}

/// As [`filled`], with blocks that are small and so many that most of the index is not in memory.
fn many(dir: &std::path::Path, config: &Config) -> (std::sync::Arc<Hanging>, Store, NamespaceId) {
    let (_, store) = hanging(dir, config);
    let ns = namespace(&store, 1, SMALL, "many");
    for name in 0..MANY {
        put(&store, ns, &chain(name, 4), 0, SMALL as usize);
    }
    store.close();
    let (device, store) = hanging(dir, config);
    let ns = namespace(&store, 1, SMALL, "many");
    (device, store, ns)
}

/// How the blocks of a chain ended, and in what time.
fn get_within(
    store: &Store,
    ns: NamespaceId,
    chain: &[ChainHash],
    timeout: Duration,
) -> (Vec<Outcome>, Duration) {
    let mut memory = vec![vec![0; BYTES]; chain.len()];
    let started = Instant::now();
    let report = lend(|lender| {
        let out = memory.iter_mut().map(|bytes| vec![lender.exclusive(bytes)]).collect();
        store.get_batch(ns, chain, out, Scope::Each, &Terms::within(timeout)).unwrap()
    });
    let took = started.elapsed();
    for ((hash, bytes), outcome) in chain.iter().zip(&memory).zip(&report.outcomes) {
        assert!(!outcome.is_hit() || *bytes == block(*hash, BYTES), "wrong bytes");
    }
    (report.outcomes, took)
}

fn put_within(store: &Store, ns: NamespaceId, name: u64) -> (u64, Duration) {
    let chain = chain(name, 4);
    let blocks: Vec<Vec<u8>> = chain.iter().map(|hash| block(*hash, BYTES)).collect();
    let started = Instant::now();
    let report = lend(|lender| {
        let blocks = blocks.iter().map(|b| vec![lender.shared(b)]).collect();
        let put = dalsegno_store::Put { chain: &chain, first: 0, blocks, keep: Keep::Stored };
        store.put_batch(ns, put, &Terms::within(TIMEOUT)).unwrap()
    });
    (report.count(PutOutcome::Stored), started.elapsed())
}

fn wait_until(what: &str, is_so: impl Fn() -> bool) {
    let started = Instant::now();
    while !is_so() {
        assert!(started.elapsed() < RECOVERY, "{what} did not come");
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn a_hanging_device_gets_no_requests_until_it_responds() {
    for config in indexes() {
        let dir = tempfile::tempdir().unwrap();
        let (device, store, ns) = filled(dir.path(), &config);
        assert_eq!(store.stats().device.reads, "working");
        device.hang(Hung::Everything);
        let hung = Instant::now();
        let mut calls = 0;
        while hung.elapsed() < STALL {
            let (outcomes, took) = get_within(&store, ns, &chain(calls % CHAINS, 4), TIMEOUT);
            assert!(outcomes.iter().all(|outcome| !outcome.is_hit()), "{outcomes:?}");
            assert!(took < TIMEOUT + SLACK, "{took:?}");
            let (stored, took) = put_within(&store, ns, 1000 + calls);
            assert!(stored == 0 && took < TIMEOUT + SLACK, "{took:?}");
            calls += 1;
        }
        // No call waits any more, with any timeout.
        let owed = store.stats().device.owed_requests;
        for name in 0..200 {
            let minute = Duration::from_secs(60);
            let (outcomes, took) = get_within(&store, ns, &chain(name % CHAINS, 4), minute);
            assert!(outcomes.iter().all(|outcome| !outcome.is_hit()), "{outcomes:?}");
            assert!(took < SLACK, "{took:?}");
            assert_eq!(put_within(&store, ns, 2000 + name).0, 0);
        }
        let stats = store.stats();
        assert!(["suspended", "trying"].contains(&stats.device.reads), "{:?}", stats.device);
        assert!(["suspended", "trying"].contains(&stats.device.writes), "{:?}", stats.device);
        assert!(stats.device.owed_requests <= owed + 8, "few trials only: {:?}", stats.device);
        assert!(stats.log.transfers.misses["suspended"] > 0 || config.index == IndexChoice::Lsm);
        device.go_on();
        wait_until("the device", || store.stats().device.owed_requests == 0);
        let is_back = |name| get_within(&store, ns, &chain(name, 4), TIMEOUT).0[0].is_hit();
        wait_until("a hit", || is_back(0));
        for name in 0..CHAINS {
            assert_eq!(get(&store, ns, &chain(name, 4), BYTES, &Terms::default()), 4);
        }
        wait_until("a put", || put_within(&store, ns, 3000).0 == 4 || is_stored(&store, ns, 3000));
        wait_until("both directions to work", || {
            let device = store.stats().device;
            (device.reads, device.writes) == ("working", "working")
        });
        let stats = store.stats();
        assert_eq!(stats.device.read_suspensions, 1, "{:?}", stats.device);
        assert!(!stats.poisoned);
        store.close();
    }
}

fn is_stored(store: &Store, ns: NamespaceId, name: u64) -> bool {
    store.probe(ns, &chain(name, 4)).unwrap() == 4
}

#[test]
fn a_lookup_in_an_on_disk_index_does_not_wait_for_a_hanging_device() {
    let [_, config] = indexes();
    let dir = tempfile::tempdir().unwrap();
    let (device, store, ns) = many(dir.path(), &config);
    device.hang(Hung::Everything);
    let mut found = 0;
    let started = Instant::now();
    for name in 0..MANY {
        found += store.probe(ns, &chain(name, 4)).unwrap();
        let present = store.contains(ns, &chain(name, 4)).unwrap();
        found += present.iter().filter(|present| **present).count();
    }
    // The first second is spent on finding out.
    assert!(started.elapsed() < Duration::from_secs(1) + 2 * SLACK, "{:?}", started.elapsed());
    assert!(found < 1000, "{found}: it was in memory");
    device.go_on();
    wait_until("the device", || store.stats().device.owed_requests == 0);
    wait_until("a lookup", || store.probe(ns, &chain(0, 4)).unwrap() == 4);
    for name in 0..MANY {
        assert_eq!(store.probe(ns, &chain(name, 4)).unwrap(), 4);
    }
    assert!(!store.stats().index.unwrap().lsm.damaged, "a late response is no damage");
}

#[test]
fn a_removal_from_an_on_disk_index_ends_at_its_deadline_and_holds_when_the_device_resumes() {
    let [_, config] = indexes();
    let dir = tempfile::tempdir().unwrap();
    let (device, store, ns) = many(dir.path(), &config);
    device.hang(Hung::Everything);
    let started = Instant::now();
    for name in 0..5 {
        let late = store.remove(ns, Some(&chain(100 * name, 4)), &Terms::within(TIMEOUT));
        assert_eq!(late.unwrap_err().kind(), ErrorKind::Unavailable);
    }
    // A lookup meanwhile does not wait behind it.
    store.probe(ns, &chain(2000, 4)).unwrap();
    assert!(started.elapsed() < 5 * TIMEOUT + SLACK, "{:?}", started.elapsed());
    device.go_on();
    // Behind those that were left to the store, since removals run one by one.
    assert_eq!(store.remove(ns, Some(&chain(7, 1)), &Terms::default()).unwrap(), 1);
    let check = |store: &Store| {
        for name in 0..5 {
            assert_eq!(store.probe(ns, &chain(100 * name, 4)).unwrap(), 0);
        }
        assert_eq!(store.probe(ns, &chain(8, 4)).unwrap(), 4);
    };
    check(&store);
    store.close();
    let (_, store) = hanging(dir.path(), &config);
    check(&store);
}

#[test]
fn a_call_without_timeout_waits_instead_of_being_refused() {
    for config in indexes() {
        let dir = tempfile::tempdir().unwrap();
        let (device, store, ns) = filled(dir.path(), &config);
        device.hang(Hung::Everything);
        std::thread::scope(|scope| {
            let patient = scope.spawn(|| get(&store, ns, &chain(0, 4), BYTES, &Terms::default()));
            std::thread::sleep(Duration::from_millis(1500));
            assert!(!patient.is_finished());
            device.go_on();
            assert_eq!(patient.join().unwrap(), 4);
        });
    }
}

#[test]
fn registering_a_namespace_while_the_device_hangs_delays_no_call() {
    let [config, _] = indexes();
    let dir = tempfile::tempdir().unwrap();
    let (device, store, ns) = filled(dir.path(), &config);
    device.hang(Hung::Everything);
    std::thread::scope(|scope| {
        let started = Instant::now();
        let registering = scope.spawn(|| namespace(&store, 3, 1 << 10, "another"));
        std::thread::sleep(TIMEOUT);
        let (_, took) = get_within(&store, ns, &chain(0, 4), TIMEOUT);
        assert!(took < TIMEOUT + SLACK, "{took:?}");
        registering.join().unwrap();
        assert!(started.elapsed() < Duration::from_secs(5) + SLACK);
    });
    device.go_on();
    let another = namespace(&store, 3, 1 << 10, "another");
    assert_eq!(put(&store, another, &chain(7, 2), 0, 3 << 10).count(PutOutcome::Stored), 2);
    store.close();
    let (_, store) = hanging(dir.path(), &config);
    assert!(store.namespaces().unwrap().iter().any(|known| known.id() == another));
}
