//! Tombstones, for packs that become known after them.

use std::collections::HashMap;
use std::sync::Arc;

use dalsegno_core::NamespaceId;

use super::packs::covers;
use super::place::name_of;
use crate::format::{KnownWriter, Tombstone};
use crate::names::WriterId;

type Known = Arc<[KnownWriter]>;

/// What tombstones removed, and from which packs.
#[derive(Debug, Default)]
pub(super) struct Removed {
    blocks: HashMap<u64, Vec<Known>>,
    namespaces: Vec<(NamespaceId, Known)>,
}

impl Removed {
    pub(super) fn add(&mut self, tombstone: &Tombstone, known: &Known) {
        let Tombstone { namespace, hashes, .. } = tombstone;
        if hashes.is_empty() {
            self.namespaces.push((*namespace, Arc::clone(known)));
        }
        for hash in hashes {
            self.blocks.entry(name_of(*namespace, hash)).or_default().push(Arc::clone(known));
        }
    }

    /// Whether a block of a pack was removed.
    pub(super) fn removes(&self, name: u64, namespace: NamespaceId, pack: (WriterId, u64)) -> bool {
        let of_block = self.blocks.get(&name).into_iter().flatten();
        let of_namespace = self.namespaces.iter().filter(|(of, _)| *of == namespace);
        of_block.chain(of_namespace.map(|(_, known)| known)).any(|known| covers(known, pack))
    }
}
