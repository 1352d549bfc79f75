//! The in-memory index. It is rebuilt at every open, and is the model that the on-disk index is tested against.
//!
//! 1. `blocks[h] = (id, b)` implies `extents[id].extent.hashes[b] == h`.
//! 2. `extents[id].live` is the number of blocks that point to `id`, and never zero.
//! 3. `order`, `by_segment` and `children` list exactly the extents of `extents`.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use dalsegno_core::{ChainHash, Deadline, Extent, ExtentId, NamespaceId};
use dalsegno_policy::recency::Use;
use dalsegno_policy::reclaim::LiveExtent;
use parking_lot::RwLock;

use crate::answers::{Placement, Removed, Run, Scope, Unread};
use crate::index::{Index, ScanPlace};
use crate::usage::Usage;

type BlockName = (NamespaceId, ChainHash);
type OrderPlace = (NamespaceId, ChainHash, u32, ExtentId);

#[derive(Debug)]
struct LiveEntry {
    extent: Arc<Extent>,
    live: u32,
}

#[derive(Debug, Default)]
struct Maps {
    blocks: HashMap<BlockName, (ExtentId, u32)>,
    extents: HashMap<ExtentId, LiveEntry>,
    order: BTreeSet<OrderPlace>,
    by_segment: BTreeMap<u64, BTreeSet<ExtentId>>,
    children: HashMap<BlockName, BTreeSet<ExtentId>>,
    usage: Usage,
}

/// An index in memory.
#[derive(Debug, Default)]
pub struct MemoryIndex {
    maps: RwLock<Maps>,
}

fn place_of(extent: &Extent) -> OrderPlace {
    (extent.namespace, extent.lineage, extent.first_block_index, extent.id)
}

impl Maps {
    /// Adds an extent and makes these of its blocks point to it.
    fn adopt(&mut self, extent: Extent, used: Use, visible: &[u32]) -> u32 {
        let id = extent.id;
        assert!(!self.extents.contains_key(&id), "sequence numbers are unique");
        let mut live = 0;
        for block in visible {
            let name = (extent.namespace, extent.hashes[*block as usize]);
            // If a hash occurs twice in one extent, its last position counts.
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
        self.extents.insert(id, LiveEntry { extent: Arc::new(extent), live });
        live
    }

    /// Removes one block, and its extent if that was the last one. Returns the extent's id, and again if it is removed.
    fn remove_block(&mut self, name: BlockName) -> Option<(ExtentId, Option<ExtentId>)> {
        let (id, _) = self.blocks.remove(&name)?;
        let entry = self.extents.get_mut(&id).expect("invariant 1");
        entry.live -= 1;
        self.usage.remove(&entry.extent, 1, entry.live == 0);
        if entry.live > 0 {
            return Some((id, None));
        }
        let entry = self.extents.remove(&id).expect("just seen");
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

    fn remove_extent(&mut self, id: ExtentId) -> Removed {
        let Some(entry) = self.extents.get(&id) else { return Removed::default() };
        let all: Vec<u32> = (0..entry.extent.block_count()).collect();
        self.remove_from_extent(id, &all)
    }

    fn remove_from_extent(&mut self, id: ExtentId, blocks: &[u32]) -> Removed {
        let Some(entry) = self.extents.get(&id) else { return Removed::default() };
        let extent = Arc::clone(&entry.extent);
        let mut removed = Removed::default();
        for block in blocks {
            let name = (extent.namespace, extent.hashes[*block as usize]);
            if self.blocks.get(&name) == Some(&(id, *block)) {
                removed.blocks += 1;
                removed.extents.extend(self.remove_block(name).and_then(|(_, emptied)| emptied));
            }
        }
        removed
    }
}

impl Index for MemoryIndex {
    fn insert(
        &self,
        extent: Extent,
        used: Use,
        wanted: &dyn Fn(&ChainHash) -> bool,
        _deadline: Deadline,
    ) -> u32 {
        let mut maps = self.maps.write();
        let blocks = &maps.blocks;
        let visible: Vec<u32> = (0_u32..)
            .zip(&extent.hashes)
            .filter(|(_, hash)| wanted(hash) && !blocks.contains_key(&(extent.namespace, **hash)))
            .map(|(block, _)| block)
            .collect();
        maps.adopt(extent, used, &visible)
    }

    fn resolve(
        &self,
        namespace: NamespaceId,
        hashes: &[ChainHash],
        scope: Scope,
        _deadline: Deadline,
    ) -> Vec<Run> {
        let maps = self.maps.read();
        let mut runs: Vec<Run> = Vec::new();
        let mut at = 0;
        while at < hashes.len() {
            let Some((id, first_block)) = maps.blocks.get(&(namespace, hashes[at])).copied() else {
                match scope {
                    Scope::Prefix => break,
                    Scope::Each => at += 1,
                }
                continue;
            };
            let entry = &maps.extents[&id];
            let extent = Arc::clone(&entry.extent);
            let rest = &extent.hashes[first_block as usize..];
            // Comparing the lists finds the neighbours. Only an extent that lost blocks needs a lookup for each.
            let is_whole = entry.live == extent.block_count();
            let count = (0_u32..)
                .zip(hashes[at..].iter().zip(rest))
                .take_while(|(offset, (wanted, found))| {
                    let is_here = || {
                        maps.blocks.get(&(namespace, **wanted)) == Some(&(id, first_block + offset))
                    };
                    wanted == found && (is_whole || is_here())
                })
                .count();
            // The lookup above found the first block, so the run is never empty.
            let count = u32::try_from(count).expect("bounded by the extent").max(1);
            runs.push(Run { at, extent, first_block, count });
            at += count as usize;
        }
        runs
    }

    fn place(
        &self,
        namespace: NamespaceId,
        parent: Option<ChainHash>,
        first: ChainHash,
        first_index: u32,
        _deadline: Deadline,
    ) -> Placement {
        let maps = self.maps.read();
        let own = Placement { lineage: first, first_block_index: first_index };
        let Some((id, block)) = parent.and_then(|hash| maps.blocks.get(&(namespace, hash))) else {
            return own;
        };
        let extent = &maps.extents[id].extent;
        let Some(index) = extent.first_block_index.checked_add(block + 1) else { return own };
        let start = (namespace, extent.lineage, index, ExtentId(0));
        let end = (namespace, extent.lineage, index, ExtentId(u64::MAX));
        let is_last = block + 1 == extent.block_count();
        if is_last && maps.order.range(start..=end).next().is_none() {
            return Placement { lineage: extent.lineage, first_block_index: index };
        }
        Placement { lineage: first, first_block_index: index }
    }

    fn replace(&self, old: &[&Extent], new: Vec<Extent>) -> Result<u32, Unread> {
        let maps = &mut *self.maps.write();
        let old: BTreeSet<ExtentId> = old.iter().map(|extent| extent.id).collect();
        let entries = old.iter().filter_map(|id| maps.extents.get(id));
        let before = entries.map(|entry| maps.usage.use_of(&entry.extent));
        let Some(used) = before.reduce(Use::joined) else { return Ok(0) };
        let mut moved = 0;
        for extent in new {
            let mut visible = Vec::new();
            for (block, hash) in (0_u32..).zip(&extent.hashes) {
                let name = (extent.namespace, *hash);
                if maps.blocks.get(&name).is_some_and(|(id, _)| old.contains(id)) {
                    maps.remove_block(name);
                    visible.push(block);
                }
            }
            moved += maps.adopt(extent, used, &visible);
        }
        Ok(moved)
    }

    fn remove_blocks(&self, namespace: NamespaceId, hashes: &[ChainHash]) -> Removed {
        let mut maps = self.maps.write();
        let mut removed = Removed::default();
        for hash in hashes {
            if let Some((_, emptied)) = maps.remove_block((namespace, *hash)) {
                removed.blocks += 1;
                removed.extents.extend(emptied);
            }
        }
        removed
    }

    fn remove_namespace(&self, namespace: NamespaceId) -> Removed {
        let mut maps = self.maps.write();
        let from = (namespace, ChainHash([0; 32]), 0, ExtentId(0));
        let to = (namespace, ChainHash([0xff; 32]), u32::MAX, ExtentId(u64::MAX));
        let ids: Vec<_> = maps.order.range(from..=to).map(|place| place.3).collect();
        let mut removed = Removed::default();
        for id in ids {
            removed.join(maps.remove_extent(id));
        }
        removed
    }

    fn remove_extent(&self, extent: &Extent, _deadline: Deadline) -> Removed {
        self.maps.write().remove_extent(extent.id)
    }

    fn remove_from_extent(&self, extent: &Extent, blocks: &[u32], _deadline: Deadline) -> Removed {
        self.maps.write().remove_from_extent(extent.id, blocks)
    }

    fn drop_segment(&self, segment: u64, epoch: u64) -> u64 {
        let mut maps = self.maps.write();
        let ids: Vec<ExtentId> =
            maps.by_segment.get(&segment).into_iter().flatten().copied().collect();
        let mut blocks = 0;
        for id in ids {
            if maps.extents.get(&id).is_some_and(|entry| entry.extent.location.epoch <= epoch) {
                blocks += maps.remove_extent(id).blocks;
            }
        }
        maps.usage.drop_segment(segment, epoch);
        blocks
    }

    fn live_blocks(&self, extent: &Extent) -> Result<Vec<bool>, Unread> {
        let maps = self.maps.read();
        let is_here = |hash: &ChainHash| {
            maps.blocks.get(&(extent.namespace, *hash)).is_some_and(|(id, _)| *id == extent.id)
        };
        Ok(extent.hashes.iter().map(is_here).collect())
    }

    fn raise(&self, extent: &Extent, round: u64) -> bool {
        // Most uses are not the first of their round, and need not block lookups.
        if self.maps.read().usage.use_of(extent).is_raised(round) {
            return false;
        }
        let mut maps = self.maps.write();
        maps.extents.contains_key(&extent.id) && maps.usage.raise(extent, round)
    }

    fn lift(&self, extent: &Extent, last: u64) -> bool {
        let mut maps = self.maps.write();
        maps.extents.contains_key(&extent.id) && maps.usage.lift(extent, last)
    }

    fn use_of(&self, extent: &Extent) -> Use {
        self.maps.read().usage.use_of(extent)
    }

    fn orphan_descendants(&self, extent: &Extent, limit: usize) -> usize {
        let maps = &mut *self.maps.write();
        let mut open: Vec<ExtentId> =
            maps.extents.contains_key(&extent.id).then_some(extent.id).into_iter().collect();
        let mut marked = 0;
        while let Some(id) = open.pop() {
            let extent = Arc::clone(&maps.extents[&id].extent);
            for (block, hash) in (0_u32..).zip(&extent.hashes) {
                let name = (extent.namespace, *hash);
                if maps.blocks.get(&name) != Some(&(id, block)) {
                    continue;
                }
                for child in maps.children.get(&name).into_iter().flatten() {
                    if marked < limit && maps.usage.orphan(&maps.extents[child].extent) {
                        marked += 1;
                        open.push(*child);
                    }
                }
            }
        }
        marked
    }

    fn live_bytes(&self, segment: u64) -> u64 {
        self.maps.read().usage.live_bytes(segment)
    }

    fn live_extents(&self, segment: u64) -> Vec<LiveExtent> {
        self.maps.read().usage.live_extents(segment)
    }

    fn scan(
        &self,
        ScanPlace { namespace, lineage, first }: ScanPlace,
        limit: usize,
    ) -> Vec<Arc<Extent>> {
        let maps = self.maps.read();
        let places = maps.order.range((namespace, lineage, first, ExtentId(0))..).take(limit);
        places.map(|place| Arc::clone(&maps.extents[&place.3].extent)).collect()
    }

    fn counts(&self) -> (u64, u64) {
        let maps = self.maps.read();
        (maps.extents.len() as u64, maps.blocks.len() as u64)
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
