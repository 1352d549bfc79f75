//! Walks over the index: what begins at a place, what comes behind an extent.

use std::sync::Arc;

use dalsegno_core::{ChainHash, Extent, NamespaceId};
use dalsegno_io::WaitLimit;

use super::index::LsmIndex;
use super::keys::{ForkKey, OrderKey, Record, short};
use super::table::TableError;
use super::tree::OrderScan;

impl LsmIndex {
    /// Whether any extent is there that a scan finds, as long as `is_meant` says that the keys are.
    pub(super) fn any_of(
        &self,
        mut scan: OrderScan,
        is_meant: impl Fn(&OrderKey) -> bool,
    ) -> Result<bool, TableError> {
        while let Some((key, value)) = scan.next()?
            && is_meant(&key)
        {
            if self.decode(&key, &value)?.is_some() {
                return Ok(true);
            }
        }
        Ok(false)
    }

    pub(super) fn scan_from(
        &self,
        (namespace, lineage, first): (NamespaceId, ChainHash, u32),
        limit: usize,
    ) -> Result<Vec<Arc<Extent>>, TableError> {
        let from = OrderKey { namespace, lineage: short(&lineage), first, sequence: 0 };
        let mut scan = self.tree.orders(&from)?;
        let mut found = Vec::new();
        while found.len() < limit
            && let Some((key, value)) = scan.next()?
        {
            found.extend(self.decode(&key, &value)?.map(|record| record.extent));
        }
        Ok(found)
    }

    /// Marks what depends on an extent as orphans: the rest of its lineage up to a gap, lineages that fork off
    /// there, and so on. An extent whose parent went and was put again elsewhere is not found: the tree knows only
    /// of places.
    pub(super) fn orphan_behind(&self, extent: &Extent, limit: usize) -> Result<usize, TableError> {
        let mut marked = 0;
        let mut open: Vec<Arc<Record>> =
            self.record(&OrderKey::of(extent), WaitLimit::Unlimited)?.into_iter().collect();
        while let Some(record) = open.pop() {
            let mut children = Vec::new();
            let run = self.orphan_run(record, limit, &mut marked, &mut children)?;
            children.extend(self.forks_off(&run, limit - marked)?);
            for child in children {
                if marked < limit && self.usage.write().orphan(&child.extent) {
                    marked += 1;
                    open.push(child);
                }
            }
        }
        Ok(marked)
    }

    /// Marks the extents that go on behind one in its lineage, up to a gap or to one that is marked already. Returns
    /// all of them, the first one included. `children` are others of the lineage that begin behind a block of theirs.
    fn orphan_run(
        &self,
        first: Arc<Record>,
        limit: usize,
        marked: &mut usize,
        children: &mut Vec<Arc<Record>>,
    ) -> Result<Vec<Arc<Record>>, TableError> {
        let from = OrderKey::of(&first.extent);
        let mut scan = self.tree.orders(&OrderKey { sequence: 0, ..from })?;
        let mut end = first.end();
        let mut run = vec![first];
        while let Some((key, value)) = scan.next()? {
            if (key.namespace, key.lineage) != (from.namespace, from.lineage) || key.first > end {
                break;
            }
            let Some(next) = self.decode(&key, &value)? else { continue };
            let before = key.first.checked_sub(1);
            if before.and_then(|block| block_of(&run, block)) != Some(next.extent.parent) {
                continue;
            }
            let next = Arc::new(next);
            if key.first < end {
                children.push(next);
            } else if *marked < limit && self.usage.write().orphan(&next.extent) {
                *marked += 1;
                end = next.end();
                run.push(next);
            }
        }
        Ok(run)
    }

    /// The first extents of lineages that leave a run of neighbours, at most `limit`.
    fn forks_off(&self, run: &[Arc<Record>], limit: usize) -> Result<Vec<Arc<Record>>, TableError> {
        let (Some(first), Some(last)) = (run.first(), run.last()) else { return Ok(Vec::new()) };
        let OrderKey { namespace, lineage, first: block, .. } = OrderKey::of(&first.extent);
        let end = last.end();
        let at = |block| ForkKey { namespace, lineage, block, child: [0; 16] };
        let mut children = Vec::new();
        // A shared prefix has forks behind each block. Those behind this run belong to other extents.
        for fork in self.tree.forks(&(at(block)..at(end)), limit)? {
            let Some(parent) = block_of(run, fork.block) else { continue };
            let first = fork.block.saturating_add(1);
            let wanted = OrderKey { namespace, lineage: fork.child, first, sequence: 0 };
            let child = self.tree.places(WaitLimit::Unlimited).find(&wanted, |key, value| {
                Ok(self.decode(key, value)?.filter(|child| child.extent.parent == parent))
            })?;
            children.extend(child.map(Arc::new));
        }
        Ok(children)
    }
}

/// The block of this number of their lineage that a run of neighbours shows.
fn block_of(run: &[Arc<Record>], number: u32) -> Option<ChainHash> {
    let holder = run.iter().rev().find(|record| record.extent.first_block_index <= number)?;
    let block = number - holder.extent.first_block_index;
    let is_shown = block < holder.extent.block_count() && holder.live.get(block);
    is_shown.then(|| holder.extent.hashes[block as usize])
}

impl Record {
    /// The place in its lineage where another extent would go on.
    fn end(&self) -> u32 {
        self.extent.first_block_index.saturating_add(self.extent.block_count())
    }
}
