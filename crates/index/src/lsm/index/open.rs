//! What an open finds: the newest complete manifest and its tables.
//!
//! 1. Files that no complete manifest names are leftovers of a crash. They are removed, unless the index is read-only.
//! 2. An index that cannot be opened completely is empty. Then the log is indexed again. The part of its checkpoint
//!    that is true without tables remains.
//! 3. Files that the device cannot read now but may read later are not lost: then the open fails.

use std::collections::BTreeSet;
use std::sync::Arc;

use dalsegno_core::{Deadline, Shape, StoreId};
use dalsegno_io::{DirEntry, IoError};

use crate::error::TableError;
use crate::lsm::files::table_files::{SECTOR, TableFiles};
use crate::lsm::format::manifest::{Manifest, manifest_file};
use crate::lsm::maintenance::manifests::{index_number, manifest_number};
use crate::lsm::maintenance::steps::TreeBounds;
use crate::lsm::table::footer::table_file;
use crate::lsm::table::reader::Table;
use crate::lsm::version::levels::Version;

/// Bytes of a table.
const MIN_TABLE_BYTES: u64 = 16 << 10;
const MAX_TABLE_BYTES: u64 = 16 << 20;
/// How many files of the log, and of the index, are read to find out whether the device reads at all.
const OTHERS: usize = 4;

/// How an index is opened.
#[derive(Clone, Copy, Debug)]
pub struct LsmOptions {
    /// Bytes of memory for new entries, before they become a table.
    pub memtable_bytes: u64,
    /// Bytes of memory for cached blocks of tables.
    pub cache_bytes: u64,
    /// Bits of Bloom filter per key, on average.
    pub filter_bits: f64,
    /// Bytes of disk for the files of the index. An index that outgrows them drops its oldest entries.
    pub disk_bytes: u64,
    /// The shape to start with; `None` keeps the present one.
    pub shape: Option<Shape>,
    /// Nothing is written; for inspecting a store.
    pub read_only: bool,
    /// Selects the part of a checkpoint that stays true when the tables are lost.
    pub without_tables: fn(&[u8]) -> Vec<u8>,
}

impl Default for LsmOptions {
    fn default() -> Self {
        Self {
            memtable_bytes: 16 << 20,
            cache_bytes: 64 << 20,
            filter_bits: 10.0,
            disk_bytes: u64::MAX,
            shape: None,
            read_only: false,
            without_tables: |_| Vec::new(),
        }
    }
}

impl LsmOptions {
    /// The bounds of the tree.
    pub(crate) fn bounds(&self) -> TreeBounds {
        TreeBounds {
            memtable_bytes: self.memtable_bytes,
            // Small enough that dropping one is no great loss.
            table_bytes: (self.disk_bytes / 32).clamp(MIN_TABLE_BYTES, MAX_TABLE_BYTES),
            filter_bits: self.filter_bits,
            disk_bytes: self.disk_bytes,
        }
    }
}

/// What was found.
#[derive(Default)]
pub(crate) struct FoundIndex {
    /// The shape of the newest manifest.
    pub(crate) shape: Option<Shape>,
    pub(crate) version: Version,
    pub(crate) checkpoint: Option<Vec<u8>>,
    /// The number of the next file.
    pub(crate) next_number: u64,
}

/// Finds the newest complete manifest among `entries` and opens its tables.
pub(crate) fn find_newest(
    files: &Arc<dyn TableFiles>,
    entries: &[DirEntry],
    store: StoreId,
    options: &LsmOptions,
) -> Result<FoundIndex, IoError> {
    let newest = Opener { files, entries, store }.newest(options)?;
    let used = entries.iter().filter_map(|entry| index_number(&entry.name)).max().unwrap_or(0);
    let next_number = used + 1;
    Ok(match newest {
        None => FoundIndex { next_number, ..FoundIndex::default() },
        Some((manifest, version)) => FoundIndex {
            shape: Some(manifest.shape),
            checkpoint: Some(version.checkpoint.clone()),
            version,
            next_number: next_number.max(manifest.next_number),
        },
    })
}

/// Why a file was not opened.
enum OpenError {
    /// Its contents are lost.
    Lost(TableError),
    /// It may be intact: the device fails, or there are no file descriptors.
    Unavailable(IoError),
}

/// What an index is opened from.
struct Opener<'a> {
    files: &'a Arc<dyn TableFiles>,
    entries: &'a [DirEntry],
    store: StoreId,
}

impl Opener<'_> {
    /// The newest complete manifest and its version, which has no tables if one of them is lost.
    fn newest(&self, options: &LsmOptions) -> Result<Option<(Manifest, Version)>, IoError> {
        let numbers: BTreeSet<u64> =
            self.entries.iter().filter_map(|entry| manifest_number(&entry.name)).collect();
        for number in numbers.into_iter().rev() {
            let name = manifest_file(number);
            let read = || read_manifest(self.files.as_ref(), number, self.store);
            let manifest = match self.try_twice(&name, read) {
                Ok(manifest) => manifest,
                Err(OpenError::Unavailable(error)) => return Err(error),
                Err(OpenError::Lost(error)) => {
                    tracing::warn!(name, %error, "manifest unusable; trying an older one");
                    continue;
                }
            };
            let version = self.version(&manifest, options)?;
            return Ok(Some((manifest, version)));
        }
        Ok(None)
    }

    fn version(&self, manifest: &Manifest, options: &LsmOptions) -> Result<Version, IoError> {
        let open = |number| {
            let table = || Table::open(self.files, self.store, number);
            self.try_twice(&table_file(number), table)
        };
        match Version::open(manifest, open) {
            Ok(version) => Ok(version),
            Err(OpenError::Unavailable(error)) => Err(error),
            Err(OpenError::Lost(error)) => {
                tracing::warn!(%error, "table unusable; rebuilding the index from the log");
                let keep = options.without_tables;
                Ok(Version::without_tables(manifest.number, &manifest.checkpoint, keep))
            }
        }
    }

    /// Opens a file of this name. A file that the device does not read is lost if the device reads another file and
    /// then fails again on this one; see `docs/decisions/0015-bad-or-failing.md`.
    fn try_twice<T>(
        &self,
        name: &str,
        open: impl Fn() -> Result<T, TableError>,
    ) -> Result<T, OpenError> {
        match open() {
            Err(TableError::Io(error)) if error.is_out_of_files() || !self.reads_another(name) => {
                return Err(OpenError::Unavailable(error));
            }
            Err(TableError::Io(error)) => tracing::debug!(name, %error, "read failed; retrying"),
            opened => return opened.map_err(OpenError::Lost),
        }
        open().map_err(|error| match error {
            TableError::Io(error) if error.is_out_of_files() => OpenError::Unavailable(error),
            error => OpenError::Lost(error),
        })
    }

    /// Whether the device reads the first sector of any of a few other files, of the log before those of the index.
    fn reads_another(&self, name: &str) -> bool {
        let is_other = |entry: &&DirEntry| entry.name != name && entry.bytes >= SECTOR as u64;
        let (own, others): (Vec<_>, Vec<_>) = self
            .entries
            .iter()
            .filter(is_other)
            .partition(|entry| index_number(&entry.name).is_some());
        let mut tried = others.iter().take(OTHERS).chain(own.iter().take(OTHERS));
        tried.any(|entry| self.files.try_sector(&entry.name).is_ok())
    }
}

fn read_manifest(
    files: &dyn TableFiles,
    number: u64,
    store: StoreId,
) -> Result<Manifest, TableError> {
    let bytes = read_file(files, &manifest_file(number))?;
    let manifest = Manifest::decode(&bytes).map_err(TableError::Malformed)?;
    if manifest.store != store || manifest.number != number {
        return Err(TableError::Malformed("a manifest of another place"));
    }
    Ok(manifest)
}

/// Reads a whole file.
pub(crate) fn read_file(files: &dyn TableFiles, name: &str) -> Result<Vec<u8>, IoError> {
    let opened = files.open(name)?;
    let mut bytes = vec![0; usize::try_from(opened.bytes).expect("64-bit addresses")];
    let read = files.read_at(opened.file, 0, &mut bytes, Deadline::Never);
    files.close(opened.file);
    read.map(|()| bytes)
}

/// Removes the files of the index that `version` does not use. Best effort: the next open removes the rest.
pub(crate) fn remove_others(files: &dyn TableFiles, entries: &[DirEntry], version: &Version) {
    let mut used: BTreeSet<String> = version.tables().map(|t| table_file(t.number())).collect();
    used.insert(manifest_file(version.number));
    let names = entries.iter().map(|entry| &entry.name);
    for name in names.filter(|name| index_number(name).is_some() && !used.contains(*name)) {
        if let Err(error) = files.remove(name) {
            tracing::debug!(name, %error, "unused file not removed; the next open removes it");
        }
    }
}
