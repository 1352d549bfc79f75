//! Files and their directory: creation, listing, space, and file systems that lack a feature.

use crate::common;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use crate::common::mount::on_mount;
use crate::common::{Rig, SECTOR, open, pool, read, write};
use dalsegno_core::EngineChoice;
use dalsegno_io::{
    BufferPool, Device, DirectoryOptions, IoError, LocalDirectory, OpenMode, Source,
};

fn rig() -> Rig {
    Rig::new(EngineChoice::Auto)
}

fn mode(path: &Path) -> u32 {
    std::fs::metadata(path).unwrap().permissions().mode() & 0o777
}

#[test]
fn a_created_file_is_private_allocated_and_opened_again() {
    let rig = rig();
    let created = rig.device.open("a", OpenMode::Create { bytes: 1 << 20 }).unwrap();
    assert_eq!(created.bytes, 1 << 20);
    assert_eq!(mode(&rig.directory.path().join("a")), 0o600);
    rig.write(created.file, 8 * SECTOR, &[5; SECTOR]);
    rig.device.close(created.file);
    let again = rig.device.open("a", OpenMode::ReadWrite).unwrap();
    assert_eq!(again.bytes, 1 << 20);
    assert_ne!(again.file, created.file);
    assert_eq!(rig.read(again.file, 8 * SECTOR, SECTOR).unwrap(), vec![5; SECTOR]);
    assert!(rig.device.list().unwrap()[0].allocated_bytes >= 1 << 20);
}

#[test]
fn a_cached_file_is_read_at_any_offset_and_never_past_its_end() {
    let rig = rig();
    let bytes: Vec<u8> = (0..2 * SECTOR).map(|at| u8::try_from(at % 251).unwrap()).collect();
    let mode = OpenMode::Create { bytes: 2 * SECTOR as u64 };
    let file = rig.device.open_cached("a", mode).unwrap().file;
    rig.write(file, 0, &bytes);
    let mut part = vec![0; 5000];
    rig.device.read_at(file, 77, &mut part).unwrap();
    assert_eq!(part, bytes[77..5077]);
    let error = rig.device.read_at(file, 2 * SECTOR as u64 - 10, &mut part).unwrap_err();
    assert!(matches!(error, IoError::Short { got: 10, .. }), "{error}");
    rig.device.close(file);
    let error = rig.device.read_at(file, 0, &mut part).unwrap_err();
    assert!(error.to_string().contains("closed"), "{error}");
}

#[test]
fn creating_a_file_that_exists_fails_and_keeps_it() {
    let rig = rig();
    let file = rig.create("a", SECTOR);
    rig.write(file, 0, &[1; SECTOR]);
    let error = rig.device.open("a", OpenMode::Create { bytes: SECTOR as u64 }).unwrap_err();
    assert!(error.is_exists(), "{error}");
    assert_eq!(rig.read(file, 0, SECTOR).unwrap(), vec![1; SECTOR]);
}

#[test]
fn a_missing_file_is_not_found_by_name() {
    let rig = rig();
    for mode in [OpenMode::Read, OpenMode::ReadWrite] {
        let error = rig.device.open("ghost", mode).unwrap_err();
        assert!(error.is_not_found() && error.to_string().contains("ghost"), "{error}");
    }
    assert!(rig.device.remove("ghost").unwrap_err().is_not_found());
}

#[test]
fn a_file_larger_than_the_file_system_is_no_space_and_leaves_nothing() {
    let rig = rig();
    // An exbibyte: refused for its size alone, so that the test never fills the disk.
    let error = rig.device.open("huge", OpenMode::Create { bytes: 1 << 60 }).unwrap_err();
    assert!(error.is_no_space(), "{error}");
    assert!(rig.device.list().unwrap().is_empty());
}

#[test]
fn the_list_is_sorted_and_contains_only_our_files() {
    let rig = rig();
    for name in ["b", "a-1", "a.2", "c_3"] {
        rig.create(name, SECTOR);
    }
    let path = rig.directory.path();
    std::fs::create_dir(path.join("folder")).unwrap();
    std::os::unix::fs::symlink(path.join("b"), path.join("link")).unwrap();
    std::fs::File::create(path.join("not ours")).unwrap();
    let list = rig.device.list().unwrap();
    let names: Vec<&str> = list.iter().map(|entry| entry.name.as_str()).collect();
    assert_eq!(names, ["a-1", "a.2", "b", "c_3"]);
    assert!(list.iter().all(|entry| entry.bytes == SECTOR as u64));
    assert!(rig.device.open("link", OpenMode::Read).is_err(), "a link was followed");
    assert!(rig.device.open("folder", OpenMode::Read).is_err());
}

#[test]
fn a_name_that_is_not_plain_is_a_bug() {
    let rig = rig();
    for name in ["", ".", "..", "a/b", "../a", "ä", "a b", "a\0", &"x".repeat(256)] {
        let call = std::panic::AssertUnwindSafe(|| rig.device.open(name, OpenMode::Read));
        assert!(std::panic::catch_unwind(call).is_err(), "{name:?}");
    }
}

#[test]
fn space_shrinks_with_what_is_allocated() {
    let rig = rig();
    let space = rig.device.space().unwrap();
    assert!(space.free_bytes > 0 && space.free_bytes <= space.total_bytes);
}

#[test]
fn a_read_only_directory_reads_and_refuses_changes() {
    let rig = rig();
    let file = rig.create("a", SECTOR);
    rig.write(file, 0, &[3; SECTOR]);
    let options = DirectoryOptions { read_only: true, ..DirectoryOptions::default() };
    let reader = open(rig.directory.path(), options, &rig.pool);
    assert_eq!(reader.geometry().direct, rig.device.geometry().direct);
    let opened = reader.open("a", OpenMode::Read).unwrap();
    let bytes = read(&reader, &rig.pool, opened.file, 0, SECTOR).unwrap();
    assert_eq!(bytes, vec![3; SECTOR]);
    let refused = [
        reader.open("a", OpenMode::ReadWrite).unwrap_err(),
        reader.open("b", OpenMode::Create { bytes: 0 }).unwrap_err(),
        reader.remove("a").unwrap_err(),
        write(&reader, &rig.pool, opened.file, 0, &[4; SECTOR]).unwrap_err(),
    ];
    assert!(refused.iter().all(|error| matches!(error, IoError::Os { .. })), "{refused:?}");
    reader.sync_names().unwrap();
    assert_eq!(rig.read(file, 0, SECTOR).unwrap(), vec![3; SECTOR]);
}

#[test]
fn opening_a_directory_leaves_nothing_in_it() {
    let rig = rig();
    assert_eq!(std::fs::read_dir(rig.directory.path()).unwrap().count(), 0);
}

#[test]
fn a_missing_directory_is_an_error_with_its_path() {
    let clock = std::sync::Arc::new(dalsegno_io::SystemClock::new());
    let path = Path::new("/nonexistent/store");
    let error =
        LocalDirectory::open(path, DirectoryOptions::default(), &pool(), clock).unwrap_err();
    assert!(error.is_not_found() && error.to_string().contains("/nonexistent/store"), "{error}");
}

#[test]
fn missing_directories_are_created_for_their_owner_only() {
    let parent = tempfile::tempdir().unwrap();
    std::fs::set_permissions(parent.path(), std::fs::Permissions::from_mode(0o755)).unwrap();
    let path = parent.path().join("a").join("b");
    LocalDirectory::create_dir(&path).unwrap();
    assert_eq!((mode(&path), mode(&parent.path().join("a"))), (0o700, 0o700));
    assert_eq!(mode(parent.path()), 0o755);
    LocalDirectory::create_dir(&path).unwrap();
    std::fs::File::create(parent.path().join("file")).unwrap();
    let error = LocalDirectory::create_dir(&parent.path().join("file")).unwrap_err();
    assert!(error.is_exists(), "{error}");
}

#[test]
fn created_directories_are_removed_as_far_as_they_are_empty() {
    let parent = tempfile::tempdir().unwrap();
    let (a, b) = (parent.path().join("a"), parent.path().join("a").join("b"));
    let created = LocalDirectory::create_dir(&b).unwrap();
    assert_eq!(created, [b.clone(), a.clone()]);
    assert!(LocalDirectory::create_dir(&b).unwrap().is_empty());
    std::fs::File::create(a.join("file")).unwrap();
    LocalDirectory::remove_created(&created);
    assert!(!b.exists() && a.join("file").exists());
    std::fs::remove_file(a.join("file")).unwrap();
    LocalDirectory::remove_created(std::slice::from_ref(&a));
    assert!(!a.exists() && parent.path().exists());
}

fn open_with_both_engines(path: &Path, pool: &BufferPool) -> Vec<LocalDirectory> {
    [EngineChoice::Auto, EngineChoice::Psync]
        .map(|engine| open(path, DirectoryOptions { engine, ..DirectoryOptions::default() }, pool))
        .into()
}

#[test]
fn a_full_disk_is_no_space_and_leaves_no_half_created_file() {
    on_mount("tmpfs", "size=4m", |path| {
        let pool = pool();
        for device in open_with_both_engines(path, &pool) {
            let error = device.open("big", OpenMode::Create { bytes: 16 << 20 }).unwrap_err();
            assert!(error.is_no_space(), "{error}");
            assert!(error.to_string().contains("big"), "{error}");
            assert!(device.list().unwrap().is_empty());
            device.open("fits", OpenMode::Create { bytes: 2 << 20 }).unwrap();
            assert!(device.space().unwrap().free_bytes <= 2 << 20);
            device.remove("fits").unwrap();
        }
    });
}

#[test]
fn a_file_system_without_direct_io_and_reservation_still_serves() {
    on_mount("ramfs", "", |path| {
        let pool = pool();
        for device in open_with_both_engines(path, &pool) {
            let geometry = device.geometry();
            assert!(!geometry.direct && geometry.memory_align == 1);
            let file = device.open("a", OpenMode::Create { bytes: 1 << 20 }).unwrap().file;
            write(&device, &pool, file, SECTOR, &[8; SECTOR]).unwrap();
            assert_eq!(read(&device, &pool, file, SECTOR, SECTOR).unwrap(), vec![8; SECTOR]);
            common::sync(&device, file).unwrap();
            device.remove("a").unwrap();
        }
    });
}

#[test]
fn a_write_to_a_full_disk_is_no_space() {
    // ramfs has no limit, so reservation is circumvented: the file ends where the write begins.
    on_mount("tmpfs", "size=1m", |path| {
        let pool = pool();
        for device in open_with_both_engines(path, &pool) {
            let file = device.open("a", OpenMode::Create { bytes: 0 }).unwrap().file;
            let error = write(&device, &pool, file, 4 << 20, &[1; SECTOR]);
            assert!(error.is_ok(), "a sparse sector fits: {error:?}");
            let bytes = vec![1; 1 << 18];
            let results = (0..4).map(|at| write(&device, &pool, file, at << 18, &bytes));
            let errors: Vec<_> = results.filter_map(Result::err).collect();
            assert!(!errors.is_empty(), "5 writes of more than a MiB fitted into a MiB");
            for error in errors {
                assert!(error.is_no_space() || matches!(error, IoError::Short { .. }), "{error}");
            }
            device.close(file);
            device.remove("a").unwrap();
        }
    });
}
