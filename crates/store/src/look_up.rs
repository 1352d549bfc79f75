//! Which blocks are there.
//!
//! 1. A look-up touches no payload, and waits for no device that hangs.
//! 2. While reads are suspended only what DRAM holds is there: what nobody can have is no promise to make.
//! 3. Looking up is a use, since a load follows where the answer is yes; [`Store::peek`] is none.

use std::time::Duration;

use dalsegno_core::{ChainHash, Deadline, NamespaceId, Result};
use dalsegno_index::{Index, Run, Scope, note_use};
use dalsegno_io::patiently;

use crate::stats::add;
use crate::store::{Inner, Store};

/// How long a look-up may wait for files of the index. A disk that works answers within some milliseconds; what is not
/// found in time counts as not there.
pub(crate) const LOOK_UP_PATIENCE: Duration = Duration::from_millis(100);

impl Store {
    /// How many leading blocks of `chain` are present; it may start at any block of a prompt. While the device does not
    /// respond, that is those in DRAM. What is present counts as used, with all that it depends on.
    ///
    /// # Errors
    ///
    /// `Closed`.
    pub fn probe(&self, namespace: NamespaceId, chain: &[ChainHash]) -> Result<usize> {
        let inner = self.enter()?;
        let runs = inner.look_up(|index| inner.find_used(index, namespace, chain, Scope::Prefix));
        let mut present = runs.iter().map(|run| run.count as usize).sum();
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
        let runs = inner.look_up(|index| inner.find_used(index, namespace, hashes, Scope::Each));
        Ok(inner.present(namespace, hashes, &runs))
    }

    /// As [`Store::contains`], but nothing counts as used: for monitoring.
    ///
    /// # Errors
    ///
    /// `Closed`.
    pub fn peek(&self, namespace: NamespaceId, hashes: &[ChainHash]) -> Result<Vec<bool>> {
        let inner = self.enter()?;
        let runs = inner.look_up(|index| index.resolve(namespace, hashes, Scope::Each));
        Ok(inner.present(namespace, hashes, &runs))
    }

    /// Notes that a prompt was used, though none of its blocks is asked for: its leading blocks that are present
    /// count as used. For blocks that an engine serves from its own memory; without this they look idle here, and
    /// what was stored behind them would be evicted with them. Returns how many blocks that were.
    ///
    /// Never waits for the device: with an on-disk index, what is not in memory is passed over.
    ///
    /// # Errors
    ///
    /// `Closed`.
    pub fn touch(&self, namespace: NamespaceId, chain: &[ChainHash]) -> Result<usize> {
        let inner = self.enter()?;
        let now = Deadline::At(inner.clock.now());
        let runs = patiently(now, inner.clock.as_ref(), || {
            inner.find_used(inner.index.as_ref(), namespace, chain, Scope::Prefix)
        });
        Ok(runs.iter().map(|run| run.count as usize).sum())
    }
}

impl Inner {
    /// Asks the index on behalf of a caller who gave no timeout.
    pub(crate) fn look_up<R>(&self, ask: impl FnOnce(&dyn Index) -> R) -> R {
        let until = self.clock.now().after(LOOK_UP_PATIENCE);
        patiently(Deadline::At(until), self.clock.as_ref(), || ask(self.index.as_ref()))
    }

    /// Finds blocks, and notes their use.
    fn find_used(
        &self,
        index: &dyn Index,
        namespace: NamespaceId,
        hashes: &[ChainHash],
        scope: Scope,
    ) -> Vec<Run> {
        let runs = index.resolve(namespace, hashes, scope);
        note_use(index, &runs, self.log.segments().round());
        runs
    }

    /// Which of these blocks can be had, of those that the index found.
    fn present(&self, namespace: NamespaceId, hashes: &[ChainHash], runs: &[Run]) -> Vec<bool> {
        let mut present = are_found(hashes.len(), runs);
        if self.watch.is_suspended() {
            for (hash, present) in hashes.iter().zip(&mut present) {
                *present &= self.dram.holds(&(namespace, *hash));
            }
        }
        present
    }
}

/// Which of so many blocks the index found.
pub(crate) fn are_found(count: usize, runs: &[Run]) -> Vec<bool> {
    let mut found = vec![false; count];
    for run in runs {
        found[run.at..run.at + run.count as usize].fill(true);
    }
    found
}
