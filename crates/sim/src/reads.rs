//! Reads from the open store, each compared with the oracle.

use std::cell::Cell;
use std::time::Duration;

use dalsegno_io::{Memory, PageSlice, lend};
use dalsegno_store::{
    LayerOutcome, Load, LoadTarget, Outcome, PagePart, PageShape, PagedMemory, Scope, Store, Terms,
};

use crate::blocks::chain_hashes;
use crate::history::Part;
use crate::oracle::{Expect, Oracle};
use crate::setup::Setup;

/// Causes of a miss that a torn extent explains. An index never points to an extent without its header: the header was
/// read at open, or was durable before the index.
const TORN: [&str; 2] = ["slice_checksum", "codec"];

/// An open store with everything that its answers are compared with.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CheckedReads<'a> {
    pub(crate) store: &'a Store,
    pub(crate) setup: &'a Setup,
    pub(crate) oracle: &'a Oracle,
    /// Whether only the history can make a block a miss.
    pub(crate) is_calm: bool,
    pub(crate) is_after_outage: bool,
    /// Number of answers that were compared.
    pub(crate) checks: &'a Cell<u64>,
}

impl CheckedReads<'_> {
    /// Gets blocks, each independently, and compares every answer. Returns the number of hits.
    ///
    /// # Panics
    ///
    /// If bytes are wrong, or if a block is lost or present that must not be.
    pub(crate) fn get(&self, part: &Part, timed: bool) -> usize {
        let bytes = self.setup.block_bytes(part.namespace);
        let mut out = vec![vec![0xee_u8; bytes]; part.hashes().len()];
        let id = self.setup.id(part.namespace);
        let report = lend(|lender| {
            let targets: Vec<Vec<Memory>> =
                out.iter_mut().map(|block| vec![lender.exclusive(block)]).collect();
            self.store.get_batch(id, part.hashes(), targets, Scope::Each, &terms(timed))
        });
        let report = report.expect("a get of the right sizes never fails");
        self.checked(part.hashes().len());
        for ((hash, got), outcome) in part.hashes().iter().zip(&out).zip(&report.outcomes) {
            let expected = self.oracle.expects(part.namespace, *hash);
            if outcome.is_hit() {
                let right = self.setup.block(part.namespace, *hash);
                assert!(*got == *right, "wrong bytes for {hash} of namespace {id}");
                assert!(expected != Expect::Miss, "{hash} of namespace {id} came back");
            } else if self.is_calm {
                assert!(expected != Expect::Hit, "{hash} of namespace {id} is lost: {outcome:?}");
                if let Outcome::Lost(cause) = outcome {
                    let is_left = TORN.contains(&cause.name()) && self.is_after_outage;
                    assert!(is_left, "{hash} of namespace {id} refers to no extent: {cause:?}");
                }
            }
        }
        report.hit_blocks()
    }

    /// Loads blocks by layer, into memory or into pages.
    pub(crate) fn load(&self, part: &Part, into_pages: bool) {
        let layout = self.setup.layout(part.namespace);
        let has_dram = self.store.limits().dram_bytes > 0;
        let (load, out) =
            if into_pages && has_dram { self.load_pages(part) } else { self.load_blocks(part) };
        let report = load.transfer.take().expect("the caller runs it").expect("it never fails");
        self.checked(report.leading_blocks());
        let is_ready =
            |layer: &u32| matches!(load.layers.outcome(*layer), Ok(Some(LayerOutcome::Ready)));
        let ready: Vec<u32> = (0..layout.layers()).filter(is_ready).collect();
        let is_whole = report.leading_blocks() == part.chain.len();
        assert!(!is_whole || ready.len() == layout.layers() as usize, "a hit lacks a layer");
        for (at, (hash, got)) in part.chain.iter().zip(&out).enumerate() {
            let (right, is_hit) =
                (self.setup.block(part.namespace, *hash), at < report.leading_blocks());
            let id = self.setup.id(part.namespace);
            assert!(!is_hit || *got == *right, "wrong bytes for {hash} of namespace {id}");
            for layer in &ready {
                let at = *layer as usize * layout.slice_bytes() as usize;
                let range = at..at + layout.slice_bytes() as usize;
                assert!(
                    got[range.clone()] == right[range],
                    "wrong bytes in layer {layer} of {hash}"
                );
            }
            let expected = self.oracle.expects(part.namespace, *hash);
            assert!(!is_hit || expected != Expect::Miss, "{hash} of namespace {id} came back");
        }
    }

    fn load_blocks(&self, part: &Part) -> (Load, Vec<Vec<u8>>) {
        let layout = self.setup.layout(part.namespace);
        let block_bytes = usize::try_from(layout.block_bytes()).expect("small blocks");
        let mut out = vec![vec![0xee_u8; block_bytes]; part.chain.len()];
        let load = lend(|lender| {
            let targets = out.iter_mut().map(|block| vec![lender.exclusive(block)]).collect();
            self.start_load(part, LoadTarget::Blocks(targets))
        });
        (load, out)
    }

    /// Into pages of two parts, in the reverse order of the blocks.
    fn load_pages(&self, part: &Part) -> (Load, Vec<Vec<u8>>) {
        let layout = self.setup.layout(part.namespace);
        let (layers, bytes) = (layout.layers() as usize, layout.slice_bytes() as usize);
        let (count, head) = (part.chain.len(), bytes / 3);
        let parts = [(0, head), (count * bytes, bytes - head)]
            .map(|(offset, bytes)| PagePart { offset, bytes });
        let shape = PageShape { stride: bytes, parts: parts.into(), pages_per_block: 1 };
        let memory = PagedMemory::zeroed(layers, 2 * count * bytes, count, shape);
        let memory = memory.expect("pages of the right size");
        let table: Vec<u32> = (0..u32::try_from(count).expect("a few blocks")).rev().collect();
        let pages = || memory.blocks(table.clone()).expect("no load uses them");
        let load = self.start_load(part, LoadTarget::Pages(pages()));
        let loaded = pages();
        let block = |at: usize| {
            let slices = (0..layout.layers()).filter_map(|layer| loaded.take_slice(at, layer));
            slices
                .flat_map(PageSlice::into_memory)
                .flat_map(|memory| memory.as_slice().to_vec())
                .collect()
        };
        (load, (0..count).map(block).collect())
    }

    fn start_load(&self, part: &Part, target: LoadTarget) -> Load {
        let id = self.setup.id(part.namespace);
        let load = self.store.load(id, part.chain.clone(), target, None);
        load.expect("a load of the right sizes never fails")
    }

    pub(crate) fn probe(&self, part: &Part) {
        let id = self.setup.id(part.namespace);
        let present = self.store.probe(id, &part.chain).expect("the store is open");
        self.checked(present);
        for hash in &part.chain[..present] {
            let expected = self.oracle.expects(part.namespace, *hash);
            assert!(expected != Expect::Miss, "probe finds {hash}, which is not there");
        }
    }

    /// Reads and checks every block that was ever put, and some that never were. Returns how many are present.
    ///
    /// # Panics
    ///
    /// As [`Self::get`].
    pub(crate) fn check_all(&self) -> usize {
        let mut found = 0;
        for namespace in 0..self.setup.namespaces.len() {
            let mut chain = self.oracle.hashes(namespace);
            chain.extend(chain_hashes(u64::MAX / 2, 2));
            let id = self.setup.id(namespace);
            let present = self.store.peek(id, &chain).expect("the store is open");
            self.checked(chain.len());
            for (hash, present) in chain.iter().zip(present) {
                let expected = self.oracle.expects(namespace, *hash);
                assert!(!present || expected != Expect::Miss, "{hash} of namespace {id} is listed");
            }
            found += self.get(&Part { namespace, chain, first: 0 }, false);
        }
        found
    }

    fn checked(&self, answers: usize) {
        self.checks.set(self.checks.get() + answers as u64);
    }
}

/// A deadline of one second, or none.
pub(crate) fn terms(timed: bool) -> Terms {
    if timed { Terms::within(Duration::from_secs(1)) } else { Terms::default() }
}
