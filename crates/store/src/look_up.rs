//! Which blocks are there.
//!
//! 1. A look-up touches no payload, and waits for no device that hangs.
//! 2. While reads are suspended only what DRAM holds is there: what nobody can have is no promise to make.

use std::time::Duration;

use dalsegno_core::{ChainHash, Deadline, NamespaceId, Result};
use dalsegno_index::{Index, Scope};
use dalsegno_io::patiently;

use crate::stats::add;
use crate::store::{Inner, Store};

/// How long a look-up may wait for files of the index. A disk that works answers within some milliseconds; what is not
/// found in time counts as not there.
const PATIENCE: Duration = Duration::from_millis(100);

impl Store {
    /// How many leading blocks of `chain` are present; it may start at any block of a prompt. While the device does not
    /// answer, that is those in DRAM.
    ///
    /// # Errors
    ///
    /// `Closed`.
    pub fn probe(&self, namespace: NamespaceId, chain: &[ChainHash]) -> Result<usize> {
        let inner = self.enter()?;
        let mut present = inner.look_up(|index| index.probe(namespace, chain));
        if inner.watch.is_suspended() {
            let at_hand = |hash: &&ChainHash| inner.dram.holds(&(namespace, **hash));
            present = chain[..present].iter().take_while(at_hand).count();
        }
        let counters = &inner.counters;
        add(&counters.probe_calls, 1);
        add(&counters.probe_asked_blocks, chain.len() as u64);
        add(&counters.probe_present_blocks, present as u64);
        Ok(present)
    }

    /// Which of these blocks are present, each for itself; as for [`Store::probe`].
    ///
    /// # Errors
    ///
    /// `Closed`.
    pub fn contains(&self, namespace: NamespaceId, hashes: &[ChainHash]) -> Result<Vec<bool>> {
        let inner = self.enter()?;
        let mut present = vec![false; hashes.len()];
        for run in inner.look_up(|index| index.resolve(namespace, hashes, Scope::Each)) {
            present[run.at..run.at + run.count as usize].fill(true);
        }
        if inner.watch.is_suspended() {
            for (hash, present) in hashes.iter().zip(&mut present) {
                *present &= inner.dram.holds(&(namespace, *hash));
            }
        }
        Ok(present)
    }
}

impl Inner {
    /// Asks the index on behalf of somebody who gave no timeout.
    fn look_up<R>(&self, ask: impl FnOnce(&dyn Index) -> R) -> R {
        let until = self.clock.now().after(PATIENCE);
        patiently(Deadline::At(until), self.clock.as_ref(), || ask(self.index.as_ref()))
    }
}
