//! Reads of the far tier next to those of the log, and in their place.

use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use dalsegno_far::Tier;
use dalsegno_store::testing::Tiers;
use dalsegno_store::{
    BlockTier, ChainHash, Config, NamespaceId, Outcome, Scope, Store, Terms, lend,
};

use crate::far_host::{WORKERS, config_with as config};
use crate::held_tier::HeldTier;
use crate::support::hanging::{Hanging, Hung, hanging_with};
use crate::support::{self, LIMIT, block, chain, namespace, put, until};

const SLICE: u32 = 64 << 10;
const BYTES: usize = 4 * SLICE as usize;
/// Long enough for local reads on a busy machine, and much less than what a hanging location would take.
const SHORT: Duration = Duration::from_secs(2);
const AT_MOST: Duration = Duration::from_secs(30);

/// A far directory with the chains 1 to `chains`, of 24 blocks each.
fn published(chains: u64) -> tempfile::TempDir {
    let far = tempfile::tempdir().unwrap();
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open(dir.path(), &config(far.path(), 0)).unwrap();
    let namespace = namespace(&store, 4, SLICE, "far");
    for name in 1..=chains {
        put(&store, namespace, &chain(name, 24), 0, BYTES);
    }
    store.close();
    assert_eq!(store.stats().far.unwrap().published.blocks, 24 * chains);
    far
}

/// A host whose device and whose far location can hang.
struct Host {
    store: Store,
    namespace: NamespaceId,
    device: Arc<Hanging>,
    far: Arc<HeldTier>,
    dir: tempfile::TempDir,
}

impl Host {
    /// One that stores the first `own` blocks of chain 1 itself, and finds all others at the far location.
    fn new(far: &Path, own: usize, dram: u64) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let tier = HeldTier::open(far, WORKERS);
        let tiers =
            Tiers { far: Some(Arc::<HeldTier>::clone(&tier) as Arc<dyn Tier>), ..Tiers::default() };
        // What it puts itself is not published.
        let config = Config { far_flush_s: Some(1800.0), ..config(far, dram) };
        let (device, store, _) = hanging_with(dir.path(), &config, tiers);
        let namespace = namespace(&store, 4, SLICE, "far");
        let host = Self { store, namespace, device, far: tier, dir };
        until("the packs are found", || host.store.stats().far.unwrap().blocks >= 24);
        put(&host.store, host.namespace, &chain(1, own), 0, BYTES);
        host
    }

    fn outcomes(&self, chain: &[ChainHash], terms: &Terms) -> Vec<Outcome> {
        let mut out = vec![vec![0; BYTES]; chain.len()];
        let report = lend(|lender| {
            let targets = out.iter_mut().map(|b| vec![lender.exclusive(b)]).collect();
            self.store.get_batch(self.namespace, chain, targets, Scope::Each, terms).unwrap()
        });
        for ((hash, bytes), outcome) in chain.iter().zip(&out).zip(&report.outcomes) {
            assert!(!outcome.is_hit() || *bytes == block(*hash, BYTES), "wrong bytes");
        }
        report.outcomes
    }

    fn far_stats(&self) -> dalsegno_store::FarStats {
        self.store.stats().far.unwrap()
    }
}

#[test]
fn the_far_tier_is_read_while_the_log_hangs() {
    let far = published(1);
    let host = Host::new(far.path(), 2, 0);
    host.device.hang(Hung::Reads);
    let outcomes = std::thread::scope(|scope| {
        let get = scope.spawn(|| host.outcomes(&chain(1, 24), &Terms::within(LIMIT)));
        // More than may be in flight at a time.
        let bytes = 22 * BYTES as u64;
        until("all far blocks are requested", || host.far_stats().fetched_bytes >= bytes);
        assert!(host.device.kept() > 0 && !get.is_finished());
        host.device.go_on();
        get.join().unwrap()
    });
    let expected: Vec<_> =
        (0..24).map(|at| if at < 2 { Outcome::Log } else { Outcome::Far }).collect();
    assert_eq!(outcomes, expected);
}

#[test]
fn the_log_is_read_while_the_far_tier_hangs() {
    let far = published(1);
    let host = Host::new(far.path(), 12, 0);
    host.far.hold();
    let before = host.store.stats().log.transfers.read_bytes;
    let outcomes = std::thread::scope(|scope| {
        let get = scope.spawn(|| host.outcomes(&chain(1, 24), &Terms::within(LIMIT)));
        let bytes = before + 12 * BYTES as u64;
        until("the log is read", || host.store.stats().log.transfers.read_bytes >= bytes);
        until("the far tier has requests", || host.far.waiting() > 0);
        assert!(!get.is_finished());
        host.far.go_on();
        get.join().unwrap()
    });
    let expected: Vec<_> =
        (0..24).map(|at| if at < 12 { Outcome::Log } else { Outcome::Far }).collect();
    assert_eq!(outcomes, expected);
}

#[test]
fn a_far_location_that_hangs_costs_its_blocks_and_no_local_one() {
    let far = published(1);
    let host = Host::new(far.path(), 12, 0);
    host.far.hold();
    let began = Instant::now();
    let outcomes = host.outcomes(&chain(1, 24), &Terms::within(SHORT));
    assert!(began.elapsed() < AT_MOST, "{:?}", began.elapsed());
    assert_eq!(outcomes[..12], [Outcome::Log; 12]);
    assert!(outcomes[12..].iter().all(|outcome| !outcome.is_hit()), "{outcomes:?}");
    host.far.go_on();
}

#[test]
fn a_suspended_device_falls_back_to_copies_at_the_far_location() {
    for dram in [0, 32 << 20] {
        let far = published(1);
        let host = Host::new(far.path(), 24, dram);
        put(&host.store, host.namespace, &chain(9, 4), 0, BYTES);
        host.device.hang(Hung::Reads);
        let short = Terms::within(Duration::from_millis(200));
        until("the device is suspended", || {
            host.outcomes(&chain(9, 1), &short);
            host.store.stats().device.reads == "suspended"
        });
        assert_eq!(host.store.probe(host.namespace, &chain(1, 30)).unwrap(), 24);
        assert_eq!(host.store.probe(host.namespace, &chain(9, 4)).unwrap(), 0);
        assert_eq!(host.outcomes(&chain(1, 24), &Terms::within(LIMIT)), [Outcome::Far; 24]);
        assert_eq!(host.far_stats().rescued_blocks, 24);
        if dram > 0 {
            assert_eq!(host.outcomes(&chain(1, 24), &Terms::within(LIMIT)), [Outcome::Dram; 24]);
        }
        host.device.go_on();
    }
}

#[test]
fn what_the_device_fails_to_read_is_read_from_the_far_tier_in_the_same_call() {
    for (dram, terms) in [
        (0, Terms::within(LIMIT)),
        (0, Terms::default()),
        (32 << 20, Terms::within(LIMIT)),
        (32 << 20, Terms::default()),
    ] {
        let far = published(1);
        let host = Host::new(far.path(), 12, dram);
        put(&host.store, host.namespace, &chain(9, 4), 0, BYTES);
        host.device.hang(Hung::FailReads);
        let outcomes = host.outcomes(&chain(1, 24), &terms);
        assert_eq!(outcomes, [Outcome::Far; 24], "{dram} {terms:?}");
        assert_eq!(host.far_stats().rescued_blocks, 12);
        let lost = host.outcomes(&chain(9, 4), &terms);
        assert!(lost.iter().all(|outcome| matches!(outcome, Outcome::Lost(_))), "{lost:?}");
        host.device.go_on();
    }
}

#[test]
fn damaged_blocks_of_the_log_are_read_from_the_far_tier_in_the_same_call() {
    let far = published(1);
    for (dram, terms) in
        [(0, Terms::within(LIMIT)), (0, Terms::default()), (32 << 20, Terms::default())]
    {
        let host = Host::new(far.path(), 12, dram);
        for hash in chain(1, 12).iter().step_by(3) {
            damage(host.dir.path(), &block(*hash, BYTES)[..64]);
        }
        let outcomes = host.outcomes(&chain(1, 24), &terms);
        let expected = |at| if at < 12 && at % 3 > 0 { Outcome::Log } else { Outcome::Far };
        assert_eq!(outcomes, (0..24).map(expected).collect::<Vec<_>>(), "{dram} {terms:?}");
        let stats = host.store.stats();
        assert_eq!((stats.quarantined_blocks, stats.far.unwrap().rescued_blocks), (4, 4));
    }
}

#[test]
fn a_lease_has_the_far_copies_of_blocks_that_the_log_lost() {
    let far = published(1);
    let host = Host::new(far.path(), 12, 64 << 20);
    damage(host.dir.path(), &block(chain(1, 1)[0], BYTES)[..64]);
    let lease = host.store.lease(host.namespace, &chain(1, 24), &Terms::within(LIMIT)).unwrap();
    assert_eq!(lease.len(), 24);
    for (at, hash) in chain(1, 24).iter().enumerate() {
        assert!(lease.block(at).unwrap().as_slice() == block(*hash, BYTES), "block {at}");
    }
    assert_eq!(host.far_stats().rescued_blocks, 1);
}

#[test]
fn the_rest_of_a_chain_is_prefetched_when_its_beginning_was_read() {
    let far = published(1);
    let host = Host::new(far.path(), 0, 64 << 20);
    let (chain, terms) = (chain(1, 24), Terms::within(LIMIT));
    assert_eq!(host.store.probe(host.namespace, &chain).unwrap(), 24);
    std::thread::sleep(Duration::from_millis(300));
    assert_eq!(host.far_stats().fetched_bytes, 0, "a lookup alone reads nothing");
    assert_eq!(host.outcomes(&chain[..4], &terms), [Outcome::Far; 4]);
    until("the rest is prefetched", || host.far_stats().prefetched_blocks == 20);
    assert_eq!(host.outcomes(&chain[4..], &terms), [Outcome::Dram; 20]);
    let stats = host.far_stats();
    assert_eq!((stats.prefetch_used_blocks, stats.prefetch_dropped_blocks), (20, 0));
    assert!(stats.fetched_bytes < 25 * BYTES as u64, "each block once: {stats:?}");
}

#[test]
fn what_is_prefetched_and_not_used_is_bounded() {
    let far = published(1);
    // A quarter is 8 blocks.
    let host = Host::new(far.path(), 0, 32 * BYTES as u64);
    let (chain, terms) = (chain(1, 24), Terms::within(LIMIT));
    host.store.probe(host.namespace, &chain).unwrap();
    host.outcomes(&chain[..2], &terms);
    until("8 blocks are prefetched", || host.far_stats().prefetched_blocks == 8);
    std::thread::sleep(Duration::from_millis(300));
    assert_eq!(host.far_stats().prefetched_blocks, 8);
    assert_eq!(host.outcomes(&chain[2..5], &terms), [Outcome::Dram; 3]);
    until("3 more are prefetched", || host.far_stats().prefetched_blocks == 11);
}

#[test]
fn a_prefetch_evicts_nothing_that_was_requested() {
    let far = published(2);
    let host = Host::new(far.path(), 0, 16 * BYTES as u64);
    let (requested, terms) = (chain(2, 13), Terms::within(LIMIT));
    until("both chains are found", || host.far_stats().blocks == 48);
    // One at a time, because the places of one get are reserved together.
    let outcomes =
        || requested.chunks(1).flat_map(|one| host.outcomes(one, &terms)).collect::<Vec<_>>();
    outcomes();
    assert_eq!(outcomes(), [Outcome::Dram; 13]);
    assert_eq!(outcomes(), [Outcome::Dram; 13]);
    host.store.probe(host.namespace, &chain(1, 24)).unwrap();
    host.outcomes(&chain(1, 2), &terms);
    until("the prefetch is given up", || host.far_stats().prefetch_dropped_blocks > 0);
    assert!(host.far_stats().prefetched_blocks <= 3, "{:?}", host.far_stats());
    assert_eq!(outcomes(), [Outcome::Dram; 13]);
}

#[test]
fn a_get_of_blocks_that_are_being_prefetched_waits_a_while_and_reads_them_itself() {
    let far = published(1);
    // A quarter is 4 blocks.
    let host = Host::new(far.path(), 0, 16 * BYTES as u64);
    let (chain, terms) = (chain(1, 24), Terms::within(LIMIT));
    host.store.probe(host.namespace, &chain).unwrap();
    host.outcomes(&chain[..2], &terms);
    until("4 blocks are prefetched", || host.far_stats().prefetched_blocks == 4);
    host.far.hold();
    assert_eq!(host.outcomes(&chain[2..4], &terms), [Outcome::Dram; 2]);
    until("2 more are being read", || host.far.waiting() > 0);
    let short = Terms::within(SHORT);
    let began = Instant::now();
    let outcomes = host.outcomes(&chain[4..8], &short);
    assert!(began.elapsed() < AT_MOST, "{:?}", began.elapsed());
    assert_eq!(outcomes[..2], [Outcome::Dram; 2]);
    assert!(outcomes[2..].iter().all(|outcome| !outcome.is_hit()), "{outcomes:?}");
    let outcomes = std::thread::scope(|scope| {
        let get = scope.spawn(|| host.outcomes(&chain[6..8], &terms));
        std::thread::sleep(Duration::from_millis(20));
        host.far.go_on();
        get.join().unwrap()
    });
    assert!(outcomes.iter().all(|outcome| outcome.is_hit()), "{outcomes:?}");
}

#[test]
fn locate_names_the_tier_of_each_block_and_waits_for_none() {
    let far = published(1);
    let host = Host::new(far.path(), 4, 64 << 20);
    let (chain, terms) = (chain(1, 30), Terms::within(LIMIT));
    let parts = || {
        let located = host.store.locate(host.namespace, &chain).unwrap();
        located.iter().map(|part| (part.tier, part.blocks)).collect::<Vec<_>>()
    };
    assert_eq!(parts(), [(BlockTier::Log, 4), (BlockTier::Far, 20)]);
    assert_eq!(host.outcomes(&chain[..2], &terms), [Outcome::Log; 2]);
    host.device.hang(Hung::Everything);
    host.far.hold();
    let began = Instant::now();
    assert_eq!(parts(), [(BlockTier::Dram, 2), (BlockTier::Log, 2), (BlockTier::Far, 20)]);
    assert!(began.elapsed() < AT_MOST, "{:?}", began.elapsed());
    host.device.go_on();
    host.far.go_on();
    let located = host.store.locate(host.namespace, &chain).unwrap();
    let bytes: Vec<u64> = located.iter().map(|part| part.bytes / BYTES as u64).collect();
    assert_eq!(bytes, [2, 2, 20]);
    assert!(located[1].latency_p50_ns.is_some() && located[1].bytes_per_s.is_some());
    assert_eq!((located[2].latency_p50_ns, located[2].bytes_per_s), (None, None));
    assert_eq!(host.outcomes(&chain[4..14], &terms), [Outcome::Far; 10]);
    let located = host.store.locate(host.namespace, &chain).unwrap();
    assert_eq!(located.last().unwrap().tier, BlockTier::Far);
    assert!(located.last().unwrap().bytes_per_s.unwrap() > 0, "{located:?}");
}

#[test]
fn requests_to_the_far_location_are_measured() {
    let far = published(1);
    let host = Host::new(far.path(), 0, 0);
    host.outcomes(&chain(1, 10), &Terms::within(LIMIT));
    let stats = host.far_stats();
    assert!(stats.read_requests > 0);
    // The headers of records are requests, too.
    assert!(stats.requests_by_us.values().sum::<u64>() >= stats.read_requests, "{stats:?}");
    assert_eq!(stats.in_flight_bytes, 0);
    host.far.hold();
    host.outcomes(&chain(1, 20)[10..], &Terms::within(SHORT));
    let in_flight = host.far_stats().in_flight_bytes;
    // At most as many bytes as the workers have requests of a megabyte.
    assert!(in_flight > 0 && in_flight <= u64::from(WORKERS) << 20, "{in_flight}");
    host.far.go_on();
    until("nothing is in flight", || host.far_stats().in_flight_bytes == 0);
}

#[test]
fn a_store_opens_while_its_far_location_does_not_respond_and_uses_it_later() {
    let far = published(1);
    let dir = tempfile::tempdir().unwrap();
    let tier = HeldTier::open(far.path(), WORKERS);
    tier.set_silent(true);
    let as_tier = Arc::<HeldTier>::clone(&tier) as Arc<dyn Tier>;
    let tiers = Tiers { far: Some(as_tier), ..Tiers::default() };
    let began = Instant::now();
    let config = Config { far_capacity: None, ..config(far.path(), 0) };
    let (_, store, _) = hanging_with(dir.path(), &config, tiers);
    assert!(began.elapsed() < AT_MOST, "{:?}", began.elapsed());
    let namespace = namespace(&store, 4, SLICE, "far");
    put(&store, namespace, &chain(7, 4), 0, BYTES);
    assert_eq!(support::get(&store, namespace, &chain(7, 4), BYTES, &Terms::within(LIMIT)), 4);
    assert_eq!(store.stats().far.unwrap().reads, "suspended");
    assert_eq!(store.probe(namespace, &chain(1, 24)).unwrap(), 0);
    tier.set_silent(false);
    until("the far chain is found", || store.probe(namespace, &chain(1, 24)).unwrap() == 24);
    assert_eq!(support::get(&store, namespace, &chain(1, 24), BYTES, &Terms::within(LIMIT)), 24);
    until("own blocks are published", || store.stats().far.unwrap().published.blocks == 4);
}

/// Changes a byte of these bytes in the files of a store.
fn damage(dir: &Path, bytes: &[u8]) {
    for entry in fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        if path.file_name().unwrap() == "LOCK" {
            continue;
        }
        let mut all = fs::read(&path).unwrap();
        let found = all.chunks_exact(4096).position(|sector| sector.starts_with(bytes));
        let Some(sector) = found else { continue };
        all[sector * 4096 + 1] ^= 1;
        let file = fs::File::options().write(true).open(&path).unwrap();
        std::os::unix::fs::FileExt::write_all_at(
            &file,
            &all[sector * 4096..][..4096],
            sector as u64 * 4096,
        )
        .unwrap();
        return;
    }
    panic!("no file has these bytes");
}

#[test]
fn regression_a_hash_that_is_requested_twice_is_read_twice() {
    let far = published(1);
    let hash = chain(1, 24)[5];
    for (local_blocks, outcome) in [(0, Outcome::Far), (24, Outcome::Log)] {
        let host = Host::new(far.path(), local_blocks, 0);
        assert_eq!(host.outcomes(&[hash, hash], &Terms::default()), [outcome; 2]);
    }
}

/// what follows.
#[test]
fn regression_the_far_tier_is_read_while_a_bad_sector_of_the_log_is_read_again() {
    let far = published(1);
    let host = Host::new(far.path(), 2, 0);
    host.device.hang(Hung::FailOneRead);
    let outcomes = host.outcomes(&chain(1, 24), &Terms::within(Duration::from_secs(3)));
    let fetched = host.far_stats().fetched_bytes;
    host.device.go_on();
    assert_eq!(outcomes[2..], [Outcome::Far; 22], "{fetched} bytes fetched");
}

#[test]
fn regression_a_slice_that_a_request_cuts_is_read_twice_from_the_far_tier() {
    const ODD: u32 = 1536 << 10;
    let (far, dir) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let store = Store::open(dir.path(), &config(far.path(), 0)).unwrap();
    let ns = namespace(&store, 1, ODD, "odd");
    put(&store, ns, &chain(1, 4), 0, ODD as usize);
    store.close();
    let other = tempfile::tempdir().unwrap();
    let store = Store::open(other.path(), &config(far.path(), 0)).unwrap();
    let ns = namespace(&store, 1, ODD, "odd");
    until("the packs are found", || store.stats().far.unwrap().blocks >= 4);
    let twice: Vec<ChainHash> = chain(1, 4).into_iter().flat_map(|hash| [hash, hash]).collect();
    let mut out = vec![vec![0; ODD as usize]; twice.len()];
    let report = lend(|lender| {
        let targets = out.iter_mut().map(|b| vec![lender.exclusive(b)]).collect();
        store.get_batch(ns, &twice, targets, Scope::Each, &Terms::default()).unwrap()
    });
    assert_eq!(report.outcomes, [Outcome::Far; 8]);
    for (hash, bytes) in twice.iter().zip(&out) {
        assert!(*bytes == block(*hash, ODD as usize));
    }
}

/// into a place that outlives it.
#[test]
fn regression_a_cancelled_lease_does_not_wait_for_a_device_that_hangs() {
    let far = published(1);
    let host = Host::new(far.path(), 12, 64 << 20);
    host.device.hang(Hung::Reads);
    let cancel = dalsegno_store::Cancel::default();
    std::thread::scope(|scope| {
        let terms = Terms { timeout: None, cancel: Some(cancel.clone()) };
        let chain = chain(1, 4);
        let (store, ns) = (&host.store, host.namespace);
        let lease = scope.spawn(move || store.lease(ns, &chain, &terms).map(|lease| lease.len()));
        until("the device is asked", || host.device.kept() > 0);
        cancel.cancel();
        std::thread::sleep(Duration::from_secs(3));
        let is_finished = lease.is_finished();
        host.device.go_on();
        assert!(is_finished, "it waits for the device three seconds after it was cancelled");
    });
}

#[test]
fn regression_a_lookup_of_a_hash_twice_stops_no_prefetch() {
    let far = published(2);
    let host = Host::new(far.path(), 0, 64 << 20);
    until("both packs are found", || host.far_stats().blocks >= 48);
    let one = chain(1, 24);
    host.store.contains(host.namespace, &[one[0], one[5], one[5]]).unwrap();
    host.outcomes(&one[..1], &Terms::within(LIMIT));
    until("the block is prefetched", || host.far_stats().prefetched_blocks == 1);
    let other = chain(2, 24);
    host.store.contains(host.namespace, &other).unwrap();
    host.outcomes(&other[..1], &Terms::within(LIMIT));
    until("the others are prefetched, too", || host.far_stats().prefetched_blocks == 24);
}

#[test]
fn regression_what_the_log_lost_without_staging_memory_is_read_from_the_far_tier() {
    let far = published(1);
    let dir = tempfile::tempdir().unwrap();
    let tiers = Tiers {
        far: Some(HeldTier::open(far.path(), WORKERS) as Arc<dyn Tier>),
        ..Tiers::default()
    };
    let config = Config { far_flush_s: Some(1800.0), ..config(far.path(), 0) };
    let (device, store, pool) = hanging_with(dir.path(), &config, tiers);
    let namespace = namespace(&store, 4, SLICE, "far");
    until("the packs are found", || store.stats().far.unwrap().blocks >= 24);
    put(&store, namespace, &chain(1, 4), 0, BYTES);
    let taken: Vec<_> = std::iter::from_fn(|| pool.try_take(1 << 20)).collect();
    let small: Vec<_> = std::iter::from_fn(|| pool.try_take(1)).collect();
    let mut out = vec![vec![0; BYTES]; 4];
    let began = Instant::now();
    let report = lend(|lender| {
        let targets = out.iter_mut().map(|b| vec![lender.exclusive(b)]).collect();
        let terms = Terms::within(LIMIT);
        store.get_batch(namespace, &chain(1, 4), targets, Scope::Each, &terms).unwrap()
    });
    drop((taken, small, device));
    assert_eq!(report.outcomes, [Outcome::Far; 4], "{:?} of 60 s", began.elapsed());
}
