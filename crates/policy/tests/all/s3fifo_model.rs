//! The cache against a plain model: equal calls give equal results and drop equal pairs in equal order.

use std::collections::VecDeque;

use dalsegno_policy::S3Fifo;
use proptest::prelude::*;

#[derive(Clone, Debug)]
struct Item {
    key: u8,
    value: u32,
    bytes: u64,
    hits: u8,
}

/// S3-FIFO with queues that are searched linearly.
#[derive(Debug, Default)]
struct Model {
    small: VecDeque<Item>,
    main: VecDeque<Item>,
    ghost: VecDeque<Item>,
    capacity_bytes: u64,
}

fn sum(queue: &VecDeque<Item>) -> u64 {
    queue.iter().map(|item| item.bytes).sum()
}

fn take(queue: &mut VecDeque<Item>, key: u8) -> Option<Item> {
    let position = queue.iter().position(|item| item.key == key)?;
    queue.remove(position)
}

impl Model {
    fn held(&self) -> u64 {
        sum(&self.small) + sum(&self.main)
    }

    fn find(&mut self, key: u8) -> Option<&mut Item> {
        self.small.iter_mut().chain(&mut self.main).find(|item| item.key == key)
    }

    fn insert(&mut self, key: u8, value: u32, bytes: u64) -> Vec<(u8, u32)> {
        let mut leaving = Vec::new();
        let (from_small, from_main) = (take(&mut self.small, key), take(&mut self.main, key));
        let to_main = from_main.is_some() || take(&mut self.ghost, key).is_some();
        let old = from_small.or(from_main);
        leaving.extend(old.iter().map(|item| (key, item.value)));
        if bytes > self.capacity_bytes {
            leaving.push((key, value));
            return leaving;
        }
        while self.held() + bytes > self.capacity_bytes {
            leaving.extend(self.step());
        }
        let queue = if to_main { &mut self.main } else { &mut self.small };
        queue.push_back(Item { key, value, bytes, hits: old.map_or(0, |item| item.hits) });
        leaving
    }

    fn step(&mut self) -> Option<(u8, u32)> {
        if self.main.is_empty() || sum(&self.small) > self.capacity_bytes / 10 {
            let item = self.small.pop_front().expect("bytes are held");
            if item.hits > 0 {
                self.main.push_back(Item { hits: 0, ..item });
                return None;
            }
            let pair = (item.key, item.value);
            self.ghost.push_back(item);
            while sum(&self.ghost) > self.capacity_bytes {
                self.ghost.pop_front();
            }
            return Some(pair);
        }
        let item = self.main.pop_front().expect("bytes are held");
        if item.hits == 0 {
            return Some((item.key, item.value));
        }
        self.main.push_back(Item { hits: item.hits - 1, ..item });
        None
    }
}

#[derive(Clone, Debug)]
enum Call {
    Insert(u8, u64),
    Get(u8),
    Peek(u8),
    Remove(u8),
    /// All keys with this remainder modulo five.
    RemoveAll(u8),
}

fn call() -> impl Strategy<Value = Call> {
    let key = 0_u8..24;
    prop_oneof![
        4 => (key.clone(), 1_u64..30).prop_map(|(key, bytes)| Call::Insert(key, bytes)),
        4 => key.clone().prop_map(Call::Get),
        1 => key.clone().prop_map(Call::Peek),
        1 => key.prop_map(Call::Remove),
        1 => (0_u8..5).prop_map(Call::RemoveAll),
    ]
}

proptest! {
    #[test]
    fn every_call_returns_what_the_model_returns(
        capacity_bytes in 0_u64..120,
        calls in prop::collection::vec(call(), 0..300),
    ) {
        let mut cache = S3Fifo::new(capacity_bytes);
        let mut model = Model { capacity_bytes, ..Model::default() };
        for (value, call) in (0_u32..).zip(calls) {
            match call {
                Call::Insert(key, bytes) => {
                    let expected = model.insert(key, value, bytes);
                    prop_assert_eq!(cache.insert(key, value, bytes), expected);
                }
                Call::Get(key) => {
                    let expected = model.find(key).map(|item| {
                        item.hits = 3.min(item.hits + 1);
                        item.value
                    });
                    prop_assert_eq!(cache.get(&key).copied(), expected);
                }
                Call::Peek(key) => {
                    let expected = model.find(key).map(|item| item.value);
                    prop_assert_eq!(cache.peek(&key).copied(), expected);
                }
                Call::Remove(key) => {
                    take(&mut model.ghost, key);
                    let (small, main) = (take(&mut model.small, key), take(&mut model.main, key));
                    let expected = small.or(main).map(|item| item.value);
                    prop_assert_eq!(cache.remove(&key), expected);
                }
                Call::RemoveAll(rest) => {
                    for queue in [&mut model.small, &mut model.main, &mut model.ghost] {
                        queue.retain(|item| item.key % 5 != rest);
                    }
                    cache.remove_all(|key| key % 5 == rest);
                }
            }
            prop_assert_eq!(cache.bytes(), model.held());
            prop_assert_eq!(cache.len(), model.small.len() + model.main.len());
            prop_assert!(cache.bytes() <= cache.capacity());
        }
    }
}
