//! A running store and its files must hold the same set of blocks.
//!
//! 1. A store that is opened over a copy of the files, as a killed process leaves them, lists every block that the
//!    running store lists. This holds for either index.
//! 2. The reverse holds as well, with two exceptions: blocks whose put was reported as failed, and after a merge blocks
//!    of which an older copy is still in the log.

use std::collections::BTreeSet;
use std::sync::Arc;

use dalsegno_core::{ChainHash, IndexChoice};
use dalsegno_store::Store;
use dalsegno_store::testing::MergeRules;

use crate::device::SimDevice;
use crate::history::Style;
use crate::oracle::Oracle;
use crate::setup::Setup;

/// The number of a namespace, and the hash of a block.
pub(crate) type Block = (usize, ChainHash);

/// Blocks that the files may hold although the running store does not list them.
#[derive(Clone, Copy, Debug)]
pub(crate) struct MayReturn<'a> {
    /// Those whose put was reported as failed.
    pub(crate) failed: &'a BTreeSet<Block>,
    /// Any block, because extents were merged.
    pub(crate) any: bool,
}

/// Compares an open store with what an open of its files finds. Returns how many blocks the store lists.
///
/// # Panics
///
/// If they differ.
pub(crate) fn check_agreement(
    store: &Store,
    device: &SimDevice,
    setup: &Setup,
    oracle: &Oracle,
    may_return: MayReturn<'_>,
) -> usize {
    let running = listed(store, setup, oracle);
    for index in [IndexChoice::Memory, IndexChoice::Lsm] {
        let reopened = listed(&fork(device, setup, index), setup, oracle);
        let lost: Vec<_> = running.difference(&reopened).collect();
        assert!(lost.is_empty(), "an open with {index:?} does not find {lost:?}");
        let returned: Vec<_> = reopened
            .difference(&running)
            .filter(|block| !may_return.any && !may_return.failed.contains(block))
            .collect();
        assert!(returned.is_empty(), "an open with {index:?} brings {returned:?} back");
    }
    running.len()
}

/// A store over a copy of the files, as if the process had been killed.
fn fork(device: &SimDevice, setup: &Setup, index: IndexChoice) -> Store {
    let mut style =
        Style { memtable_bytes: None, merging: MergeRules::default(), ..setup.style.clone() };
    if style.config.index == IndexChoice::Memory && index == IndexChoice::Lsm {
        style = style.indexed_in_files();
    }
    style.config.index = index;
    setup.open_store(Arc::new(device.fork()), &style).expect("the files of a killed process open")
}

/// The blocks that a store lists, of all that were ever put.
fn listed(store: &Store, setup: &Setup, oracle: &Oracle) -> BTreeSet<Block> {
    let mut listed = BTreeSet::new();
    for (number, id) in setup.ids() {
        let hashes = oracle.hashes(number);
        let present = store.peek(id, &hashes).expect("the store is open");
        let found = hashes.into_iter().zip(present).filter(|(_, present)| *present);
        listed.extend(found.map(|(hash, _)| (number, hash)));
    }
    listed
}
