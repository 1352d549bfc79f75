//! A directory that hosts share: publishing, reading, listing, removing, and file systems that lack a feature.

use crate::common;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::time::Duration;

use crate::common::mount::on_mount;
use crate::common::{Random, SECTOR, TEST_TIMEOUT, request};
use crossbeam_channel::unbounded;
use dalsegno_io::{
    BufferPool, Completion, FileId, FolderEntry, IoError, Memory, Operation, SharedDirectory,
};
use tempfile::TempDir;

/// A directory and a pool of aligned memory.
struct Shared {
    home: TempDir,
    pool: BufferPool,
    directory: SharedDirectory,
}

impl Shared {
    fn new() -> Self {
        let home = tempfile::tempdir().unwrap();
        let directory = SharedDirectory::open(home.path()).unwrap();
        Self { home, pool: common::pool(), directory }
    }

    /// Everything in a folder, temporary files included.
    fn names(&self, folder: &str) -> Vec<String> {
        names(&self.home.path().join(folder))
    }

    fn publish(&self, name: &str, bytes: &[u8]) -> Result<(), IoError> {
        self.directory.publish("folder", name, &aligned(&self.pool, bytes))
    }

    fn read(&self, name: &str, offset: usize, len: usize) -> Completion {
        serve(&self.directory, name, offset, vec![self.pool.try_take(len).unwrap()])
    }
}

fn names(path: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(path).unwrap();
    let mut names: Vec<String> =
        entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

/// The bytes in pieces of aligned memory.
fn aligned(pool: &BufferPool, bytes: &[u8]) -> Vec<Memory> {
    let piece = |bytes: &[u8]| {
        let mut memory = pool.try_take(bytes.len()).unwrap();
        memory.as_mut_slice().copy_from_slice(bytes);
        memory
    };
    bytes.chunks(64 << 10).map(piece).collect()
}

/// The bytes in memory that direct I/O does not accept.
fn unaligned(bytes: &[u8]) -> Memory {
    let mut memory = Memory::owned([&[0], bytes].concat(), ());
    drop(memory.split_to(1));
    memory
}

fn serve(
    directory: &SharedDirectory,
    name: &str,
    offset: usize,
    memory: Vec<Memory>,
) -> Completion {
    let (reply, completions) = unbounded();
    directory.serve("folder", name, request(Operation::Read, FileId(0), offset, memory, &reply));
    drop(reply);
    let completion = completions.recv_timeout(TEST_TIMEOUT).unwrap();
    assert!(completions.recv_timeout(TEST_TIMEOUT).is_err(), "a second completion");
    completion
}

fn bytes_of(completion: Completion) -> Vec<u8> {
    completion.result.unwrap();
    completion.memory.iter().flat_map(|piece| piece.as_slice().to_vec()).collect()
}

#[test]
fn a_published_file_is_whole_private_and_read_in_parts() {
    let shared = Shared::new();
    let bytes = Random::new(1).bytes(70 * SECTOR);
    shared.publish("a.pack", &bytes).unwrap();
    assert_eq!(shared.names("folder"), ["a.pack"]);
    let path = shared.home.path().join("folder").join("a.pack");
    assert_eq!(std::fs::read(&path).unwrap(), bytes);
    assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
    assert_eq!(shared.directory.read_whole("folder", "a.pack", 70 * 4096).unwrap(), bytes);
    for (offset, len) in [(0, 1), (3, 10), (69, 1), (0, 70)] {
        let (offset, len) = (offset * SECTOR, len * SECTOR);
        let read = bytes_of(shared.read("a.pack", offset, len));
        assert_eq!(read, bytes[offset..offset + len]);
    }
}

#[test]
fn memory_that_is_not_aligned_is_written_and_read() {
    let shared = Shared::new();
    let bytes = Random::new(2).bytes(3 * SECTOR);
    let pieces = [unaligned(&bytes[..100]), unaligned(&[]), unaligned(&bytes[100..])];
    shared.directory.publish("folder", "a", &pieces).unwrap();
    // Opens the file for direct I/O, where that exists.
    assert_eq!(bytes_of(shared.read("a", 0, SECTOR)), bytes[..SECTOR]);
    let mut memory = Memory::zeroed(2 * SECTOR + 1);
    drop(memory.split_to(1));
    let read = bytes_of(serve(&shared.directory, "a", SECTOR, vec![memory]));
    assert_eq!(read, bytes[SECTOR..]);
    assert_eq!(bytes_of(shared.read("a", 0, SECTOR)), bytes[..SECTOR]);
}

#[test]
fn a_file_of_odd_or_no_length_is_published() {
    let shared = Shared::new();
    for len in [0, 1, 4097] {
        let bytes = Random::new(3).bytes(len);
        let name = format!("odd-{len}");
        shared.directory.publish("folder", &name, &[unaligned(&bytes)]).unwrap();
        assert_eq!(shared.directory.read_whole("folder", &name, 5000).unwrap(), bytes);
    }
    shared.directory.publish("folder", "none", &[]).unwrap();
    assert_eq!(shared.directory.entries("folder", |_| true).unwrap().len(), 4);
}

#[test]
fn a_name_is_published_once() {
    let shared = Shared::new();
    let first = vec![1; SECTOR];
    shared.publish("a", &first).unwrap();
    let error = shared.publish("a", &[2; SECTOR]).unwrap_err();
    assert!(error.is_exists() && error.to_string().contains("folder/a"), "{error}");
    assert_eq!(shared.names("folder"), ["a"]);
    assert_eq!(shared.directory.read_whole("folder", "a", 4096).unwrap(), first);
}

#[test]
fn one_of_two_publishers_of_a_name_wins() {
    let shared = Shared::new();
    for round in 0..20 {
        let name = format!("raced-{round}");
        let publish = |byte: u8| shared.publish(&name, &[byte; SECTOR]);
        let results = std::thread::scope(|scope| {
            let other = scope.spawn(|| publish(2));
            [publish(1), other.join().unwrap()]
        });
        let winner = results.iter().position(Result::is_ok).unwrap();
        assert!(results[1 - winner].as_ref().is_err_and(IoError::is_exists));
        let byte = u8::try_from(winner + 1).unwrap();
        assert_eq!(shared.directory.read_whole("folder", &name, 4096).unwrap(), [byte; SECTOR]);
    }
    assert_eq!(shared.names("folder").len(), 20);
}

#[test]
fn a_missing_file_or_folder_is_not_found_by_name() {
    let shared = Shared::new();
    for _ in 0..2 {
        let read = shared.directory.read_whole("folder", "ghost", 1).unwrap_err();
        let request = shared.read("ghost", 0, SECTOR).result.unwrap_err();
        let age = shared.directory.age("folder", "ghost").unwrap_err();
        for error in [read, request, age] {
            assert!(error.is_not_found() && error.to_string().contains("ghost"), "{error}");
        }
        shared.publish("a", &[]).unwrap_or_else(|error| assert!(error.is_exists(), "{error}"));
    }
    assert!(shared.directory.entries("none", |_| true).unwrap_err().is_not_found());
}

#[test]
fn a_file_over_the_limit_is_too_large() {
    let shared = Shared::new();
    shared.publish("a", &[1; SECTOR]).unwrap();
    assert_eq!(shared.directory.read_whole("folder", "a", 4096).unwrap().len(), SECTOR);
    assert!(shared.directory.read_whole("folder", "a", 4095).unwrap_err().is_too_large());
}

#[test]
fn a_request_past_the_end_is_short() {
    let shared = Shared::new();
    shared.publish("a", &[1; 2 * SECTOR]).unwrap();
    for (offset, expected) in [(SECTOR, 4096), (2 * SECTOR, 0), (9 * SECTOR, 0)] {
        let error = shared.read("a", offset, 2 * SECTOR).result.unwrap_err();
        assert!(matches!(error, IoError::Short { got, .. } if got == expected), "{error}");
    }
    assert_eq!(bytes_of(shared.read("a", SECTOR, SECTOR)), [1; SECTOR]);
}

#[test]
fn a_removed_file_is_gone_and_removing_it_again_is_no_error() {
    let shared = Shared::new();
    shared.directory.remove("folder", "a").unwrap();
    shared.publish("a", &[1; SECTOR]).unwrap();
    shared.read("a", 0, SECTOR).result.unwrap();
    for _ in 0..2 {
        shared.directory.remove("folder", "a").unwrap();
        assert!(shared.read("a", 0, SECTOR).result.unwrap_err().is_not_found());
    }
}

#[test]
fn a_file_that_is_kept_open_is_closed_on_request() {
    let shared = Shared::new();
    shared.publish("a", &[1; SECTOR]).unwrap();
    shared.read("a", 0, SECTOR).result.unwrap();
    std::fs::remove_file(shared.home.path().join("folder").join("a")).unwrap();
    // As another host's removal: the open file is read on.
    assert_eq!(bytes_of(shared.read("a", 0, SECTOR)), [1; SECTOR]);
    shared.directory.close("folder", "a");
    assert!(shared.read("a", 0, SECTOR).result.unwrap_err().is_not_found());
}

#[test]
fn listings_show_complete_files_of_ours_only() {
    let shared = Shared::new();
    for (name, len) in [("b", 2 * SECTOR), ("a-1", SECTOR), ("c.2", 0)] {
        shared.publish(name, &vec![0; len]).unwrap();
    }
    let (home, folder) = (shared.home.path(), shared.home.path().join("folder"));
    std::fs::create_dir(folder.join("inner")).unwrap();
    std::fs::create_dir(home.join("empty")).unwrap();
    std::fs::create_dir(home.join(".hidden")).unwrap();
    std::os::unix::fs::symlink(&folder, home.join("link")).unwrap();
    std::os::unix::fs::symlink(folder.join("b"), folder.join("link")).unwrap();
    for name in ["not ours", ".b.0123456789abcdef.tmp"] {
        std::fs::write(folder.join(name), b"x").unwrap();
        std::fs::write(home.join(name), b"x").unwrap();
    }
    assert_eq!(shared.directory.folders().unwrap(), ["empty", "folder"]);
    let entry = |name: &str, bytes| FolderEntry { name: name.to_owned(), bytes };
    let all = [entry("a-1", 4096), entry("b", 8192), entry("c.2", 0)];
    assert_eq!(shared.directory.entries("folder", |_| true).unwrap(), all);
    assert_eq!(shared.directory.entries("folder", |name| name > "b").unwrap(), all[2..]);
    assert_eq!(shared.directory.entries("empty", |_| true).unwrap(), []);
    // A link leads nowhere, whether it is a folder or a file.
    assert!(shared.directory.read_whole("link", "b", 1 << 20).is_err());
    assert!(shared.directory.read_whole("folder", "link", 1 << 20).is_err());
    assert!(shared.directory.entries("link", |_| true).is_err());
}

#[test]
fn a_folder_is_removed_when_it_has_no_files() {
    let shared = Shared::new();
    shared.directory.remove_folder("folder").unwrap();
    shared.publish("a", &[1; SECTOR]).unwrap();
    shared.directory.remove_folder("folder").unwrap();
    assert_eq!(shared.names("folder"), ["a"]);
    shared.directory.remove("folder", "a").unwrap();
    for _ in 0..2 {
        shared.directory.remove_folder("folder").unwrap();
        assert_eq!(shared.directory.folders().unwrap(), [""; 0]);
    }
    shared.publish("b", &[1; SECTOR]).unwrap();
    // As another host removes it: the next publish creates it again.
    std::fs::remove_dir_all(shared.home.path().join("folder")).unwrap();
    shared.publish("b", &[1; SECTOR]).unwrap();
}

#[test]
fn temporary_files_of_a_crash_go_with_their_folder_and_not_before() {
    let shared = Shared::new();
    shared.publish("a", &[1; SECTOR]).unwrap();
    let temporary = ".b.0123456789abcdef.tmp";
    std::fs::write(shared.home.path().join("folder").join(temporary), b"x").unwrap();
    shared.directory.remove_folder("folder").unwrap();
    assert_eq!(shared.names("folder"), [temporary, "a"]);
    shared.directory.remove("folder", "a").unwrap();
    shared.directory.remove_folder("folder").unwrap();
    assert_eq!(names(shared.home.path()), [""; 0]);
}

#[test]
fn ages_grow_and_leave_nothing_behind() {
    let shared = Shared::new();
    shared.publish("a", &[1; SECTOR]).unwrap();
    let early = shared.directory.age("folder", "a").unwrap();
    std::thread::sleep(Duration::from_millis(50));
    let late = shared.directory.age("folder", "a").unwrap();
    assert!(late >= early + Duration::from_millis(20) && late < TEST_TIMEOUT, "{early:?} {late:?}");
    assert_eq!(names(shared.home.path()), ["folder"]);
}

#[test]
fn opening_creates_nothing_and_needs_a_directory() {
    let shared = Shared::new();
    assert_eq!(names(shared.home.path()), [""; 0]);
    let space = shared.directory.space().unwrap();
    assert!(space.free_bytes > 0 && space.free_bytes <= space.total_bytes);
    let path = Path::new("/nonexistent/far");
    let error = SharedDirectory::open(path).unwrap_err();
    assert!(error.is_not_found() && error.to_string().contains("/nonexistent/far"), "{error}");
}

#[test]
fn a_name_that_is_not_plain_or_is_hidden_is_a_bug() {
    let shared = Shared::new();
    let directory = &shared.directory;
    for name in ["", ".", "..", "a/b", "../a", "a b", "a\0", ".hidden", &"x".repeat(256)] {
        let calls: [&dyn Fn(); 4] = [
            &|| drop(directory.publish("folder", name, &[])),
            &|| drop(directory.publish(name, "a", &[])),
            &|| drop(directory.remove("folder", name)),
            &|| drop(directory.entries(name, |_| true)),
        ];
        for call in calls {
            let called = std::panic::catch_unwind(std::panic::AssertUnwindSafe(call));
            assert!(called.is_err(), "{name:?}");
        }
    }
    assert_eq!(names(shared.home.path()), [""; 0]);
}

#[test]
fn a_request_that_writes_is_a_bug() {
    let shared = Shared::new();
    let (reply, _completions) = unbounded();
    let memory = vec![shared.pool.try_take(SECTOR).unwrap()];
    let write = request(Operation::Write, FileId(0), 0, memory, &reply);
    let call = std::panic::AssertUnwindSafe(|| shared.directory.serve("folder", "a", write));
    assert!(std::panic::catch_unwind(call).is_err());
}

#[test]
fn a_full_file_system_is_no_space_and_leaves_nothing() {
    on_mount("tmpfs", "size=4m", |path| {
        let pool = common::pool();
        let directory = SharedDirectory::open(path).unwrap();
        for _ in 0..2 {
            let memory = aligned(&pool, &vec![7; 1 << 20]);
            let big: Vec<Memory> =
                (0..8).map(|_| Memory::owned(vec![7; 1 << 20], ())).chain(memory).collect();
            let error = directory.publish("folder", "big", &big).unwrap_err();
            let is_full = error.is_no_space() || matches!(error, IoError::Short { .. });
            assert!(is_full && error.to_string().contains("folder/big"), "{error}");
            assert_eq!(names(&path.join("folder")), [""; 0]);
        }
        directory.publish("folder", "fits", &aligned(&pool, &vec![8; 1 << 20])).unwrap();
        assert_eq!(directory.read_whole("folder", "fits", 1 << 20).unwrap(), vec![8; 1 << 20]);
    });
}

#[test]
fn a_file_system_without_direct_io_serves() {
    on_mount("ramfs", "", |path| {
        let pool = common::pool();
        let directory = SharedDirectory::open(path).unwrap();
        assert_eq!(directory.direct(), None);
        let bytes = Random::new(5).bytes(20 * SECTOR);
        directory.publish("folder", "a", &aligned(&pool, &bytes)).unwrap();
        let memory = vec![pool.try_take(20 * SECTOR).unwrap()];
        assert_eq!(bytes_of(serve(&directory, "a", 0, memory)), bytes);
        assert!(directory.publish("folder", "a", &[]).unwrap_err().is_exists());
        directory.remove("folder", "a").unwrap();
        directory.remove_folder("folder").unwrap();
        assert_eq!(names(path), [""; 0]);
    });
}

#[test]
fn more_files_than_may_be_open_are_read() {
    let shared = Shared::new();
    let count = 600;
    for number in 0..count {
        let byte = u8::try_from(number % 251).unwrap();
        shared.publish(&format!("file-{number}"), &[byte; SECTOR]).unwrap();
    }
    let open_files = || {
        let links = std::fs::read_dir("/proc/self/fd").unwrap();
        let targets = links.filter_map(|link| std::fs::read_link(link.unwrap().path()).ok());
        targets.filter(|target| target.starts_with(shared.home.path())).count()
    };
    for number in (0..count).chain([0, 0, 599]) {
        let byte = u8::try_from(number % 251).unwrap();
        assert_eq!(bytes_of(shared.read(&format!("file-{number}"), 0, SECTOR)), [byte; SECTOR]);
    }
    // The files, and the directory itself.
    assert_eq!(open_files(), 512 + 1);
}
