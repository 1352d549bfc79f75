//! The queue before standard error in a process that forks.
#![expect(clippy::unwrap_used, reason = "a test may panic")]

mod common;

use std::io::Read;
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;
use std::time::Duration;

use common::child::in_child;
use dalsegno_io::{LineQueue, forked_amid_threads, spawn};

const LATE: Duration = Duration::from_secs(15);

#[test]
fn a_forked_child_has_a_queue_of_its_own_and_may_start_threads() {
    LineQueue::error().add("of the parent\n");
    let (mut reader, writer) = UnixStream::pair().unwrap();
    in_child(|| {
        assert_eq!(forked_amid_threads(), None);
        // SAFETY: replaces standard error of the child.
        assert_eq!(unsafe { libc::dup2(writer.as_raw_fd(), libc::STDERR_FILENO) }, 2);
        LineQueue::error().add("of the child\n");
        LineQueue::error().flush(LATE);
        spawn("test", || ()).unwrap().join().unwrap();
    });
    drop(writer);
    let mut text = String::new();
    reader.read_to_string(&mut text).unwrap();
    assert_eq!(text, "of the child\n");
}
