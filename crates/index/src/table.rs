//! The tables of the index in memory.
//!
//! 1. `blocks[h] = (id, b)` implies `entries[id].extent.hashes[b] == h`.
//! 2. `entries[id].live` is the number of blocks that lead to `id`, and never zero.
//! 3. `order`, `by_segment` and `children` list exactly the extents of `entries`.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use dalsegno_core::{ChainHash, Extent, ExtentId, NamespaceId};

use dalsegno_policy::recency::Use;
use dalsegno_policy::reclaim::LiveExtent;

use crate::usage::Usage;
use crate::{Placement, Removed, Run, Scope};

type Name = (NamespaceId, ChainHash);
type Place = (NamespaceId, ChainHash, u32, ExtentId);

#[derive(Debug)]
struct Entry {
    extent: Arc<Extent>,
    live: u32,
}

#[derive(Debug, Default)]
pub(crate) struct Table {
    blocks: HashMap<Name, (ExtentId, u32)>,
    entries: HashMap<ExtentId, Entry>,
    order: BTreeSet<Place>,
    by_segment: BTreeMap<u64, BTreeSet<ExtentId>>,
    children: HashMap<Name, BTreeSet<ExtentId>>,
    usage: Usage,
}

fn place_of(extent: &Extent) -> Place {
    (extent.namespace, extent.lineage, extent.first_block_index, extent.id)
}

impl Table {
    pub(crate) fn insert(
        &mut self,
        extent: Extent,
        used: Use,
        wanted: &dyn Fn(&ChainHash) -> bool,
    ) -> u32 {
        let blocks = &self.blocks;
        let taken: Vec<u32> = (0_u32..)
            .zip(&extent.hashes)
            .filter(|(_, hash)| wanted(hash) && !blocks.contains_key(&(extent.namespace, **hash)))
            .map(|(block, _)| block)
            .collect();
        self.adopt(extent, used, &taken)
    }

    /// Adds an extent and lets these of its blocks lead to it.
    fn adopt(&mut self, extent: Extent, used: Use, taken: &[u32]) -> u32 {
        let id = extent.id;
        assert!(!self.entries.contains_key(&id), "sequence numbers are unique");
        let mut live = 0;
        for block in taken {
            let name = (extent.namespace, extent.hashes[*block as usize]);
            // A hash that comes twice in one extent leads to its last place.
            if self.blocks.insert(name, (id, *block)).is_none() {
                live += 1;
            }
        }
        if live == 0 {
            return 0;
        }
        self.order.insert(place_of(&extent));
        self.by_segment.entry(extent.location.segment).or_default().insert(id);
        self.children.entry((extent.namespace, extent.parent)).or_default().insert(id);
        self.usage.add(&extent, live, used);
        self.entries.insert(id, Entry { extent: Arc::new(extent), live });
        live
    }

    pub(crate) fn resolve(
        &self,
        namespace: NamespaceId,
        hashes: &[ChainHash],
        scope: Scope,
    ) -> Vec<Run> {
        let mut runs: Vec<Run> = Vec::new();
        let mut at = 0;
        while at < hashes.len() {
            let Some((id, first_block)) = self.blocks.get(&(namespace, hashes[at])).copied() else {
                match scope {
                    Scope::Prefix => break,
                    Scope::Each => at += 1,
                }
                continue;
            };
            let extent = Arc::clone(&self.entries[&id].extent);
            let rest = &extent.hashes[first_block as usize..];
            // Neighbours are found by comparing lists; only an extent that lost blocks needs a look-up for each.
            let whole = self.entries[&id].live == extent.block_count();
            let count = (0_u32..)
                .zip(hashes[at..].iter().zip(rest))
                .take_while(|(offset, (wanted, found))| {
                    let leads = || {
                        self.blocks.get(&(namespace, **wanted)) == Some(&(id, first_block + offset))
                    };
                    wanted == found && (whole || leads())
                })
                .count();
            // The look-up above found the first block, so the run is never empty.
            let count = u32::try_from(count).expect("bounded by the extent").max(1);
            runs.push(Run { at, extent, first_block, count });
            at += count as usize;
        }
        runs
    }

    pub(crate) fn place(
        &self,
        namespace: NamespaceId,
        parent: Option<ChainHash>,
        first: ChainHash,
        first_index: u32,
    ) -> Placement {
        let own = Placement { lineage: first, first_block_index: first_index };
        let Some((id, block)) = parent.and_then(|hash| self.blocks.get(&(namespace, hash))) else {
            return own;
        };
        let extent = &self.entries[id].extent;
        let Some(index) = extent.first_block_index.checked_add(block + 1) else { return own };
        let slot = (namespace, extent.lineage, index, ExtentId(0));
        let end = (namespace, extent.lineage, index, ExtentId(u64::MAX));
        let is_last = block + 1 == extent.block_count();
        if is_last && self.order.range(slot..=end).next().is_none() {
            return Placement { lineage: extent.lineage, first_block_index: index };
        }
        Placement { lineage: first, first_block_index: index }
    }

    pub(crate) fn replace(&mut self, old: &BTreeSet<ExtentId>, new: Vec<Extent>) -> u32 {
        let mut moved = 0;
        let entries = old.iter().filter_map(|id| self.entries.get(id));
        let before = entries.map(|entry| self.usage.use_of(&entry.extent));
        let Some(used) = before.reduce(Use::joined) else { return 0 };
        for extent in new {
            let mut taken = Vec::new();
            for (block, hash) in (0_u32..).zip(&extent.hashes) {
                let name = (extent.namespace, *hash);
                if self.blocks.get(&name).is_some_and(|(id, _)| old.contains(id)) {
                    self.unlink_block(name);
                    taken.push(block);
                }
            }
            moved += self.adopt(extent, used, &taken);
        }
        moved
    }

    pub(crate) fn remove_blocks(
        &mut self,
        namespace: NamespaceId,
        hashes: &[ChainHash],
    ) -> Removed {
        let mut removed = Removed::default();
        for hash in hashes {
            if let Some((_, emptied)) = self.unlink_block((namespace, *hash)) {
                removed.blocks += 1;
                removed.extents.extend(emptied);
            }
        }
        removed
    }

    pub(crate) fn remove_namespace(&mut self, namespace: NamespaceId) -> Removed {
        let from = (namespace, ChainHash([0; 32]), 0, ExtentId(0));
        let to = (namespace, ChainHash([0xff; 32]), u32::MAX, ExtentId(u64::MAX));
        let ids: Vec<_> = self.order.range(from..=to).map(|place| place.3).collect();
        let mut removed = Removed::default();
        for id in ids {
            let part = self.remove_extent(id);
            removed.join(part);
        }
        removed
    }

    pub(crate) fn remove_extent(&mut self, id: ExtentId) -> Removed {
        let Some(entry) = self.entries.get(&id) else { return Removed::default() };
        let all: Vec<u32> = (0..entry.extent.block_count()).collect();
        self.remove_from_extent(id, &all)
    }

    pub(crate) fn remove_from_extent(&mut self, id: ExtentId, blocks: &[u32]) -> Removed {
        let Some(entry) = self.entries.get(&id) else { return Removed::default() };
        let extent = Arc::clone(&entry.extent);
        let mut removed = Removed::default();
        for block in blocks {
            let name = (extent.namespace, extent.hashes[*block as usize]);
            if self.blocks.get(&name) == Some(&(id, *block)) {
                removed.blocks += 1;
                removed.extents.extend(self.unlink_block(name).and_then(|(_, emptied)| emptied));
            }
        }
        removed
    }

    /// Takes one block out; also its extent, if that was the last one: its id is the second part of the answer.
    fn unlink_block(&mut self, name: Name) -> Option<(ExtentId, Option<ExtentId>)> {
        let (id, _) = self.blocks.remove(&name)?;
        let entry = self.entries.get_mut(&id).expect("invariant 1");
        entry.live -= 1;
        self.usage.remove(&entry.extent, 1, entry.live == 0);
        if entry.live > 0 {
            return Some((id, None));
        }
        let entry = self.entries.remove(&id).expect("just seen");
        let extent = &entry.extent;
        self.order.remove(&place_of(extent));
        remove_from(&mut self.by_segment, extent.location.segment, id);
        let parent = (extent.namespace, extent.parent);
        if let Some(siblings) = self.children.get_mut(&parent) {
            siblings.remove(&id);
            if siblings.is_empty() {
                self.children.remove(&parent);
            }
        }
        Some((id, Some(id)))
    }

    pub(crate) fn drop_segment(&mut self, segment: u64, epoch: u64) -> u64 {
        let ids: Vec<ExtentId> =
            self.by_segment.get(&segment).into_iter().flatten().copied().collect();
        let mut blocks = 0;
        for id in ids {
            if self.entries.get(&id).is_some_and(|entry| entry.extent.location.epoch <= epoch) {
                blocks += self.remove_extent(id).blocks;
            }
        }
        self.usage.drop_segment(segment, epoch);
        blocks
    }

    pub(crate) fn live_blocks(&self, extent: &Extent) -> Vec<bool> {
        let leads = |hash: &ChainHash| {
            self.blocks.get(&(extent.namespace, *hash)).is_some_and(|(id, _)| *id == extent.id)
        };
        extent.hashes.iter().map(leads).collect()
    }

    pub(crate) fn orphan_descendants(&mut self, extent: &Extent, limit: usize) -> usize {
        let mut open: Vec<ExtentId> =
            self.entries.contains_key(&extent.id).then_some(extent.id).into_iter().collect();
        let mut marked = 0;
        while let Some(id) = open.pop() {
            let extent = Arc::clone(&self.entries[&id].extent);
            for (block, hash) in (0_u32..).zip(&extent.hashes) {
                let name = (extent.namespace, *hash);
                if self.blocks.get(&name) != Some(&(id, block)) {
                    continue;
                }
                for child in self.children.get(&name).into_iter().flatten() {
                    if marked < limit && self.usage.orphan(&self.entries[child].extent) {
                        marked += 1;
                        open.push(*child);
                    }
                }
            }
        }
        marked
    }

    pub(crate) fn is_raised(&self, extent: &Extent, round: u64) -> bool {
        self.usage.use_of(extent).is_raised(round)
    }

    pub(crate) fn raise(&mut self, extent: &Extent, round: u64) -> bool {
        self.entries.contains_key(&extent.id) && self.usage.raise(extent, round)
    }

    pub(crate) fn lift(&mut self, extent: &Extent, last: u64) -> bool {
        self.entries.contains_key(&extent.id) && self.usage.lift(extent, last)
    }

    pub(crate) fn use_of(&self, extent: &Extent) -> Use {
        self.usage.use_of(extent)
    }

    pub(crate) fn live_bytes(&self, segment: u64) -> u64 {
        self.usage.live_bytes(segment)
    }

    pub(crate) fn live_extents(&self, segment: u64) -> Vec<LiveExtent> {
        self.usage.live_extents(segment)
    }

    pub(crate) fn scan(
        &self,
        (namespace, lineage, first): (NamespaceId, ChainHash, u32),
        limit: usize,
    ) -> Vec<Arc<Extent>> {
        let places = self.order.range((namespace, lineage, first, ExtentId(0))..).take(limit);
        places.map(|place| Arc::clone(&self.entries[&place.3].extent)).collect()
    }

    pub(crate) fn counts(&self) -> (u64, u64) {
        (self.entries.len() as u64, self.blocks.len() as u64)
    }
}

fn remove_from(map: &mut BTreeMap<u64, BTreeSet<ExtentId>>, segment: u64, id: ExtentId) {
    if let Some(ids) = map.get_mut(&segment) {
        ids.remove(&id);
        if ids.is_empty() {
            map.remove(&segment);
        }
    }
}
