//! A forked child has copies of everything except the threads, and must not disturb its parent.
#![expect(clippy::unwrap_used, reason = "a test may panic")]

use std::sync::Arc;

mod common;

use common::child::in_child;
use common::{Rig, SECTOR, is_available};
use dalsegno_core::EngineChoice;
use dalsegno_io::{Claim, Process, Region, Touch, forked_amid_threads, spawn};

/// Whether any part of this range is mapped.
fn is_mapped((start, bytes): (usize, usize)) -> bool {
    let start = std::ptr::with_exposed_provenance_mut(start);
    // SAFETY: reads and writes nothing: it fails where nothing is mapped.
    unsafe { libc::msync(start, bytes, libc::MS_ASYNC) == 0 }
}

fn a_child_drops_its_copy_and_the_parent_continues(engine: EngineChoice) {
    let rig = Rig::new(engine);
    let file = rig.create("file", SECTOR);
    let mut rig = Some(rig);
    for _ in 0..3 {
        in_child(|| {
            let Rig { directory, pool, device } = rig.take().unwrap();
            drop((device, pool));
            // The parent's files stay.
            std::mem::forget(directory);
        });
    }
    let rig = rig.unwrap();
    rig.write(file, 0, &[7; SECTOR]);
    assert_eq!(rig.read(file, 0, SECTOR).unwrap(), [7; SECTOR]);
}

#[test]
fn a_child_drops_its_copy_of_a_ring_and_the_parent_continues() {
    if is_available(EngineChoice::Uring) {
        a_child_drops_its_copy_and_the_parent_continues(EngineChoice::Uring);
    }
}

#[test]
fn a_child_drops_its_copy_of_a_thread_pool_and_the_parent_continues() {
    a_child_drops_its_copy_and_the_parent_continues(EngineChoice::Psync);
}

#[test]
fn a_child_has_no_arena_and_unmaps_nothing_at_its_address() {
    let mut pool = Some(common::pool());
    let arena = pool.as_ref().unwrap().region().range();
    assert!(is_mapped(arena));
    in_child(|| {
        assert!(!is_mapped(arena));
        let start = std::ptr::with_exposed_provenance_mut(arena.0);
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED_NOREPLACE;
        // SAFETY: a fresh mapping where there was none.
        let mapped = unsafe { libc::mmap(start, arena.1, libc::PROT_READ, flags, -1, 0) };
        assert_eq!(mapped, start);
        drop(pool.take());
        assert!(is_mapped(arena));
    });
    assert!(is_mapped(arena));
}

#[test]
fn a_child_has_no_region_and_ends_no_claim() {
    let region = Arc::new(Region::anonymous(1 << 20, Touch::AtUse, "a test").unwrap());
    let mut claim = Claim::of(&region, 0, SECTOR, ());
    claim.memory().as_mut_slice().fill(7);
    let block = claim.fill().unwrap();
    let place = (block.as_slice().as_ptr() as usize, SECTOR);
    let mut both = Some((block, region));
    in_child(|| {
        assert!(!is_mapped(place));
        let (block, region) = both.take().unwrap();
        let panics =
            |act: &dyn Fn()| std::panic::catch_unwind(std::panic::AssertUnwindSafe(act)).is_err();
        assert!(panics(&|| assert!(!block.as_slice().is_empty())));
        assert!(panics(&|| drop(Claim::of(&region, SECTOR, SECTOR, ()))));
        drop((block, region));
    });
    let (block, _) = both.unwrap();
    assert!(block.as_slice().iter().all(|byte| *byte == 7));
}

#[test]
fn a_child_forked_while_threads_ran_starts_none() {
    let (hold, blocked) = std::sync::mpsc::channel::<()>();
    let thread = spawn("parent", move || assert!(blocked.recv().is_err())).unwrap();
    let parent = Process::this();
    assert_eq!(forked_amid_threads(), None);
    in_child(|| {
        assert_eq!(forked_amid_threads(), Some(parent));
        let error = spawn("child", || ()).unwrap_err();
        assert!(error.to_string().contains(&format!("process {} ", parent.id())), "{error}");
    });
    drop(hold);
    thread.join().unwrap();
}
