//! Guarantees for a call that drives a ring of its own.

use crate::common;
use std::collections::BTreeSet;
use std::sync::{Arc, Barrier};
use std::time::Duration;

use crate::common::{Random, Rig, SECTOR, TEST_TIMEOUT, is_available, request};
use crossbeam_channel::{Receiver, unbounded};
use dalsegno_core::{Deadline, EngineChoice, Nanos, Stopped};
use dalsegno_io::{
    CallRing, Completion, Device, DirectoryOptions, FileId, IoError, Memory, Operation, Source,
    spawn,
};

/// A rig whose calls may have rings; `None` if the kernel or the file system has none.
fn rig_with(options: DirectoryOptions) -> Option<Rig> {
    if !is_available(EngineChoice::Uring) {
        return None;
    }
    let stand = Rig::with(DirectoryOptions { engine: EngineChoice::Uring, ..options });
    let has_rings = stand.device.call_ring().is_some();
    if !has_rings {
        common::skip("io_uring", "no rings for calls");
    }
    has_rings.then_some(stand)
}

/// A ring, as soon as one is free. On a busy machine the engine may reap abandoned rings later than others are taken.
fn await_ring(stand: &Rig) -> CallRing {
    for _ in 0..TEST_TIMEOUT.as_millis() {
        if let Some(ring) = stand.device.call_ring() {
            return ring;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    panic!("no ring that was left came back");
}

/// Waits as a call does: on the ring while it has requests, otherwise on the channel.
fn next(ring: &mut CallRing, completions: &Receiver<Completion>) -> Completion {
    loop {
        if let Ok(done) = completions.try_recv() {
            return done;
        }
        if ring.in_flight() == 0 {
            return completions.recv_timeout(TEST_TIMEOUT).unwrap();
        }
        ring.wait(false, Some(TEST_TIMEOUT));
    }
}

fn on_ring(
    stand: &Rig,
    ring: &mut CallRing,
    operation: Operation,
    (file, offset): (FileId, usize),
    memory: Vec<Memory>,
) -> Completion {
    let (reply, completions) = unbounded();
    stand.device.submit_on(ring, request(operation, file, offset, memory, &reply));
    drop(reply);
    let done = next(ring, &completions);
    assert!(completions.try_recv().is_err() && ring.in_flight() == 0, "a second completion");
    done
}

#[test]
fn a_call_ring_moves_exactly_the_bytes_of_a_vector() {
    const SECTORS: usize = 64;
    let Some(stand) = rig_with(DirectoryOptions::default()) else { return };
    let mut ring = stand.device.call_ring().unwrap();
    let file = stand.create("model", SECTORS * SECTOR);
    let mut random = Random::new(11);
    let mut model = vec![0_u8; SECTORS * SECTOR];
    for _ in 0..300 {
        let first = random.below(SECTORS);
        let count = 1 + random.below((SECTORS - first).min(16));
        let range = first * SECTOR..(first + count) * SECTOR;
        let mut memory: Vec<_> = (0..count).map(|_| stand.pool.try_take(SECTOR).unwrap()).collect();
        if random.below(2) == 0 {
            let bytes = random.bytes(count * SECTOR);
            for (piece, bytes) in memory.iter_mut().zip(bytes.chunks(SECTOR)) {
                piece.as_mut_slice().copy_from_slice(bytes);
            }
            model[range.clone()].copy_from_slice(&bytes);
            let place = (file, range.start);
            on_ring(&stand, &mut ring, Operation::Write, place, memory).result.unwrap();
        } else {
            let place = (file, range.start);
            let done = on_ring(&stand, &mut ring, Operation::Read, place, memory);
            done.result.unwrap();
            let got: Vec<u8> = done.memory.iter().flat_map(|m| m.as_slice().to_vec()).collect();
            assert!(got == model[range]);
        }
    }
    assert!(stand.read(file, 0, model.len()).unwrap() == model);
}

#[test]
fn a_read_past_the_end_is_short_on_a_call_ring_too() {
    let Some(stand) = rig_with(DirectoryOptions::default()) else { return };
    let mut ring = stand.device.call_ring().unwrap();
    let file = stand.create("file", 4 * SECTOR);
    for (offset, expected) in [(2 * SECTOR, 2 * SECTOR), (4 * SECTOR, 0)] {
        let memory = vec![stand.pool.try_take(8 * SECTOR).unwrap()];
        let done = on_ring(&stand, &mut ring, Operation::Read, (file, offset), memory);
        let error = done.result.unwrap_err();
        assert!(matches!(error, IoError::Short { got, .. } if got == expected as u64), "{error}");
        assert_eq!(done.memory.len(), 1);
    }
}

#[test]
fn an_error_on_a_call_ring_names_its_file() {
    let Some(stand) = rig_with(DirectoryOptions::default()) else { return };
    let mut ring = stand.device.call_ring().unwrap();
    let file = stand.create("segment-1", SECTOR);
    stand.device.close(file);
    let file = stand.device.open("segment-1", dalsegno_io::OpenMode::Read).unwrap().file;
    let memory = || vec![stand.pool.try_take(SECTOR).unwrap()];
    let error =
        on_ring(&stand, &mut ring, Operation::Write, (file, 0), memory()).result.unwrap_err();
    assert!(error.to_string().starts_with("write of segment-1 failed: "), "{error}");
    let closed = (FileId(77), 0);
    let error = on_ring(&stand, &mut ring, Operation::Read, closed, memory()).result.unwrap_err();
    assert!(error.to_string().contains("closed file 77"), "{error}");
}

#[test]
fn a_late_request_and_a_sync_leave_a_call_ring_empty() {
    let Some(stand) = rig_with(DirectoryOptions::default()) else { return };
    let mut ring = stand.device.call_ring().unwrap();
    let file = stand.create("file", SECTOR);
    let (reply, completions) = unbounded();
    let memory = vec![stand.pool.try_take(SECTOR).unwrap()];
    let mut late = request(Operation::Write, file, 0, memory, &reply);
    late.deadline = Deadline::At(Nanos(0));
    stand.device.submit_on(&mut ring, late);
    assert_eq!(ring.in_flight(), 0);
    let done = completions.recv_timeout(TEST_TIMEOUT).unwrap();
    assert!(
        matches!(done.result, Err(IoError::Stopped(Stopped::Deadline))) && done.memory.len() == 1
    );
    on_ring(&stand, &mut ring, Operation::Sync, (file, 0), Vec::new()).result.unwrap();
}

#[test]
fn a_wait_with_nothing_in_flight_ends_in_time() {
    let Some(stand) = rig_with(DirectoryOptions::default()) else { return };
    let mut ring = stand.device.call_ring().unwrap();
    for limit in [Duration::ZERO, Duration::from_millis(3)] {
        ring.wait(false, Some(limit));
        ring.wait(true, Some(limit));
    }
}

#[test]
fn a_wait_for_all_ends_when_all_have_completed() {
    let Some(stand) = rig_with(DirectoryOptions::default()) else { return };
    let mut ring = stand.device.call_ring().unwrap();
    let file = stand.create("file", 64 * SECTOR);
    for count in [1, 2, 8] {
        let (reply, completions) = unbounded();
        for at in 0..count {
            let memory = vec![stand.pool.try_take(SECTOR).unwrap()];
            let read = request(Operation::Read, file, at * SECTOR, memory, &reply);
            stand.device.submit_on(&mut ring, read);
        }
        ring.wait(true, Some(TEST_TIMEOUT));
        assert_eq!(ring.in_flight(), 0);
        common::collect(&completions, count);
    }
}

#[test]
fn call_rings_are_bounded_and_returned() {
    let Some(stand) = rig_with(DirectoryOptions::default()) else { return };
    for _ in 0..3 {
        let rings: Vec<_> = std::iter::from_fn(|| stand.device.call_ring()).take(100).collect();
        assert!(rings.len() < 100, "no bound");
        drop(rings);
        assert!(stand.device.call_ring().is_some());
    }
}

#[test]
fn the_engine_reaps_requests_that_a_call_abandons() {
    let Some(stand) = rig_with(DirectoryOptions::default()) else { return };
    let free = stand.pool.free_counts();
    let file = stand.create("file", 64 * SECTOR);
    stand.write(file, 0, &vec![1; 64 * SECTOR]);
    for round in 0..200 {
        let (reply, completions) = unbounded();
        let mut ring = stand.device.call_ring().expect("abandoned rings were returned");
        for at in 0..8 {
            let memory = vec![stand.pool.try_take(SECTOR).unwrap()];
            let operation = if at % 2 == 0 { Operation::Read } else { Operation::Write };
            let place = (round + at) % 64 * SECTOR;
            stand.device.submit_on(&mut ring, request(operation, file, place, memory, &reply));
        }
        drop((ring, reply));
        // Half of the callers wait for all their completions; the others are gone.
        if round % 2 == 0 {
            let completed = (0..8).map(|_| completions.recv_timeout(TEST_TIMEOUT).unwrap());
            assert!(completed.into_iter().all(|done| done.result.is_ok()));
        }
        drop(completions);
        stand.await_free(free);
    }
}

#[test]
fn a_thread_may_exit_with_requests_on_its_ring() {
    let Some(stand) = rig_with(DirectoryOptions::default()) else { return };
    let stand = Arc::new(stand);
    let free = stand.pool.free_counts();
    let file = stand.create("file", 16 * SECTOR);
    for _ in 0..50 {
        let on_thread = Arc::clone(&stand);
        let leave = move || {
            let (reply, _) = unbounded();
            let mut ring = await_ring(&on_thread);
            let memory = vec![on_thread.pool.try_take(16 * SECTOR).unwrap()];
            on_thread
                .device
                .submit_on(&mut ring, request(Operation::Read, file, 0, memory, &reply));
        };
        spawn("leaves", leave).unwrap().join().unwrap();
    }
    stand.await_free(free);
}

/// One thread's part of the stress: on its own sectors, through its rings, through the queue, and with abandoned rings.
fn hurry(stand: &Rig, file: FileId, thread: usize, requests: usize) {
    let mut random = Random::new(thread as u64);
    let mut at = 0;
    while at < requests {
        let (reply, completions) = unbounded();
        let mut ring = stand.device.call_ring();
        let count = (1 + random.below(6)).min(requests - at);
        for number in at..at + count {
            let sector = thread * requests + number;
            let mut memory = stand.pool.try_take(SECTOR).unwrap();
            memory.as_mut_slice().fill(u8::try_from(sector % 251).unwrap());
            let mut write = request(Operation::Write, file, sector * SECTOR, vec![memory], &reply);
            write.tag = number as u64;
            match &mut ring {
                Some(ring) if random.below(4) > 0 => stand.device.submit_on(ring, write),
                _ => stand.device.submit(vec![write]),
            }
        }
        let leaves = random.below(4) == 0;
        let mut seen = BTreeSet::new();
        if leaves {
            ring = None;
        }
        for _ in 0..count {
            let done = match &mut ring {
                Some(ring) => next(ring, &completions),
                None => completions.recv_timeout(TEST_TIMEOUT).unwrap(),
            };
            done.result.unwrap();
            assert!(seen.insert(done.tag), "completed twice");
        }
        assert!(completions.try_recv().is_err(), "more completions than requests");
        at += count;
    }
}

/// With few places most requests find none and go through the queue, so no wake-up may be lost between the two.
#[test]
fn calls_that_share_few_places_get_one_completion_each() {
    const THREADS: usize = 8;
    const REQUESTS: usize = 300;
    for depth in [1, 2, 4, 64] {
        let Some(stand) = rig_with(DirectoryOptions { depth, ..DirectoryOptions::default() })
        else {
            return;
        };
        let stand = Arc::new(stand);
        let free = stand.pool.free_counts();
        let file = stand.create("file", THREADS * REQUESTS * SECTOR);
        let start = Arc::new(Barrier::new(THREADS));
        let work = |thread: usize| {
            let (stand, start) = (Arc::clone(&stand), Arc::clone(&start));
            move || {
                start.wait();
                hurry(&stand, file, thread, REQUESTS);
            }
        };
        let threads: Vec<_> =
            (0..THREADS).map(|thread| spawn("caller", work(thread)).unwrap()).collect();
        for thread in threads {
            thread.join().unwrap();
        }
        stand.await_free(free);
        for sector in 0..THREADS * REQUESTS {
            let bytes = stand.read(file, sector * SECTOR, SECTOR).unwrap();
            assert!(bytes.iter().all(|&byte| usize::from(byte) == sector % 251), "sector {sector}");
        }
    }
}
