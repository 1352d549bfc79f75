//! Applies what other stores removed to this one, each removal once while the store is open.
//!
//! 1. A removal counts as applied after it is durable here, and after all others at the location are. Packs that are
//!    begun later are not covered by it.
//! 2. A removal that could not be made durable is tried again at the next poll.

use dalsegno_core::{ChainHash, NamespaceId, Result};
use dalsegno_far::{Applied, Polled, Removal};

/// Removes blocks from the store, or a namespace if there are none.
pub(crate) type RemoveHere = Box<dyn Fn(NamespaceId, Option<&[ChainHash]>) -> Result<()> + Send>;

/// Applies removals of other stores.
pub(super) struct RemovalsHere {
    remove: RemoveHere,
    applied: Applied,
    /// Removals that could not be applied.
    failed: Vec<Removal>,
}

impl RemovalsHere {
    pub(super) fn new(remove: RemoveHere) -> Self {
        Self { remove, applied: Applied::default(), failed: Vec::new() }
    }

    /// Applies the removals that are new here. Returns what is applied now.
    pub(super) fn apply(&mut self, polled: &mut Polled) -> &Applied {
        let mut wanted = std::mem::take(&mut self.failed);
        wanted.append(&mut polled.removals);
        for removal in wanted.into_iter().filter(|one| !self.applied.contains(one.id)) {
            let hashes = Some(removal.hashes.as_slice()).filter(|hashes| !hashes.is_empty());
            if let Err(error) = (self.remove)(removal.namespace, hashes) {
                tracing::warn!(%error, "blocks that another store removed are still stored here");
                self.failed.push(removal);
            }
        }
        if let Some(at_location) = polled.at_location.as_ref().filter(|_| self.failed.is_empty()) {
            self.applied = at_location.clone();
        }
        &self.applied
    }
}
