//! A forked child of a test.

/// A child that takes longer than this hangs. The system then kills it, and the test fails.
const LIMIT_SECONDS: u32 = 20;

/// Runs `body` in a forked child, which then exits without cleaning up.
pub fn in_child(mut body: impl FnMut()) {
    // SAFETY: the child runs only `body`, whose locks and threads are what is tested; it never returns from here.
    let child = unsafe { libc::fork() };
    if child == 0 {
        // SAFETY: sets a timer of this process.
        unsafe { libc::alarm(LIMIT_SECONDS) };
        let ended = std::panic::catch_unwind(std::panic::AssertUnwindSafe(&mut body));
        // SAFETY: ends the process immediately.
        unsafe { libc::_exit(i32::from(ended.is_err())) };
    }
    let mut status = -1;
    // SAFETY: waits for our own child; `status` is ours.
    assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
    assert_eq!(status, 0, "the child hung, or failed");
}
