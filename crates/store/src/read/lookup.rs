//! Finding blocks in the index.
//!
//! 1. A lookup touches no payload and does not wait for a device that hangs.
//! 2. While reads are suspended only blocks in DRAM are present: a load could not deliver the others.
//! 3. A lookup counts as a use, since a load follows if it finds the blocks. [`peek`] is no use.

use std::time::Duration;

use dalsegno_core::{ChainHash, Deadline, NamespaceId};
use dalsegno_index::{Run, Scope, note_use};
use dalsegno_io::WaitLimit;

use crate::engine::Engine;
use crate::stats::add;

/// How long a lookup may wait for files of the index. A working disk responds within some milliseconds. Blocks that are
/// not found in time count as absent.
pub(crate) const LOOKUP_TIMEOUT: Duration = Duration::from_millis(100);

/// See [`Store::probe`](crate::Store::probe).
pub(crate) fn probe(engine: &Engine, namespace: NamespaceId, chain: &[ChainHash]) -> usize {
    let runs = find_used(engine, namespace, chain, Scope::Prefix, lookup_limit(engine));
    let mut present = blocks_of(&runs);
    if engine.device.is_suspended() {
        let is_in_dram = |hash: &&ChainHash| engine.front.dram.holds(&(namespace, **hash));
        present = chain[..present].iter().take_while(is_in_dram).count();
    }
    let counters = &engine.counters;
    add(&counters.probe_calls, 1);
    add(&counters.probe_asked_blocks, chain.len() as u64);
    add(&counters.probe_present_blocks, present as u64);
    present
}

/// See [`Store::contains`](crate::Store::contains).
pub(crate) fn contains(engine: &Engine, namespace: NamespaceId, hashes: &[ChainHash]) -> Vec<bool> {
    let runs = find_used(engine, namespace, hashes, Scope::Each, lookup_limit(engine));
    present(engine, namespace, hashes, &runs)
}

/// See [`Store::peek`](crate::Store::peek).
pub(crate) fn peek(engine: &Engine, namespace: NamespaceId, hashes: &[ChainHash]) -> Vec<bool> {
    let runs = engine.index.resolve(namespace, hashes, Scope::Each, lookup_limit(engine));
    present(engine, namespace, hashes, &runs)
}

/// See [`Store::touch`](crate::Store::touch).
pub(crate) fn touch(engine: &Engine, namespace: NamespaceId, chain: &[ChainHash]) -> usize {
    let now = Deadline::At(engine.clock.now());
    let wait = WaitLimit::until(now, engine.clock.as_ref());
    blocks_of(&find_used(engine, namespace, chain, Scope::Prefix, wait))
}

/// How long the index may wait for a caller that gave no timeout.
pub(crate) fn lookup_limit(engine: &Engine) -> WaitLimit {
    let until = engine.clock.now().after(LOOKUP_TIMEOUT);
    WaitLimit::until(Deadline::At(until), engine.clock.as_ref())
}

/// Which of `count` blocks the index found.
pub(crate) fn are_found(count: usize, runs: &[Run]) -> Vec<bool> {
    let mut found = vec![false; count];
    for run in runs {
        found[run.at..run.at + run.count as usize].fill(true);
    }
    found
}

/// Finds blocks, and notes their use.
fn find_used(
    engine: &Engine,
    namespace: NamespaceId,
    hashes: &[ChainHash],
    scope: Scope,
    wait: WaitLimit,
) -> Vec<Run> {
    let index = engine.index.as_ref();
    let runs = index.resolve(namespace, hashes, scope, wait);
    note_use(index, &runs, engine.log.segments().round(), wait);
    runs
}

fn blocks_of(runs: &[Run]) -> usize {
    runs.iter().map(|run| run.count as usize).sum()
}

/// Which of these blocks can be loaded, of those that the index found.
fn present(
    engine: &Engine,
    namespace: NamespaceId,
    hashes: &[ChainHash],
    runs: &[Run],
) -> Vec<bool> {
    let mut present = are_found(hashes.len(), runs);
    if engine.device.is_suspended() {
        for (hash, present) in hashes.iter().zip(&mut present) {
            *present &= engine.front.dram.holds(&(namespace, *hash));
        }
    }
    present
}
