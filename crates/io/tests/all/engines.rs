//! Guarantees of every engine, as one suite.

use std::any::Any;
use std::collections::BTreeSet;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Barrier};

use crate::common::{Random, Rig, SECTOR, TEST_TIMEOUT, carry_out, collect, request, sync};
use crossbeam_channel::unbounded;
use dalsegno_core::{Class, Deadline, EngineChoice, Nanos, Stopped};
use dalsegno_io::{
    Completion, Device, DirectoryOptions, FileId, IoError, Memory, OpenMode, Operation, Purpose,
    Source, lend, spawn,
};

macro_rules! suite {
    ($($name:ident)*) => {
        mod uring {
            $(#[test] fn $name() {
                if crate::common::is_available(super::EngineChoice::Uring) {
                    super::$name(super::EngineChoice::Uring);
                }
            })*
        }
        mod psync {
            $(#[test] fn $name() {
                super::$name(super::EngineChoice::Psync);
            })*
        }
    };
}

suite! {
    random_scatter_lists_move_exactly_their_bytes
    the_page_cache_serves_any_memory
    a_read_past_the_end_is_short_not_success
    an_unaligned_end_of_file_is_short_and_says_how_much
    the_largest_scatter_list_moves_completely
    lent_memory_is_reached_without_a_copy
    a_sync_completes_without_memory
    threads_that_share_a_device_get_one_completion_per_request
    a_full_queue_refuses_the_rest_of_a_batch
    a_late_request_is_not_started
    late_requests_do_not_delay_later_ones
    memory_and_guard_are_freed_when_the_receiver_is_gone
    a_closed_file_completes_requests_in_flight
    an_unknown_file_is_an_error
    a_write_to_a_file_open_for_reading_fails_with_its_name
    closing_the_device_completes_all_requests
    a_guard_may_own_the_device
    requests_that_nobody_waits_for_are_served
    a_request_outside_of_the_contract_is_a_bug
}

fn scatter(rig: &Rig, random: &mut Random, len: usize, align: usize) -> Vec<Memory> {
    let mut pieces = Vec::new();
    let mut left = len;
    while left > 0 {
        let take = (align * (1 + random.below(24))).min(left);
        let mut buffer = rig.pool.try_take(take + 8 * align).unwrap();
        // A start that is aligned for the device, but not to a sector.
        drop(buffer.split_to(align * random.below(8)));
        pieces.push(buffer.split_to(take));
        left -= take;
    }
    pieces
}

fn gathered(pieces: &[Memory]) -> Vec<u8> {
    pieces.iter().flat_map(|piece| piece.as_slice().to_vec()).collect()
}

fn compare_with_a_vector(rig: &Rig, align: usize, seed: u64) {
    const SECTORS: usize = 64;
    let mut random = Random::new(seed);
    let file = rig.create("model", SECTORS * SECTOR);
    let mut model = vec![0_u8; SECTORS * SECTOR];
    for _ in 0..200 {
        let first = random.below(SECTORS);
        let count = 1 + random.below((SECTORS - first).min(16));
        let (offset, len) = (first * SECTOR, count * SECTOR);
        let mut memory = scatter(rig, &mut random, len, align);
        if random.below(2) == 0 {
            for piece in &mut memory {
                let bytes = random.bytes(piece.len());
                piece.as_mut_slice().copy_from_slice(&bytes);
            }
            let wrote = carry_out(&*rig.device, Operation::Write, file, offset, memory);
            wrote.result.unwrap();
            model[offset..offset + len].copy_from_slice(&gathered(&wrote.memory));
        } else {
            for piece in &mut memory {
                piece.as_mut_slice().fill(0xEE);
            }
            let got = carry_out(&*rig.device, Operation::Read, file, offset, memory);
            got.result.unwrap();
            assert!(gathered(&got.memory) == model[offset..offset + len], "seed {seed}");
        }
    }
    for part in 0..SECTORS / 16 {
        let range = part * 16 * SECTOR..(part + 1) * 16 * SECTOR;
        assert!(rig.read(file, range.start, range.len()).unwrap() == model[range]);
    }
}

fn random_scatter_lists_move_exactly_their_bytes(engine: EngineChoice) {
    for seed in 1..4 {
        let rig = Rig::new(engine);
        compare_with_a_vector(&rig, rig.device.geometry().memory_align.max(512), seed);
    }
}

fn the_page_cache_serves_any_memory(engine: EngineChoice) {
    let rig = Rig::with(DirectoryOptions { engine, direct: false, ..DirectoryOptions::default() });
    let geometry = rig.device.geometry();
    assert!(!geometry.direct && geometry.memory_align == 1);
    compare_with_a_vector(&rig, 1000, 1);
}

fn a_read_past_the_end_is_short_not_success(engine: EngineChoice) {
    let rig = Rig::new(engine);
    let file = rig.create("file", 4 * SECTOR);
    for (offset, got) in [(2 * SECTOR, 2 * SECTOR), (4 * SECTOR, 0), (400 * SECTOR, 0)] {
        let error = rig.read(file, offset, 8 * SECTOR).unwrap_err();
        let IoError::Short { operation: "read", file, expected, got: reported } = error else {
            panic!("{error}");
        };
        assert_eq!((file.as_str(), expected), ("file", 8 * SECTOR as u64));
        assert_eq!(reported, got as u64);
    }
}

fn an_unaligned_end_of_file_is_short_and_says_how_much(engine: EngineChoice) {
    let rig = Rig::new(engine);
    let file = std::fs::File::create(rig.directory.path().join("odd")).unwrap();
    file.set_len(5000).unwrap();
    let opened = rig.device.open("odd", OpenMode::Read).unwrap();
    assert_eq!(opened.bytes, 5000);
    assert_eq!(rig.read(opened.file, 0, SECTOR).unwrap(), vec![0; SECTOR]);
    for (offset, len, expected) in [(SECTOR, SECTOR, 904), (0, 4 * SECTOR, 5000)] {
        let error = rig.read(opened.file, offset, len).unwrap_err();
        assert!(matches!(error, IoError::Short { got, .. } if got == expected), "{error}");
    }
}

fn the_largest_scatter_list_moves_completely(engine: EngineChoice) {
    let rig = Rig::new(engine);
    let align = rig.device.geometry().memory_align.max(512);
    let len = 1024 * align;
    let bytes = Random::new(5).bytes(len);
    let file = rig.create("file", len);
    let pieces = || {
        let mut buffer = rig.pool.try_take(len).unwrap();
        buffer.as_mut_slice().copy_from_slice(&bytes);
        (0..1024).map(|_| buffer.split_to(align)).collect::<Vec<_>>()
    };
    carry_out(&*rig.device, Operation::Write, file, 0, pieces()).result.unwrap();
    let mut target = pieces();
    for piece in &mut target {
        piece.as_mut_slice().fill(0);
    }
    let got = carry_out(&*rig.device, Operation::Read, file, 0, target);
    got.result.unwrap();
    assert!(gathered(&got.memory) == bytes);
}

fn lent_memory_is_reached_without_a_copy(engine: EngineChoice) {
    let rig = Rig::new(engine);
    let file = rig.create("file", 4 * SECTOR);
    let source = Random::new(6).bytes(6 * SECTOR);
    let start = source.as_ptr().align_offset(SECTOR);
    let source = &source[start..start + 4 * SECTOR];
    let mut target = vec![0_u8; 6 * SECTOR];
    let start = target.as_ptr().align_offset(SECTOR);
    let target = &mut target[start..start + 4 * SECTOR];
    lend(|lender| {
        let memory = vec![lender.shared(source)];
        carry_out(&*rig.device, Operation::Write, file, 0, memory).result.unwrap();
        let memory = vec![lender.exclusive(target)];
        carry_out(&*rig.device, Operation::Read, file, 0, memory).result.unwrap();
    });
    assert!(source == target);
}

fn a_sync_completes_without_memory(engine: EngineChoice) {
    let rig = Rig::new(engine);
    let file = rig.create("file", SECTOR);
    rig.write(file, 0, &[7; SECTOR]);
    sync(&*rig.device, file).unwrap();
    rig.device.sync_names().unwrap();
}

fn threads_that_share_a_device_get_one_completion_per_request(engine: EngineChoice) {
    const THREADS: usize = 8;
    const REQUESTS: usize = 200;
    let rig = Arc::new(Rig::new(engine));
    let free = rig.pool.free_counts();
    let file = rig.create("file", THREADS * REQUESTS * SECTOR);
    let start = Arc::new(Barrier::new(THREADS));
    let work = |thread: usize| {
        let (rig, start) = (Arc::clone(&rig), Arc::clone(&start));
        move || {
            start.wait();
            let (reply, completions) = unbounded();
            let mut seen = BTreeSet::new();
            let mut finish = |done: Completion| {
                done.result.unwrap();
                assert!(seen.insert(done.tag), "completed twice");
            };
            for at in thread * REQUESTS..(thread + 1) * REQUESTS {
                // Few enough that the pool lasts for all threads.
                if at >= thread * REQUESTS + 4 {
                    finish(completions.recv_timeout(TEST_TIMEOUT).unwrap());
                }
                let mut memory = rig.pool.try_take(SECTOR).unwrap();
                memory.as_mut_slice().fill(u8::try_from(at % 251).unwrap());
                let mut write = request(Operation::Write, file, at * SECTOR, vec![memory], &reply);
                write.tag = at as u64;
                rig.device.submit(vec![write]);
            }
            collect(&completions, 4).into_iter().for_each(finish);
            assert_eq!(seen.len(), REQUESTS);
        }
    };
    let threads: Vec<_> = (0..THREADS).map(|t| spawn("submitter", work(t)).unwrap()).collect();
    for thread in threads {
        thread.join().unwrap();
    }
    rig.await_free(free);
    for at in 0..THREADS * REQUESTS {
        let bytes = rig.read(file, at * SECTOR, SECTOR).unwrap();
        assert!(bytes.iter().all(|&byte| usize::from(byte) == at % 251), "sector {at}");
    }
}

fn a_full_queue_refuses_the_rest_of_a_batch(engine: EngineChoice) {
    let rig = Rig::with(DirectoryOptions { engine, queue: 4, ..DirectoryOptions::default() });
    let file = rig.create("file", 10 * SECTOR);
    let (reply, completions) = unbounded();
    let requests = (0..10).map(|tag| {
        let memory = vec![rig.pool.try_take(SECTOR).unwrap()];
        let mut read = request(Operation::Read, file, tag * SECTOR, memory, &reply);
        read.tag = tag as u64;
        read
    });
    rig.device.submit(requests.collect());
    for done in collect(&completions, 10) {
        assert_eq!(done.memory.len(), 1);
        match done.result {
            Ok(()) => assert!(done.tag < 4),
            Err(error) => assert!(
                matches!(error, IoError::Stopped(Stopped::Busy)) && done.tag >= 4,
                "{error}"
            ),
        }
    }
    rig.read(file, 0, SECTOR).unwrap();
}

fn a_late_request_is_not_started(engine: EngineChoice) {
    let rig = Rig::new(engine);
    let free = rig.pool.free_counts();
    let file = rig.create("file", SECTOR);
    let (reply, completions) = unbounded();
    let mut memory = rig.pool.try_take(SECTOR).unwrap();
    memory.as_mut_slice().fill(9);
    let mut late = request(Operation::Write, file, 0, vec![memory], &reply);
    late.deadline = Deadline::At(Nanos(0));
    rig.device.submit(vec![late]);
    let done = collect(&completions, 1).remove(0);
    assert!(
        matches!(done.result, Err(IoError::Stopped(Stopped::Deadline))) && done.memory.len() == 1
    );
    drop(done);
    assert_eq!(rig.pool.free_counts(), free);
    assert_eq!(rig.read(file, 0, SECTOR).unwrap(), vec![0; SECTOR]);
}

fn late_requests_do_not_delay_later_ones(engine: EngineChoice) {
    let rig = Rig::with(DirectoryOptions { engine, depth: 2, ..DirectoryOptions::default() });
    let file = rig.create("file", SECTOR);
    for _ in 0..50 {
        let (reply, completions) = unbounded();
        let requests = (0..7).map(|tag| {
            let mut sync = request(Operation::Sync, file, 0, Vec::new(), &reply);
            let late = Deadline::At(Nanos(0));
            (sync.tag, sync.deadline) = (tag, if tag < 6 { late } else { Deadline::Never });
            sync
        });
        rig.device.submit(requests.collect());
        for done in collect(&completions, 7) {
            assert_eq!(done.result.is_ok(), done.tag == 6);
        }
        sync(&*rig.device, file).unwrap();
    }
}

/// Counts its drops.
struct Guard(Arc<AtomicUsize>);

impl Drop for Guard {
    fn drop(&mut self) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

fn memory_and_guard_are_freed_when_the_receiver_is_gone(engine: EngineChoice) {
    let rig = Rig::new(engine);
    let free = rig.pool.free_counts();
    let file = rig.create("file", 100 * SECTOR);
    let freed = Arc::new(AtomicUsize::new(0));
    let (reply, completions) = unbounded();
    let requests = (0..32).map(|at| {
        let memory = vec![rig.pool.try_take(SECTOR).unwrap()];
        let mut read = request(Operation::Read, file, at * SECTOR, memory, &reply);
        read.guard = Some(Arc::new(Guard(Arc::clone(&freed))) as Arc<dyn Any + Send + Sync>);
        read
    });
    let requests = requests.collect();
    drop(completions);
    rig.device.submit(requests);
    rig.await_free(free);
    assert_eq!(freed.load(Ordering::SeqCst), 32);
}

fn a_closed_file_completes_requests_in_flight(engine: EngineChoice) {
    let rig = Rig::new(engine);
    let file = rig.create("file", 32 * SECTOR);
    let (reply, completions) = unbounded();
    let requests = (0..32).map(|at| {
        let memory = vec![rig.pool.try_take(SECTOR).unwrap()];
        request(Operation::Write, file, at * SECTOR, memory, &reply)
    });
    rig.device.submit(requests.collect());
    rig.device.close(file);
    rig.device.remove("file").unwrap();
    assert!(collect(&completions, 32).iter().all(|done| done.result.is_ok()));
    assert!(rig.device.list().unwrap().is_empty());
}

fn an_unknown_file_is_an_error(engine: EngineChoice) {
    let rig = Rig::new(engine);
    let error = rig.read(FileId(77), 0, SECTOR).unwrap_err();
    assert!(error.to_string().contains("closed file 77"), "{error}");
}

fn a_write_to_a_file_open_for_reading_fails_with_its_name(engine: EngineChoice) {
    let rig = Rig::new(engine);
    let file = rig.create("segment-1", SECTOR);
    rig.device.close(file);
    let file = rig.device.open("segment-1", OpenMode::Read).unwrap().file;
    let memory = rig.pool.try_take(SECTOR).unwrap();
    let done = carry_out(&*rig.device, Operation::Write, file, 0, vec![memory]);
    let error = done.result.unwrap_err();
    assert!(error.to_string().starts_with("write of segment-1 failed: "), "{error}");
    assert_eq!(done.memory.len(), 1);
}

fn closing_the_device_completes_all_requests(engine: EngineChoice) {
    let Rig { directory, pool, device } =
        Rig::with(DirectoryOptions { engine, depth: 2, ..DirectoryOptions::default() });
    let free = pool.free_counts();
    let file = device.open("file", OpenMode::Create { bytes: 8 << 20 }).unwrap().file;
    let (reply, completions) = unbounded();
    let requests = (0..8).map(|at| {
        let memory = vec![pool.try_take(1 << 20).unwrap()];
        request(Operation::Write, file, at << 20, memory, &reply)
    });
    device.submit(requests.collect());
    drop(Arc::into_inner(device).expect("nobody else holds the device"));
    for done in collect(&completions, 8) {
        assert!(matches!(done.result, Ok(()) | Err(IoError::Closed)), "{:?}", done.result);
    }
    assert_eq!(pool.free_counts(), free);
    drop(directory);
}

fn a_guard_may_own_the_device(engine: EngineChoice) {
    let Rig { directory, pool, device } = Rig::new(engine);
    let file = device.open("file", OpenMode::Create { bytes: SECTOR as u64 }).unwrap().file;
    let (reply, completions) = unbounded();
    let mut last = request(Operation::Sync, file, 0, Vec::new(), &reply);
    last.guard = Some(Arc::clone(&device) as Arc<dyn Any + Send + Sync>);
    device.submit(vec![last]);
    // The last user closes the device, possibly on its own thread.
    drop(device);
    let done = completions.recv_timeout(TEST_TIMEOUT).unwrap();
    assert!(done.result.is_ok());
    drop((directory, pool));
}

fn requests_that_nobody_waits_for_are_served(engine: EngineChoice) {
    let rig = Rig::new(engine);
    let file = rig.create("file", SECTOR);
    let (reply, completions) = unbounded();
    let memory = vec![rig.pool.try_take(SECTOR).unwrap()];
    let mut read = request(Operation::Read, file, 0, memory, &reply);
    read.purpose = Purpose::of(Class::Upkeep);
    rig.device.submit(vec![read]);
    collect(&completions, 1).remove(0).result.unwrap();
}

fn a_request_outside_of_the_contract_is_a_bug(engine: EngineChoice) {
    let rig = Rig::new(engine);
    let file = rig.create("file", 2 * SECTOR);
    let (reply, completions) = unbounded();
    let memory = || rig.pool.try_take(SECTOR).unwrap();
    let mut many = memory();
    let bugs = [
        request(Operation::Read, file, 100, vec![memory()], &reply),
        request(Operation::Read, file, 0, vec![memory().split_to(100)], &reply),
        request(Operation::Sync, file, 0, vec![memory()], &reply),
        request(Operation::Write, file, 0, Vec::new(), &reply),
        request(Operation::Read, file, 0, (0..1025).map(|_| many.split_to(0)).collect(), &reply),
    ];
    for bug in bugs {
        let submit = std::panic::AssertUnwindSafe(|| rig.device.submit(vec![bug]));
        assert!(std::panic::catch_unwind(submit).is_err());
    }
    assert!(completions.try_recv().is_err());
}
