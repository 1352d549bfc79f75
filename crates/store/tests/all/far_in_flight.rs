//! Removals while blocks are on their way from the far location to DRAM and to the log.

use std::path::Path;
use std::sync::Arc;

use dalsegno_far::Tier;
use dalsegno_store::testing::Tiers;
use dalsegno_store::{
    ChainHash, FarStats, Keep, LayerSpan, Memory, NamespaceId, Outcome, Put, Scope, Store, Terms,
    lend,
};

use crate::far_host::{WORKERS, config_with as config};
use crate::held_tier::HeldTier;
use crate::support::hanging::hanging_with;
use crate::support::{LIMIT, block, chain, namespace, put, until};

const SLICE: u32 = 64 << 10;
const BYTES: usize = 4 * SLICE as usize;
const BLOCKS: usize = 24;

/// A far directory with chain 1, which a store published that is closed now.
fn published() -> tempfile::TempDir {
    let far = tempfile::tempdir().unwrap();
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open(dir.path(), &config(far.path(), 0)).unwrap();
    let namespace = namespace(&store, 4, SLICE, "far");
    put(&store, namespace, &chain(1, BLOCKS), 0, BYTES);
    store.close();
    assert_eq!(store.stats().far.unwrap().published.blocks, BLOCKS as u64);
    far
}

/// A host whose reads of the far location can be held.
struct Host {
    store: Store,
    namespace: NamespaceId,
    far: Arc<HeldTier>,
    _dir: tempfile::TempDir,
}

impl Host {
    /// One that finds chain 1 at the far location.
    fn new(far: &Path, dram: u64) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let tier = HeldTier::open(far, WORKERS);
        let as_tier = Arc::<HeldTier>::clone(&tier) as Arc<dyn Tier>;
        let tiers = Tiers { far: Some(as_tier), ..Tiers::default() };
        let (_, store, _) = hanging_with(dir.path(), &config(far, dram), tiers);
        let namespace = namespace(&store, 4, SLICE, "far");
        let host = Self { store, namespace, far: tier, _dir: dir };
        until("the pack is found", || host.far_stats().blocks >= BLOCKS as u64);
        host
    }

    /// Gets each block of a chain; returns the outcomes and the bytes.
    fn get(&self, chain: &[ChainHash]) -> (Vec<Outcome>, Vec<Vec<u8>>) {
        let mut out = vec![vec![0; BYTES]; chain.len()];
        let terms = Terms::within(LIMIT);
        let report = lend(|lender| {
            let targets = out.iter_mut().map(|b| vec![lender.exclusive(b)]).collect();
            self.store.get_batch(self.namespace, chain, targets, Scope::Each, &terms).unwrap()
        });
        (report.outcomes, out)
    }

    fn remove(&self, hashes: Option<&[ChainHash]>) {
        self.store.remove(self.namespace, hashes, &Terms::within(LIMIT)).unwrap();
    }

    /// Puts other bytes than those at the far location.
    fn put_again(&self, chain: &[ChainHash]) {
        let blocks = chain.iter().map(|_| vec![Memory::owned(vec![9; BYTES], ())]).collect();
        let put = Put { chain, first: 0, blocks, keep: Keep::Stored };
        let report = self.store.put_batch(self.namespace, put, &Terms::default()).unwrap();
        assert_eq!(report.kept(), vec![true; chain.len()]);
    }

    fn present(&self, chain: &[ChainHash]) -> usize {
        let present = self.store.contains(self.namespace, chain).unwrap();
        present.iter().filter(|is_present| **is_present).count()
    }

    /// Waits until the copy thread has looked for blocks several times.
    fn wait_for_copies(&self) {
        // A block that nobody removed is copied behind the others.
        let hash = *chain(1, BLOCKS).last().unwrap();
        for _ in 0..2 {
            assert!(self.get(&[hash]).0[0].is_hit());
        }
        until("a later block is copied", || self.store.stats().blocks > 0);
    }

    fn far_stats(&self) -> FarStats {
        self.store.stats().far.unwrap()
    }
}

/// What a removal names.
fn removals(chain: &[ChainHash]) -> [Option<&[ChainHash]>; 2] {
    [Some(chain), None]
}

#[test]
fn a_get_that_ends_after_a_removal_brings_no_block_to_the_log() {
    let chain = chain(1, BLOCKS);
    let some = &chain[..8];
    let far = published();
    let host = Host::new(far.path(), 0);
    host.get(some);
    host.far.hold();
    std::thread::scope(|scope| {
        let get = scope.spawn(|| host.get(some));
        until("the get waits for the far location", || host.far.waiting() > 0);
        host.remove(Some(some));
        host.far.go_on();
        get.join().unwrap();
    });
    host.wait_for_copies();
    assert_eq!(host.present(some), 0);
    assert_eq!(host.store.stats().blocks, 1, "only the block that was not removed");
}

#[test]
fn a_get_that_ends_after_a_removal_brings_no_block_to_dram() {
    let chain = chain(1, BLOCKS);
    let some = &chain[..8];
    for removal in removals(some) {
        let far = published();
        let host = Host::new(far.path(), 32 << 20);
        host.far.hold();
        std::thread::scope(|scope| {
            let get = scope.spawn(|| host.get(some));
            until("the get waits for the far location", || host.far.waiting() > 0);
            host.remove(removal);
            host.put_again(some);
            host.far.go_on();
            get.join().unwrap();
        });
        let (outcomes, bytes) = host.get(some);
        assert!(outcomes.iter().all(|outcome| outcome.is_hit()), "{outcomes:?}");
        assert!(bytes.iter().flatten().all(|byte| *byte == 9), "bytes from before the removal");
    }
}

#[test]
fn a_prefetch_that_ends_after_a_removal_brings_no_block_to_dram() {
    let chain = chain(1, BLOCKS);
    for removal in removals(&chain) {
        let far = published();
        let host = Host::new(far.path(), 64 << 20);
        assert_eq!(host.store.probe(host.namespace, &chain).unwrap(), BLOCKS);
        // The get reads the beginning. What follows is prefetched.
        host.far.hold_thread("dalsegno-far-get");
        host.get(&chain[..4]);
        until("blocks are being prefetched", || host.far.waiting() > 0);
        host.remove(removal);
        host.put_again(&chain[4..]);
        host.far.go_on();
        let ended = || {
            let stats = host.far_stats();
            stats.prefetched_blocks + stats.prefetch_dropped_blocks
        };
        until("the prefetch has ended", || ended() >= (BLOCKS - 4) as u64);
        let (outcomes, bytes) = host.get(&chain[4..]);
        assert!(outcomes.iter().all(|outcome| outcome.is_hit()), "{outcomes:?}");
        assert!(bytes.iter().flatten().all(|byte| *byte == 9), "bytes from before the removal");
    }
}

#[test]
fn blocks_that_are_removed_while_they_wait_to_be_copied_are_not_copied() {
    let chain = chain(1, BLOCKS);
    let some = &chain[..8];
    for dram in [0, 32 << 20] {
        let far = published();
        let host = Host::new(far.path(), dram);
        for _ in 0..2 {
            let (outcomes, bytes) = host.get(some);
            assert!(outcomes.iter().all(|outcome| outcome.is_hit()));
            assert!(some.iter().zip(&bytes).all(|(hash, bytes)| *bytes == block(*hash, BYTES)));
        }
        host.remove(Some(some));
        host.wait_for_copies();
        assert_eq!(host.present(some), 0);
        assert_eq!(host.store.stats().blocks, 1, "only the block that was not removed");
    }
}

#[test]
fn a_layered_put_that_is_committed_after_a_removal_brings_no_block_back() {
    let chain = chain(7, 2);
    let far = published();
    let host = Host::new(far.path(), 0);
    let terms = Terms::within(LIMIT);
    for removal in removals(&chain) {
        let writer = host
            .store
            .layer_writer(host.namespace, LayerSpan { chain: &chain, first: 0, count: 2 }, &terms)
            .unwrap();
        for layer in 0..4 {
            let slice = || vec![Memory::owned(vec![9; SLICE as usize], ())];
            writer.store_layer(layer, (0..2).map(|_| slice()).collect(), &terms).unwrap();
        }
        host.remove(removal);
        assert_eq!(writer.commit(Keep::Stored, &terms).unwrap(), 0);
        assert_eq!(host.present(&chain), 0);
    }
}

#[test]
fn regression_a_get_after_a_removal_and_a_put_returns_the_bytes_that_were_put_last() {
    let chain = chain(1, BLOCKS);
    let some = &chain[..8];
    let far = published();
    let host = Host::new(far.path(), 32 << 20);
    host.far.hold();
    std::thread::scope(|scope| {
        let get = scope.spawn(|| host.get(some));
        until("the get waits for the far location", || host.far.waiting() > 0);
        host.remove(Some(some));
        host.put_again(some);
        host.far.go_on();
        while !get.is_finished() {
            let (outcomes, bytes) = host.get(some);
            let is_newest = bytes.iter().flatten().all(|byte| *byte == 9);
            assert!(is_newest, "{outcomes:?}: bytes that were removed");
        }
        get.join().unwrap();
    });
}
