//! Filling the index when a store is opened.
//!
//! 1. What was removed stays removed.
//! 2. Of two extents that hold a block, one with bad bytes never hides one with good bytes that was put to replace it.
//! 3. What was merged stays merged, and no merged extent takes the place of others before it is known to be whole: not
//!    at this open, and at no later one.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use dalsegno_core::{ChainHash, Extent, ExtentId, NamespaceId};
use dalsegno_index::{Index, Scope};
use dalsegno_log::{BlockOutcome, Cause, Log, Recovered, Removal, SegmentFault};
use dalsegno_policy::recency::Use;

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
/// the block was put again. So the older one is read, and where it is bad the newer one takes the block. But where
/// the newer one was made of older ones, it takes their place if it is whole: so it was when the store was closed.
/// `keep_up` is called after every extent; what it answers is whether to go on.
pub(crate) fn rebuild(
    log: &Log,
    index: &dyn Index,
    recovered: Recovered,
    keep_up: &dyn Fn() -> bool,
) {
    let killed = Killed::of(index, &recovered);
    let merged_before = recovered.merged_before;
    let has_faults = !recovered.faults.is_empty();
    let mut soundness = Soundness { log, merged_before, has_faults, known: HashMap::new() };
    for extent in recovered.extents {
        let (namespace, born) = (extent.namespace, extent.born);
        let alive: Vec<ChainHash> = extent
            .hashes
            .iter()
            .filter(|hash| !killed.has(namespace, born, hash))
            .copied()
            .collect();
        let runs = index.resolve(namespace, &alive, Scope::Each);
        // An index in files may have taken in this very extent before it was closed.
        let others = runs.iter().filter(|run| run.extent.id != extent.id);
        let mut holders: BTreeMap<ExtentId, Holder> = BTreeMap::new();
        for run in others {
            let holder = holders.entry(run.extent.id);
            let holder = holder.or_insert_with(|| (Arc::clone(&run.extent), Vec::new()));
            holder.1.extend(run.first_block..run.first_block + run.count);
        }
        let holders: Vec<Holder> = holders.into_values().collect();
        let held: usize = holders.iter().map(|(_, blocks)| blocks.len()).sum();
        let is_doubtful = soundness.is_doubtful(&extent, &holders);
        let is_replaced = is_doubtful && held == alive.len() && soundness.can_be_read(&holders);
        let giving = soundness.what_gives_way(&extent, holders);
        // What the index took in before lost these blocks then, and does not get them back.
        let is_new =
            giving.is_empty() || index.live_blocks(&extent).is_ok_and(|live| !live.contains(&true));
        for (holder, blocks) in giving.iter().filter(|_| is_new) {
            index.remove_from_extent(holder, blocks);
        }
        let doubtful = is_doubtful.then(|| extent.clone());
        let used = Use::written(extent.id.0);
        index.insert(extent, used, &|hash| !killed.has(namespace, born, hash));
        if let Some(extent) = doubtful {
            log.segment_list().doubt(&extent, is_replaced);
        }
        if !keep_up() {
            return;
        }
    }
}

/// What removals hide: whatever was born before.
struct Killed {
    blocks: HashMap<(NamespaceId, ChainHash), u64>,
    namespaces: HashMap<NamespaceId, u64>,
}

impl Killed {
    /// Takes in the removals, and carries out those that an index in files does not know of yet.
    fn of(index: &dyn Index, recovered: &Recovered) -> Self {
        let mut killed = Self { blocks: HashMap::new(), namespaces: HashMap::new() };
        for removal in &recovered.removals {
            remove_again(index, removal);
        }
        for Removal { namespace, hashes, kills_before } in
            recovered.removals.iter().chain(&recovered.checkpoint_removals)
        {
            if hashes.is_empty() {
                let entry = killed.namespaces.entry(*namespace).or_default();
                *entry = (*kills_before).max(*entry);
            }
            for hash in hashes {
                let entry = killed.blocks.entry((*namespace, *hash)).or_default();
                *entry = (*kills_before).max(*entry);
            }
        }
        killed
    }

    fn has(&self, namespace: NamespaceId, born: u64, hash: &ChainHash) -> bool {
        let dies = |kills_before: &u64| born < *kills_before;
        self.namespaces.get(&namespace).is_some_and(dies)
            || self.blocks.get(&(namespace, *hash)).is_some_and(dies)
    }
}

/// An extent that holds blocks of another one, and which of its own these are.
type Holder = (Arc<Extent>, Vec<u32>);

/// What is known of the bytes of extents.
struct Soundness<'a> {
    log: &'a Log,
    merged_before: u64,
    /// Whether something could not be read.
    has_faults: bool,
    /// How reading each block ended.
    known: HashMap<ExtentId, Vec<BlockOutcome>>,
}

impl Soundness<'_> {
    /// Whether an extent was made of others, is not known to be durable, and may not be whole.
    fn is_doubtful(&mut self, extent: &Extent, holders: &[Holder]) -> bool {
        if !extent.is_moved() || extent.id.0 < self.merged_before {
            return false;
        }
        if holders.iter().any(|(holder, _)| holder.id < extent.id) {
            return !self.of_blocks(extent).iter().all(Result::is_ok);
        }
        // What it was made of may be in what could not be read.
        self.has_faults
    }

    /// Whether the blocks that others hold can be read there.
    fn can_be_read(&mut self, holders: &[Holder]) -> bool {
        holders.iter().all(|(holder, blocks)| {
            let read = self.of_blocks(holder);
            blocks.iter().all(|block| read[*block as usize].is_ok())
        })
    }

    /// Which blocks the extents that hold them already give to `extent`.
    fn what_gives_way(&mut self, extent: &Extent, holders: Vec<Holder>) -> Vec<Holder> {
        let older = holders.iter().filter(|(holder, _)| holder.id < extent.id).count();
        // Only what was merged takes the place of several, and then it says itself whether it is durable.
        let is_durable = older > 1 && extent.id.0 < self.merged_before;
        let takes_over = extent.is_moved()
            && older > 0
            && (is_durable || self.of_blocks(extent).iter().all(Result::is_ok));
        let mut giving = Vec::new();
        for (holder, mut blocks) in holders {
            let is_newer = holder.id > extent.id;
            // An index in files leads to a moved extent only once that is durable.
            if is_newer && holder.is_moved() {
                continue;
            }
            if is_newer || !takes_over {
                blocks.retain(|block| self.is_bad(&holder, *block));
            }
            giving.push((holder, blocks));
        }
        giving.retain(|(_, blocks)| !blocks.is_empty());
        giving
    }

    /// Whether a block's bytes are not what was written. What cannot be read now may be right.
    fn is_bad(&mut self, extent: &Extent, block: u32) -> bool {
        self.of_blocks(extent)[block as usize].is_err_and(Cause::is_damage)
    }

    /// How reading each block of an extent ends.
    fn of_blocks(&mut self, extent: &Extent) -> &[BlockOutcome] {
        let log = self.log;
        self.known.entry(extent.id).or_insert_with(|| read_all(log, extent))
    }
}

/// Carries out a removal that an index in files does not know of yet: blocks that were put before it go.
fn remove_again(index: &dyn Index, removal: &Removal) {
    let Removal { namespace, hashes, kills_before } = removal;
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

fn read_all(log: &Log, extent: &Extent) -> Vec<BlockOutcome> {
    let block_bytes = usize::try_from(extent.layout.block_bytes()).expect("64-bit addresses");
    let mut bytes = vec![0_u8; extent.hashes.len() * block_bytes];
    let all: Vec<_> = (0..extent.block_count()).map(|block| (0, block)).collect();
    read_blocks(log, &[extent], &all, &mut bytes)
}
