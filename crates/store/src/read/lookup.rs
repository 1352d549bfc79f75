//! Finding blocks in the index.
//!
//! 1. A lookup touches no payload and does not wait for a device that hangs, nor for the far location.
//! 2. While reads of the device are suspended, only blocks in DRAM and at the far location are present: a load could
//!    not deliver the others.
//! 3. A lookup names the blocks of a chain that only the far tier has, because gets of its parts follow.
//! 4. A lookup counts as a use, since a load follows if it finds the blocks. [`peek`] is no use.

use std::time::Duration;

use dalsegno_core::{ChainHash, Deadline, NamespaceId};
use dalsegno_index::{Run, Scope, note_use};

use crate::counters::add;
use crate::engine::Engine;
use crate::read::whereabouts::Whereabouts;

/// How long a lookup may wait for files of the index. A working disk responds within some milliseconds. Blocks that are
/// not found in time count as absent.
pub(crate) const LOOKUP_TIMEOUT: Duration = Duration::from_millis(100);

/// See [`Store::probe`](crate::Store::probe).
pub(crate) fn probe(engine: &Engine, namespace: NamespaceId, chain: &[ChainHash]) -> usize {
    let found = find_used(engine, namespace, chain, Scope::Prefix, lookup_limit(engine));
    let mut count = found.count();
    name_far(engine, namespace, chain, &found);
    if engine.device.is_suspended() {
        let present = present(engine, namespace, &chain[..count], &found);
        count = present.into_iter().take_while(|present| *present).count();
    }
    let counters = &engine.counters;
    add(&counters.probe_calls, 1);
    add(&counters.probe_asked_blocks, chain.len() as u64);
    add(&counters.probe_present_blocks, count as u64);
    count
}

/// See [`Store::contains`](crate::Store::contains).
pub(crate) fn contains(engine: &Engine, namespace: NamespaceId, hashes: &[ChainHash]) -> Vec<bool> {
    let found = find_used(engine, namespace, hashes, Scope::Each, lookup_limit(engine));
    name_far(engine, namespace, hashes, &found);
    present(engine, namespace, hashes, &found)
}

/// See [`Store::peek`](crate::Store::peek).
pub(crate) fn peek(engine: &Engine, namespace: NamespaceId, hashes: &[ChainHash]) -> Vec<bool> {
    let found = Whereabouts::find(engine, namespace, hashes, Scope::Each, lookup_limit(engine));
    present(engine, namespace, hashes, &found)
}

/// See [`Store::touch`](crate::Store::touch).
pub(crate) fn touch(engine: &Engine, namespace: NamespaceId, chain: &[ChainHash]) -> usize {
    let now = Deadline::At(engine.clock.now());
    find_used(engine, namespace, chain, Scope::Prefix, now).count()
}

/// How long the index may wait for a caller that gave no timeout.
pub(crate) fn lookup_limit(engine: &Engine) -> Deadline {
    Deadline::At(engine.clock.now().after(LOOKUP_TIMEOUT))
}

/// Which of `count` blocks the index found.
pub(crate) fn are_found(count: usize, runs: &[Run]) -> Vec<bool> {
    let mut found = vec![false; count];
    for run in runs {
        found[run.at..run.at + run.count as usize].fill(true);
    }
    found
}

/// Names the blocks that only the far tier has: those that a get does not read itself are prefetched when it reads the
/// first ones.
fn name_far(engine: &Engine, namespace: NamespaceId, hashes: &[ChainHash], found: &Whereabouts) {
    if let Some(far) = engine.far.as_ref().filter(|_| !found.far.is_empty()) {
        far.name_chain(namespace, found.far.iter().map(|block| hashes[block.at]));
    }
}

/// Finds blocks, and notes their use.
fn find_used(
    engine: &Engine,
    namespace: NamespaceId,
    hashes: &[ChainHash],
    scope: Scope,
    deadline: Deadline,
) -> Whereabouts {
    let found = Whereabouts::find(engine, namespace, hashes, scope, deadline);
    note_use(engine.index.as_ref(), &found.near, engine.log.segments().round(), deadline);
    found
}

/// Which of these blocks can be loaded, of those that the index found.
fn present(
    engine: &Engine,
    namespace: NamespaceId,
    hashes: &[ChainHash],
    found: &Whereabouts,
) -> Vec<bool> {
    let mut present = are_found(hashes.len(), &found.near);
    if engine.device.is_suspended() {
        let far = engine.far.as_ref().filter(|far| !far.is_suspended());
        for (hash, present) in hashes.iter().zip(&mut present) {
            *present &= engine.front.dram.holds(&(namespace, *hash))
                || far.is_some_and(|far| far.find(namespace, hash).is_some());
        }
    }
    for block in &found.far {
        present[block.at] = true;
    }
    present
}
