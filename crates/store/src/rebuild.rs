//! Filling the index when a store is opened.
//!
//! 1. What was removed stays removed.
//! 2. Of two extents that hold a block, one with bad bytes never hides one with good bytes that was put to replace it.
//! 3. What was merged stays merged, and no merged extent takes the place of others before it is known to be whole.

use std::collections::{BTreeMap, HashMap};

use dalsegno_core::{ChainHash, Extent, ExtentId, NamespaceId};
use dalsegno_index::{Index, Scope};
use dalsegno_log::{Log, Recovered, Removal, SegmentFault};

use crate::rewrite::read_blocks;
use crate::stats::{Counters, add};

/// Counts damage that was found at open, and tells of it.
pub(crate) fn tell_faults(counters: &Counters, faults: &[SegmentFault]) {
    add(&counters.open_faults, faults.len() as u64);
    for fault in faults {
        tracing::warn!(
            "{} at {}: {}; what it held is a miss",
            fault.file,
            fault.offset,
            fault.what
        );
    }
}

/// Fills the index from what the log holds, leaving out what was removed.
///
/// Where two extents hold the same block, the older may be what a crash left of a put, or it was set aside as bad and
/// the block was put again. So the older one is read, and unless it is sound the newer one takes the block. But where
/// the newer one was made of older ones, it takes their place if it is whole: so it was when the store was closed.
/// `keep_up` is called after every extent.
pub(crate) fn rebuild(log: &Log, index: &dyn Index, recovered: Recovered, keep_up: &dyn Fn()) {
    let mut blocks: HashMap<(NamespaceId, ChainHash), u64> = HashMap::new();
    let mut namespaces: HashMap<NamespaceId, u64> = HashMap::new();
    for removal in &recovered.removals {
        remove_again(index, removal);
    }
    for (namespace, hashes, kills_before) in
        recovered.removals.into_iter().chain(recovered.covered_removals)
    {
        if hashes.is_empty() {
            let entry = namespaces.entry(namespace).or_default();
            *entry = kills_before.max(*entry);
        }
        for hash in hashes {
            let entry = blocks.entry((namespace, hash)).or_default();
            *entry = kills_before.max(*entry);
        }
    }
    let is_alive = |extent: &Extent, hash: &ChainHash| {
        let (namespace, born) = (extent.namespace, extent.born);
        let survives = |kills_before: &u64| born >= *kills_before;
        namespaces.get(&namespace).is_none_or(survives)
            && blocks.get(&(namespace, *hash)).is_none_or(survives)
    };
    let mut soundness =
        Soundness { log, merged_before: recovered.merged_before, known: HashMap::new() };
    for extent in recovered.extents {
        let alive: Vec<ChainHash> =
            extent.hashes.iter().filter(|hash| is_alive(&extent, hash)).copied().collect();
        let runs = index.resolve(extent.namespace, &alive, Scope::Each);
        let mut holders: BTreeMap<ExtentId, &Extent> =
            runs.iter().map(|run| (run.extent.id, run.extent.as_ref())).collect();
        // An index in files may have taken in this very extent before it was closed.
        holders.remove(&extent.id);
        let gives_way = soundness.which_give_way(&extent, &holders);
        for holder in &gives_way {
            index.remove_extent(holder);
        }
        for extent in std::iter::once(extent).chain(gives_way) {
            let alive = extent.clone();
            index.insert(extent, &|hash| is_alive(&alive, hash));
        }
        keep_up();
    }
}

/// What is known of the bytes of extents.
struct Soundness<'a> {
    log: &'a Log,
    merged_before: u64,
    known: HashMap<ExtentId, bool>,
}

impl Soundness<'_> {
    /// Which of the extents that hold blocks of `extent` already give these to it.
    fn which_give_way(
        &mut self,
        extent: &Extent,
        holders: &BTreeMap<ExtentId, &Extent>,
    ) -> Vec<Extent> {
        let is_moved = |extent: &Extent| extent.born != extent.id.0;
        let (older, newer): (Vec<&Extent>, Vec<&Extent>) =
            holders.values().partition(|holder| holder.id < extent.id);
        let mut giving: Vec<&Extent> =
            // An index in files leads to a moved extent only once that is durable.
            newer.into_iter().filter(|newer| !is_moved(newer) && !self.is_sound(newer)).collect();
        // Only what was merged takes the place of several, and then it says itself whether it is durable.
        let is_durable = older.len() > 1 && extent.id.0 < self.merged_before;
        let takes_over =
            is_moved(extent) && !older.is_empty() && (is_durable || self.is_sound(extent));
        giving.extend(older.into_iter().filter(|older| takes_over || !self.is_sound(older)));
        giving.into_iter().cloned().collect()
    }

    /// Whether every byte of an extent is as it was written.
    fn is_sound(&mut self, extent: &Extent) -> bool {
        let log = self.log;
        *self.known.entry(extent.id).or_insert_with(|| is_sound(log, extent))
    }
}

/// Carries out a removal that an index in files does not know of yet: blocks that were put before it go.
fn remove_again(index: &dyn Index, (namespace, hashes, kills_before): &Removal) {
    if hashes.is_empty() {
        let all = index.scan((*namespace, ChainHash::default(), 0), usize::MAX);
        let mine = all.iter().take_while(|extent| extent.namespace == *namespace);
        for extent in mine.filter(|extent| extent.born < *kills_before) {
            index.remove_extent(extent);
        }
        return;
    }
    let runs = index.resolve(*namespace, hashes, Scope::Each);
    for run in runs.iter().filter(|run| run.extent.born < *kills_before) {
        index.remove_blocks(*namespace, &hashes[run.at..run.at + run.count as usize]);
    }
}

/// Whether every byte of an extent is as it was written.
fn is_sound(log: &Log, extent: &Extent) -> bool {
    let block_bytes = usize::try_from(extent.layout.block_bytes()).expect("64-bit addresses");
    let mut bytes = vec![0_u8; extent.hashes.len() * block_bytes];
    let all: Vec<_> = (0..extent.block_count()).map(|block| (0, block)).collect();
    read_blocks(log, &[extent], &all, &mut bytes).iter().all(Result::is_ok)
}
