//! A forked child has copies of everything except the threads, and must not disturb its parent.
#![expect(clippy::unwrap_used, reason = "a test may panic")]

mod common;

use common::child::in_child;
use common::{Rig, SECTOR, is_available};
use dalsegno_core::EngineChoice;
use dalsegno_io::{BlockFrames, Memory, Process, forked_amid_threads, spawn};

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
    let arena = pool.as_ref().unwrap().address_range();
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
fn a_child_has_no_frames_and_returns_none() {
    let frames = BlockFrames::new(1 << 20).unwrap();
    let block = frames.keep(&[Memory::owned(vec![7; SECTOR], ())]).unwrap();
    let arena = (block.slices().next().unwrap().as_ptr() as usize, SECTOR);
    let mut both = Some((block, frames));
    in_child(|| {
        assert!(!is_mapped(arena));
        let (block, frames) = both.take().unwrap();
        let reads = || block.slices().count();
        assert!(std::panic::catch_unwind(std::panic::AssertUnwindSafe(reads)).is_err());
        let free = frames.free_bytes();
        drop(block);
        assert_eq!(frames.free_bytes(), free);
    });
    let (block, _) = both.unwrap();
    assert!(block.slices().flatten().all(|byte| *byte == 7));
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
