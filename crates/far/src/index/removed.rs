//! What removals cover, for packs that become known after them.
//!
//! 1. Memory is bounded. Beyond the bound on blocks, a removal covers the whole namespace, and beyond the bound on
//!    namespaces it covers everything: misses of what was put before it.

use std::collections::HashMap;

use dalsegno_core::{ChainHash, NamespaceId};

use super::place::name_of;
use crate::removal::{Applied, Removal, RemovalId};

/// The newest removal of each writer that covers something.
type Marks = Vec<RemovalId>;

/// What removals cover.
#[derive(Debug)]
pub(crate) struct Removed {
    blocks: HashMap<u64, Marks>,
    namespaces: HashMap<NamespaceId, Marks>,
    everything: Marks,
    most_blocks: usize,
    most_namespaces: usize,
}

/// How much a removal covers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Covered {
    Blocks,
    Namespace,
    Everything,
}

impl Removed {
    pub(crate) fn new(most_blocks: usize, most_namespaces: usize) -> Self {
        let (blocks, namespaces, everything) = (HashMap::new(), HashMap::new(), Marks::new());
        Self { blocks, namespaces, everything, most_blocks, most_namespaces }
    }

    /// Adds a removal. Returns how much it covers.
    pub(crate) fn add(&mut self, removal: &Removal) -> Covered {
        let Removal { id, namespace, hashes } = removal;
        let has_space = self.blocks.len() + hashes.len() <= self.most_blocks;
        if !hashes.is_empty() && has_space {
            for hash in hashes {
                note(self.blocks.entry(name_of(*namespace, hash)), *id);
            }
            return Covered::Blocks;
        }
        if self.namespaces.contains_key(namespace) || self.namespaces.len() < self.most_namespaces {
            note(self.namespaces.entry(*namespace), *id);
            return Covered::Namespace;
        }
        add_mark(&mut self.everything, *id);
        Covered::Everything
    }

    /// Whether all blocks of a namespace are covered in a pack whose writer had applied `applied`.
    pub(crate) fn covers_all(&self, namespace: NamespaceId, applied: &Applied) -> bool {
        let of_namespace = self.namespaces.get(&namespace).into_iter().flatten();
        self.everything.iter().chain(of_namespace).any(|id| !applied.contains(*id))
    }

    /// Whether a block is covered in a pack whose writer had applied `applied`.
    pub(super) fn covers(&self, name: u64, applied: &Applied) -> bool {
        let mut marks = self.blocks.get(&name).into_iter().flatten();
        marks.any(|id| !applied.contains(*id))
    }

    /// As [`Self::covers`], by the block's whole name.
    pub(crate) fn covers_block(
        &self,
        namespace: NamespaceId,
        hash: &ChainHash,
        applied: &Applied,
    ) -> bool {
        self.covers(name_of(namespace, hash), applied)
    }

    /// Forgets all removals but these.
    pub(super) fn retain(&mut self, is_needed: &dyn Fn(RemovalId) -> bool) {
        let keep = |marks: &mut Marks| {
            marks.retain(|id| is_needed(*id));
            !marks.is_empty()
        };
        self.blocks.retain(|_, marks| keep(marks));
        self.namespaces.retain(|_, marks| keep(marks));
        keep(&mut self.everything);
    }
}

fn note<K>(slot: std::collections::hash_map::Entry<'_, K, Marks>, id: RemovalId) {
    use std::collections::hash_map::Entry::{Occupied, Vacant};
    match slot {
        Occupied(mut slot) => add_mark(slot.get_mut(), id),
        // Most have one mark: this takes no more memory.
        Vacant(slot) => drop(slot.insert(vec![id])),
    }
}

fn add_mark(marks: &mut Marks, id: RemovalId) {
    match marks.iter_mut().find(|mark| mark.by == id.by) {
        Some(mark) => mark.number = mark.number.max(id.number),
        None => marks.push(id),
    }
}
