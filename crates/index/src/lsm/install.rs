//! Making a version of the index the present one.
//!
//! 1. A table and its name are durable before a manifest names it; a manifest and its name are durable before anything
//!    it makes superfluous is removed. So a crash at any moment leaves a manifest and all its tables.
//! 2. After a manifest that may or may not be durable no other is written.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use dalsegno_io::{FileId, IoError};

use super::manifest::{Manifest, manifest_file};
use super::table::{TableError, table_file};
use super::tree::{State, Tree};
use super::version::Version;

impl Tree {
    /// Makes a version the present one: first on disk, then in memory. Removes what it makes superfluous.
    pub(super) fn install(&self, mut version: Version, flushed: bool) -> Result<(), TableError> {
        version.number = self.next_number.fetch_add(1, Ordering::Relaxed);
        let version = Arc::new(version);
        let written = match self.begin_manifest(&version) {
            Ok((file, bytes)) => self.write_manifest(file, &bytes),
            Err(error) if error.is_no_space() || error.is_out_of_files() => {
                // It is tried again; until then nothing leads to the new tables.
                self.remove_superfluous(&version, &self.state().version.clone());
                return Err(error.into());
            }
            Err(error) => Err(error),
        };
        if let Err(error) = written {
            // It may be durable or not, so nothing may be built on what was before.
            self.fail();
            self.unsure.store(true, Ordering::Release);
            return Err(error.into());
        }
        self.end_shortage();
        let before = {
            let mut state = self.state.write();
            let mut next = State { version: Arc::clone(&version), ..State::clone(&state) };
            if flushed {
                next.frozen.pop_back();
            }
            std::mem::replace(&mut *state, Arc::new(next))
        };
        self.remove_superfluous(&before.version, &version);
        Ok(())
    }

    /// What is left of it without tables.
    pub(super) fn without_tables(&self, number: u64) -> Version {
        Version::without_tables(
            number,
            &self.state().version.checkpoint,
            self.options.without_tables,
        )
    }

    /// Makes a manifest of what it holds no more: at the next open its tables are lost, and of its checkpoint stays
    /// what is true without them. Nothing is written any more.
    pub(super) fn forget_tables(&self) {
        let before = Arc::clone(&self.state().version);
        if self.has_failed() {
            return;
        }
        self.fail();
        if before.number == 0 {
            return;
        }
        let number = self.next_number.fetch_add(1, Ordering::Relaxed);
        let nothing = self.without_tables(number);
        let begun = self.begin_manifest(&nothing);
        let written = begun.and_then(|(file, bytes)| self.write_manifest(file, &bytes));
        if let Err(error) = &written
            && (error.is_no_space() || error.is_out_of_files())
            && self.lose_table(&before).is_ok()
        {
            self.is_given_up.store(true, Ordering::Release);
            return;
        }
        if let Err(error) = written {
            // Whoever opens it meets the same, and gives it up again. Without it what it knows of removals would go.
            tracing::warn!("the damaged index was not given up: {error}");
            return;
        }
        self.is_given_up.store(true, Ordering::Release);
        let removed = self.files.remove(&manifest_file(before.number));
        if let Err(error) = removed.and_then(|()| self.files.sync_names()) {
            tracing::warn!("the damaged index was not removed: {error}");
        }
    }

    /// Removes a table of a version, which comes to the same as a manifest of nothing: who lacks one opens without any.
    /// It needs no room and no descriptor.
    fn lose_table(&self, version: &Version) -> Result<(), IoError> {
        if let Some(table) = version.tables().next() {
            self.files.remove(&table_file(table.number()))?;
        }
        self.files.sync_names()
    }

    /// Creates the file of a version's manifest, and tells what is to be written to it.
    fn begin_manifest(&self, version: &Version) -> Result<(FileId, Vec<u8>), IoError> {
        self.files.sync_names()?;
        let manifest = Manifest {
            store: self.store,
            number: version.number,
            next_number: self.next_number.load(Ordering::Relaxed),
            shape: self.shape(),
            levels: version.numbers(),
            segments: version.sums.clone(),
            checkpoint: version.checkpoint.clone(),
            is_partial: version.is_partial,
        };
        let bytes = manifest.encode();
        let name = manifest_file(version.number);
        Ok((self.files.create(&name, bytes.len() as u64)?, bytes))
    }

    fn write_manifest(&self, file: FileId, bytes: &[u8]) -> Result<(), IoError> {
        let mut offset = 0;
        let mut written = Ok(());
        for part in bytes.chunks(self.options.request_bytes) {
            written = written.and_then(|()| self.files.write_at(file, offset, part));
            offset += part.len() as u64;
        }
        let written = written.and_then(|()| self.files.sync(file));
        self.files.close(file);
        written?;
        self.files.sync_names()
    }

    /// Best effort: opening removes what is left.
    fn remove_superfluous(&self, before: &Version, after: &Version) {
        let used: BTreeSet<u64> = after.tables().map(|table| table.number()).collect();
        let tables = before.tables().map(|table| table.number()).filter(|n| !used.contains(n));
        let manifest = (before.number > 0).then(|| manifest_file(before.number));
        for name in tables.map(table_file).chain(manifest) {
            if let Err(error) = self.files.remove(&name) {
                tracing::debug!("{name} was not removed: {error}");
            }
        }
    }
}
