//! Opening an index: what the newest whole manifest says.
//!
//! 1. Files that no whole manifest names are what a crash left; they are removed, unless the index is only looked at.
//! 2. An index that cannot be opened whole is empty: then everything is taken in from the log again.

use std::collections::BTreeSet;
use std::sync::Arc;

use dalsegno_core::StoreId;
use dalsegno_core::fluid::Shape;
use dalsegno_io::{Device, IoError};

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
        }
    }
}

/// Bytes of a table.
const MIN_TABLE_BYTES: u64 = 16 << 10;
const MAX_TABLE_BYTES: u64 = 16 << 20;
/// Bytes of one write.
const REQUEST_BYTES: usize = 1 << 20;

impl LsmIndex {
    /// Opens the index of a store, and says what of the log it holds: `None` if it holds nothing.
    ///
    /// # Errors
    ///
    /// If the device cannot list its files. Damage is no error: the index is empty then.
    pub fn open(
        device: Arc<dyn Device>,
        store: StoreId,
        options: LsmOptions,
    ) -> Result<(Self, Option<Vec<u8>>), IoError> {
        let files: Arc<dyn TableFiles> = Arc::new(DeviceFiles::new(device, options.read_only));
        let names: Vec<String> = files.list()?.into_iter().map(|entry| entry.name).collect();
        let newest = newest_version(&files, &names, store);
        let shape = options.shape.or(newest.as_ref().map(|(manifest, _)| manifest.shape));
        let used = names.iter().filter_map(|name| index_number(name)).max().unwrap_or(0);
        let mut next_number = used + 1;
        let (mut version, mut cover) = (Version::default(), None);
        if let Some((manifest, found)) = newest {
            next_number = next_number.max(manifest.next_number);
            cover = Some(manifest.cover);
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
        };
        let shape = shape.unwrap_or_default();
        let tree = Tree::new(files, store, bounds, shape, version, next_number);
        if !options.read_only && tree.renew().is_ok() {
            let (files, state) = (tree.files.as_ref(), tree.state());
            remove_others(files, &names, &state.version);
        }
        Ok((Self::over(tree, usage), cover))
    }
}

fn newest_version(
    files: &Arc<dyn TableFiles>,
    names: &[String],
    store: StoreId,
) -> Option<(Manifest, Version)> {
    let numbers: BTreeSet<u64> = names.iter().filter_map(|name| manifest_number(name)).collect();
    for number in numbers.into_iter().rev() {
        let name = manifest_file(number);
        let opened = read_manifest(files.as_ref(), number, store).and_then(|manifest| {
            let table = |number| Table::open(files, store, number);
            let version = Version::open(&manifest, table)?;
            Ok((manifest, version))
        });
        match opened {
            Ok(found) => return Some(found),
            Err(error) => tracing::warn!("{name} cannot be used: {error}"),
        }
    }
    None
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
    let read = files.read_at(opened.file, 0, &mut bytes);
    files.close(opened.file);
    read.map(|()| bytes)
}

/// Best effort: what is left is removed at the next open.
fn remove_others(files: &dyn TableFiles, names: &[String], version: &Version) {
    let mut used: BTreeSet<String> = version.tables().map(|t| table_file(t.number())).collect();
    used.insert(manifest_file(version.number));
    for name in names.iter().filter(|name| index_number(name).is_some() && !used.contains(*name)) {
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
    (name == table_file(number) || name == manifest_file(number)).then_some(number)
}

pub(super) fn manifest_number(name: &str) -> Option<u64> {
    index_number(name).filter(|number| name == manifest_file(*number))
}
