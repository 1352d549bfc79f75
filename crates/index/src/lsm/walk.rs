//! Walks over the index: what begins at a place, what comes behind an extent.

use std::sync::Arc;

use dalsegno_core::{ChainHash, Extent, NamespaceId};

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

    /// Marks what depends on an extent as orphans: the rest of its lineage up to a gap, lineages that fork off there, and
    /// so on.
    pub(super) fn orphan_behind(&self, extent: &Extent, limit: usize) -> Result<usize, TableError> {
        let mut marked = 0;
        let mut open: Vec<Arc<Record>> = self.record(&OrderKey::of(extent))?.into_iter().collect();
        while let Some(record) = open.pop() {
            let run = self.orphan_run(record, limit, &mut marked)?;
            for child in self.forks_off(&run, limit - marked)? {
                if marked < limit && self.usage.write().orphan(&child.extent) {
                    marked += 1;
                    open.push(child);
                }
            }
        }
        Ok(marked)
    }

    /// Marks the extents that go on behind one in its lineage, up to a gap or to one that is marked already. Returns all
    /// of them, the first one included.
    fn orphan_run(
        &self,
        first: Arc<Record>,
        limit: usize,
        marked: &mut usize,
    ) -> Result<Vec<Arc<Record>>, TableError> {
        let from = OrderKey::of(&first.extent);
        let mut scan = self.tree.orders(&OrderKey { sequence: 0, ..from })?;
        let mut run = vec![first];
        while let Some((key, value)) = scan.next()? {
            let last = run.last().expect("it begins with one");
            let end = last.extent.first_block_index.checked_add(last.extent.block_count());
            if (key.namespace, key.lineage) != (from.namespace, from.lineage)
                || end.is_none_or(|end| key.first > end)
            {
                break;
            }
            if Some(key.first) != end {
                continue;
            }
            let Some(next) = self.decode(&key, &value)? else { continue };
            let is_behind = last.extent.hashes.last() == Some(&next.extent.parent)
                && last.live.get(last.extent.block_count() - 1);
            if !is_behind {
                continue;
            }
            if *marked == limit || !self.usage.write().orphan(&next.extent) {
                break;
            }
            *marked += 1;
            run.push(Arc::new(next));
        }
        Ok(run)
    }

    /// The first extents of lineages that leave a run of neighbours, at most `limit`.
    fn forks_off(&self, run: &[Arc<Record>], limit: usize) -> Result<Vec<Arc<Record>>, TableError> {
        let (Some(first), Some(last)) = (run.first(), run.last()) else { return Ok(Vec::new()) };
        let OrderKey { namespace, lineage, first: block, .. } = OrderKey::of(&first.extent);
        let end = last.extent.first_block_index.saturating_add(last.extent.block_count());
        let from = ForkKey { namespace, lineage, block, child: [0; 16] };
        let mut children = Vec::new();
        for fork in self.tree.forks(&from, limit)? {
            if (fork.namespace, fork.lineage) != (namespace, lineage) || fork.block >= end {
                break;
            }
            let holder = run.iter().rev().find(|r| r.extent.first_block_index <= fork.block);
            let Some(holder) = holder else { continue };
            let block = fork.block - holder.extent.first_block_index;
            if block >= holder.extent.block_count() || !holder.live.get(block) {
                continue;
            }
            let parent = holder.extent.hashes[block as usize];
            let first = fork.block.saturating_add(1);
            let wanted = OrderKey { namespace, lineage: fork.child, first, sequence: 0 };
            let child = self.tree.places().find(&wanted, |key, value| {
                Ok(self.decode(key, value)?.filter(|child| child.extent.parent == parent))
            })?;
            children.extend(child.map(Arc::new));
        }
        Ok(children)
    }
}
