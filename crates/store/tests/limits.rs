//! Processes with limits of the system: no `io_uring`, no more descriptors, no larger files, another clock. The limit
//! causes misses, failed puts or a clear error, and they end with the limit.
//!
//! Limits hold for a process, so each test runs in a child.
#![expect(clippy::disallowed_methods, reason = "plays the world outside of the store")]
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

#[path = "../../io/tests/common/limits.rs"]
mod limits;
mod support;

use std::fs::File;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use dalsegno_store::{
    Cause, Config, EngineChoice, ErrorKind, NamespaceId, Outcome, PutOutcome, Scope, Store, Terms,
    lend, verify,
};
use limits::{
    forbid, limit_file_bytes, limit_locked_memory, limit_open_files, limit_open_files_for_good,
};
use support::child::in_child;
use support::skip::say;
use support::{Setup, block, chain, config, engines, get, namespace, open, put, setups, skip};

const BLOCK: usize = 60 << 10;
const BLOCKS: usize = 8;
/// Set in a process that has another clock.
const SHIFTED: &str = "DALSEGNO_TEST_SHIFTED";

fn register(store: &Store) -> NamespaceId {
    namespace(store, 2, 30 << 10, "limits")
}

fn stored(store: &Store, blocks: NamespaceId, name: u64) -> bool {
    let all = BLOCKS as u64;
    put(store, blocks, &chain(name, BLOCKS), 0, BLOCK).count(PutOutcome::Stored) == all
}

fn is_whole(store: &Store, blocks: NamespaceId, name: u64) -> bool {
    get(store, blocks, &chain(name, BLOCKS), BLOCK, &Terms::default()) == BLOCKS
}

fn open_files() -> usize {
    std::fs::read_dir("/proc/self/fd").unwrap().count()
}

/// A store is served by psync with the setting `auto`, and refused with advice with the setting `uring`.
fn assert_falls_back_to_psync() {
    let dir = tempfile::tempdir().unwrap();
    let auto = Config { io_engine: EngineChoice::Auto, ..config(16 << 20) };
    let store = Store::open(dir.path(), &auto).unwrap();
    assert_eq!(store.stats().io_engine, "psync");
    let blocks = register(&store);
    assert!(stored(&store, blocks, 1) && is_whole(&store, blocks, 1));
    drop(store);
    let uring = Config { io_engine: EngineChoice::Uring, ..auto };
    let error = Store::open(dir.path(), &uring).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    assert!(error.to_string().contains(r#"set "io_engine" to "auto" or "psync""#), "{error}");
}

#[test]
fn a_store_falls_back_if_io_uring_is_forbidden() {
    in_child("a_store_falls_back_if_io_uring_is_forbidden", || {
        forbid(libc::SYS_io_uring_setup, libc::EPERM);
        assert_falls_back_to_psync();
    });
}

#[test]
fn a_store_falls_back_if_io_uring_does_not_exist() {
    in_child("a_store_falls_back_if_io_uring_does_not_exist", || {
        forbid(libc::SYS_io_uring_setup, libc::ENOSYS);
        assert_falls_back_to_psync();
    });
}

#[test]
fn a_store_falls_back_if_rings_cannot_be_entered() {
    in_child("a_store_falls_back_if_rings_cannot_be_entered", || {
        forbid(libc::SYS_io_uring_enter, libc::EPERM);
        assert_falls_back_to_psync();
    });
}

#[test]
fn a_store_opens_without_locked_memory() {
    in_child("a_store_opens_without_locked_memory", || {
        // Which engines there are is found out before.
        let setups = setups();
        if !limit_locked_memory(0) {
            return skip("root", "cannot stop being root");
        }
        for setup in setups {
            let dir = tempfile::tempdir().unwrap();
            let auto = Config { io_engine: EngineChoice::Auto, ..setup.config(16 << 20) };
            let store = Store::open(dir.path(), &auto).unwrap();
            let blocks = register(&store);
            assert!(stored(&store, blocks, 1) && is_whole(&store, blocks, 1));
        }
    });
}

#[test]
fn a_ring_forbidden_while_in_use_costs_misses_but_no_time() {
    in_child("a_ring_forbidden_while_in_use_costs_misses_but_no_time", || {
        if !engines().contains(&EngineChoice::Uring) {
            return;
        }
        let dir = tempfile::tempdir().unwrap();
        let setup = Setup { engine: EngineChoice::Uring, ..Setup::SIMPLEST };
        let store = open(dir.path(), &setup.config(16 << 20));
        assert!(stored(&store, register(&store), 1));
        drop(store);
        // Nothing is written in the background, such as a new segment's entry in the list: a request in flight on a
        // ring keeps the directory locked.
        let store = open(dir.path(), &setup.config(16 << 20));
        let blocks = register(&store);
        forbid(libc::SYS_io_uring_enter, libc::EPERM);
        let started = Instant::now();
        let chain = chain(1, BLOCKS);
        let mut out = vec![vec![0_u8; BLOCK]; BLOCKS];
        let report = lend(|lender| {
            let targets = out.iter_mut().map(|bytes| vec![lender.exclusive(bytes)]).collect();
            store.get_batch(blocks, &chain, targets, Scope::Each, &Terms::default()).unwrap()
        });
        assert_eq!(report.outcomes, [Outcome::Lost(Cause::Device); BLOCKS]);
        assert!(!stored(&store, blocks, 2));
        drop(store);
        assert!(started.elapsed() < Duration::from_secs(60), "{:?}", started.elapsed());
        // Without the ring all blocks are there.
        let auto = Config { io_engine: EngineChoice::Auto, ..setup.config(16 << 20) };
        let store = Store::open(dir.path(), &auto).unwrap();
        let blocks = register(&store);
        assert!(is_whole(&store, blocks, 1) && stored(&store, blocks, 3));
    });
}

#[test]
fn without_descriptors_open_files_are_served_and_puts_resume_later() {
    in_child("without_descriptors_open_files_are_served_and_puts_resume_later", || {
        setups().into_iter().for_each(run_out_of_files);
    });
}

fn run_out_of_files(setup: Setup) {
    let dir = tempfile::tempdir().unwrap();
    let config = Config { segment: Some(1 << 20), ..setup.config(24 << 20) };
    let store = open(dir.path(), &config);
    let blocks = register(&store);
    assert!(stored(&store, blocks, 1), "{setup:?}");
    let before = open_files();
    // Every number up to the limit is taken, so nothing more can be opened.
    let taken: Vec<File> = (0..64).map(|_| File::open("/dev/null").unwrap()).collect();
    limit_open_files(8);
    assert!(File::open("/dev/null").is_err());
    for name in 2..12 {
        stored(&store, blocks, name);
        assert!(is_whole(&store, blocks, 1), "{setup:?}: gets go on");
    }
    limit_open_files(1024);
    drop(taken);
    for name in 20..32 {
        assert!(stored(&store, blocks, name), "{setup:?}: puts work again");
        assert!(is_whole(&store, blocks, name), "{setup:?}");
    }
    // Segments, and tables of an on-disk index.
    let more = open_files() - before;
    assert!(more <= 24 + 8, "{setup:?}: {more} descriptors were left open");
    drop(store);
    let store = open(dir.path(), &config);
    let blocks = register(&store);
    assert!((20..32).all(|name| is_whole(&store, blocks, name)), "{setup:?}");
    drop(store);
    assert_eq!(verify(dir.path(), &|_, _| {}).unwrap().findings, []);
    assert!(open_files() < before, "{setup:?}: a closed store has nothing open");
}

#[test]
fn regression_more_segments_than_descriptors_are_refused_and_nothing_is_lost() {
    let name = "regression_more_segments_than_descriptors_are_refused_and_nothing_is_lost";
    in_child(name, || {
        for setup in setups() {
            let dir = tempfile::tempdir().unwrap();
            let config = Config { segment: Some(1 << 20), ..setup.config(48 << 20) };
            let store = open(dir.path(), &config);
            let blocks = register(&store);
            assert!((0..50).all(|name| stored(&store, blocks, name)));
            drop(store);
            refuse_then_open(dir.path(), &config);
        }
    });
}

/// Opens a store of some 25 segments in a process of its own that may have 24 files open, and then here.
fn refuse_then_open(dir: &Path, config: &Config) {
    let limited = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "open_with_few_descriptors", "--nocapture"])
        .env("DALSEGNO_TEST_DIR", dir)
        .env("DALSEGNO_TEST_INDEX", format!("{:?}", config.index))
        .output()
        .unwrap();
    assert!(limited.status.success(), "{}", String::from_utf8_lossy(&limited.stderr));
    let store = open(dir, config);
    let blocks = register(&store);
    let whole = (0..50).filter(|name| is_whole(&store, blocks, *name)).count();
    assert_eq!(whole, 50, "{:?}: nothing is lost", config.index);
}

/// Does nothing in an ordinary run of the tests.
#[test]
fn open_with_few_descriptors() {
    let Some(dir) = std::env::var_os("DALSEGNO_TEST_DIR") else { return };
    let index = std::env::var("DALSEGNO_TEST_INDEX").unwrap();
    let setup = Setup::decode(["Psync", &index]);
    limit_open_files_for_good(24);
    let config = Config { segment: Some(1 << 20), ..setup.config(48 << 20) };
    let error = Store::open(Path::new(&dir), &config).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    assert!(error.to_string().contains("ulimit -n"), "{error}");
}

#[test]
fn the_limit_of_open_files_is_raised_for_a_store_of_many_segments() {
    in_child("the_limit_of_open_files_is_raised_for_a_store_of_many_segments", || {
        limit_open_files(256);
        let dir = tempfile::tempdir().unwrap();
        let store = open(dir.path(), &Config { segment: Some(1 << 20), ..config(400 << 20) });
        let files: Vec<_> = (0..500).map_while(|_| File::open("/dev/null").ok()).collect();
        assert_eq!(files.len(), 500);
        drop(store);
    });
}

#[test]
fn with_a_file_size_limit_puts_fail_or_evict_and_gets_continue() {
    in_child("with_a_file_size_limit_puts_fail_or_evict_and_gets_continue", || {
        for setup in setups() {
            let dir = tempfile::tempdir().unwrap();
            let config = Config { segment: Some(1 << 20), ..setup.config(24 << 20) };
            let store = open(dir.path(), &config);
            let blocks = register(&store);
            assert!((0..6).all(|name| stored(&store, blocks, name)), "{setup:?}");
            limit_file_bytes(Some(64 << 10));
            for name in 10..20 {
                stored(&store, blocks, name);
                get(&store, blocks, &chain(0, BLOCKS), BLOCK, &Terms::default());
            }
            limit_file_bytes(None);
            for name in 30..60 {
                stored(&store, blocks, name);
            }
            assert!(stored(&store, blocks, 60) && is_whole(&store, blocks, 60), "{setup:?}");
            drop(store);
            let store = open(dir.path(), &config);
            let blocks = register(&store);
            assert!(is_whole(&store, blocks, 60), "{setup:?}");
        }
    });
}

#[test]
fn a_clock_that_jumps_by_years_between_opens_changes_nothing() {
    let name = "a_clock_that_jumps_by_years_between_opens_changes_nothing";
    if let Some(dir) = std::env::var_os(SHIFTED) {
        return live_a_while(Path::new(&dir));
    }
    let dir = tempfile::tempdir().unwrap();
    live_a_while(dir.path());
    // On a machine that started years ago, and on one that just started.
    for seconds in ["300000000", "0", "900000000"] {
        let shifted = Command::new("unshare")
            .args(["--time", "--monotonic", seconds, "--boottime", seconds, "--fork"])
            .arg(std::env::current_exe().unwrap())
            .args(["--exact", name, "--nocapture"])
            .env(SHIFTED, dir.path())
            .output();
        let shifted = match shifted {
            Ok(shifted) => shifted,
            Err(error) => return say("unshare", &error.to_string()),
        };
        let said = String::from_utf8_lossy(&shifted.stderr);
        if said.contains("unshare") {
            return skip("root", &format!("no namespace of time can be made: {said}"));
        }
        assert!(shifted.status.success(), "{said}");
    }
    live_a_while(dir.path());
}

/// Opens a store, reads what was put the last time, and puts something.
fn live_a_while(dir: &Path) {
    for setup in setups() {
        let path = dir.join(format!("{setup:?}"));
        let is_new = !path.exists();
        let config = Config { segment: Some(1 << 20), ..setup.config(16 << 20) };
        let store = open(&path, &config);
        let blocks = register(&store);
        if !is_new {
            assert!(is_whole(&store, blocks, 1), "{setup:?}");
        }
        for name in 1..4 {
            put(&store, blocks, &chain(name, BLOCKS), 0, BLOCK);
            assert!(is_whole(&store, blocks, name), "{setup:?}");
        }
        // A deadline is of this clock, too.
        let terms = Terms::within(Duration::from_secs(60));
        assert_eq!(get(&store, blocks, &chain(2, BLOCKS), BLOCK, &terms), BLOCKS);
        let one = hash_of(&store, blocks);
        assert_eq!(one, Some(block(chain(1, 1)[0], BLOCK)));
    }
}

/// The first block of the first chain.
fn hash_of(store: &Store, blocks: NamespaceId) -> Option<Vec<u8>> {
    let mut out = vec![0_u8; BLOCK];
    let report = lend(|lender| {
        let targets = vec![vec![lender.exclusive(&mut out)]];
        store.get_batch(blocks, &chain(1, 1), targets, Scope::Each, &Terms::default()).unwrap()
    });
    report.outcomes[0].is_hit().then_some(out)
}
