//! A store on a disk that fails, seen through the kernel: a FUSE file system passes errors, short counts, delays and
//! hangs to each I/O engine. Needs root and /dev/fuse.
#![expect(clippy::disallowed_methods, reason = "plays the world outside of the store")]
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

#[path = "common/faulty.rs"]
mod faulty;
#[path = "../../store/tests/support/mod.rs"]
mod support;

use std::time::{Duration, Instant};

use dalsegno_store::{
    Cause, ChainHash, Config, Durability, ErrorKind, Keep, Memory, NamespaceId, Outcome, Put,
    PutOutcome, PutReport, Scope, Store, Terms, lend, verify,
};
use faulty::FaultyMount;
use support::{Setup, block, chain, get, namespace, open, setups};

const BLOCK: usize = 60 << 10;
const BLOCKS: usize = 8;
/// A block of many small slices.
const SMALL: usize = 30 * 4096;
const FIRST_SEGMENT: &str = "segment-0000000000000001";
/// What a call is given, and what it may take on a busy machine.
const TIMEOUT: Duration = Duration::from_millis(300);
const AT_MOST: Duration = Duration::from_secs(10);

/// A store on a faulty mount, with one chain in it.
struct Rig {
    store: Store,
    blocks: NamespaceId,
    config: Config,
    mount: FaultyMount,
}

impl Rig {
    fn new(setup: Setup, durability: Durability) -> Option<Self> {
        Self::with_segments(setup, durability, 1 << 20)
    }

    fn with_segments(setup: Setup, durability: Durability, bytes: u64) -> Option<Self> {
        let mount = FaultyMount::new()?;
        let config = Config { segment: Some(bytes), durability, ..setup.config(32 * bytes) };
        let store = open(&mount.place().join("store"), &config);
        let blocks = namespace(&store, 2, 30 << 10, "bad disk");
        let rig = Self { store, blocks, config, mount };
        assert_eq!(rig.put(1), BLOCKS as u64);
        Some(rig)
    }

    /// Puts a chain; returns how many of its blocks were stored.
    fn put(&self, name: u64) -> u64 {
        self.try_put(name).unwrap()
    }

    fn try_put(&self, name: u64) -> dalsegno_store::Result<u64> {
        self.put_within(name, &Terms::default()).map(|report| report.count(PutOutcome::Stored))
    }

    fn put_within(&self, name: u64, terms: &Terms) -> dalsegno_store::Result<PutReport> {
        let chain = chain(name, BLOCKS);
        let blocks: Vec<Vec<u8>> = chain.iter().map(|hash| block(*hash, BLOCK)).collect();
        lend(|lender| {
            let blocks = blocks.iter().map(|bytes| vec![lender.shared(bytes)]).collect();
            let put = Put { chain: &chain, first: 0, blocks, keep: Keep::Stored };
            self.store.put_batch(self.blocks, put, terms)
        })
    }

    fn get(&self, name: u64, terms: &Terms) -> usize {
        get(&self.store, self.blocks, &chain(name, BLOCKS), BLOCK, terms)
    }

    /// How the blocks of a chain end.
    fn outcomes(&self, chain: &[ChainHash], terms: &Terms) -> Vec<Outcome> {
        let mut out = vec![vec![0_u8; BLOCK]; chain.len()];
        let report = lend(|lender| {
            let targets = out.iter_mut().map(|bytes| vec![lender.exclusive(bytes)]);
            let targets: Vec<Vec<Memory>> = targets.collect();
            self.store.get_batch(self.blocks, chain, targets, Scope::Each, terms).unwrap()
        });
        report.outcomes
    }

    /// Closes the store and opens it again.
    fn reopen(self) -> Self {
        let Self { store, config, mount, .. } = self;
        drop(store);
        let store = open(&mount.place().join("store"), &config);
        let blocks = namespace(&store, 2, 30 << 10, "bad disk");
        Self { store, blocks, config, mount }
    }

    /// Closes the store, which must be sound.
    fn finish(self) {
        drop(self.store);
        let findings = verify(&self.mount.place().join("store"), &|_, _| {}).unwrap().findings;
        assert_eq!(findings, []);
    }
}

/// Runs `body` with every engine and index that works here.
fn each(durability: Durability, body: impl Fn(Rig)) {
    for setup in setups() {
        match Rig::new(setup, durability) {
            Some(rig) => body(rig),
            None => return,
        }
    }
}

#[test]
fn failed_and_short_reads_are_device_misses_until_it_recovers() {
    each(Durability::None, |rig| {
        for fault in ["error=EIO", "error=ETIMEDOUT", "error=ENODEV"] {
            rig.mount.command(&format!("add read {fault} file=segment-"));
            let outcomes = rig.outcomes(&chain(1, BLOCKS), &Terms::default());
            assert_eq!(outcomes, [Outcome::Lost(Cause::Device); BLOCKS], "{fault}");
            rig.mount.command("clear");
            assert_eq!(rig.get(1, &Terms::default()), BLOCKS, "after {fault}");
        }
        assert!(rig.store.stats().log.transfers.misses["device"] >= 3 * BLOCKS as u64);
        assert_eq!(rig.store.stats().quarantined_blocks, 0);
        // Nothing at all is what a file gives that was cut.
        rig.mount.command("add read short=0 file=segment-");
        assert_eq!(
            rig.outcomes(&chain(1, 1), &Terms::default()),
            [Outcome::Lost(Cause::Truncated)]
        );
        rig.mount.command("clear");
        rig.finish();
    });
}

#[test]
fn a_bad_sector_costs_only_its_own_block() {
    each(Durability::None, |rig| {
        assert_eq!(rig.put(2), BLOCKS as u64);
        for (name, terms) in [(1, Terms::default()), (2, Terms::within(AT_MOST))] {
            // Headers of a sector each; then layer 0 of all blocks, one behind the other.
            let extent = 4096 + (name - 1) * (4096 + (BLOCKS * BLOCK) as u64);
            let at = extent + 4096 + 3 * (BLOCK as u64 / 2) + 9000;
            rig.mount.command(&format!("add read error=EIO file=segment- at={at}..{}", at + 1));
            let chain = chain(name, BLOCKS);
            let mut expected = [Outcome::Log; BLOCKS];
            expected[3] = Outcome::Lost(Cause::BadSector);
            assert_eq!(rig.outcomes(&chain, &terms), expected);
            expected[3] = Outcome::Absent;
            assert_eq!(rig.outcomes(&chain, &terms), expected);
            assert_eq!(rig.put(name), 1, "only what is bad is stored again");
            assert_eq!(rig.outcomes(&chain, &terms), [Outcome::Log; BLOCKS]);
            assert_eq!(rig.store.stats().quarantined_blocks, name);
            rig.mount.command("clear");
        }
        rig.finish();
    });
}

#[test]
fn a_bad_sector_is_distinguished_from_a_bad_disk_even_with_a_bad_segment_header() {
    each(Durability::None, |rig| {
        // The next segment is what shows that the disk reads.
        assert_eq!(rig.put(2) + rig.put(3), 2 * BLOCKS as u64);
        for at in ["0..1", "9000..9001"] {
            rig.mount.command(&format!("add read error=EIO file={FIRST_SEGMENT} at={at}"));
        }
        let mut expected = [Outcome::Log; BLOCKS];
        expected[0] = Outcome::Lost(Cause::BadSector);
        assert_eq!(rig.outcomes(&chain(1, BLOCKS), &Terms::default()), expected);
        assert_eq!(rig.put(1), 1);
        rig.mount.command("clear");
        rig.finish();
    });
}

#[test]
fn an_unreadable_header_at_open_costs_only_its_extent() {
    for setup in setups() {
        let Some(mut rig) = Rig::with_segments(setup, Durability::None, 4 << 20) else { return };
        assert_eq!(rig.put(2) + rig.put(3), 2 * BLOCKS as u64);
        for name in 1..=3 {
            let at = 4096 + (name - 1) * (4096 + (BLOCKS * BLOCK) as u64);
            rig.mount
                .command(&format!("add read error=EIO file={FIRST_SEGMENT} at={at}..{}", at + 1));
            rig = rig.reopen();
            for other in (1..=3).filter(|other| *other != name) {
                assert_eq!(rig.get(other, &Terms::default()), BLOCKS, "{other} of {name}");
            }
            assert_eq!(rig.get(name, &Terms::default()), 0);
            assert_eq!(rig.put(name), BLOCKS as u64);
            assert_eq!(rig.get(name, &Terms::default()), BLOCKS);
            rig.mount.command("clear");
            rig = rig.reopen();
            assert_eq!(rig.get(name, &Terms::default()), BLOCKS);
        }
        rig.finish();
    }
}

#[test]
fn a_nearly_unreadable_segment_opens_fast_and_is_reclaimed() {
    for setup in setups() {
        let Some(rig) = Rig::with_segments(setup, Durability::None, 4 << 20) else { return };
        assert_eq!(rig.put(2) + rig.put(3), 2 * BLOCKS as u64);
        let started = Instant::now();
        rig.mount.command(&format!("add read error=EIO file={FIRST_SEGMENT} at=8192..4194304"));
        let rig = rig.reopen();
        for name in 1..40 {
            assert_eq!(rig.get(name, &Terms::default()), 0, "{name}");
            assert_eq!(rig.put(name), BLOCKS as u64, "{name}");
        }
        assert!(started.elapsed() < 3 * AT_MOST, "{:?}", started.elapsed());
        rig.mount.command("clear");
        drop(rig);
    }
}

#[test]
fn a_single_failed_or_short_read_costs_nothing() {
    each(Durability::None, |rig| {
        for fault in ["error=EIO", "short=4096", "short=0", "error=EAGAIN"] {
            for terms in [Terms::default(), Terms::within(AT_MOST)] {
                rig.mount.command(&format!("add read {fault} file=segment- times=1"));
                assert_eq!(rig.get(1, &terms), BLOCKS, "{fault}");
                rig.mount.command("clear");
            }
        }
        assert_eq!(rig.store.stats().log.transfers.misses.values().sum::<u64>(), 0);
        assert_eq!(rig.store.stats().quarantined_blocks, 0);
        rig.finish();
    });
}

#[test]
fn reads_that_fail_temporarily_cost_misses_but_no_stored_block() {
    each(Durability::None, |rig| {
        // One sector: whatever is asked of it fails so often, then no more.
        for times in 1..6 {
            rig.mount.command(&format!(
                "add read error=EIO file=segment- at=20000..20001 times={times}"
            ));
            assert_eq!(rig.get(1, &Terms::default()), BLOCKS, "after {times}");
            rig.mount.command("clear");
        }
        // The whole device.
        for times in 2..20 {
            rig.mount.command(&format!("add read error=EIO file=segment- times={times}"));
            let outcomes = rig.outcomes(&chain(1, BLOCKS), &Terms::default());
            let is_right = |outcome| [Outcome::Log, Outcome::Lost(Cause::Device)].contains(outcome);
            assert!(outcomes.iter().all(is_right), "{times}: {outcomes:?}");
            rig.mount.command("clear");
            assert_eq!(rig.get(1, &Terms::default()), BLOCKS, "after {times}");
        }
        assert_eq!(rig.store.stats().quarantined_blocks, 0);
        rig.finish();
    });
}

#[test]
fn a_dead_region_is_abandoned_and_its_blocks_can_be_stored_again() {
    for setup in setups() {
        let Some(rig) = Rig::with_segments(setup, Durability::None, 4 << 20) else { return };
        let store = &rig.store;
        // More requests for one block than bad answers that suspend the device.
        let blocks = namespace(store, 30, 4096, "small slices");
        let hashes = chain(50, BLOCKS);
        assert_eq!(support::put(store, blocks, &hashes, 0, SMALL).count(PutOutcome::Stored), 8);
        let whole = || get(store, blocks, &hashes, SMALL, &Terms::within(AT_MOST));
        assert_eq!(whole(), BLOCKS);
        // Its extent lies behind that of the first chain; all but the header is dead.
        let dead = 4096 + (4096 + BLOCKS * BLOCK) + 4096;
        let end = dead + BLOCKS * SMALL;
        rig.mount.command(&format!("add read error=EIO file=segment- at={dead}..{end}"));
        let started = Instant::now();
        while store.stats().quarantined_blocks < BLOCKS as u64 {
            // Each for itself: a prefix that begins with a miss is not read on.
            for hash in &hashes {
                let terms = Terms::within(AT_MOST);
                assert_eq!(get(store, blocks, &[*hash], SMALL, &terms), 0);
            }
            assert!(started.elapsed() < AT_MOST, "{:?}", store.stats());
        }
        // So many errors in a row may have suspended the device for a moment.
        while store.stats().device.reads != "working" {
            assert!(started.elapsed() < AT_MOST, "{:?}", store.stats());
            std::thread::sleep(Duration::from_millis(10));
            whole();
        }
        assert_eq!(rig.get(1, &Terms::within(AT_MOST)), BLOCKS);
        assert_eq!(support::put(store, blocks, &hashes, 0, SMALL).count(PutOutcome::Stored), 8);
        assert_eq!(whole(), BLOCKS);
        rig.mount.command("clear");
        rig.finish();
    }
}

#[test]
fn failed_and_short_writes_only_fail_their_puts() {
    each(Durability::None, |rig| {
        for (name, fault) in (10..).zip(["error=EIO", "short=0", "error=ENOSPC"]) {
            rig.mount.command(&format!("add write {fault} file=segment-"));
            assert_eq!(rig.put(name), 0, "{fault}");
            assert_eq!(rig.get(name, &Terms::default()), 0, "{fault}");
            assert_eq!(rig.get(1, &Terms::default()), BLOCKS, "reads go on during {fault}");
            rig.mount.command("clear");
            assert_eq!(rig.put(name), BLOCKS as u64, "after {fault}");
            assert_eq!(rig.get(name, &Terms::default()), BLOCKS, "after {fault}");
        }
        let rig = rig.reopen();
        for name in [1, 10, 11, 12] {
            assert_eq!(rig.get(name, &Terms::default()), BLOCKS);
        }
        rig.finish();
    });
}

#[test]
fn a_failed_sync_stops_writes_but_not_reads_until_reopen() {
    each(Durability::Batch, |rig| {
        rig.mount.command("add sync error=EIO times=1 file=segment-");
        assert_eq!(rig.try_put(2).unwrap_err().kind(), ErrorKind::Poisoned);
        assert!(rig.store.stats().poisoned);
        // The disk is well again, but a sync is never tried again.
        assert_eq!(rig.try_put(3).unwrap_err().kind(), ErrorKind::Poisoned);
        assert_eq!(rig.get(1, &Terms::default()), BLOCKS);
        let rig = rig.reopen();
        assert_eq!(rig.get(1, &Terms::default()), BLOCKS);
        assert_eq!(rig.put(3), BLOCKS as u64);
        assert_eq!(rig.get(3, &Terms::default()), BLOCKS);
        rig.finish();
    });
}

#[test]
fn a_disk_that_hangs_costs_a_call_at_most_its_timeout() {
    each(Durability::Batch, |rig| {
        rig.mount.command("add all hang");
        let terms = Terms::within(TIMEOUT);
        let started = Instant::now();
        assert_eq!(
            rig.outcomes(&chain(1, BLOCKS), &terms),
            [Outcome::Lost(Cause::Deadline); BLOCKS]
        );
        let report = rig.put_within(4, &terms).unwrap();
        assert_eq!(report.outcomes, [PutOutcome::Failed; BLOCKS]);
        assert!(started.elapsed() < AT_MOST, "{:?}", started.elapsed());
        rig.mount.command("clear");
        assert_eq!(rig.get(1, &Terms::default()), BLOCKS);
        assert_eq!(rig.put(5), BLOCKS as u64);
        rig.finish();
    });
}

#[test]
fn a_stalled_disk_only_delays_calls_without_a_timeout() {
    each(Durability::Batch, |rig| {
        rig.mount.command("add all delay=300 every=3");
        assert_eq!(rig.put(2), BLOCKS as u64);
        assert_eq!(rig.get(2, &Terms::default()), BLOCKS);
        rig.mount.command("clear");
        rig.finish();
    });
}

#[test]
fn without_space_for_segments_puts_fail_or_evict_and_work_again_with_space() {
    each(Durability::None, |rig| {
        rig.mount.command("add create,allocate error=ENOSPC file=segment-");
        for name in 20..28 {
            rig.put(name);
            assert!([0, BLOCKS].contains(&rig.get(name, &Terms::default())));
        }
        rig.mount.command("clear");
        for name in 40..44 {
            assert_eq!(rig.put(name), BLOCKS as u64);
            assert_eq!(rig.get(name, &Terms::default()), BLOCKS);
        }
        rig.finish();
    });
}

#[test]
fn a_store_on_a_failing_disk_is_refused_and_opens_after_recovery() {
    each(Durability::None, |rig| {
        refused_then_whole(rig, &["all error=EIO", "list error=EIO", "stat error=EIO"]);
    });
}

#[test]
fn regression_an_unreadable_store_is_not_replaced_by_a_new_one() {
    each(Durability::None, |rig| {
        refused_then_whole(rig, &["read error=EIO", "open error=EMFILE"]);
    });
}

#[test]
fn a_disk_that_fails_during_an_open_costs_no_stored_block() {
    each(Durability::None, |rig| {
        assert_eq!(rig.put(2) + rig.put(3), 2 * BLOCKS as u64);
        let Rig { store, config, mount, .. } = rig;
        drop(store);
        let dir = mount.place().join("store");
        let mut refused = 0;
        for after in 0..16 {
            mount.command(&format!("add read error=EIO after={after}"));
            let opened = Store::open(&dir, &config);
            refused += u32::from(opened.is_err_and(|e| e.kind() == ErrorKind::Unavailable));
            mount.command("clear");
        }
        assert!(refused > 1);
        let store = open(&dir, &config);
        let blocks = namespace(&store, 2, 30 << 10, "bad disk");
        for name in 1..=3 {
            let chain = chain(name, BLOCKS);
            assert_eq!(get(&store, blocks, &chain, BLOCK, &Terms::default()), BLOCKS, "{name}");
        }
    });
}

#[test]
fn removed_blocks_do_not_return_with_a_file_that_could_not_be_opened() {
    each(Durability::Batch, |rig| {
        // Two chains in each segment; what removes the first one lies in the second segment.
        assert_eq!(rig.put(2) + rig.put(3), 2 * BLOCKS as u64);
        rig.store.remove(rig.blocks, Some(&chain(1, BLOCKS)), &Terms::default()).unwrap();
        rig.mount.command(&format!("add open error=EACCES file={FIRST_SEGMENT}"));
        let rig = rig.reopen();
        assert!(rig.store.stats().open_faults > 0);
        for name in 20.. {
            assert_eq!(rig.put(name), BLOCKS as u64);
            if rig.store.stats().log.segments_recycled > 2 {
                break;
            }
        }
        rig.mount.command("clear");
        let rig = rig.reopen();
        assert_eq!(rig.get(1, &Terms::default()), 0);
        rig.finish();
    });
}

/// Opens the store while it cannot be read, then once more.
fn refused_then_whole(rig: Rig, rules: &[&str]) {
    let Rig { store, config, mount, .. } = rig;
    drop(store);
    let dir = mount.place().join("store");
    for rule in rules {
        mount.command(&format!("add {rule}"));
        let error = Store::open(&dir, &config).map(drop).expect_err(rule);
        assert_eq!(error.kind(), ErrorKind::Unavailable, "{rule}: {error}");
        mount.command("clear");
    }
    let store = open(&dir, &config);
    let blocks = namespace(&store, 2, 30 << 10, "bad disk");
    // Nothing was taken for damage and thrown away.
    assert_eq!(get(&store, blocks, &chain(1, BLOCKS), BLOCK, &Terms::default()), BLOCKS);
}
