//! A fork while threads share work. The only test of its file, because threads of other tests would be detected too.
#![expect(clippy::unwrap_used, reason = "a test may panic")]

mod common;

use std::sync::Barrier;

use common::child::in_child;
use dalsegno_io::{Process, forked_amid_threads, share_work};
use parking_lot::Mutex;

#[test]
fn regression_a_fork_while_threads_share_work_is_detected() {
    let parent = Process::this();
    let both = Barrier::new(2);
    let (hold, ended) = crossbeam_channel::bounded::<()>(0);
    let hold = Mutex::new(Some(hold));
    share_work("shares", 2, || {
        if both.wait().is_leader() {
            let _until_the_child_ends = hold.lock().take();
            in_child(|| assert_eq!(forked_amid_threads(), Some(parent)));
        } else {
            assert!(ended.recv().is_err());
        }
    });
    assert_eq!(forked_amid_threads(), None);
}
