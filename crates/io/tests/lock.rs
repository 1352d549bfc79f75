//! Two owners never have one directory, and a refused process learns the owner.
#![expect(clippy::disallowed_methods, reason = "looks at files from outside of the crate")]

use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Stdio};

use dalsegno_io::{DirectoryLock, LockError};

/// Set in the child process: the directory to lock.
const CHILD: &str = "DALSEGNO_TEST_LOCK";

/// How the lock file names a process that runs this file's tests.
fn named(pid: u32) -> String {
    let command = std::fs::read_to_string("/proc/self/comm").expect("every process has a name");
    format!("pid {pid} ({}) on ", command.trim())
}

fn held(result: Result<DirectoryLock, LockError>) -> String {
    match result {
        Err(LockError::Held { owner }) => owner,
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_second_owner_in_this_process_gets_its_pid_and_command() {
    let directory = tempfile::tempdir().unwrap();
    std::fs::write(directory.path().join("LOCK"), "the last owner, of a longer name\n".repeat(4))
        .unwrap();
    let lock = DirectoryLock::acquire(directory.path()).unwrap();
    let me = named(std::process::id());
    assert!(held(DirectoryLock::acquire(directory.path())).starts_with(&me));
    assert!(held(DirectoryLock::acquire_shared(directory.path())).starts_with(&me));
    let text = std::fs::read_to_string(directory.path().join("LOCK")).unwrap();
    assert!(text.starts_with(&me) && text.ends_with('\n') && text.lines().count() == 1);
    drop(lock);
    drop(DirectoryLock::acquire(directory.path()).unwrap());
}

#[test]
fn the_lock_file_is_private() {
    let directory = tempfile::tempdir().unwrap();
    let _lock = DirectoryLock::acquire(directory.path()).unwrap();
    let mode = std::fs::metadata(directory.path().join("LOCK")).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
}

#[test]
fn readers_share_and_keep_an_owner_out() {
    let directory = tempfile::tempdir().unwrap();
    drop(DirectoryLock::acquire(directory.path()).unwrap());
    let readers = [(); 2].map(|()| DirectoryLock::acquire_shared(directory.path()).unwrap());
    assert_eq!(held(DirectoryLock::acquire(directory.path())), "a tool that reads it");
    drop(readers);
    drop(DirectoryLock::acquire(directory.path()).unwrap());
}

#[test]
fn a_reader_without_a_lock_file_keeps_an_owner_out_and_creates_nothing() {
    let directory = tempfile::tempdir().unwrap();
    let reader = DirectoryLock::acquire_shared(directory.path()).unwrap();
    assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 0);
    assert_eq!(held(DirectoryLock::acquire(directory.path())), "a tool that reads it");
    drop(reader);
    drop(DirectoryLock::acquire(directory.path()).unwrap());
}

#[test]
fn an_owner_whose_lock_file_a_cleaner_removed_keeps_others_out() {
    let directory = tempfile::tempdir().unwrap();
    let lock = DirectoryLock::acquire(directory.path()).unwrap();
    for _ in 0..2 {
        std::fs::remove_file(directory.path().join("LOCK")).unwrap();
        for refused in [
            DirectoryLock::acquire_shared(directory.path()),
            DirectoryLock::acquire(directory.path()),
        ] {
            assert_eq!(held(refused), "another process, whose file LOCK was removed");
        }
    }
    drop(lock);
    drop(DirectoryLock::acquire(directory.path()).unwrap());
}

#[test]
fn a_missing_directory_is_an_error_with_its_path() {
    let path = Path::new("/nonexistent/store");
    for result in [DirectoryLock::acquire(path), DirectoryLock::acquire_shared(path)] {
        let error = result.unwrap_err();
        assert!(error.to_string().contains("/nonexistent/store/LOCK"), "{error}");
    }
}

#[test]
fn a_crashed_owner_in_another_process_leaves_the_directory_free() {
    let directory = tempfile::tempdir().unwrap();
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "child_that_owns", "--nocapture"])
        .env(CHILD, directory.path())
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    let expected = named(child.id());
    let owner = (0..6000).find_map(|_| {
        std::thread::sleep(std::time::Duration::from_millis(10));
        match DirectoryLock::acquire(directory.path()) {
            // Taken before the child came; or seen between its lock and its text.
            Ok(_) => None,
            Err(LockError::Held { owner }) => owner.starts_with(&expected).then_some(owner),
            Err(other) => panic!("{other}"),
        }
    });
    assert!(owner.is_some(), "the child never appeared as the owner");
    child.kill().unwrap();
    child.wait().unwrap();
    // Its text is still there; the lock is not.
    assert!(std::fs::read_to_string(directory.path().join("LOCK")).unwrap().starts_with(&expected));
    drop(DirectoryLock::acquire(directory.path()).unwrap());
}

#[test]
fn child_that_owns() {
    let Some(directory) = std::env::var_os(CHILD) else { return };
    // The parent probes by locking, so the first try may be refused.
    let _lock = std::iter::repeat_with(|| DirectoryLock::acquire(Path::new(&directory)))
        .find_map(Result::ok)
        .unwrap();
    std::io::stdin().read_line(&mut String::new()).unwrap();
}
