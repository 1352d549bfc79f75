//! Opening with headers that were copied, damaged or left over; and removals that outlive their segment.

use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use dalsegno_core::{
    COUNT_LIMIT, ChainHash, Class, Durability, EngineChoice, Extent, KvLayout, Limits, Location,
    NamespaceId, StoreId,
};
use dalsegno_extent::{NewExtent, format::segment_file};
use dalsegno_io::{BufferPool, Call, DirectoryOptions, LocalDirectory, SystemClock, lend};
use dalsegno_log::{
    Appended, Log, LogOptions, Payload, Recovered, Removal, SegmentState, SegmentView, removals_of,
};

use crate::append_of;
use crate::limits::limits;

const SEGMENT_BYTES: u64 = 1 << 20;
const NAMESPACE: NamespaceId = NamespaceId([9; 16]);
const BLOCK_BYTES: usize = 100 << 10;
/// Time for a seal that is still in flight.
const TIMEOUT: Duration = Duration::from_secs(10);

fn open(dir: &Path) -> (Log, Recovered) {
    open_with_checkpoint(dir, None)
}

fn open_with_checkpoint(dir: &Path, checkpoint: Option<Vec<u8>>) -> (Log, Recovered) {
    open_of(3, dir, checkpoint)
}

fn open_of(segment_count: u32, dir: &Path, checkpoint: Option<Vec<u8>>) -> (Log, Recovered) {
    let clock = Arc::new(SystemClock::new());
    let pool = BufferPool::new(16 << 20, 64 << 10).unwrap();
    let options = DirectoryOptions { engine: EngineChoice::Psync, ..DirectoryOptions::default() };
    let device =
        LocalDirectory::open(dir, options, &pool, Arc::<SystemClock>::clone(&clock)).unwrap();
    let options = LogOptions::new(Limits {
        segment_bytes: SEGMENT_BYTES,
        segment_count,
        durability: Durability::None,
        io_depth: 4,
        io_request_bytes: 64 << 10,
        header_cache_bytes: 0,
        compression_bytes: 8 << 20,
        ..limits()
    });
    let store = StoreId([1; 16]);
    Log::open_with_checkpoint(Arc::new(device), clock, pool, options, store, |_| checkpoint)
        .unwrap()
}

fn hash(number: u32) -> ChainHash {
    let mut bytes = [7; 32];
    bytes[..4].copy_from_slice(&number.to_le_bytes());
    ChainHash(bytes)
}

fn new_extent(number: u32) -> NewExtent {
    NewExtent {
        namespace: NAMESPACE,
        lineage: hash(number),
        first_block_index: 0,
        parent: ChainHash::default(),
        layout: KvLayout::new(1, u32::try_from(BLOCK_BYTES).unwrap()).unwrap(),
        hashes: vec![hash(number)],
        born: None,
    }
}

fn write(log: &Log, number: u32) -> Extent {
    append(log, number).extent
}

/// While the result is held, no index knows the extent.
fn append(log: &Log, number: u32) -> Appended {
    let bytes = vec![u8::try_from(number % 251).unwrap(); BLOCK_BYTES];
    let extent = new_extent(number);
    lend(|lender| {
        let append = append_of(log, extent, Payload::Plain(vec![vec![lender.shared(&bytes)]]));
        log.writer().append(vec![append], &Call::of(Class::Need)).remove(0).unwrap()
    })
}

/// Writes until another segment than `first` takes records, and returns its number.
fn fill(log: &Log, first: u64) -> u64 {
    let places = (1..100).map(|number| write(log, number).location.segment);
    places.into_iter().find(|number| *number != first).unwrap()
}

fn state_of(log: &Log, number: u64) -> SegmentState {
    log.segments().views().into_iter().find(|view| view.number == number).unwrap().state
}

fn remove(log: &Log, number: u32) -> Removal {
    let hashes = vec![hash(number)];
    let kills_before = log.removals().begin(NAMESPACE, &hashes);
    log.removals().finish(kills_before).unwrap();
    Removal { namespace: NAMESPACE, hashes, kills_before }
}

fn file_of(dir: &Path, location: Location) -> PathBuf {
    dir.join(segment_file(location.segment))
}

fn patch(path: &Path, offset: u64, bytes: &[u8]) {
    let file = std::fs::OpenOptions::new().write(true).open(path).unwrap();
    file.write_all_at(bytes, offset).unwrap();
}

#[test]
fn a_record_that_was_copied_to_another_place_does_not_count() {
    let dir = tempfile::tempdir().unwrap();
    let (log, _) = open(dir.path());
    let extent = write(&log, 1);
    drop(log);
    let path = file_of(dir.path(), extent.location);
    let start = usize::try_from(extent.location.offset).unwrap();
    let len = usize::try_from(extent.total_bytes()).unwrap();
    let record = std::fs::read(&path).unwrap()[start..start + len].to_vec();
    patch(&path, extent.location.offset + extent.total_bytes() + 8192, &record);
    let (log, recovered) = open(dir.path());
    let end = extent.location.offset + extent.total_bytes();
    assert_eq!(log.segments().views()[0].cursor, end, "the next record may overwrite the copy");
    assert_eq!(recovered.extents, [extent]);
}

#[test]
fn regression_a_new_segment_with_only_the_checksum_of_its_header_is_removed() {
    let dir = tempfile::tempdir().unwrap();
    drop(open(dir.path()));
    let path = dir.path().join(segment_file(7));
    let file = std::fs::File::create(&path).unwrap();
    file.set_len(SEGMENT_BYTES).unwrap();
    patch(&path, 4092, &[1, 2, 3, 4]);
    let (log, recovered) = open(dir.path());
    // Otherwise it would take space forever without use.
    assert!(!path.exists());
    assert_eq!((log.segments().views(), recovered.faults), (vec![], vec![]));
}

#[test]
fn a_tombstone_outlives_its_segment_while_it_hides_a_block() {
    let dir = tempfile::tempdir().unwrap();
    let (log, _) = open(dir.path());
    let older = write(&log, 0).location.segment;
    let other = fill(&log, older);
    let removal = remove(&log, 0);
    for round in 0..4 {
        assert!(log.segments().seal_open());
        assert!(log.recycler().recycle(other, TIMEOUT, || ()).unwrap());
        assert_eq!(write(&log, 1000 + round).location.segment, other);
    }
    assert!(log.segments().seal_open());
    assert!(log.recycler().recycle(other, TIMEOUT, || ()).unwrap());
    drop(log);
    let (log, recovered) = open(dir.path());
    assert_eq!((recovered.faults, recovered.removals), (vec![], vec![removal]));
    assert_eq!(state_of(&log, other), SegmentState::Free, "it takes records next");
    assert_eq!(log.stats().view().syncs, 1, "a killed process may not have synced its header");
    assert!(log.recycler().recycle(older, TIMEOUT, || ()).unwrap());
    while write(&log, 2000).location.segment != other {
        assert!(log.segments().seal_open());
    }
    assert!(log.segments().seal_open());
    assert!(log.recycler().recycle(other, TIMEOUT, || ()).unwrap());
    drop(log);
    let (_, recovered) = open(dir.path());
    assert_eq!(recovered.removals, [], "nothing older is left");
}

#[test]
fn a_removal_outlives_the_removal_of_its_segment_and_the_last_free_segment_stays() {
    let dir = tempfile::tempdir().unwrap();
    let (log, _) = open_of(5, dir.path(), None);
    let older = write(&log, 0).location.segment;
    write(&log, 1);
    fill(&log, older);
    let (mut free, mut removals) = (Vec::new(), Vec::new());
    for number in 0..2 {
        removals.push(remove(&log, number));
        assert!(log.segments().seal_open());
        free.push(log.segments().views().last().unwrap().number);
    }
    write(&log, 50);
    for number in &free {
        assert!(log.recycler().recycle(*number, TIMEOUT, || ()).unwrap());
    }
    assert!(log.recycler().give_back(TIMEOUT).unwrap(), "its tombstone moves to the open segment");
    assert_eq!(log.stats().view().segments_given_back, 1);
    assert!(!dir.path().join(segment_file(free[0])).exists());
    assert!(!log.recycler().give_back(TIMEOUT).unwrap(), "the reserve stays");
    drop(log);
    let (_, mut recovered) = open(dir.path());
    recovered.removals.sort_by_key(|removal| removal.kills_before);
    assert_eq!((recovered.faults, recovered.removals), (vec![], removals));
}

#[test]
fn the_number_of_a_segment_that_a_checkpoint_knows_is_not_used_again() {
    let dir = tempfile::tempdir().unwrap();
    let (log, _) = open_of(5, dir.path(), None);
    let older = write(&log, 0).location.segment;
    let other = fill(&log, older);
    remove(&log, 0);
    assert!(log.segments().seal_open());
    let newest = write(&log, 50).location.segment;
    assert!(newest > other && log.segments().seal_open());
    let checkpoint = log.checkpoint().unwrap();
    for number in [other, newest] {
        assert!(log.recycler().recycle(number, TIMEOUT, || ()).unwrap());
    }
    assert!(log.recycler().give_back(TIMEOUT).unwrap());
    assert!(!dir.path().join(segment_file(newest)).exists());
    drop(log);
    let (log, _) = open_of(5, dir.path(), Some(checkpoint));
    assert_eq!(write(&log, 300).location.segment, other);
    assert!(log.segments().seal_open());
    let created = write(&log, 301).location.segment;
    assert!(created > newest, "{created}: its records would count as indexed");
}

#[test]
fn the_tombstones_of_a_segment_with_a_damaged_header_count() {
    // The checksum, the magic number, and an epoch that was never written.
    for (offset, bytes) in [(4092, &[1, 2, 3, 4][..]), (0, b"NOTMAGIC"), (40, &[9])] {
        let dir = tempfile::tempdir().unwrap();
        let (log, _) = open(dir.path());
        let older = write(&log, 0).location.segment;
        let other = fill(&log, older);
        let removal = remove(&log, 0);
        drop(log);
        patch(&dir.path().join(segment_file(other)), offset, bytes);
        for _ in 0..2 {
            let (log, recovered) = open(dir.path());
            assert_eq!(recovered.faults.len(), 1, "{recovered:?}");
            assert_eq!(recovered.removals, std::slice::from_ref(&removal));
            assert_eq!(state_of(&log, other), SegmentState::Damaged);
        }
        let (log, _) = open(dir.path());
        assert!(log.recycler().recycle(other, TIMEOUT, || ()).unwrap());
        drop(log);
        let (_, recovered) = open(dir.path());
        assert_eq!((recovered.faults, recovered.removals), (vec![], vec![removal]));
    }
}

#[test]
fn copies_keep_their_age_while_a_segment_with_a_possible_removal_is_missing() {
    let dir = tempfile::tempdir().unwrap();
    let (log, _) = open(dir.path());
    let older = write(&log, 0).location.segment;
    let away = dir.path().join(segment_file(fill(&log, older)));
    let removed = remove(&log, 0).kills_before;
    assert!(log.segments().born_of_copies() >= Some(removed));
    log.segment_list().update().unwrap();
    drop(log);
    std::fs::rename(&away, dir.path().join("away")).unwrap();
    assert_eq!(open(dir.path()).0.segments().born_of_copies(), None);
    std::fs::rename(dir.path().join("away"), &away).unwrap();
    assert!(open(dir.path()).0.segments().born_of_copies() >= Some(removed));
}

#[test]
fn with_a_checkpoint_only_later_records_are_read() {
    let dir = tempfile::tempdir().unwrap();
    let (log, _) = open(dir.path());
    let older = write(&log, 0).location.segment;
    let open_segment = fill(&log, older);
    let removal = remove(&log, 0);
    let checkpoint = log.checkpoint().unwrap();
    let later = [write(&log, 500), write(&log, 501)];
    let late_removal = remove(&log, 1);
    let views = log.segments().views();
    drop(log);
    let (log, recovered) = open_with_checkpoint(dir.path(), Some(checkpoint.clone()));
    assert_eq!(recovered.extents, later);
    assert_eq!(recovered.checkpoint_removals, std::slice::from_ref(&removal));
    assert_eq!(recovered.removals, std::slice::from_ref(&late_removal));
    let facts = |views: &[SegmentView]| -> Vec<_> {
        views.iter().map(|view| (view.state, view.cursor, view.oldest_born)).collect()
    };
    assert_eq!(facts(&log.segments().views()), facts(&views));
    assert!(log.segments().newest_sequence() > late_removal.kills_before);
    // A segment that was recycled since is read as a whole, and its earlier records are not returned.
    assert!(log.recycler().recycle(older, TIMEOUT, || ()).unwrap());
    assert!(log.segments().seal_open());
    let reborn = write(&log, 502);
    assert_eq!(reborn.location.segment, older);
    drop(log);
    let (_, recovered) = open_with_checkpoint(dir.path(), Some(checkpoint));
    assert_eq!(recovered.extents, [later[0].clone(), later[1].clone(), reborn]);
    assert_ne!(open_segment, older);
}

#[test]
fn records_that_the_index_does_not_know_are_read_again() {
    let dir = tempfile::tempdir().unwrap();
    let (log, _) = open(dir.path());
    write(&log, 0);
    let appended = append(&log, 1);
    let after = write(&log, 2);
    let checkpoint = log.checkpoint().unwrap();
    let pinned = appended.extent.clone();
    drop(appended);
    drop(log);
    let (_, recovered) = open_with_checkpoint(dir.path(), Some(checkpoint));
    assert_eq!(
        recovered.extents,
        [pinned, after],
        "all records from the first unknown one on are returned again"
    );
}

#[test]
fn a_removal_in_the_checkpoint_holds_although_its_tombstone_is_damaged_now() {
    let dir = tempfile::tempdir().unwrap();
    let (log, _) = open(dir.path());
    let appended = append(&log, 0);
    let after = write(&log, 1);
    let removal = remove(&log, 2);
    let (mut checkpoint, end) = (log.checkpoint().unwrap(), log.segments().views()[0].cursor);
    drop((appended, log));
    let behind = after.location.offset + after.total_bytes();
    patch(&file_of(dir.path(), after.location), behind, &[0xaa; 4096]);
    for _ in 0..2 {
        let (log, recovered) = open_with_checkpoint(dir.path(), Some(checkpoint));
        assert_eq!(recovered.checkpoint_removals, std::slice::from_ref(&removal));
        assert_eq!(log.segments().views()[0].cursor, end, "it may be readable later");
        checkpoint = log.checkpoint().unwrap();
    }
}

#[test]
fn an_invalid_checkpoint_counts_as_none() {
    let dir = tempfile::tempdir().unwrap();
    let (log, _) = open(dir.path());
    let extent = write(&log, 0);
    let mut checkpoint = log.checkpoint().unwrap();
    checkpoint.push(0);
    drop(log);
    let (_, recovered) = open_with_checkpoint(dir.path(), Some(checkpoint));
    assert_eq!(recovered.extents, [extent]);
}

#[test]
fn regression_impossible_places_in_a_checkpoint_are_ignored() {
    let dir = tempfile::tempdir().unwrap();
    let (log, _) = open(dir.path());
    let extent = write(&log, 0);
    let checkpoint = log.checkpoint().unwrap();
    drop(log);
    let forged = |at: usize, value: u64| {
        let mut checkpoint = checkpoint.clone();
        checkpoint[at..at + 8].copy_from_slice(&value.to_le_bytes());
        Some(checkpoint)
    };
    let (next_sequence, number, epoch, cursor, replay_from) = (4, 28, 36, 52, 60);
    let (end, far) = (SEGMENT_BYTES, u64::MAX);
    for value in [end + 4096, end - 1, far, extent.location.offset - 4096] {
        let (log, recovered) = open_with_checkpoint(dir.path(), forged(cursor, value));
        assert!(recovered.is_one_back && recovered.extents[0] == extent, "cursor {value}");
        write(&log, 1);
    }
    for value in [end, 0, 4097, far] {
        let (log, recovered) = open_with_checkpoint(dir.path(), forged(replay_from, value));
        assert!(recovered.is_one_back && recovered.extents[0] == extent, "replay_from {value}");
        write(&log, 1);
    }
    for at in [next_sequence, number, epoch] {
        let (log, recovered) = open_with_checkpoint(dir.path(), forged(at, far));
        assert_eq!(recovered.extents[0], extent);
        fill(&log, extent.location.segment);
        assert!(log.segments().newest_sequence() < COUNT_LIMIT);
    }
}

#[test]
fn a_segment_that_was_unreadable_at_the_checkpoint_is_reported_as_back() {
    let dir = tempfile::tempdir().unwrap();
    let (log, _) = open(dir.path());
    let first = write(&log, 0).location.segment;
    let second = fill(&log, first);
    drop(log);
    for (away, other) in [(first, second), (second, first)] {
        let path = dir.path().join(segment_file(away));
        let whole = std::fs::read(&path).unwrap();
        // It looks like a segment of another store.
        patch(&path, 0, &[0xaa; 4096]);
        let (log, recovered) = open(dir.path());
        assert!(!recovered.is_one_back);
        let checkpoint = log.checkpoint().unwrap();
        let new = fill(&log, other);
        drop(log);
        let (log, recovered) = open_with_checkpoint(dir.path(), Some(checkpoint.clone()));
        assert!(!recovered.is_one_back, "segment {new} came later");
        drop(log);
        std::fs::write(&path, whole).unwrap();
        let (log, recovered) = open_with_checkpoint(dir.path(), Some(checkpoint));
        assert!(recovered.is_one_back, "segment {away} was there before");
        drop(log);
        std::fs::remove_file(dir.path().join(segment_file(new))).unwrap();
    }
}

#[test]
fn a_removal_that_only_the_checkpoint_knows_reaches_an_index_that_is_rebuilt() {
    for is_header_bad in [true, false] {
        let dir = tempfile::tempdir().unwrap();
        let (log, _) = open(dir.path());
        let older = write(&log, 0).location.segment;
        let other = fill(&log, older);
        let removal = remove(&log, 0);
        let mut removals = removals_of(&log.checkpoint().unwrap());
        drop(log);
        let path = dir.path().join(segment_file(other));
        if is_header_bad {
            patch(&path, 0, &[0xaa; 8]);
        }
        patch(&path, 4096, &vec![0xaa; (1 << 20) - 4096]);
        for _ in 0..2 {
            let (log, recovered) = open_with_checkpoint(dir.path(), removals);
            assert!(!recovered.extents.is_empty(), "all headers are read");
            assert_eq!(recovered.checkpoint_removals, std::slice::from_ref(&removal));
            // As long as its segment does not change.
            removals = removals_of(&log.checkpoint().unwrap());
        }
    }
}

#[test]
fn a_record_that_settles_after_later_ones_is_synced_by_the_next_checkpoint() {
    let dir = tempfile::tempdir().unwrap();
    let (log, _) = open(dir.path());
    let bytes = vec![1; BLOCK_BYTES];
    lend(|lender| {
        let slow =
            append_of(&log, new_extent(1), Payload::Plain(vec![vec![lender.shared(&bytes)]]));
        write(&log, 2);
        log.checkpoint().unwrap();
        let before = log.stats().view().syncs;
        log.writer().append(vec![slow], &Call::of(Class::Need)).remove(0).unwrap();
        log.checkpoint().unwrap();
        assert_eq!(log.stats().view().syncs, before + 1, "the index may refer to it now");
        log.checkpoint().unwrap();
        assert_eq!(log.stats().view().syncs, before + 1, "nothing was written");
    });
}
