//! A forked child has a copy of a tier without its threads, and must not disturb its parent.
#![expect(clippy::unwrap_used, reason = "a test may panic")]

#[path = "../../io/tests/common/child.rs"]
#[allow(unreachable_pub, reason = "another crate's tests share it")]
mod child;
mod common;

use child::in_child;
use common::{bytes_of, fetch, open, pack, publish, start};
use dalsegno_core::Deadline;
use dalsegno_far::{DirectoryTierOptions, Tier};
use dalsegno_io::IoError;

#[test]
fn a_child_drops_its_copy_of_a_tier_and_the_parent_continues() {
    let home = tempfile::tempdir().unwrap();
    let tier = open(home.path(), DirectoryTierOptions::default()).unwrap();
    publish(&tier, pack(1), &bytes_of(pack(1), 3)).unwrap();
    let mut tier = Some(tier);
    for _ in 0..3 {
        in_child(|| {
            let copy = tier.take().unwrap();
            let replies = start(Deadline::Never, |ask| copy.space(ask));
            assert!(matches!(replies.try_recv().unwrap().result, Err(IoError::Closed)));
            drop(copy);
        });
    }
    let tier = tier.unwrap();
    assert!(fetch(&tier, pack(1)).unwrap() == bytes_of(pack(1), 3));
    publish(&tier, pack(2), &bytes_of(pack(2), 1)).unwrap();
}
