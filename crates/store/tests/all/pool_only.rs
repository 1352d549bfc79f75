//! Blocks that a put keeps in DRAM only.

use std::collections::BTreeSet;
use std::time::Duration;

use crate::support::hanging::{Hung, hanging};
use crate::support::{Setup, block, chain, get, namespace, open, put, setups, until};
use dalsegno_store::{
    BlockTier, ChainHash, Config, DramAdmission, ErrorKind, Keep, LayerSpan, LayerWriter, Memory,
    NamespaceId, Outcome, Put, PutOutcome, PutReport, Scope, Store, Terms, lend,
};

const BYTES: usize = 40_000;
/// What a block takes in DRAM.
const PLACE: u64 = 64 << 10;
const BLOCKS: usize = 6;
const PLENTY: usize = 1 << 16;

struct Stand {
    dir: tempfile::TempDir,
    config: Config,
    store: Store,
    ns: NamespaceId,
}

impl Stand {
    fn open(setup: Setup, dram: u64) -> Self {
        Self::admitting(setup, dram, DramAdmission::Get)
    }

    fn admitting(setup: Setup, dram: u64, dram_admission: DramAdmission) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let capacity = setup.config(32 << 20);
        let config = Config { dram: Some(dram), dram_admission, merge_rate: Some(0), ..capacity };
        let store = open(dir.path(), &config);
        let ns = namespace(&store, 1, u32::try_from(BYTES).unwrap(), "pool-only");
        Self { dir, config, store, ns }
    }

    fn put_in_pool(&self, chain: &[ChainHash], first: usize) -> PutReport {
        let memory = |hash: &ChainHash| vec![Memory::owned(block(*hash, BYTES), ())];
        let blocks = chain[first..].iter().map(memory).collect();
        let put = Put { chain, first, blocks, keep: Keep::PoolOnly };
        self.store.put_batch(self.ns, put, &Terms::default()).unwrap()
    }

    fn put(&self, chain: &[ChainHash], first: usize) -> PutReport {
        put(&self.store, self.ns, chain, first, BYTES)
    }

    fn get(&self, chain: &[ChainHash]) -> usize {
        get(&self.store, self.ns, chain, BYTES, &Terms::default())
    }

    fn gathered(&self, chain: &[ChainHash]) -> LayerWriter {
        let (span, terms) = (LayerSpan { chain, first: 0, count: chain.len() }, Terms::default());
        let writer = self.store.layer_writer(self.ns, span, &terms).unwrap();
        let blocks = chain[writer.first()..].iter();
        let slices = blocks.map(|hash| vec![Memory::owned(block(*hash, BYTES), ())]).collect();
        writer.store_layer(0, slices, &terms).unwrap();
        writer
    }

    fn remove(&self, hashes: Option<&[ChainHash]>) -> u64 {
        self.store.remove(self.ns, hashes, &Terms::default()).unwrap()
    }

    fn present(&self, chain: &[ChainHash]) -> usize {
        self.store.peek(self.ns, chain).unwrap().into_iter().filter(|there| *there).count()
    }

    fn reopen(self) -> Self {
        let Self { dir, config, store, ns } = self;
        store.close();
        let store = open(dir.path(), &config);
        assert_eq!(namespace(&store, 1, u32::try_from(BYTES).unwrap(), "pool-only"), ns);
        Self { dir, config, store, ns }
    }
}

/// The setups that matter here: both places of the index.
fn both_indexes() -> impl Iterator<Item = Setup> {
    setups().into_iter().filter(|setup| setup.engine == Setup::SIMPLEST.engine)
}

#[test]
fn pool_only_blocks_are_found_by_every_call_and_never_written() {
    for setup in both_indexes() {
        let stand = Stand::open(setup, 16 << 20);
        let chain = chain(1, BLOCKS);
        let report = stand.put_in_pool(&chain, 0);
        assert_eq!(report.outcomes, [PutOutcome::PoolOnly; BLOCKS]);
        assert_eq!(report.kept(), [true; BLOCKS]);
        let (store, ns) = (&stand.store, stand.ns);
        assert_eq!(store.probe(ns, &chain).unwrap(), BLOCKS);
        assert_eq!(store.touch(ns, &chain).unwrap(), BLOCKS);
        assert_eq!(store.contains(ns, &chain).unwrap(), [true; BLOCKS]);
        assert_eq!(stand.present(&chain), BLOCKS);
        let located = store.locate(ns, &chain).unwrap();
        assert_eq!((located.len(), located[0].tier), (1, BlockTier::Dram));
        assert_eq!(located[0].blocks, BLOCKS as u64);
        assert_eq!(stand.get(&chain), BLOCKS);
        let lease = store.lease(ns, &chain, &Terms::default()).unwrap();
        assert_eq!(lease.len(), BLOCKS);
        assert_eq!(lease.block(2).unwrap().as_slice(), block(chain[2], BYTES));
        let stats = store.stats();
        assert_eq!((stats.pool_only_blocks, stats.dram_blocks), (6, 6));
        assert_eq!((stats.blocks, stats.extents, stats.put_stored_blocks), (0, 0, 0));
        assert_eq!(stats.put_bytes, 0);
        assert_eq!(stand.put_in_pool(&chain, 0).outcomes, [PutOutcome::Present; BLOCKS]);
    }
}

#[test]
fn a_chain_may_be_stored_in_part_and_in_the_pool_in_part() {
    for setup in both_indexes() {
        let stand = Stand::open(setup, 16 << 20);
        let chain = chain(1, 7);
        stand.put(&chain[..3], 0);
        assert_eq!(stand.put_in_pool(&chain[..5], 2).count(PutOutcome::Present), 1);
        stand.put(&chain[..6], 5);
        let located = stand.store.locate(stand.ns, &chain).unwrap();
        let runs: Vec<_> = located.iter().map(|run| (run.tier, run.blocks)).collect();
        assert_eq!(runs, [(BlockTier::Log, 3), (BlockTier::Dram, 2), (BlockTier::Log, 1)]);
        assert_eq!(stand.store.probe(stand.ns, &chain).unwrap(), 6);
        assert_eq!(stand.store.lease(stand.ns, &chain, &Terms::default()).unwrap().len(), 6);
        assert_eq!(stand.get(&chain), 6);
        let mut out = vec![vec![0_u8; BYTES]; 7];
        let report = lend(|lender| {
            let targets = out.iter_mut().map(|block| vec![lender.exclusive(block)]).collect();
            let terms = Terms::default();
            stand.store.get_batch(stand.ns, &chain, targets, Scope::Each, &terms).unwrap()
        });
        assert_eq!(report.outcomes[3..5], [Outcome::Dram; 2]);
        assert_eq!(report.hit_blocks(), 6);
    }
}

#[test]
fn evicted_pool_only_blocks_are_misses_and_are_reported() {
    for setup in both_indexes() {
        let stand = Stand::open(setup, 16 * PLACE);
        let watch = stand.store.watch_removals(PLENTY).unwrap();
        let (mut all, mut gone) = (Vec::new(), BTreeSet::new());
        for name in 0..10 {
            let chain = chain(name, BLOCKS);
            assert_eq!(stand.put_in_pool(&chain, 0).count(PutOutcome::PoolOnly), BLOCKS as u64);
            all.extend(chain);
            let taken = watch.take(PLENTY);
            assert!(taken.is_complete);
            gone.extend(taken.blocks.into_iter().map(|(_, hash)| hash));
        }
        let there = stand.store.contains(stand.ns, &all).unwrap();
        let left = all.iter().zip(&there).filter(|(_, there)| **there).map(|(hash, _)| *hash);
        let left: BTreeSet<ChainHash> = left.collect();
        let expected: BTreeSet<ChainHash> =
            all.iter().filter(|hash| !left.contains(hash)).copied().collect();
        assert_eq!((left.len(), gone), (16, expected), "{setup:?}");
        assert_eq!(stand.get(&chain(0, BLOCKS)), 0);
        assert_eq!(stand.store.stats().blocks, 0);
    }
}

#[test]
fn removed_pool_only_blocks_are_counted_reported_and_gone() {
    for setup in both_indexes() {
        let stand = Stand::open(setup, 16 << 20);
        let watch = stand.store.watch_removals(PLENTY).unwrap();
        let chain = chain(1, BLOCKS);
        stand.put_in_pool(&chain, 0);
        assert_eq!(stand.remove(Some(&chain[4..])), 2);
        let gone: Vec<_> = chain[4..].iter().map(|hash| (stand.ns, *hash)).collect();
        assert_eq!(watch.take(PLENTY).blocks, gone, "{setup:?}");
        assert_eq!((stand.get(&chain), stand.present(&chain)), (4, 4));
        assert_eq!(stand.remove(None), 4);
        assert!(!watch.take(PLENTY).is_complete, "a removed namespace is a gap");
        assert_eq!((stand.get(&chain), stand.present(&chain)), (0, 0));
        assert_eq!(stand.store.stats().removed_blocks, 6);
        assert_eq!(stand.put_in_pool(&chain, 0).count(PutOutcome::PoolOnly), 6, "put later");
        assert_eq!(stand.get(&chain), BLOCKS);
    }
}

#[test]
fn blocks_that_are_removed_while_a_writer_gathers_do_not_enter_the_pool() {
    for setup in both_indexes() {
        for dram_admission in [DramAdmission::Get, DramAdmission::Put] {
            let stand = Stand::admitting(setup, 16 << 20, dram_admission);
            let chain = chain(1, BLOCKS);
            let terms = Terms::default();
            let writer = stand.gathered(&chain);
            stand.remove(Some(&chain[1..2]));
            assert_eq!(writer.commit(Keep::PoolOnly, &terms).unwrap(), 5);
            assert_eq!((stand.present(&chain), stand.get(&chain)), (5, 1));
            let writer = stand.gathered(&chain);
            stand.remove(None);
            assert_eq!(writer.commit(Keep::PoolOnly, &terms).unwrap(), 0);
            assert_eq!(stand.present(&chain), 0);
            assert_eq!(stand.store.stats().extents, 0);
        }
    }
}

#[test]
fn a_later_put_stores_pool_only_blocks_once_and_for_good() {
    for setup in both_indexes() {
        for dram_admission in [DramAdmission::Get, DramAdmission::Put] {
            let stand = Stand::admitting(setup, 16 * PLACE, dram_admission);
            let (chain, terms) = (chain(1, BLOCKS), Terms::default());
            let pooled = stand.gathered(&chain).commit(Keep::PoolOnly, &terms).unwrap();
            assert_eq!(pooled, BLOCKS);
            let writer = stand.gathered(&chain);
            assert_eq!((writer.first(), writer.count()), (0, BLOCKS), "pool-only is not stored");
            assert_eq!(writer.commit(Keep::Stored, &terms).unwrap(), BLOCKS);
            assert_eq!(stand.store.stats().put_stored_blocks, BLOCKS as u64);
            assert_eq!(stand.put_in_pool(&chain, 0).count(PutOutcome::Present), BLOCKS as u64);
            let watch = stand.store.watch_removals(PLENTY).unwrap();
            stand.put_in_pool(&self::chain(2, 16), 0);
            let own: Vec<_> = watch.take(PLENTY).blocks;
            assert!(own.iter().all(|(_, hash)| !chain.contains(hash)), "they are in the log");
            assert_eq!(stand.get(&chain), BLOCKS);
            let stand = stand.reopen();
            assert_eq!(stand.get(&chain), BLOCKS, "{setup:?}");
            assert_eq!(stand.remove(None), BLOCKS as u64);
        }
    }
}

#[test]
fn pool_only_blocks_are_gone_after_a_restart() {
    for setup in both_indexes() {
        let stand = Stand::open(setup, 16 << 20);
        let chain = chain(1, BLOCKS);
        stand.put_in_pool(&chain, 0);
        let stand = stand.reopen();
        assert_eq!((stand.get(&chain), stand.present(&chain)), (0, 0));
    }
}

#[test]
fn without_a_place_pool_only_blocks_are_declined() {
    for dram in [0, PLACE / 2, 4 * PLACE] {
        let stand = Stand::open(Setup::SIMPLEST, dram);
        let (chain, terms) = (chain(1, 4), Terms::default());
        stand.put(&chain, 0);
        // Leases have at most half of the tier. Their blocks stay as long as somebody reads them.
        let mut read = Vec::new();
        for half in chain.chunks(2) {
            let lease = stand.store.lease(stand.ns, half, &terms).unwrap();
            read.extend((0..lease.len()).filter_map(|at| lease.block(at)));
        }
        assert_eq!(read.len() as u64, if dram < PLACE { 0 } else { 4 });
        let others = self::chain(2, BLOCKS);
        let report = stand.put_in_pool(&others, 0);
        assert_eq!(report.outcomes, [PutOutcome::Declined; BLOCKS], "{dram}");
        assert_eq!(stand.gathered(&others).commit(Keep::PoolOnly, &terms).unwrap(), 0);
        assert_eq!(stand.present(&others), 0);
        assert_eq!(stand.store.stats().put_declined_blocks, 2 * BLOCKS as u64);
    }
}

#[test]
fn pool_only_blocks_need_no_device_and_a_removal_that_waits_for_it_holds() {
    for setup in both_indexes() {
        let dir = tempfile::tempdir().unwrap();
        let config = Config { dram: Some(16 << 20), ..setup.config(32 << 20) };
        let (device, store) = hanging(dir.path(), &config);
        let ns = namespace(&store, 1, u32::try_from(BYTES).unwrap(), "pool-only");
        let stand = Stand { dir, config, store, ns };
        let (chain, soon) = (chain(1, BLOCKS), Terms::within(Duration::from_millis(200)));
        device.hang(Hung::Everything);
        assert_eq!(stand.put_in_pool(&chain, 0).count(PutOutcome::PoolOnly), BLOCKS as u64);
        assert_eq!(stand.get(&chain), BLOCKS);
        let late = stand.store.remove(stand.ns, Some(&chain[2..]), &soon).unwrap_err();
        assert_eq!(late.kind(), ErrorKind::Unavailable);
        assert_eq!((stand.get(&chain), stand.present(&chain)), (2, 2), "{setup:?}");
        device.go_on();
        let is_done = || stand.put_in_pool(&chain, 5).count(PutOutcome::Failed) == 0;
        until("the removal", is_done);
        assert_eq!(stand.present(&chain), 3, "only the block that was put later");
        assert_eq!(stand.get(&chain), 2);
    }
}

#[test]
fn puts_of_the_same_blocks_at_once_leave_each_block_in_the_log_or_the_pool() {
    for setup in both_indexes() {
        let stand = Stand::admitting(setup, 16 << 20, DramAdmission::Put);
        for name in 0..40 {
            let chain = chain(name, 4);
            let writers = [Keep::Stored, Keep::PoolOnly, Keep::PoolOnly]
                .map(|keep| (stand.gathered(&chain), keep));
            std::thread::scope(|scope| {
                for (writer, keep) in &writers {
                    scope.spawn(|| assert!(writer.commit(*keep, &Terms::default()).unwrap() <= 4));
                }
            });
            assert_eq!(stand.present(&chain), 4);
            stand.put(&chain, 0);
            assert_eq!(stand.remove(Some(&chain)), 4, "each is counted once");
            assert_eq!(stand.present(&chain), 0);
        }
    }
}
