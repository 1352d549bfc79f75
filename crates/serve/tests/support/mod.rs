//! A directory, its server and its clients.

#![expect(clippy::unwrap_used, reason = "helpers of tests")]

use std::path::PathBuf;
use std::time::Duration;

use dalsegno_core::Clock;
use dalsegno_io::{Backing, SystemClock};
use dalsegno_serve::{Client, LeaseShare, ServedLease, Server, socket_of};
use dalsegno_store::{
    ChainHash, Config, DramAdmission, Keep, KvLayout, Namespace, Pool, Put, PutReport,
    RegisterOptions, Scope, Terms, lend,
};

/// Bytes of a block: more than one unit of the pool.
pub(crate) const BLOCK: usize = 80_000;

pub(crate) struct Place {
    folder: tempfile::TempDir,
}

impl Place {
    pub(crate) fn new() -> Self {
        Self { folder: tempfile::tempdir().unwrap() }
    }

    pub(crate) fn directory(&self) -> PathBuf {
        self.folder.path().join("store")
    }

    pub(crate) fn pool(&self) -> Pool {
        let config = Config {
            capacity: Some(256 << 20),
            dram: Some(16 << 20),
            dram_admission: DramAdmission::Put,
            ..Config::default()
        };
        Pool::open(&self.directory(), &config, Backing::MemoryFile).unwrap()
    }

    pub(crate) fn serve(&self) -> Server {
        let directory = self.directory();
        Server::start(
            &socket_of(&directory),
            &directory,
            self.pool(),
            Vec::new(),
            LeaseShare::default(),
        )
        .unwrap()
    }

    pub(crate) fn client(&self) -> Client {
        let client = Client::open(&socket_of(&self.directory())).unwrap();
        client.register(&namespace(), RegisterOptions::default()).unwrap();
        client
    }
}

pub(crate) fn namespace() -> Namespace {
    let layout = KvLayout::new(2, u32::try_from(BLOCK / 2).unwrap()).unwrap();
    Namespace::builder(layout).field("model", "m").build().unwrap()
}

pub(crate) fn chain(prompt: &str, count: usize) -> Vec<ChainHash> {
    let name = |at: usize| {
        let mut hash = [0; 32];
        hash[..8].copy_from_slice(&at.to_le_bytes());
        hash[8..8 + prompt.len()].copy_from_slice(prompt.as_bytes());
        hash[31] = 1;
        ChainHash(hash)
    };
    (0..count).map(name).collect()
}

/// The bytes of a block follow from its hash.
pub(crate) fn content(hash: &ChainHash, bytes: usize) -> Vec<u8> {
    let seed = hash.0.iter().fold(7_u64, |seed, byte| seed.wrapping_mul(31) + u64::from(*byte));
    let byte = |at: usize| {
        let mixed = seed.wrapping_add(at as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        mixed.to_le_bytes()[7]
    };
    (0..bytes).map(byte).collect()
}

pub(crate) fn put(client: &Client, chain: &[ChainHash], first: usize) -> PutReport {
    let blocks: Vec<Vec<u8>> = chain[first..].iter().map(|hash| content(hash, BLOCK)).collect();
    lend(|lender| {
        let blocks = blocks.iter().map(|block| vec![lender.shared(block)]).collect();
        let put = Put { chain, first, blocks, keep: Keep::Stored };
        client.put_batch(namespace().id(), put, &Terms::default()).unwrap()
    })
}

pub(crate) fn get(client: &Client, chain: &[ChainHash], scope: Scope) -> Vec<Option<Vec<u8>>> {
    let mut blocks = vec![vec![0; BLOCK]; chain.len()];
    let report = lend(|lender| {
        let out = blocks
            .iter_mut()
            .map(|block| {
                let (head, tail) = block.split_at_mut(BLOCK / 3);
                vec![lender.exclusive(head), lender.exclusive(tail)]
            })
            .collect();
        client.get_batch(namespace().id(), chain, out, scope, &Terms::default()).unwrap()
    });
    blocks
        .into_iter()
        .zip(report.outcomes)
        .map(|(block, outcome)| outcome.is_hit().then_some(block))
        .collect()
}

/// A copy of a leased block.
pub(crate) fn lease_bytes(lease: &ServedLease, at: usize) -> Vec<u8> {
    lease.to_vec(at).unwrap()
}

pub(crate) fn wait_for(what: &str, mut is_so: impl FnMut() -> bool) {
    let clock = SystemClock::new();
    let until = clock.now().after(Duration::from_secs(10));
    while !is_so() {
        assert!(clock.now() < until, "no {what} within ten seconds");
        std::thread::sleep(Duration::from_millis(5));
    }
}
