//! Memory that a process stops waiting for.

use std::sync::atomic::{AtomicU64, Ordering};

use dalsegno_io::{Backing, Region, StopSignal};

#[test]
fn a_stopped_allocation_leaves_no_file_and_a_file_that_was_there() {
    let folder = tempfile::tempdir_in("/dev/shm").unwrap();
    let path = folder.path().join("arena");
    let backing = Backing::Named(path.clone());
    let bytes = 192 << 20;
    let left = AtomicU64::new(2);
    let stop = StopSignal::new(move || left.fetch_sub(1, Ordering::Relaxed) == 1);
    let error = Region::shared_unless(&backing, bytes, "a test", &stop).unwrap_err();
    assert!(error.to_string().contains("201326592 bytes of a test"), "{error}");
    assert!(rustix::fs::stat(&path).is_err());
    drop(Region::shared(&backing, 4096, "a test").unwrap());
    let stop = StopSignal::new(|| true);
    assert!(Region::shared_unless(&backing, 4096, "a test", &stop).is_err());
    assert!(rustix::fs::stat(&path).is_ok());
}
