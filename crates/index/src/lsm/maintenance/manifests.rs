//! Installs versions: the only place that writes manifests.
//!
//! 1. A table and its name are durable before a manifest names it. A manifest and its name are durable before anything
//!    that it replaces is removed. So a crash at any moment leaves a manifest and all its tables.
//! 2. After a manifest that may or may not be durable no other is written.

use std::collections::BTreeSet;
use std::sync::Arc;

use dalsegno_core::{COUNT_LIMIT, Shape};
use dalsegno_io::{FileId, IoError};
use parking_lot::RwLock;

use crate::error::TableError;
use crate::lsm::format::manifest::{Manifest, manifest_file};
use crate::lsm::health::{Health, StopCause};
use crate::lsm::maintenance::directory::IndexDirectory;
use crate::lsm::table::footer::table_file;
use crate::lsm::version::levels::Version;
use crate::lsm::version::snapshot::Snapshots;

/// Writes manifests and makes their versions current.
#[derive(Debug)]
pub(crate) struct Manifests {
    directory: Arc<IndexDirectory>,
    snapshots: Arc<Snapshots>,
    health: Arc<Health>,
    shape: RwLock<Shape>,
    /// See [`LsmOptions::without_tables`](crate::LsmOptions::without_tables).
    without_tables: fn(&[u8]) -> Vec<u8>,
}

impl Manifests {
    pub(crate) fn new(
        directory: Arc<IndexDirectory>,
        snapshots: Arc<Snapshots>,
        health: Arc<Health>,
        shape: Shape,
        without_tables: fn(&[u8]) -> Vec<u8>,
    ) -> Self {
        Self { directory, snapshots, health, shape: RwLock::new(shape), without_tables }
    }

    /// The shape that the next flush and the steps after it follow.
    pub(crate) fn shape(&self) -> Shape {
        *self.shape.read()
    }

    pub(crate) fn set_shape(&self, shape: Shape) {
        *self.shape.write() = shape;
    }

    /// Makes a version current, first on disk and then in memory, and removes the files that it replaces.
    pub(crate) fn install(&self, mut version: Version, is_flushed: bool) -> Result<(), TableError> {
        version.number = self.directory.take_number();
        let version = Arc::new(version);
        let written = match self.begin(&version) {
            Ok((file, bytes)) => self.write(file, &bytes),
            Err(error) if error.is_no_space() || error.is_out_of_files() => {
                // The caller tries again. Until then nothing references the new tables.
                self.remove_replaced(&version, &self.snapshots.current().version.clone());
                return Err(error.into());
            }
            Err(error) => Err(error),
        };
        if let Err(error) = written {
            // It may be durable or not, so nothing may build on the version before.
            self.health.stop(StopCause::Unsure);
            return Err(error.into());
        }
        self.health.has_written();
        let before = self.snapshots.install(Arc::clone(&version), is_flushed);
        self.remove_replaced(&before, &version);
        Ok(())
    }

    /// The current version without its tables.
    pub(crate) fn without_tables(&self, number: u64) -> Version {
        let version = &self.snapshots.current().version;
        Version::without_tables(number, &version.checkpoint, self.without_tables)
    }

    /// Writes a manifest without tables and stops all further writes. The next open then keeps only the part of the
    /// checkpoint that is true without tables.
    pub(crate) fn drop_tables(&self) {
        let before = Arc::clone(&self.snapshots.current().version);
        if self.health.is_stopped() {
            return;
        }
        self.health.stop(StopCause::Condemned);
        if before.number == 0 {
            return;
        }
        let empty = self.without_tables(self.directory.take_number());
        let written = self.begin(&empty).and_then(|(file, bytes)| self.write(file, &bytes));
        if let Err(error) = &written
            && (error.is_no_space() || error.is_out_of_files())
            && self.lose_table(&before).is_ok()
        {
            self.health.stop(StopCause::TablesDropped);
            return;
        }
        if let Err(error) = written {
            // The next open meets the same damage and drops the tables again. Removing the manifest would lose the
            // removals that it knows.
            tracing::warn!(%error, "tables of the damaged index not dropped; the next open tries again");
            return;
        }
        self.health.stop(StopCause::TablesDropped);
        let files = &self.directory.files;
        let removed = files.remove(&manifest_file(before.number));
        if let Err(error) = removed.and_then(|()| files.sync_names()) {
            tracing::warn!(%error, "manifest of the damaged index not removed; the next open removes it");
        }
    }

    /// Removes one table of a version. That has the effect of a manifest without tables, because an open that lacks a
    /// table uses none. It needs neither space nor a descriptor.
    fn lose_table(&self, version: &Version) -> Result<(), IoError> {
        if let Some(table) = version.tables().next() {
            self.directory.files.remove(&table_file(table.number()))?;
        }
        self.directory.files.sync_names()
    }

    /// Creates the file of a version's manifest, and returns it with the bytes to write.
    fn begin(&self, version: &Version) -> Result<(FileId, Vec<u8>), IoError> {
        let files = &self.directory.files;
        files.sync_names()?;
        let manifest = Manifest {
            store: self.directory.store,
            number: version.number,
            next_number: self.directory.next_number(),
            shape: self.shape(),
            levels: version.numbers(),
            segments: version.sums.clone(),
            checkpoint: version.checkpoint.clone(),
            is_partial: version.is_partial,
        };
        let bytes = manifest.encode();
        let name = manifest_file(version.number);
        Ok((files.create(&name, bytes.len() as u64)?, bytes))
    }

    fn write(&self, file: FileId, bytes: &[u8]) -> Result<(), IoError> {
        let files = &self.directory.files;
        let mut offset = 0;
        let mut written = Ok(());
        for part in bytes.chunks(self.directory.request_bytes) {
            written = written.and_then(|()| files.write_at(file, offset, part));
            offset += part.len() as u64;
        }
        let written = written.and_then(|()| files.sync(file));
        files.close(file);
        written?;
        files.sync_names()
    }

    /// Removes the files of `before` that `after` does not use. Best effort: the next open removes the rest.
    fn remove_replaced(&self, before: &Version, after: &Version) {
        let used: BTreeSet<u64> = after.tables().map(|table| table.number()).collect();
        let tables = before.tables().map(|table| table.number()).filter(|n| !used.contains(n));
        let manifest = (before.number > 0).then(|| manifest_file(before.number));
        for name in tables.map(table_file).chain(manifest) {
            if let Err(error) = self.directory.files.remove(&name) {
                tracing::debug!(name, %error, "replaced file not removed; the next open removes it");
            }
        }
    }
}

/// The number in the name of a file of the index.
#[must_use]
pub fn index_number(name: &str) -> Option<u64> {
    let number = name.strip_prefix("index-")?.split('.').next()?;
    let number = u64::from_str_radix(number, 16).ok()?;
    let is_ours = name == table_file(number) || name == manifest_file(number);
    (is_ours && number < COUNT_LIMIT).then_some(number)
}

/// The number in the name of a manifest.
pub(crate) fn manifest_number(name: &str) -> Option<u64> {
    index_number(name).filter(|number| name == manifest_file(*number))
}
