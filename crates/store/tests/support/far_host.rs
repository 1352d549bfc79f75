//! Hosts that share a far location, whose device and whose view of the location can be stopped.
#![allow(dead_code, reason = "each test file uses its part")]
#![expect(
    clippy::disallowed_methods,
    reason = "waits, and looks at files from outside of the stores"
)]

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use dalsegno_far::Tier;
use dalsegno_store::testing::Tiers;
use dalsegno_store::{Config, Error, FarStats, NamespaceId, Store, Terms};

use crate::held_tier::HeldTier;
use crate::support::hanging::{Hanging, hanging_with};
use crate::support::{self, LIMIT, chain, namespace, put, until};

pub(crate) const SLICE: u32 = 64 << 10;
pub(crate) const BYTES: usize = SLICE as usize;
pub(crate) const WORKERS: u32 = 4;

pub(crate) fn config(far: &Path) -> Config {
    Config { far_capacity: Some(1 << 30), ..config_with(far, 4 << 20) }
}

/// With so much DRAM, and the default of `far_capacity`.
pub(crate) fn config_with(far: &Path, dram: u64) -> Config {
    Config {
        far: Some(far.display().to_string()),
        far_flush_s: Some(0.1),
        far_workers: Some(WORKERS),
        dram: Some(dram),
        ..support::config(64 << 20)
    }
}

/// Copies the files of a store, as a backup does, or a crash leaves them.
pub(crate) fn copy_of(dir: &Path) -> tempfile::TempDir {
    let copy = tempfile::tempdir().unwrap();
    for file in support::files(dir) {
        match std::fs::copy(&file, copy.path().join(file.file_name().unwrap())) {
            // It is being replaced: a crash may leave none.
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
            copied => drop(copied.unwrap()),
        }
    }
    copy
}

/// The lists of removals at a location.
pub(crate) fn lists(far: &Path) -> Vec<PathBuf> {
    let Ok(folder) = std::fs::read_dir(far.join("removals")) else { return Vec::new() };
    let mut lists: Vec<PathBuf> = folder.map(|entry| entry.unwrap().path()).collect();
    lists.retain(|list| list.extension().is_some_and(|extension| extension == "removals"));
    lists
}

/// The names of chains that show how far a host has followed.
static MARKERS: AtomicU64 = AtomicU64::new(1 << 32);

/// A host.
pub(crate) struct Host {
    pub(crate) store: Store,
    pub(crate) namespace: NamespaceId,
    pub(crate) device: Arc<Hanging>,
    /// `None` if the store is open without its far location.
    pub(crate) tier: Option<Arc<HeldTier>>,
    pub(crate) dir: tempfile::TempDir,
}

impl Host {
    /// A new host.
    pub(crate) fn new(far: &Path) -> Self {
        Self::open(tempfile::tempdir().unwrap(), far)
    }

    /// A new host for which the location does not respond.
    pub(crate) fn silent(far: &Path) -> Self {
        let tier = HeldTier::open(far, WORKERS);
        tier.set_silent(true);
        Self::with(tempfile::tempdir().unwrap(), &config(far), Some(tier))
    }

    /// One whose store is in a directory.
    pub(crate) fn open(dir: tempfile::TempDir, far: &Path) -> Self {
        let tier = HeldTier::open(far, WORKERS);
        Self::with(dir, &config(far), Some(tier))
    }

    /// One that is opened without its far location.
    pub(crate) fn open_without_far(dir: tempfile::TempDir) -> Self {
        Self::with(dir, &support::config(64 << 20), None)
    }

    pub(crate) fn with(
        dir: tempfile::TempDir,
        config: &Config,
        tier: Option<Arc<HeldTier>>,
    ) -> Self {
        let far = tier.as_ref().map(|tier| Arc::<HeldTier>::clone(tier) as Arc<dyn Tier>);
        let (device, store, _) =
            hanging_with(dir.path(), config, Tiers { far, ..Tiers::default() });
        let namespace = namespace(&store, 1, SLICE, "far");
        Self { store, namespace, device, tier, dir }
    }

    /// Closes the store, and returns its directory.
    pub(crate) fn close(self) -> tempfile::TempDir {
        self.store.close();
        self.dir
    }

    pub(crate) fn tier(&self) -> &HeldTier {
        self.tier.as_ref().unwrap()
    }

    pub(crate) fn far(&self) -> FarStats {
        self.store.stats().far.unwrap()
    }

    pub(crate) fn put(&self, name: u64, blocks: usize) {
        put(&self.store, self.namespace, &chain(name, blocks), 0, BYTES);
    }

    /// Puts blocks, and waits until they are published.
    pub(crate) fn publish(&self, name: u64, blocks: usize) {
        let before = self.far().published.blocks;
        self.put(name, blocks);
        until("blocks are published", || self.far().published.blocks >= before + blocks as u64);
    }

    /// How many of the blocks are found, anywhere.
    pub(crate) fn present(&self, name: u64, blocks: usize) -> usize {
        let present = self.store.contains(self.namespace, &chain(name, blocks)).unwrap();
        present.iter().filter(|is_present| **is_present).count()
    }

    /// How many can be read.
    pub(crate) fn get(&self, name: u64, blocks: usize) -> usize {
        let terms = Terms::within(LIMIT);
        support::get(&self.store, self.namespace, &chain(name, blocks), BYTES, &terms)
    }

    /// Removes a chain, or everything.
    pub(crate) fn remove(&self, name: Option<u64>, blocks: usize) -> Result<u64, Error> {
        self.remove_within(name, blocks, LIMIT)
    }

    pub(crate) fn remove_within(
        &self,
        name: Option<u64>,
        blocks: usize,
        limit: Duration,
    ) -> Result<u64, Error> {
        let hashes = name.map(|name| chain(name, blocks));
        self.store.remove(self.namespace, hashes.as_deref(), &Terms::within(limit))
    }

    /// Waits until this host has followed everything that is at the location now.
    pub(crate) fn follow(&self, far: &Path) {
        // In a namespace of its own, which no test removes.
        let mut marker = Self::open(tempfile::tempdir().unwrap(), far);
        marker.namespace = namespace(&marker.store, 1, SLICE, "marker");
        let name = MARKERS.fetch_add(1, Ordering::Relaxed);
        marker.publish(name, 1);
        let of_marker = namespace(&self.store, 1, SLICE, "marker");
        let has_marker = || self.store.contains(of_marker, &chain(name, 1)).unwrap() == [true];
        until("the marker is found", has_marker);
        marker.store.close();
    }
}
