//! Applies what other stores removed to this one, each removal once.
//!
//! 1. A tombstone is noted after the removal is durable here. So a crash applies it again rather than not at all.
//! 2. A tombstone that was noted is not applied at the next open. So a block that was put again since then stays.
//! 3. If the file is missing or damaged, all tombstones are applied again. Blocks are misses then, never wrong.

use std::collections::BTreeSet;
use std::sync::Weak;

use dalsegno_core::{ChainHash, NamespaceId, Result};
use dalsegno_far::{AppliedCatalogs, KnownWriter, MAX_APPLIED_BYTES, Tombstone, WriterId};

use crate::engine::Engine;

/// Removes blocks from the store, or a namespace if there are none.
pub(crate) type RemoveHere = Box<dyn Fn(NamespaceId, Option<&[ChainHash]>) -> Result<()> + Send>;

/// Applies tombstones of other stores.
pub(super) struct RemovalsHere {
    engine: Weak<Engine>,
    remove: RemoveHere,
    applied: AppliedCatalogs,
}

impl RemovalsHere {
    /// Reads which tombstones were applied before.
    pub(super) fn open(engine: Weak<Engine>, remove: RemoveHere, own: WriterId) -> Self {
        let stored = engine.upgrade().and_then(|engine| read(&engine, own));
        let applied = stored.unwrap_or_else(|| AppliedCatalogs::none(own.store));
        Self { engine, remove, applied }
    }

    /// Applies the tombstones that are new here. `known` are the writers that are at the location.
    pub(super) fn apply(
        &mut self,
        tombstones: &[(WriterId, u64, Tombstone)],
        known: &[KnownWriter],
    ) {
        // Removals of this store, when it was open before, are in its log.
        let own = self.applied.store();
        let mut done = BTreeSet::new();
        let mut failed = BTreeSet::new();
        for (writer, number, tombstone) in tombstones {
            if writer.store == own || self.applied.contains(*writer, *number) {
                continue;
            }
            match self.remove(tombstone) {
                Ok(()) => done.insert((*writer, *number)),
                Err(error) => {
                    tracing::warn!(%error, "blocks that another store removed are still stored here");
                    failed.insert((*writer, *number))
                }
            };
        }
        if done.is_empty() {
            return;
        }
        let is_known = |writer| known.binary_search_by_key(&writer, |one| one.writer).is_ok();
        self.applied.retain(is_known);
        done.difference(&failed).for_each(|(writer, number)| self.applied.add(*writer, *number));
        let Some(engine) = self.engine.upgrade() else { return };
        if let Err(error) = engine.log.store_files().write_applied(&self.applied.encode()) {
            tracing::debug!(%error, "removals of other stores are applied again at the next open");
        }
    }

    fn remove(&self, tombstone: &Tombstone) -> Result<()> {
        let hashes = Some(tombstone.hashes.as_slice()).filter(|hashes| !hashes.is_empty());
        (self.remove)(tombstone.namespace, hashes)
    }
}

/// What was stored, if it can be used.
fn read(engine: &Engine, own: WriterId) -> Option<AppliedCatalogs> {
    let stored = match engine.log.store_files().read_applied(MAX_APPLIED_BYTES) {
        Ok(stored) => stored?,
        Err(error) => {
            tracing::warn!(%error, "removals of other stores are applied again");
            return None;
        }
    };
    match AppliedCatalogs::decode(&stored) {
        Ok(applied) if applied.store() == own.store => Some(applied),
        Ok(_) => None,
        Err(error) => {
            tracing::warn!(%error, "far.meta is not valid; removals of other stores are applied again");
            None
        }
    }
}
