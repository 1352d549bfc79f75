//! Processes with few permissions: containers that forbid `io_uring`, users without locked memory.
//!
//! A limit of a process is permanent, so each case runs in a child process.
#![expect(clippy::unwrap_used, reason = "a test may panic")]

mod common;
#[path = "common/limits.rs"]
mod limits;

use std::fmt::Write as _;
use std::io::Write as _;
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex};

use common::{Random, Rig, SECTOR, pool, skip};
use dalsegno_core::EngineChoice;
use dalsegno_io::{
    DirectoryOptions, IoError, LocalDirectory, Memory, Operation, SharedDirectory, Source,
    SystemClock,
};
use limits::{forbid, limit_file_bytes, limit_locked_memory};

/// Set in the child process.
const CHILD: &str = "DALSEGNO_TEST_CHILD";

fn is_child() -> bool {
    std::env::var_os(CHILD).is_some()
}

/// Runs the test of this name in a child process.
fn run_child(name: &str) {
    let child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", name, "--nocapture"])
        .env(CHILD, "1")
        .stdin(Stdio::null())
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&child.stderr);
    let text = String::from_utf8_lossy(&child.stdout);
    assert!(child.status.success(), "{text}{said}");
    for line in said.split_inclusive('\n').filter(|line| line.starts_with("skipped")) {
        std::io::stderr().write_all(line.as_bytes()).unwrap();
    }
}

/// Collects log lines, as `LEVEL message field=value`.
#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<String>>>);

impl Log {
    /// Listens to the whole process, including threads that start later.
    fn listen() -> Self {
        let log = Self::default();
        tracing::subscriber::set_global_default(log.clone()).unwrap();
        log
    }

    fn count(&self, level: &str, part: &str) -> usize {
        let lines = self.0.lock().unwrap();
        lines.iter().filter(|line| line.starts_with(level) && line.contains(part)).count()
    }
}

impl tracing::Subscriber for Log {
    fn enabled(&self, _: &tracing::Metadata<'_>) -> bool {
        true
    }
    fn new_span(&self, _: &tracing::span::Attributes<'_>) -> tracing::span::Id {
        tracing::span::Id::from_u64(1)
    }
    fn record(&self, _: &tracing::span::Id, _: &tracing::span::Record<'_>) {}
    fn record_follows_from(&self, _: &tracing::span::Id, _: &tracing::span::Id) {}
    fn event(&self, event: &tracing::Event<'_>) {
        struct Line(String);
        impl tracing::field::Visit for Line {
            fn record_debug(&mut self, field: &tracing::field::Field, value: &dyn std::fmt::Debug) {
                let _ = write!(self.0, " {field}={value:?}");
            }
        }
        let mut line = Line(event.metadata().level().to_string());
        event.record(&mut line);
        self.0.lock().unwrap().push(line.0);
    }
    fn enter(&self, _: &tracing::span::Id) {}
    fn exit(&self, _: &tracing::span::Id) {}
}

fn assert_serves(rig: &Rig) {
    let bytes = Random::new(1).bytes(16 * SECTOR);
    let file = rig.create("file", bytes.len());
    rig.write(file, 0, &bytes);
    common::sync(&*rig.device, file).unwrap();
    assert!(rig.read(file, 0, bytes.len()).unwrap() == bytes);
}

#[test]
fn a_failed_ring_completes_all_requests_and_leaks_memory_in_use() {
    if !is_child() {
        let name = "a_failed_ring_completes_all_requests_and_leaks_memory_in_use";
        return run_child(name);
    }
    if !common::is_available(EngineChoice::Uring) {
        return;
    }
    let log = Log::listen();
    let rig = Rig::new(EngineChoice::Uring);
    let file = rig.create("file", SECTOR);
    let (small, large) = rig.pool.free_counts();
    forbid(libc::SYS_io_uring_enter, libc::EPERM);
    let read = || {
        let memory = vec![rig.pool.try_take(SECTOR).unwrap()];
        common::carry_out(&*rig.device, Operation::Read, file, 0, memory)
    };
    let lost = read();
    assert!(matches!(lost.result, Err(IoError::Os { .. })), "{:?}", lost.result);
    assert!(lost.memory.is_empty());
    assert_eq!(log.count("ERROR", "io_uring failed"), 1);
    let refused = read();
    assert!(matches!(refused.result, Err(IoError::Closed)), "{:?}", refused.result);
    assert_eq!(refused.memory.len(), 1);
    drop(refused);
    assert_eq!(rig.pool.free_counts(), (small - 1, large));
}

/// Checks both choices in this process, where `io_uring` is unavailable.
fn assert_falls_back() {
    let log = Log::listen();
    let rig = Rig::new(EngineChoice::Auto);
    assert_eq!(rig.device.geometry().engine, "psync");
    assert_eq!(log.count("INFO", "using psync"), 1);
    assert_serves(&rig);
    let options = DirectoryOptions { engine: EngineChoice::Uring, ..DirectoryOptions::default() };
    let clock = Arc::new(SystemClock::new());
    let error = LocalDirectory::open(rig.directory.path(), options, &pool(), clock).unwrap_err();
    assert!(error.to_string().contains("start of the io_uring engine failed"), "{error}");
}

#[test]
fn auto_falls_back_where_io_uring_is_forbidden_and_uring_fails() {
    if !is_child() {
        return run_child("auto_falls_back_where_io_uring_is_forbidden_and_uring_fails");
    }
    forbid(libc::SYS_io_uring_setup, libc::EPERM);
    assert_falls_back();
}

#[test]
fn auto_falls_back_where_rings_can_be_created_but_not_used() {
    if !is_child() {
        return run_child("auto_falls_back_where_rings_can_be_created_but_not_used");
    }
    forbid(libc::SYS_io_uring_enter, libc::EPERM);
    assert_falls_back();
}

#[test]
fn with_little_locked_memory_io_uring_serves_plain_buffers() {
    if !is_child() {
        return run_child("with_little_locked_memory_io_uring_serves_plain_buffers");
    }
    if !common::is_available(EngineChoice::Uring) {
        return;
    }
    // Enough for the ring, which newer kernels count as well. Not enough for the arena.
    if !limit_locked_memory(1 << 20) {
        return skip("root", "cannot stop being root");
    }
    let log = Log::listen();
    let rig = Rig::new(EngineChoice::Uring);
    assert_eq!(log.count("DEBUG", "cannot register"), 1);
    assert_serves(&rig);
}

#[test]
fn auto_works_without_locked_memory() {
    if !is_child() {
        return run_child("auto_works_without_locked_memory");
    }
    if !limit_locked_memory(0) {
        return skip("root", "cannot stop being root");
    }
    assert_serves(&Rig::new(EngineChoice::Auto));
}

#[test]
fn with_locked_memory_the_arena_is_registered() {
    if !is_child() {
        return run_child("with_locked_memory_the_arena_is_registered");
    }
    if !common::is_available(EngineChoice::Uring) {
        return;
    }
    // SAFETY: a plain system call.
    if unsafe { libc::geteuid() } != 0 {
        return skip("root", "only root surely has enough locked memory");
    }
    let log = Log::listen();
    assert_serves(&Rig::new(EngineChoice::Uring));
    assert_eq!(log.count("DEBUG", "cannot register"), 0);
}

/// Publishes a file that fails in a confined process, and asserts that nothing is left of it.
fn assert_publish_leaves_nothing(confine: impl Fn(), is_expected: impl Fn(&IoError) -> bool) {
    let home = tempfile::tempdir().unwrap();
    let directory = SharedDirectory::open(home.path()).unwrap();
    directory.publish("folder", "before", &[]).unwrap();
    confine();
    for _ in 0..2 {
        let memory = [Memory::owned(vec![1; 3 * SECTOR], ())];
        let error = directory.publish("folder", "file", &memory).unwrap_err();
        assert!(is_expected(&error) && error.to_string().contains("folder/file"), "{error}");
        #[expect(clippy::disallowed_methods, reason = "looks at files from outside of the crate")]
        let left = std::fs::read_dir(home.path().join("folder")).unwrap().count();
        assert_eq!(left, 1);
    }
}

#[test]
fn a_publish_over_the_limit_of_file_sizes_leaves_nothing() {
    if !is_child() {
        return run_child("a_publish_over_the_limit_of_file_sizes_leaves_nothing");
    }
    // The first write is short, the second one fails.
    let limit = || limit_file_bytes(Some(SECTOR as u64 + 100));
    assert_publish_leaves_nothing(limit, IoError::is_too_large);
}

#[test]
fn a_publish_whose_sync_fails_leaves_nothing() {
    if !is_child() {
        return run_child("a_publish_whose_sync_fails_leaves_nothing");
    }
    let limit = || forbid(libc::SYS_fsync, libc::EIO);
    assert_publish_leaves_nothing(limit, IoError::is_of_medium);
}

#[test]
fn without_an_exclusive_rename_a_name_is_published_once() {
    if !is_child() {
        return run_child("without_an_exclusive_rename_a_name_is_published_once");
    }
    forbid(libc::SYS_renameat2, libc::EINVAL);
    let home = tempfile::tempdir().unwrap();
    let directory = SharedDirectory::open(home.path()).unwrap();
    let publish = |byte| directory.publish("folder", "file", &[Memory::owned(vec![byte; 9], ())]);
    publish(1).unwrap();
    assert!(publish(2).unwrap_err().is_exists());
    assert_eq!(directory.read_whole("folder", "file", 9).unwrap(), [1; 9]);
}

#[test]
fn without_a_sync_of_directories_files_are_published() {
    if !is_child() {
        return run_child("without_a_sync_of_directories_files_are_published");
    }
    forbid(libc::SYS_fsync, libc::EINVAL);
    let home = tempfile::tempdir().unwrap();
    let directory = SharedDirectory::open(home.path()).unwrap();
    // That a file cannot be synced is an error, however.
    let error = directory.publish("folder", "file", &[]).unwrap_err();
    assert!(error.to_string().starts_with("sync of folder/file"), "{error}");
    assert_eq!(directory.folders().unwrap(), ["folder"]);
}
