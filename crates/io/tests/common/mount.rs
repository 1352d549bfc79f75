//! File systems that a test mounts.

use std::path::Path;

use dalsegno_io::spawn;

use super::{TEST_TIMEOUT, skip};

/// Runs `body` on a new file system of `kind` that only this call sees. Needs root.
pub fn on_mount(kind: &'static str, data: &'static str, body: impl FnOnce(&Path) + Send + 'static) {
    let (done, wait) = crossbeam_channel::bounded(1);
    // On a new thread, because the mounts that it sees change permanently.
    let thread = spawn("mount", move || {
        let directory = tempfile::tempdir().unwrap();
        match mount(kind, data, directory.path()) {
            Ok(()) => {
                body(directory.path());
                unmount(directory.path());
            }
            Err(error) => skip("mount", &format!("cannot mount {kind}: {error}")),
        }
        done.send(()).unwrap();
    });
    wait.recv_timeout(TEST_TIMEOUT).expect("the body on the mount failed");
    thread.unwrap().join().unwrap();
}

fn mount(kind: &str, data: &str, target: &Path) -> std::io::Result<()> {
    use std::os::unix::ffi::OsStrExt;
    let text = |bytes: &[u8]| std::ffi::CString::new(bytes).unwrap();
    let (kind, data) = (text(kind.as_bytes()), text(data.as_bytes()));
    let (root, target) = (text(b"/"), text(target.as_os_str().as_bytes()));
    let check = |result| {
        if result == 0 { Ok(()) } else { Err(std::io::Error::last_os_error()) }
    };
    let private = libc::MS_REC | libc::MS_PRIVATE;
    let none = std::ptr::null();
    // SAFETY: plain system calls on strings that live until they return.
    unsafe {
        check(libc::unshare(libc::CLONE_NEWNS))?;
        check(libc::mount(none, root.as_ptr(), none, private, none.cast()))?;
        check(libc::mount(kind.as_ptr(), target.as_ptr(), kind.as_ptr(), 0, data.as_ptr().cast()))
    }
}

fn unmount(target: &Path) {
    use std::os::unix::ffi::OsStrExt;
    let target = std::ffi::CString::new(target.as_os_str().as_bytes()).unwrap();
    // SAFETY: a plain system call on a string that lives until it returns.
    unsafe { libc::umount2(target.as_ptr(), libc::MNT_DETACH) };
}
