//! Why the cache is S3-FIFO: a scan does not evict items that are requested repeatedly.

use std::collections::{BTreeMap, HashSet, VecDeque};

use dalsegno_policy::S3Fifo;

const ITEM_BYTES: u64 = 7;
const CAPACITY_ITEMS: usize = 200;

/// A generator that gives the same numbers everywhere (`SplitMix64`).
struct Numbers(u64);

impl Numbers {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let word = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        word ^ (word >> 31)
    }
}

/// Keys drawn from 2,000 by Zipf's law (weight 1/rank), with a run of keys never seen again after
/// every 1,000.
fn scan_polluted_zipf() -> Vec<u64> {
    let weights: Vec<u64> = (1..=2000).map(|rank| 1_000_000 / rank).collect();
    let total: u64 = weights.iter().sum();
    let (mut numbers, mut keys, mut fresh) = (Numbers(1), Vec::new(), 1_000_000);
    for drawn in 0..50_000 {
        let mut rest = numbers.next() % total;
        let rank = weights.iter().position(|weight| {
            let found = rest < *weight;
            rest = rest.saturating_sub(*weight);
            found
        });
        keys.push(rank.expect("the weights sum to the total") as u64);
        if drawn % 1000 == 999 {
            keys.extend(fresh..fresh + 400);
            fresh += 400;
        }
    }
    keys
}

fn s3fifo_hits(keys: &[u64]) -> usize {
    let mut cache = S3Fifo::new(CAPACITY_ITEMS as u64 * ITEM_BYTES);
    keys.iter()
        .filter(|key| {
            let hit = cache.get(*key).is_some();
            if !hit {
                cache.insert(**key, (), ITEM_BYTES);
            }
            hit
        })
        .count()
}

fn fifo_hits(keys: &[u64]) -> usize {
    let (mut held, mut order) = (HashSet::new(), VecDeque::new());
    keys.iter()
        .filter(|key| {
            let hit = !held.insert(**key);
            if !hit {
                order.push_back(**key);
                if order.len() > CAPACITY_ITEMS {
                    held.remove(&order.pop_front().expect("it is over its bound"));
                }
            }
            hit
        })
        .count()
}

fn lru_hits(keys: &[u64]) -> usize {
    let (mut used_at, mut by_use) = (BTreeMap::new(), BTreeMap::new());
    (0_u64..)
        .zip(keys)
        .filter(|(now, key)| {
            let before = used_at.insert(**key, *now);
            if let Some(before) = before {
                by_use.remove(&before);
            }
            by_use.insert(*now, **key);
            if by_use.len() > CAPACITY_ITEMS {
                let (_, oldest) = by_use.pop_first().expect("it is over its bound");
                used_at.remove(&oldest);
            }
            before.is_some()
        })
        .count()
}

#[test]
fn s3fifo_hits_more_often_than_lru_and_fifo_when_scans_pass_through() {
    let keys = scan_polluted_zipf();
    let (s3fifo, lru, fifo) = (s3fifo_hits(&keys), lru_hits(&keys), fifo_hits(&keys));
    assert!(s3fifo * 100 > lru * 105, "s3fifo {s3fifo}, lru {lru}: less than 5% more");
    assert!(s3fifo * 100 > fifo * 115, "s3fifo {s3fifo}, fifo {fifo}: less than 15% more");
}
