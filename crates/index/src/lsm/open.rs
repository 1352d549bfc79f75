//! Opening an index: what the newest whole manifest says.
//!
//! 1. Files that no whole manifest names are what a crash left; they are removed, unless the index is only looked at.
//! 2. An index that cannot be opened whole is empty: then everything is taken in from the log again. What its manifest
//!    knows without tables it knows still.
//! 3. What the device does not give now and may give later is not lost: then the index is not opened.

use std::collections::BTreeSet;
use std::sync::Arc;

use dalsegno_core::{COUNT_LIMIT, Shape, StoreId};
use dalsegno_io::{Device, DirEntry, IoError, WaitLimit};

use super::block::SECTOR;
use super::device_files::DeviceFiles;
use super::file::TableFiles;
use super::index::LsmIndex;
use super::manifest::{Manifest, manifest_file};
use super::table::{Table, TableError, table_file};
use super::tree::{Options, Tree};
use super::version::Version;
use crate::usage::Usage;

/// How an index is opened.
#[derive(Clone, Copy, Debug)]
pub struct LsmOptions {
    /// Bytes of memory for what was written last, before it becomes a table.
    pub memtable_bytes: u64,
    /// Bytes of memory for blocks of tables that were read.
    pub cache_bytes: u64,
    /// Bits of Bloom filter per key, on average.
    pub filter_bits: f64,
    /// Bytes of disk for the index's files. An index that outgrows them forgets what it took in first.
    pub disk_bytes: u64,
    /// The shape to begin with; `None` takes the one it had.
    pub shape: Option<Shape>,
    /// Nothing is written; for looking at a store.
    pub read_only: bool,
    /// What of a checkpoint stays true when the tables are lost.
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

/// Bytes of a table.
const MIN_TABLE_BYTES: u64 = 16 << 10;
const MAX_TABLE_BYTES: u64 = 16 << 20;
/// Bytes of one write.
const REQUEST_BYTES: usize = 1 << 20;
/// Files of the log, and of the index, that are asked for whether the device reads at all.
const OTHERS: usize = 4;

impl LsmIndex {
    /// Opens the index of a store, and says what of the log it holds: `None` if it knows nothing.
    ///
    /// # Errors
    ///
    /// If the device fails, or there are no file descriptors: then nothing is changed. Damage is no error: the index is
    /// empty then, and knows of its checkpoint what is true without tables.
    pub fn open(
        device: Arc<dyn Device>,
        store: StoreId,
        options: LsmOptions,
    ) -> Result<(Self, Option<Vec<u8>>), IoError> {
        Self::open_in(Arc::new(DeviceFiles::new(device, options.read_only)), store, options)
    }

    /// As [`Self::open`], over any files.
    pub(super) fn open_in(
        files: Arc<dyn TableFiles>,
        store: StoreId,
        options: LsmOptions,
    ) -> Result<(Self, Option<Vec<u8>>), IoError> {
        let entries = files.list()?;
        let newest = Opener { files: &files, entries: &entries, store }.newest(&options)?;
        let shape = options.shape.or(newest.as_ref().map(|(manifest, _)| manifest.shape));
        let used = entries.iter().filter_map(|entry| index_number(&entry.name)).max().unwrap_or(0);
        let mut next_number = used + 1;
        let (mut version, mut checkpoint) = (Version::default(), None);
        if let Some((manifest, found)) = newest {
            next_number = next_number.max(manifest.next_number);
            checkpoint = Some(found.checkpoint.clone());
            version = found;
        }
        let usage = Usage::restore(version.sums.clone());
        let bounds = Options {
            memtable_bytes: options.memtable_bytes,
            // Small enough that to forget one is no great loss.
            table_bytes: (options.disk_bytes / 32).clamp(MIN_TABLE_BYTES, MAX_TABLE_BYTES),
            request_bytes: REQUEST_BYTES,
            cache_bytes: options.cache_bytes,
            filter_bits: options.filter_bits,
            disk_bytes: options.disk_bytes,
            without_tables: options.without_tables,
        };
        let shape = shape.unwrap_or_default();
        let tree = Tree::new(files, store, bounds, shape, version, next_number);
        if !options.read_only && tree.renew().is_ok() {
            let (files, state) = (tree.files.as_ref(), tree.state());
            remove_others(files, &entries, &state.version);
        }
        Ok((Self::over(tree, usage), checkpoint))
    }
}

/// Why something was not opened.
enum Unopened {
    /// It is not there any more.
    Bad(TableError),
    /// It may be there; the device fails, or there are no file descriptors.
    Fails(IoError),
}

/// What an index is opened from.
struct Opener<'a> {
    files: &'a Arc<dyn TableFiles>,
    entries: &'a [DirEntry],
    store: StoreId,
}

impl Opener<'_> {
    /// The newest manifest that is whole and its version, which has no tables if one of them is not.
    fn newest(&self, options: &LsmOptions) -> Result<Option<(Manifest, Version)>, IoError> {
        let numbers: BTreeSet<u64> =
            self.entries.iter().filter_map(|entry| manifest_number(&entry.name)).collect();
        for number in numbers.into_iter().rev() {
            let name = manifest_file(number);
            let read = || read_manifest(self.files.as_ref(), number, self.store);
            let manifest = match self.ask(&name, read) {
                Ok(manifest) => manifest,
                Err(Unopened::Fails(error)) => return Err(error),
                Err(Unopened::Bad(error)) => {
                    tracing::warn!("{name} cannot be used: {error}");
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
            self.ask(&table_file(number), table)
        };
        match Version::open(manifest, open) {
            Ok(version) => Ok(version),
            Err(Unopened::Fails(error)) => Err(error),
            Err(Unopened::Bad(error)) => {
                tracing::warn!("a table of the index cannot be used, so none is: {error}");
                let keep = options.without_tables;
                Ok(Version::without_tables(manifest.number, &manifest.checkpoint, keep))
            }
        }
    }

    /// Opens something that lies in a file of this name. What the device does not give is bad if it gives something
    /// else, and then fails to give it again; see `docs/decisions/0015-bad-or-failing.md`.
    fn ask<T>(&self, name: &str, open: impl Fn() -> Result<T, TableError>) -> Result<T, Unopened> {
        match open() {
            Err(TableError::Io(error)) if error.is_out_of_files() || !self.gives_another(name) => {
                return Err(Unopened::Fails(error));
            }
            Err(TableError::Io(error)) => tracing::debug!("{name} is asked for again: {error}"),
            opened => return opened.map_err(Unopened::Bad),
        }
        open().map_err(|error| match error {
            TableError::Io(error) if error.is_out_of_files() => Unopened::Fails(error),
            error => Unopened::Bad(error),
        })
    }

    /// Whether the device reads the first sector of any of a few other files; of the log's rather than of the index's.
    fn gives_another(&self, name: &str) -> bool {
        let is_other = |entry: &&DirEntry| entry.name != name && entry.bytes >= SECTOR as u64;
        let (own, others): (Vec<_>, Vec<_>) = self
            .entries
            .iter()
            .filter(is_other)
            .partition(|entry| index_number(&entry.name).is_some());
        let mut asked = others.iter().take(OTHERS).chain(own.iter().take(OTHERS));
        asked.any(|entry| self.files.try_sector(&entry.name).is_ok())
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

/// The whole of a file.
pub(super) fn read_file(files: &dyn TableFiles, name: &str) -> Result<Vec<u8>, IoError> {
    let opened = files.open(name)?;
    let mut bytes = vec![0; usize::try_from(opened.bytes).expect("64-bit addresses")];
    let read = files.read_at(opened.file, 0, &mut bytes, WaitLimit::Unlimited);
    files.close(opened.file);
    read.map(|()| bytes)
}

/// Best effort: what is left is removed at the next open.
fn remove_others(files: &dyn TableFiles, entries: &[DirEntry], version: &Version) {
    let mut used: BTreeSet<String> = version.tables().map(|t| table_file(t.number())).collect();
    used.insert(manifest_file(version.number));
    let names = entries.iter().map(|entry| &entry.name);
    for name in names.filter(|name| index_number(name).is_some() && !used.contains(*name)) {
        if let Err(error) = files.remove(name) {
            tracing::debug!("{name} was not removed: {error}");
        }
    }
}

/// The number in the name of one of the index's files.
#[must_use]
pub fn index_number(name: &str) -> Option<u64> {
    let number = name.strip_prefix("index-")?.split('.').next()?;
    let number = u64::from_str_radix(number, 16).ok()?;
    let is_ours = name == table_file(number) || name == manifest_file(number);
    (is_ours && number < COUNT_LIMIT).then_some(number)
}

pub(super) fn manifest_number(name: &str) -> Option<u64> {
    index_number(name).filter(|number| name == manifest_file(*number))
}
