use super::*;

impl<K: Copy + Eq + Hash + std::fmt::Debug, V> S3Fifo<K, V> {
    /// Visits everything: links, bytes and the map must agree.
    fn check_all(&self) {
        for list in [SMALL, MAIN, GHOST] {
            let entries: Vec<_> = self.lists.iter(list).collect();
            assert_eq!(entries.len(), self.lists.len(list));
            assert_eq!(entries.iter().map(|e| e.bytes).sum::<u64>(), self.held_bytes[list]);
            for entry in entries {
                let slot = self.slot_of(&entry.key).unwrap();
                assert_eq!(self.lists.list_of(slot), list, "{:?}", entry.key);
                assert_eq!(entry.value.is_none(), list == GHOST, "{:?}", entry.key);
            }
        }
        self.check();
    }
}

fn keys<V>(pairs: &[(u32, V)]) -> Vec<u32> {
    pairs.iter().map(|(key, _)| *key).collect()
}

#[test]
fn an_item_without_a_hit_leaves_first_and_returns_to_main_through_the_ghost() {
    let mut cache = S3Fifo::new(10);
    for key in 0..5 {
        assert!(cache.insert(key, (), 2).is_empty());
    }
    assert!(cache.get(&0).is_some());
    assert_eq!(keys(&cache.insert(5, (), 2)), [1], "0 was hit, so 1 is the first to go");
    assert_eq!(cache.peek(&1), None);
    cache.insert(1, (), 2);
    assert_eq!(cache.stats().returned, 1);
    assert_eq!(cache.lists.list_of(cache.slot_of(&1).unwrap()), MAIN);
    cache.check_all();
}

#[test]
fn hits_pay_for_at_most_three_laps() {
    let mut cache = S3Fifo::new(2);
    cache.insert(0, (), 1);
    for _ in 0..100 {
        cache.get(&0);
    }
    let mut inserted = 0;
    while cache.peek(&0).is_some() {
        inserted += 1;
        cache.insert(inserted, (), 1);
        cache.get(&inserted);
        assert!(inserted < 20, "a hot item is never dropped again");
    }
    cache.check_all();
}

#[test]
fn an_item_larger_than_the_cache_is_returned_and_drops_no_other() {
    let mut cache = S3Fifo::new(10);
    cache.insert(1, 'a', 10);
    assert_eq!(cache.insert(2, 'b', 11), [(2, 'b')]);
    assert_eq!(cache.peek(&1), Some(&'a'));
    assert_eq!(cache.insert(1, 'c', 11), [(1, 'a'), (1, 'c')], "the stale value leaves too");
    assert_eq!((cache.len(), cache.bytes(), cache.stats().refused), (0, 0, 2));
    assert_eq!(S3Fifo::new(0).insert(1, 'a', 0), [(1, 'a')], "no capacity, no items");
}

#[test]
fn replacing_a_value_returns_the_old_one_and_keeps_its_hits() {
    let mut cache = S3Fifo::new(10);
    cache.insert(1, 'a', 4);
    cache.get(&1);
    assert_eq!(cache.insert(1, 'b', 6), [(1, 'a')]);
    assert_eq!((cache.bytes(), cache.len()), (6, 1));
    assert_eq!(keys(&cache.insert(2, 'c', 5)), [1], "6 and 5 do not fit together");
    assert_eq!(cache.stats().promoted, 1);
    cache.check_all();
}

#[test]
fn keys_are_found_in_any_order_whatever_was_wanted_after_what_before() {
    let (mut guessing, mut plain) = (S3Fifo::new(40), S3Fifo::new(40));
    let orders: [&[u32]; 5] =
        [&[0, 1, 2, 3, 4, 5], &[5, 3, 1], &[0, 1, 2, 99, 3], &[2, 2, 2], &[7, 8, 0, 1]];
    for round in 0..60 {
        let order = orders[round as usize % orders.len()];
        let held: Vec<_> = order.iter().map(|key| plain.peek(key).is_some()).collect();
        assert_eq!(guessing.holds_each(order.iter().copied()), held, "{order:?} in round {round}");
        let found = guessing.get_each(order.iter().copied());
        let wanted: Vec<_> = order.iter().map(|key| plain.get(key).copied()).collect();
        assert_eq!(found, wanted, "{order:?} in round {round}");
        let (key, bytes) = (round * 7 % 11, 3 + u64::from(round % 5));
        assert_eq!(guessing.insert(key, round, bytes), plain.insert(key, round, bytes));
        if round % 9 == 0 {
            assert_eq!(guessing.remove(&(round % 4)), plain.remove(&(round % 4)));
        }
        guessing.check_all();
    }
    assert_eq!(guessing.stats(), plain.stats());
    assert!(plain.stats().hits > 20 && plain.stats().evicted > 20, "{:?}", plain.stats());
}

#[test]
fn a_probe_leaves_no_trace() {
    let mut cache = S3Fifo::new(4);
    cache.insert(0, (), 2);
    cache.insert(1, (), 2);
    assert!(cache.peek(&0).is_some());
    assert_eq!(keys(&cache.insert(2, (), 2)), [0]);
    assert_eq!((cache.stats().hits, cache.stats().misses), (0, 0));
}

#[test]
fn a_removed_key_is_forgotten_by_the_ghost_too() {
    let mut cache = S3Fifo::new(2);
    cache.insert(0, 'a', 2);
    cache.insert(1, 'b', 2);
    assert_eq!(cache.remove(&0), None, "only its name was left");
    assert_eq!(cache.remove(&1), Some('b'));
    cache.insert(0, 'c', 2);
    assert_eq!((cache.stats().returned, cache.len()), (0, 1));
    cache.check_all();
}

#[test]
fn the_ghost_is_bounded_by_count_and_by_bytes() {
    let mut cache = S3Fifo::new(1000);
    cache.ghost_count = 5;
    for key in 0..2000 {
        cache.insert(key, (), 1);
    }
    assert_eq!(cache.lists.len(GHOST), 5);
    for key in 2000..2100 {
        cache.insert(key, (), 300);
    }
    assert_eq!(cache.held_bytes[GHOST], 900);
    cache.check_all();
}
