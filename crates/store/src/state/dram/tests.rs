use super::*;

const UNIT: usize = 64 << 10;

fn dram_of(capacity_bytes: u64) -> Dram {
    let (backing, stop) = (ArenaBacking::Private, StopSignal::default());
    Dram::new(capacity_bytes, &backing, &stop, &Arc::default()).unwrap()
}

fn key(number: u8) -> BlockKey {
    (NamespaceId::default(), ChainHash([number; 32]))
}

fn memory(number: u8, bytes: usize) -> Memory {
    Memory::owned(vec![number; bytes], ())
}

fn insert(dram: &Dram, number: u8, bytes: usize) {
    dram.insert(key(number), &[memory(number, bytes)], Keep::Stored, || false);
}

fn free_bytes(dram: &Dram) -> u64 {
    dram.arena.as_ref().unwrap().free_bytes()
}

/// Whether the block is there, all its bytes as they were put.
fn has(dram: &Dram, number: u8, bytes: usize) -> bool {
    let mut out = vec![!number; bytes];
    let found = dalsegno_io::lend(|lender| {
        let (head, tail) = out.split_at_mut(bytes / 3);
        let mut pieces = [lender.exclusive(head), lender.exclusive(tail)];
        let block = dram.get(key(number).0, &[key(number).1]).pop().flatten();
        block.map(|block| block.copy_to(0, &mut pieces)).is_some()
    });
    assert!(!found || out.iter().all(|byte| *byte == number), "bytes of another block");
    found
}

#[test]
fn blocks_of_any_size_are_returned_whole() {
    let dram = dram_of(16 * UNIT_BYTES);
    let sizes = [1, UNIT - 1, UNIT, UNIT + 1, 300_000];
    for (number, bytes) in (1..).zip(sizes) {
        let mut rest = memory(number, bytes);
        let pieces = [rest.split_to(bytes / 2), rest];
        dram.insert(key(number), &pieces, Keep::Stored, || false);
    }
    for (number, bytes) in (1..).zip(sizes) {
        assert!(has(&dram, number, bytes), "{bytes} bytes");
    }
    assert_eq!(dram.view().bytes, (1 + 1 + 1 + 2 + 5) * UNIT_BYTES);
}

#[test]
fn blocks_weigh_whole_units_and_stay_within_the_capacity() {
    let dram = dram_of(10 * UNIT_BYTES + 17);
    for number in 0..100 {
        insert(&dram, number, UNIT + 1);
        let view = dram.view();
        assert!(view.bytes <= 10 * UNIT_BYTES && view.blocks <= 5, "{}", view.bytes);
        assert!(has(&dram, number, UNIT + 1));
    }
    let view = dram.view();
    assert_eq!((view.admitted, view.evicted, view.throttled), (100, 95, 0));
    insert(&dram, 200, 11 * UNIT);
    assert!(!has(&dram, 200, 1), "larger than all there is");
}

#[test]
fn a_place_that_a_reader_holds_is_not_reused() {
    let dram = dram_of(4 * UNIT_BYTES);
    insert(&dram, 1, 3 * UNIT);
    let read = dram.get(key(1).0, &[key(1).1]).pop().flatten().unwrap();
    dram.remove(key(1).0, &[key(1).1]);
    insert(&dram, 2, 2 * UNIT);
    assert!(!has(&dram, 2, 1));
    assert_eq!((dram.view().throttled, dram.view().blocks), (1, 0));
    insert(&dram, 3, UNIT);
    assert!(has(&dram, 3, UNIT), "one unit was free");
    assert!(read.as_slice().iter().all(|byte| *byte == 1));
    drop(read);
    insert(&dram, 2, 3 * UNIT);
    assert!(has(&dram, 2, 3 * UNIT) && has(&dram, 3, UNIT));
}

#[test]
fn a_large_block_evicts_its_neighbours_but_not_too_many() {
    let dram = dram_of(100 * UNIT_BYTES);
    for number in 0..100 {
        insert(&dram, number, UNIT);
    }
    insert(&dram, 200, 8 * UNIT);
    assert!(has(&dram, 200, 8 * UNIT));
    assert_eq!(dram.view().evicted, 8, "the oldest are neighbours");
    insert(&dram, 201, 80 * UNIT);
    let view = dram.view();
    assert!(!has(&dram, 201, 1) && view.throttled == 1);
    assert_eq!(view.evicted, 8 + MOST_EVICTED as u64);
}

#[test]
fn a_place_for_a_read_pushes_out_nothing_that_was_requested_again() {
    let dram = dram_of(4 * UNIT_BYTES);
    for number in 0..4 {
        insert(&dram, number, UNIT);
    }
    assert!(has(&dram, 1, UNIT) && has(&dram, 2, UNIT));
    let taken = [(); 2].map(|()| dram.reserve(UNIT, Leaving::Newcomers).unwrap());
    assert!(dram.reserve(UNIT, Leaving::Newcomers).is_none());
    assert!(has(&dram, 1, UNIT) && has(&dram, 2, UNIT) && dram.view().throttled == 0);
    drop(taken);
    assert_eq!(free_bytes(&dram), 2 * UNIT_BYTES);
}

#[test]
fn a_tier_smaller_than_a_unit_is_off() {
    for capacity_bytes in [0, UNIT_BYTES - 1] {
        let dram = dram_of(capacity_bytes);
        insert(&dram, 1, 1);
        assert!(dram.is_off() && !has(&dram, 1, 1));
        dram.remove_namespace(NamespaceId::default());
    }
}

#[test]
fn all_units_are_free_when_everything_is_removed() {
    let dram = dram_of(16 * UNIT_BYTES);
    for number in 0..9 {
        insert(&dram, number, 5 * UNIT);
    }
    dram.remove_namespace(NamespaceId::default());
    assert_eq!((dram.view().blocks, dram.view().bytes), (0, 0));
    assert_eq!(free_bytes(&dram), 16 * UNIT_BYTES);
}

#[test]
fn threads_that_read_and_evict_never_see_bytes_of_another_block() {
    let dram = Arc::new(dram_of(20 * UNIT_BYTES));
    let bytes = |number: u8| usize::from(number) * 9973 + 1;
    let workers: Vec<_> = (0..4_u8)
        .map(|worker| {
            let dram = Arc::clone(&dram);
            let work = move || {
                for turn in 0..3000_u32 {
                    let number = u8::try_from((turn * 7 + u32::from(worker) * 3) % 23).unwrap();
                    if !has(&dram, number, bytes(number)) {
                        insert(&dram, number, bytes(number));
                    }
                    if turn % 97 == 0 {
                        dram.remove(key(number).0, &[key(number).1]);
                    }
                }
            };
            dalsegno_io::spawn("dram-test", work).unwrap()
        })
        .collect();
    for worker in workers {
        worker.join().unwrap();
    }
    dram.remove_namespace(NamespaceId::default());
    let view = dram.view();
    assert!(view.admitted > 0 && view.evicted > 0);
    assert_eq!(free_bytes(&dram), 20 * UNIT_BYTES);
}

#[test]
fn regression_a_block_that_was_removed_meanwhile_does_not_enter_for_a_moment() {
    let dram = dram_of(1 << 20);
    for is_removed in [true, false] {
        // A removal that begins now takes the block out afterwards, because it waits for the lock.
        let asked = || {
            assert!(dram.blocks.try_lock().is_none(), "asked under the lock");
            is_removed
        };
        dram.insert(key(1), &[memory(1, 4096)], Keep::Stored, asked);
        assert_eq!(holds(&dram, 1), !is_removed);
    }
}

/// Whether the block is here.
fn holds(dram: &Dram, number: u8) -> bool {
    dram.holds_each(key(number).0, &[key(number).1]) == [true]
}

/// Whether the block is pool-only.
fn is_pool_only(dram: &Dram, number: u8) -> bool {
    !dram.pool_only(key(number).0, &[key(number).1], Scope::Prefix).is_empty()
}

#[test]
fn pool_only_blocks_stay_until_they_are_evicted_or_removed() {
    let feed = Arc::<RemovalFeed>::default();
    let (backing, stop) = (ArenaBacking::Private, StopSignal::default());
    let dram = Dram::new(4 * UNIT_BYTES, &backing, &stop, &feed).unwrap();
    let queue = feed.subscribe(10);
    let put = |number, keep| dram.insert(key(number), &[memory(number, UNIT)], keep, || false);
    let hash = |number| [key(number).1];
    let namespace = key(0).0;
    assert_eq!(put(1, Keep::PoolOnly), DramEntry::Held);
    assert_eq!(put(2, Keep::Stored), DramEntry::Held);
    dram.remove_copies(namespace, &[key(1).1, key(2).1]);
    assert!(is_pool_only(&dram, 1) && !holds(&dram, 2));
    dram.note_stored(namespace, &hash(1));
    assert!(!dram.has_pool_only() && holds(&dram, 1), "it is a copy");
    assert_eq!(dram.remove(namespace, &hash(1)), 0);
    for number in 1..=5 {
        put(number, Keep::PoolOnly);
    }
    assert_eq!(queue.take(10), (vec![key(1)], false), "the first one was evicted");
    assert!(!is_pool_only(&dram, 1) && is_pool_only(&dram, 2));
    assert_eq!(dram.remove(namespace, &hash(2)), 1);
    assert_eq!(dram.remove_namespace(namespace), 3);
    assert!(!dram.has_pool_only() && queue.waiting(false) == 0, "removals are noted elsewhere");
}

#[test]
fn a_copy_becomes_pool_only_unless_it_was_removed() {
    let dram = dram_of(4 * UNIT_BYTES);
    insert(&dram, 1, UNIT);
    let put = |is_removed| dram.insert(key(1), &[memory(1, UNIT)], Keep::PoolOnly, || is_removed);
    assert_eq!((put(true), is_pool_only(&dram, 1)), (DramEntry::Removed, false));
    assert_eq!((put(false), is_pool_only(&dram, 1)), (DramEntry::Held, true));
    assert_eq!(dram_of(0).insert(key(1), &[], Keep::PoolOnly, || false), DramEntry::NoPlace);
}
