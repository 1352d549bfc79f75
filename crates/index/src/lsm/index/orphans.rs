//! Marks the extents that depend on an evicted one as orphans.
//!
//! 1. An extent whose parent was removed and stored again elsewhere is not found: the tree knows only places.

use std::sync::Arc;

use dalsegno_core::{ChainHash, Deadline, Extent};

use crate::error::TableError;
use crate::lsm::format::keys::{ForkKey, OrderKey, Record};
use crate::lsm::index::lookup::Lookup;

/// Marks the rest of an extent's lineage up to a gap, the lineages that fork off there, and so on, at most `limit`
/// extents. Returns how many.
pub(crate) fn orphan_descendants(
    lookup: &Lookup,
    extent: &Extent,
    limit: usize,
) -> Result<usize, TableError> {
    let mut marked = 0;
    let first = lookup.record(&OrderKey::of(extent), Deadline::Never)?;
    let mut open: Vec<Arc<Record>> = first.into_iter().collect();
    while let Some(record) = open.pop() {
        let mut children = Vec::new();
        let run = orphan_run(lookup, record, limit, &mut marked, &mut children)?;
        children.extend(forks_off(lookup, &run, limit - marked)?);
        for child in children {
            if marked < limit && lookup.usage.write().orphan(&child.extent) {
                marked += 1;
                open.push(child);
            }
        }
    }
    Ok(marked)
}

/// Marks the extents that continue one in its lineage, up to a gap or to one that is marked already. Returns all of
/// them, the first one included. Other extents of the lineage that start after one of their blocks go to `children`.
fn orphan_run(
    lookup: &Lookup,
    first: Arc<Record>,
    limit: usize,
    marked: &mut usize,
    children: &mut Vec<Arc<Record>>,
) -> Result<Vec<Arc<Record>>, TableError> {
    let from = OrderKey::of(&first.extent);
    let mut scan = lookup.reader.orders(&OrderKey { sequence: 0, ..from })?;
    let mut end = first.end();
    let mut run = vec![first];
    while let Some((key, value)) = scan.next()? {
        if (key.namespace, key.lineage) != (from.namespace, from.lineage) || key.first > end {
            break;
        }
        let Some(next) = lookup.decode(&key, &value)? else { continue };
        let before = key.first.checked_sub(1);
        if before.and_then(|block| block_of(&run, block)) != Some(next.extent.parent) {
            continue;
        }
        let next = Arc::new(next);
        if key.first < end {
            children.push(next);
        } else if *marked < limit && lookup.usage.write().orphan(&next.extent) {
            *marked += 1;
            end = next.end();
            run.push(next);
        }
    }
    Ok(run)
}

/// The first extents of lineages that fork off a run of neighbours, at most `limit`.
fn forks_off(
    lookup: &Lookup,
    run: &[Arc<Record>],
    limit: usize,
) -> Result<Vec<Arc<Record>>, TableError> {
    let (Some(first), Some(last)) = (run.first(), run.last()) else { return Ok(Vec::new()) };
    let OrderKey { namespace, lineage, first: block, .. } = OrderKey::of(&first.extent);
    let end = last.end();
    let at = |block| ForkKey { namespace, lineage, block, child: [0; 16] };
    let mut children = Vec::new();
    // A shared prefix has forks after each block. Those after this run belong to other extents.
    for fork in lookup.reader.forks(&(at(block)..at(end)), limit)? {
        let Some(parent) = block_of(run, fork.block) else { continue };
        let first = fork.block.saturating_add(1);
        let wanted = OrderKey { namespace, lineage: fork.child, first, sequence: 0 };
        let child = lookup.reader.places(Deadline::Never).find(&wanted, |key, value| {
            Ok(lookup.decode(key, value)?.filter(|child| child.extent.parent == parent))
        })?;
        children.extend(child.map(Arc::new));
    }
    Ok(children)
}

/// The block of this number of their lineage that a run of neighbours shows.
fn block_of(run: &[Arc<Record>], number: u32) -> Option<ChainHash> {
    let holder = run.iter().rev().find(|record| record.extent.first_block_index <= number)?;
    let block = number - holder.extent.first_block_index;
    let is_shown = block < holder.extent.block_count() && holder.live.get(block);
    is_shown.then(|| holder.extent.hashes[block as usize])
}
