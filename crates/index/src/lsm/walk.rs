//! Walks over the index: what begins at a place, what comes behind an extent.

use std::collections::BTreeSet;
use std::sync::Arc;

use dalsegno_core::{ChainHash, Extent, NamespaceId};

use super::index::LsmIndex;
use super::keys::{ForkKey, OrderKey, short};
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

    /// What comes behind an extent: the rest of its lineage, and lineages that leave it at the extent or behind, and so
    /// on.
    pub(super) fn subtree(
        &self,
        extent: &Extent,
        limit: usize,
    ) -> Result<Vec<Arc<Extent>>, TableError> {
        let namespace = extent.namespace;
        let mut found = Vec::new();
        let mut open = vec![(short(&extent.lineage), extent.first_block_index, Some(extent.id))];
        let mut seen = BTreeSet::from([short(&extent.lineage)]);
        while let Some((lineage, first, but)) = open.pop() {
            let mut scan =
                self.tree.orders(&OrderKey { namespace, lineage, first, sequence: 0 })?;
            while let Some((key, value)) = scan.next()? {
                if (key.namespace, key.lineage) != (namespace, lineage) {
                    break;
                }
                let Some(record) = self.decode(&key, &value)? else { continue };
                if Some(record.extent.id) == but {
                    continue;
                }
                if found.len() == limit {
                    return Ok(found);
                }
                found.push(record.extent);
            }
            let from = ForkKey { namespace, lineage, block: first, child: [0; 16] };
            for fork in self.tree.forks(&from, limit)? {
                if (fork.namespace, fork.lineage) == (namespace, lineage) && seen.insert(fork.child)
                {
                    open.push((fork.child, 0, None));
                }
            }
        }
        Ok(found)
    }
}
