//! Messages from a client, and answers from a server.

use std::cell::OnceCell;
use std::sync::Arc;

use dalsegno_core::{ChainHash, KvLayout, ManualClock, Namespace, SpaceFacts};
use dalsegno_io::BufferPool;
use dalsegno_serve::fuzzing::{Talk, answer, messages};
use dalsegno_store::testing::{Executor, MergeRules, Parts, ScrubRules, Tiers};
use dalsegno_store::{
    ArenaBacking, Backing, Config, Keep, Memory, Pool, Put, Store, StoreId, Terms,
};

use crate::device::MemoryDevice;

const BLOCK: usize = 2 * 1000;

fn namespace() -> Namespace {
    let layout = KvLayout::new(2, 1000).expect("a layout");
    Namespace::builder(layout).field("model", "m").build().expect("a field")
}

/// A pool with a few blocks.
fn pool(clock: &Arc<ManualClock>) -> Pool {
    let config = Config {
        capacity: Some(16 << 20),
        dram: Some(1 << 20),
        staging: Some(16 << 20),
        transfer_threads: Some(1),
        ..Config::default()
    };
    let space = SpaceFacts { free_bytes: 1 << 30, own_bytes: 0, existing_segment_bytes: None };
    let parts = Parts {
        device: Arc::new(MemoryDevice::default()),
        clock: Arc::<ManualClock>::clone(clock),
        pool: BufferPool::new(16 << 20, 1 << 20).expect("16 MiB"),
        limits: config.validate(space).expect("settings"),
        lock: None,
        new_store: StoreId([5; 16]),
        tiers: Tiers { arena: ArenaBacking::Shared(Backing::MemoryFile), ..Tiers::default() },
        executor: Executor::Inline,
        merging: MergeRules::default(),
        scrubbing: ScrubRules::default(),
    };
    let store = Store::open_parts(parts).expect("an empty device");
    store.register(&namespace(), dalsegno_store::RegisterOptions::default()).expect("a namespace");
    let chain = [ChainHash([1; 32]), ChainHash([2; 32])];
    let blocks = chain.iter().map(|hash| vec![Memory::owned(vec![hash.0[0]; BLOCK], ())]).collect();
    let put = Put { chain: &chain, first: 0, blocks, keep: Keep::Stored };
    store.put_batch(namespace().id(), put, &Terms::default()).expect("space");
    Pool::of(store).expect("a pool")
}

/// The seeds: a conversation, and each message behind a hello.
#[must_use]
pub fn session_seeds() -> Vec<Vec<u8>> {
    let hashes = [[1; 32], [2; 32], [3; 32]].concat();
    let messages = messages(&namespace());
    let with_tail = |message: &Vec<u8>| [message.as_slice(), &hashes].concat();
    let framed = |message: &[u8]| {
        let length = u16::try_from(message.len()).expect("short").to_le_bytes();
        [&length, message].concat()
    };
    let (hello, others) = messages.split_first().expect("a hello");
    let mut seeds = vec![messages.iter().flat_map(|one| framed(one)).collect::<Vec<u8>>()];
    for message in others {
        seeds.push([framed(hello), framed(message)].concat());
        seeds.push([framed(hello), framed(&with_tail(message))].concat());
    }
    seeds
}

thread_local! {
    static POOL: OnceCell<(Pool, Arc<ManualClock>)> = const { OnceCell::new() };
}

/// A conversation: messages, each behind its length in two bytes.
pub(crate) fn session(input: &[u8]) {
    POOL.with(|shared| {
        let (pool, clock) = shared.get_or_init(|| {
            let clock = Arc::new(ManualClock::default());
            (pool(&clock), clock)
        });
        let mut line = Talk::open(pool.clone(), Arc::<ManualClock>::clone(clock) as _);
        let mut rest = input;
        while let Some((length, tail)) = rest.split_first_chunk::<2>() {
            let length = usize::from(u16::from_le_bytes(*length)).min(tail.len());
            let (message, next) = tail.split_at(length);
            if !line.send(message) {
                break;
            }
            rest = next;
        }
        drop(line);
        assert_eq!(
            pool.usage().map(|usage| usage.leased_bytes).unwrap_or_default(),
            0,
            "a lease is left"
        );
    });
}

/// An answer of a server.
pub(crate) fn reply(input: &[u8]) {
    answer(input);
}
