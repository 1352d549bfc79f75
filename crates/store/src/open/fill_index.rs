//! Filling the index when a store is opened.
//!
//! 1. Removed blocks stay removed.
//! 2. Of two extents that hold a block, one with bad bytes never hides one with good bytes that was put to replace it.
//! 3. Merged extents stay merged. No merged extent replaces others before it is known to be whole, at this open and at
//!    every later one. `dalsegno_policy::succession` has the decision table.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use dalsegno_core::{ChainHash, Class, Deadline, Extent, ExtentId, NamespaceId};
use dalsegno_extent::{BlockOutcome, Cause};
use dalsegno_index::{Index, ScanPlace, Scope};
use dalsegno_log::{Log, Recovered, Removal, SegmentFault};
use dalsegno_policy::recency::Use;
use dalsegno_policy::succession::{Age, Newcomer, Origin, Ruling, ruling};

use crate::counters::{Counters, add};
use crate::rewrite::copy::read_blocks;

/// Counts and logs the damage that was found at open.
pub(crate) fn report_faults(counters: &Counters, faults: &[SegmentFault]) {
    add(&counters.open_faults, faults.len() as u64);
    for fault in faults {
        tracing::warn!(
            file = fault.file,
            offset = fault.offset,
            fault = fault.what,
            "damage found at open; the blocks there are misses"
        );
    }
}

/// Fills the index with the extents in the log, without removed blocks. Calls `keep_up` after every extent and stops if
/// that returns `false`.
pub(crate) fn fill_index(
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
        let runs = index.resolve(namespace, &alive, Scope::Each, Deadline::Never);
        // An on-disk index may hold this very extent already.
        let others = runs.iter().filter(|run| run.extent.id != extent.id);
        let mut holders: BTreeMap<ExtentId, Holder> = BTreeMap::new();
        for run in others {
            let holder = holders.entry(run.extent.id);
            let holder = holder.or_insert_with(|| (Arc::clone(&run.extent), Vec::new()));
            holder.1.extend(run.first_block..run.first_block + run.count);
        }
        let holders: Vec<Holder> = holders.into_values().collect();
        let held: usize = holders.iter().map(|(_, blocks)| blocks.len()).sum();
        let newcomer = soundness.newcomer(&extent, &holders);
        let has_faults = soundness.has_faults;
        let is_doubtful = newcomer.is_doubtful(|| soundness.is_readable(&extent), has_faults);
        let is_replaced = is_doubtful && held == alive.len() && soundness.can_be_read(&holders);
        let giving = soundness.giving(&extent, newcomer, holders);
        // An extent that was indexed before and lost these blocks does not get them back.
        let is_new =
            giving.is_empty() || index.live_blocks(&extent).is_ok_and(|live| !live.contains(&true));
        for (holder, blocks) in giving.iter().filter(|_| is_new) {
            index.remove_from_extent(holder, blocks, Deadline::Never);
        }
        let doubtful = is_doubtful.then(|| extent.clone());
        let used = Use::written(extent.id.0);
        let is_wanted = |hash: &ChainHash| !killed.has(namespace, born, hash);
        index.insert(extent, used, &is_wanted, Deadline::Never);
        if let Some(extent) = doubtful {
            log.segment_list().doubt(&extent, is_replaced);
        }
        if !keep_up() {
            return;
        }
    }
}

/// The blocks that removals hide: those born before.
struct Killed {
    blocks: HashMap<(NamespaceId, ChainHash), u64>,
    namespaces: HashMap<NamespaceId, u64>,
}

impl Killed {
    /// Collects the removals, and applies those that an on-disk index does not know yet.
    fn of(index: &dyn Index, recovered: &Recovered) -> Self {
        let mut killed = Self { blocks: HashMap::new(), namespaces: HashMap::new() };
        for removal in &recovered.removals {
            apply_removal(index, removal);
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

/// An extent that holds blocks of another one, and their positions in it.
type Holder = (Arc<Extent>, Vec<u32>);

/// What is known about the bytes of extents.
struct Soundness<'a> {
    log: &'a Log,
    merged_before: u64,
    /// Whether something could not be read.
    has_faults: bool,
    /// How reading each block ended.
    known: HashMap<ExtentId, Vec<BlockOutcome>>,
}

impl Soundness<'_> {
    /// The facts about an extent that is about to be indexed.
    fn newcomer(&self, extent: &Extent, holders: &[Holder]) -> Newcomer {
        Newcomer {
            origin: origin_of(extent),
            older_holders: holders.iter().filter(|(holder, _)| holder.id < extent.id).count(),
            is_settled: extent.id.0 < self.merged_before,
        }
    }

    /// Whether all bytes of an extent can be read and are right.
    fn is_readable(&mut self, extent: &Extent) -> bool {
        self.of_blocks(extent).iter().all(Result::is_ok)
    }

    /// Whether the blocks that others hold can be read there.
    fn can_be_read(&mut self, holders: &[Holder]) -> bool {
        holders.iter().all(|(holder, blocks)| {
            let read = self.of_blocks(holder);
            blocks.iter().all(|block| read[*block as usize].is_ok())
        })
    }

    /// The blocks that their holders give up to `extent`.
    fn giving(&mut self, extent: &Extent, newcomer: Newcomer, holders: Vec<Holder>) -> Vec<Holder> {
        let replaces_older = newcomer.replaces_older(|| self.is_readable(extent));
        let mut giving = Vec::new();
        for (holder, mut blocks) in holders {
            let age = if holder.id < extent.id { Age::Older } else { Age::Newer };
            match ruling(age, origin_of(&holder), replaces_older) {
                Ruling::KeepsAll => blocks.clear(),
                Ruling::GivesBad => blocks.retain(|block| self.is_bad(&holder, *block)),
                Ruling::GivesAll => {}
            }
            giving.push((holder, blocks));
        }
        giving.retain(|(_, blocks)| !blocks.is_empty());
        giving
    }

    /// Whether a block's bytes are bad. Bytes that cannot be read now may be good.
    fn is_bad(&mut self, extent: &Extent, block: u32) -> bool {
        self.of_blocks(extent)[block as usize].is_err_and(Cause::is_damage)
    }

    /// How reading each block of an extent ends.
    fn of_blocks(&mut self, extent: &Extent) -> &[BlockOutcome] {
        let log = self.log;
        self.known.entry(extent.id).or_insert_with(|| read_all(log, extent))
    }
}

/// Applies a removal that an on-disk index does not know yet: it removes the blocks that were put before.
fn apply_removal(index: &dyn Index, removal: &Removal) {
    let Removal { namespace, hashes, kills_before } = removal;
    if hashes.is_empty() {
        let all = index.scan(ScanPlace::of(*namespace), usize::MAX);
        let mine = all.iter().take_while(|extent| extent.namespace == *namespace);
        for extent in mine.filter(|extent| extent.born < *kills_before) {
            index.remove_extent(extent, Deadline::Never);
        }
        return;
    }
    let runs = index.resolve(*namespace, hashes, Scope::Each, Deadline::Never);
    for run in runs.iter().filter(|run| run.extent.born < *kills_before) {
        index.remove_blocks(*namespace, &hashes[run.at..run.at + run.count as usize]);
    }
}

fn origin_of(extent: &Extent) -> Origin {
    if extent.is_moved() { Origin::Moved } else { Origin::Put }
}

fn read_all(log: &Log, extent: &Extent) -> Vec<BlockOutcome> {
    let block_bytes = usize::try_from(extent.layout.block_bytes()).expect("64-bit addresses");
    let mut bytes = vec![0_u8; extent.hashes.len() * block_bytes];
    let all: Vec<_> = (0..extent.block_count()).map(|block| (0, block)).collect();
    read_blocks(log, &[extent], &all, &mut bytes, Class::Need)
}
