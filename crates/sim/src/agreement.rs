//! What a store serves and what its files hold must be the same set of blocks.
//!
//! 1. Whatever a running store lists, a store that is opened over a copy of its files lists, too: as a killed process
//!    leaves them, with either index.
//! 2. The other way round, too, but for blocks whose put was reported as failed, and, once extents were merged, for
//!    blocks of which an older copy is still in the log.

use std::collections::BTreeSet;
use std::sync::Arc;

use dalsegno_core::{ChainHash, IndexChoice, ManualClock, StoreId};
use dalsegno_store::{MergeRules, Parts, ScrubRules, Store};

use crate::history::Style;
use crate::world::World;

/// The number of a namespace, and the hash of a block.
pub(crate) type Block = (usize, ChainHash);

impl World {
    /// Compares the open store with what an open of its files finds, if segments were recycled since the last time.
    ///
    /// # Panics
    ///
    /// If they differ.
    pub(crate) fn agree_after_reclaim(&mut self) {
        let Some(store) = self.store.as_ref().filter(|_| self.is_calm()) else { return };
        let recycled = store.stats().log.segments_recycled;
        if recycled != self.agreed_segments {
            self.agreed_segments = recycled;
            self.check_agreement();
        }
    }

    /// Compares the open store with what an open of its files finds.
    ///
    /// # Panics
    ///
    /// If they differ.
    pub fn check_agreement(&self) {
        let running = self.listed(self.store());
        for index in [IndexChoice::Memory, IndexChoice::Lsm] {
            let reopened = self.listed(&self.fork(index));
            let lost: Vec<_> = running.difference(&reopened).collect();
            assert!(lost.is_empty(), "an open with {index:?} does not find {lost:?}");
            let may_differ = self.stats().merging.merges > 0 || self.totals.merges > 0;
            let returned: Vec<_> = reopened
                .difference(&running)
                .filter(|block| !may_differ && !self.failed.contains(block))
                .collect();
            assert!(returned.is_empty(), "an open with {index:?} brings {returned:?} back");
            self.checked(running.len());
        }
    }

    /// A store over a copy of the files, as if the process had been killed.
    fn fork(&self, index: IndexChoice) -> Store {
        let mut style = Style { memtable_bytes: None, ..self.style.clone() };
        if style.config.index == IndexChoice::Memory && index == IndexChoice::Lsm {
            style = style.indexed_in_files();
        }
        style.config.index = index;
        let limits = style.config.validate(Self::space()).expect("a style's settings are valid");
        Store::open_parts(Parts {
            device: Arc::new(self.device.fork()),
            clock: Arc::<ManualClock>::clone(&self.clock),
            pool: self.pool.clone(),
            limits,
            lock: None,
            new_store: StoreId([7; 16]),
            inline_upkeep: true,
            merging: MergeRules::default(),
            scrubbing: ScrubRules::default(),
        })
        .expect("what a killed process leaves can be opened")
    }

    /// The blocks that a store lists, of all that were ever put.
    fn listed(&self, store: &Store) -> BTreeSet<Block> {
        let mut listed = BTreeSet::new();
        for (number, namespace) in self.namespaces.iter().enumerate() {
            let hashes = self.oracle.hashes(number);
            let present = store.peek(namespace.id(), &hashes).expect("the store is open");
            let found = hashes.into_iter().zip(present).filter(|(_, present)| *present);
            listed.extend(found.map(|(hash, _)| (number, hash)));
        }
        listed
    }
}
