//! What every tier must do, on each kind: in memory, a local directory, and mounts of shared file systems.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use dalsegno_core::{Deadline, NamespaceId, Nanos, Stopped};
use dalsegno_far::{DirectoryTierOptions, Listed, Object, ObjectName, Tier, WriterId};
use dalsegno_io::{IoError, Memory, Operation, Source, Watch, spawn};

use crate::common::{
    Pair, SECTOR, TEST_TIMEOUT, bytes_of, call, call_until, complete, eventually, fetch,
    fetch_visible, on_every_location, open, pack, pieces, publish, read, read_file, read_request,
    start, writer,
};
use crate::dose::dose;

fn list(tier: &dyn Tier, writer: WriterId, after: Option<Object>) -> Vec<Listed> {
    call(|ask| tier.list(writer, after, ask)).unwrap()
}

fn objects(tier: &dyn Tier, writer: WriterId) -> Vec<Object> {
    list(tier, writer, None).iter().map(|listed| listed.object).collect()
}

#[test]
fn an_object_of_one_mount_is_read_whole_and_in_ranges_on_the_other() {
    on_every_location(|pair| {
        let bytes = bytes_of(pack(1), 50);
        publish(&*pair.near, pack(1), &bytes).unwrap();
        assert!(fetch(&*pair.near, pack(1)).unwrap() == bytes, "{}", pair.label);
        assert!(fetch_visible(&*pair.other, pack(1)) == bytes, "{}", pair.label);
        for tier in [&*pair.near, &*pair.other] {
            let file = tier.file(pack(1));
            for (offset, len) in [(0, 50), (49, 1), (7, 13), (0, 1)] {
                let (offset, len) = (offset * SECTOR, len * SECTOR);
                let range = read_file(tier, file, offset, len).unwrap();
                assert!(range == bytes[offset..offset + len], "{} {offset} {len}", pair.label);
            }
            tier.forget(file);
        }
        eventually("a writer", || {
            (call(|ask| pair.other.writers(ask)).unwrap() == [writer(1)]).then_some(())
        });
        let listed = eventually("a listing", || {
            Some(list(&*pair.other, writer(1), None)).filter(|listed| !listed.is_empty())
        });
        assert_eq!(listed, [Listed { object: Object::Pack(1), bytes: 50 * 4096 }]);
    });
}

#[test]
fn many_requests_of_one_batch_each_complete_with_their_bytes() {
    on_every_location(|pair| {
        let bytes = bytes_of(pack(1), 40);
        publish(&*pair.near, pack(1), &bytes).unwrap();
        fetch_visible(&*pair.other, pack(1));
        let file = pair.other.file(pack(1));
        let (requests, completions): (Vec<_>, Vec<_>) =
            (0..40).map(|at| read_request(file, at * SECTOR, vec![Memory::zeroed(SECTOR)])).unzip();
        pair.other.submit(requests);
        for (at, completions) in completions.iter().enumerate() {
            let read = complete(completions).unwrap();
            assert!(read == bytes[at * SECTOR..(at + 1) * SECTOR], "{} {at}", pair.label);
        }
        // Into pieces, in the order of the file.
        let memory =
            vec![Memory::zeroed(100), Memory::zeroed(SECTOR), Memory::zeroed(SECTOR - 100)];
        let (request, completions) = read_request(file, 3 * SECTOR, memory);
        pair.other.submit(vec![request]);
        assert!(complete(&completions).unwrap() == bytes[3 * SECTOR..5 * SECTOR]);
    });
}

#[test]
fn a_second_publish_of_a_name_fails_and_keeps_the_first_bytes() {
    on_every_location(|pair| {
        let bytes = bytes_of(pack(1), 3);
        publish(&*pair.near, pack(1), &bytes).unwrap();
        fetch_visible(&*pair.other, pack(1));
        for tier in [&*pair.near, &*pair.other] {
            let error = publish(tier, pack(1), &bytes_of(pack(2), 3)).unwrap_err();
            assert!(error.is_exists(), "{} {error}", pair.label);
            assert!(fetch(tier, pack(1)).unwrap() == bytes, "{}", pair.label);
        }
        assert_eq!(objects(&*pair.near, writer(1)), [Object::Pack(1)]);
    });
}

#[test]
fn a_missing_object_is_not_found() {
    on_every_location(|pair| {
        let assert_missing = |name| {
            let fetched = fetch(&*pair.near, name).unwrap_err();
            let requested = read(&*pair.near, name, 0, SECTOR).unwrap_err();
            let age = call(|ask| pair.near.age(name, ask)).unwrap_err();
            for error in [fetched, requested, age] {
                assert!(error.is_not_found(), "{} {error}", pair.label);
            }
        };
        assert_missing(pack(1));
        publish(&*pair.near, pack(1), &bytes_of(pack(1), 1)).unwrap();
        assert_missing(pack(2));
        assert_missing(writer(2).object(Object::Pack(1)));
        assert!(list(&*pair.near, writer(2), None).is_empty());
    });
}

#[test]
fn a_name_for_requests_is_valid_until_it_is_forgotten() {
    on_every_location(|pair| {
        let file = pair.near.file(pack(1));
        assert!(read_file(&*pair.near, file, 0, SECTOR).unwrap_err().is_not_found());
        publish(&*pair.near, pack(1), &bytes_of(pack(1), 1)).unwrap();
        let same = pair.near.file(pack(1));
        assert!(read_file(&*pair.near, file, 0, SECTOR).unwrap() == bytes_of(pack(1), 1));
        pair.near.forget(file);
        assert!(read_file(&*pair.near, file, 0, SECTOR).is_err());
        assert!(read_file(&*pair.near, same, 0, SECTOR).unwrap() == bytes_of(pack(1), 1));
        pair.near.forget(file);
    });
}

#[test]
fn a_listing_is_sorted_begins_after_an_object_and_shows_only_ours() {
    on_every_location(|pair| {
        let all = [
            Object::Pack(2),
            Object::Pack(16),
            Object::Catalog(1),
            Object::Namespace(NamespaceId([5; 16])),
            Object::Beat(3),
        ];
        for object in all.iter().rev() {
            publish(&*pair.near, writer(1).object(*object), &[7; SECTOR]).unwrap();
        }
        for name in ["README", "0000000000000002.pac", ".0000000000000009.pack.00.tmp", "2.pack"] {
            let Some(path) = pair.path(writer(1), name) else { continue };
            #[expect(clippy::disallowed_methods, reason = "files that are not ours")]
            std::fs::write(path, b"x").unwrap();
        }
        if let Some(folder) = &pair.folder {
            #[expect(clippy::disallowed_methods, reason = "folders that are not ours")]
            std::fs::create_dir(folder.join("lost+found")).unwrap();
        }
        for tier in [&*pair.near, &*pair.other] {
            eventually("all objects", || (objects(tier, writer(1)) == all).then_some(()));
            for (at, object) in all.iter().enumerate() {
                let after = list(tier, writer(1), Some(*object));
                let expected: Vec<Listed> =
                    all[at + 1..].iter().map(|o| Listed { object: *o, bytes: 4096 }).collect();
                assert_eq!(after, expected, "{}", pair.label);
            }
            assert_eq!(list(tier, writer(1), Some(Object::Pack(7))).len(), 4);
            assert_eq!(call(|ask| tier.writers(ask)).unwrap(), [writer(1)], "{}", pair.label);
        }
    });
}

#[test]
fn writers_are_sorted_and_disappear_when_their_empty_folder_is_removed() {
    on_every_location(|pair| {
        assert_eq!(call(|ask| pair.near.writers(ask)).unwrap(), []);
        for number in [30, 4, 200] {
            let name = writer(number).object(Object::Pack(0));
            publish(&*pair.near, name, &bytes_of(name, 1)).unwrap();
        }
        let all = [4, 30, 200].map(writer);
        eventually("all writers", || {
            (call(|ask| pair.other.writers(ask)).unwrap() == all).then_some(())
        });
        let remove_writer = |number| call(|ask| pair.near.remove_writer(writer(number), ask));
        remove_writer(30).unwrap();
        assert_eq!(call(|ask| pair.near.writers(ask)).unwrap(), all);
        call(|ask| pair.near.remove(writer(30).object(Object::Pack(0)), ask)).unwrap();
        if pair.keeps_folders {
            assert_eq!(call(|ask| pair.near.writers(ask)).unwrap(), all);
        }
        for _ in 0..2 {
            remove_writer(30).unwrap();
            let left = [writer(4), writer(200)];
            let mut writers = call(|ask| pair.near.writers(ask)).unwrap();
            if !pair.keeps_folders {
                // Some servers show a prefix after its last object was removed. It is empty.
                let has_objects = |writer: &WriterId| {
                    !call(|ask| pair.near.list(*writer, None, ask)).unwrap().is_empty()
                };
                writers.retain(has_objects);
            }
            assert_eq!(writers, left, "{}", pair.label);
        }
        remove_writer(5).unwrap();
        let name = writer(30).object(Object::Pack(0));
        publish(&*pair.near, name, &bytes_of(name, 1)).unwrap();
    });
}

#[test]
fn removing_an_object_twice_is_no_error_and_harms_no_reader() {
    on_every_location(|pair| {
        let bytes = bytes_of(pack(1), 9);
        publish(&*pair.near, pack(1), &bytes).unwrap();
        fetch_visible(&*pair.other, pack(1));
        let file = pair.other.file(pack(1));
        assert!(read_file(&*pair.other, file, 0, SECTOR).unwrap() == bytes[..SECTOR]);
        for _ in 0..2 {
            call(|ask| pair.near.remove(pack(1), ask)).unwrap();
            assert!(fetch(&*pair.near, pack(1)).unwrap_err().is_not_found());
        }
        // The reader has the file open: it reads on, or fails.
        match read_file(&*pair.other, file, SECTOR, 8 * SECTOR) {
            Ok(read) => assert!(read == bytes[SECTOR..], "{}", pair.label),
            Err(error) => assert!(matches!(error, IoError::Os { .. }), "{} {error}", pair.label),
        }
        pair.other.forget(file);
        eventually("the removal", || fetch(&*pair.other, pack(1)).is_err().then_some(()));
        call(|ask| pair.near.remove(pack(99), ask)).unwrap();
        call(|ask| pair.near.remove(writer(99).object(Object::Pack(1)), ask)).unwrap();
    });
}

#[test]
fn a_request_past_the_end_is_short() {
    on_every_location(|pair| {
        publish(&*pair.near, pack(1), &bytes_of(pack(1), 2)).unwrap();
        for (offset, expected) in [(SECTOR, 4096), (2 * SECTOR, 0), (70 * SECTOR, 0)] {
            let error = read(&*pair.near, pack(1), offset, 3 * SECTOR).unwrap_err();
            let is_short = matches!(error, IoError::Short { got, .. } if got == expected);
            // Azurite answers a range that begins at the end with one that ends before it begins.
            let is_refused = pair.label.starts_with("az://") && offset == 2 * SECTOR;
            assert!(is_short || is_refused, "{} {error}", pair.label);
        }
    });
}

#[test]
fn a_fetch_reads_at_most_its_limit() {
    on_every_location(|pair| {
        publish(&*pair.near, pack(1), &bytes_of(pack(1), 2)).unwrap();
        let fetch = |limit| call(|ask| pair.near.fetch(pack(1), limit, ask));
        assert_eq!(fetch(8192).unwrap().len(), 8192);
        for limit in [8191, 0] {
            assert!(fetch(limit).unwrap_err().is_too_large(), "{}", pair.label);
        }
    });
}

#[test]
fn an_age_grows_by_the_clock_of_the_location() {
    on_every_location(|pair| {
        publish(&*pair.near, pack(1), &bytes_of(pack(1), 1)).unwrap();
        fetch_visible(&*pair.other, pack(1));
        let age = |tier: &dyn Tier| call(|ask| tier.age(pack(1), ask)).unwrap();
        let early = age(&*pair.other);
        (pair.pass)(Duration::from_millis(2100));
        for tier in [&*pair.near, &*pair.other] {
            let late = age(tier);
            // Some file systems count whole seconds.
            let grew = late >= early + Duration::from_secs(1) && late < TEST_TIMEOUT;
            assert!(grew, "{} {early:?} {late:?}", pair.label);
        }
    });
}

#[test]
fn a_late_call_ends_with_its_deadline() {
    on_every_location(|pair| {
        let past = Deadline::At(Nanos::default());
        let near = &*pair.near;
        let results = [
            call_until(past, |ask| near.publish(pack(1), pieces(&[1; SECTOR]), ask)),
            call_until(past, |ask| near.remove(pack(1), ask)),
            call_until(past, |ask| near.remove_writer(writer(1), ask)),
            call_until(past, |ask| near.writers(ask)).map(drop),
            call_until(past, |ask| near.list(writer(1), None, ask)).map(drop),
            call_until(past, |ask| near.fetch(pack(1), 1, ask)).map(drop),
            call_until(past, |ask| near.age(pack(1), ask)).map(drop),
            call_until(past, |ask| near.writer_age(writer(1), ask)).map(drop),
            call_until(past, |ask| near.space(ask)).map(drop),
        ];
        for result in results {
            assert!(
                matches!(result, Err(IoError::Stopped(Stopped::Deadline))),
                "{} {result:?}",
                pair.label
            );
        }
        let file = near.file(pack(1));
        let (mut request, completions) = read_request(file, 0, vec![Memory::zeroed(SECTOR)]);
        request.deadline = past;
        near.submit(vec![request]);
        assert!(
            matches!(complete(&completions), Err(IoError::Stopped(Stopped::Deadline))),
            "{}",
            pair.label
        );
        assert!(fetch(near, pack(1)).unwrap_err().is_not_found());
    });
}

#[test]
fn space_and_facts_are_plausible() {
    on_every_location(|pair| {
        let space = call(|ask| pair.near.space(ask)).unwrap();
        assert!(space.free_bytes <= space.total_bytes && space.total_bytes > 0, "{}", pair.label);
        let (facts, geometry) = (pair.near.facts(), pair.near.geometry());
        assert_eq!(facts.name, geometry.engine);
        assert!(facts.workers > 0 && geometry.memory_align.is_power_of_two());
    });
}

#[test]
fn the_memory_of_a_publish_is_free_before_its_reply() {
    on_every_location(|pair| {
        for deadline in [Deadline::Never, Deadline::At(Nanos::default())] {
            let owner = Arc::new(());
            let memory = Memory::owned(vec![1; SECTOR], Arc::clone(&owner));
            let result = call_until(deadline, |ask| pair.near.publish(pack(1), vec![memory], ask));
            assert_eq!((result.is_ok(), Arc::strong_count(&owner)), (!deadline.is_bounded(), 1));
        }
    });
}

/// Publishes objects of its own, and reads those of all.
fn publish_and_read(pair: &Pair, thread: u64, rounds: u64, published: &[AtomicU64]) {
    let mut state = thread * 0x9E37_79B9 + 1;
    let mut below = |end: u64| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state % end
    };
    let sectors = |number: u64| usize::try_from(1 + number * 7 % 24).unwrap();
    // A writer uses one mount.
    let of_writer = if thread.is_multiple_of(2) { &pair.near } else { &pair.other };
    for number in 0..rounds {
        let name = writer(thread).object(Object::Pack(number));
        publish(&**of_writer, name, &bytes_of(name, sectors(number))).unwrap();
        published[usize::try_from(thread).unwrap()].store(number + 1, Ordering::Release);
        for _ in 0..3 {
            let of = below(published.len() as u64);
            let count = published[usize::try_from(of).unwrap()].load(Ordering::Acquire);
            if count == 0 {
                continue;
            }
            let name = writer(of).object(Object::Pack(below(count)));
            let reader = if below(2) == 0 { &pair.near } else { &pair.other };
            let (first, second) = (below(24), below(24));
            compare(&**reader, name, first, second);
        }
    }
}

/// Compares every byte of an object, and of a range of it.
fn compare(tier: &dyn Tier, name: ObjectName, from: u64, count: u64) {
    let whole = fetch_visible(tier, name);
    let sectors = whole.len() / SECTOR;
    assert!(whole == bytes_of(name, sectors) && sectors > 0, "{name}");
    let from = usize::try_from(from).unwrap() % sectors;
    let count = 1 + usize::try_from(count).unwrap() % (sectors - from);
    let range = read(tier, name, from * SECTOR, count * SECTOR).unwrap();
    assert!(range == whole[from * SECTOR..(from + count) * SECTOR], "{name} {from} {count}");
}

#[test]
fn threads_that_publish_and_read_at_random_see_every_byte() {
    on_every_location(|pair| {
        let published: Vec<AtomicU64> = (0..8).map(|_| AtomicU64::new(0)).collect();
        std::thread::scope(|scope| {
            for thread in 0..8 {
                let published = &published;
                let rounds = dose(6, 60);
                scope.spawn(move || publish_and_read(pair, thread, rounds, published));
            }
        });
        assert_eq!(call(|ask| pair.near.writers(ask)).unwrap().len(), 8, "{}", pair.label);
    });
}

#[test]
fn a_request_that_writes_is_a_bug() {
    on_every_location(|pair| {
        let file = pair.near.file(pack(1));
        let (mut request, _completions) = read_request(file, 0, vec![Memory::zeroed(SECTOR)]);
        request.operation = Operation::Write;
        let submit = std::panic::AssertUnwindSafe(|| pair.near.submit(vec![request]));
        assert!(std::panic::catch_unwind(submit).is_err(), "{}", pair.label);
    });
}

/// Keeps a thread of a tier busy when a request ends, until the test releases it.
struct Hold(crossbeam_channel::Sender<()>, crossbeam_channel::Receiver<()>);

impl Hold {
    fn wait(&self) {
        self.0.send(()).unwrap();
        assert!(self.1.recv_timeout(TEST_TIMEOUT).is_err());
    }
}

impl Watch for Hold {
    fn ended(&self, _: Result<(), &IoError>) {
        self.wait();
    }
}

/// Holds the thread that drops the memory of a call.
struct HoldMemory(Hold);

impl Drop for HoldMemory {
    fn drop(&mut self) {
        self.0.wait();
    }
}

#[test]
fn a_full_queue_of_a_directory_is_busy_and_a_dropped_tier_answers_what_waits() {
    let home = tempfile::tempdir().unwrap();
    let tier = open(home.path(), DirectoryTierOptions { workers: 1, queue: 2 }).unwrap();
    publish(&tier, pack(1), &bytes_of(pack(1), 1)).unwrap();
    let file = tier.file(pack(1));
    let request = || read_request(file, 0, vec![Memory::zeroed(SECTOR)]);
    let (busy, is_busy) = crossbeam_channel::bounded(1);
    let (release, held) = crossbeam_channel::bounded(0);
    let (mut first, first_done) = request();
    let hold_memory = HoldMemory(Hold(busy.clone(), held.clone()));
    first.watch = Some(Arc::new(Hold(busy, held)));
    tier.submit(vec![first]);
    is_busy.recv_timeout(TEST_TIMEOUT).unwrap();
    let memory = vec![Memory::owned(vec![0; SECTOR], hold_memory)];
    let first_call = start(Deadline::Never, |ask| tier.publish(pack(2), memory, ask));
    is_busy.recv_timeout(TEST_TIMEOUT).unwrap();
    let (requests, completions): (Vec<_>, Vec<_>) = (0..3).map(|_| request()).unzip();
    tier.submit(requests);
    assert!(matches!(complete(&completions[2]), Err(IoError::Stopped(Stopped::Busy))));
    let calls = [(); 3].map(|()| start(Deadline::Never, |ask| tier.space(ask)));
    let refused = calls[2].recv_timeout(TEST_TIMEOUT).unwrap();
    assert!(matches!(refused.result, Err(IoError::Stopped(Stopped::Busy))));
    // Dropping the tier waits for the thread, so that is released meanwhile.
    let dropping = spawn("drop", move || drop(tier)).unwrap();
    for completions in &completions[..2] {
        assert!(matches!(complete(completions), Err(IoError::Closed)));
    }
    for call in &calls[..2] {
        let refused = call.recv_timeout(TEST_TIMEOUT).unwrap();
        assert!(matches!(refused.result, Err(IoError::Closed)));
    }
    drop(release);
    assert!(complete(&first_done).unwrap() == bytes_of(pack(1), 1));
    first_call.recv_timeout(TEST_TIMEOUT).unwrap().result.unwrap();
    dropping.join().unwrap();
}
