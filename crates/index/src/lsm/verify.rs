//! Checks the index of a closed store: reads every byte of its current version and compares it with its checksum.
//!
//! 1. Nothing is written, nothing is repaired.
//! 2. One table is open at a time, and of its blocks [`AHEAD_BYTES`] are in memory, or one block.
//! 3. What a crash left is no fault: tables that the newest whole manifest does not name, older manifests, and newer
//!    ones that were not written to their end.

use std::collections::BTreeSet;
use std::sync::Arc;

use dalsegno_core::{Deadline, SECTOR_BYTES, StoreId};
use dalsegno_io::{Device, IoError};

use crate::error::TableError;
use crate::lsm::files::device_files::DeviceFiles;
use crate::lsm::files::table_files::{SECTOR, TableFiles};
use crate::lsm::format::keys::{
    ForkKey, KIND_FORK, KIND_ORDER, KIND_POINT, OrderKey, Point, Record, lineage_of,
};
use crate::lsm::format::manifest::{Manifest, manifest_file};
use crate::lsm::index::open::read_file;
use crate::lsm::maintenance::manifests::manifest_number;
use crate::lsm::table::block::{Block, Cursor};
use crate::lsm::table::filter::KeyHash;
use crate::lsm::table::footer::table_file;
use crate::lsm::table::reader::Table;

/// Bytes of a table that are read at a time.
const AHEAD_BYTES: u64 = 256 << 10;
/// What damage costs if an open finds it.
const AT_OPEN: &str = "the index is rebuilt at the next open, and no block is lost";
/// Blocks are not read at open. A get finds the damage, and the open after it rebuilds the index.
const AT_READ: &str =
    "the index is rebuilt at the next open after this is read, and no block is lost";

/// The checksum is right, so the index may never detect this.
const UNNOTICED: &str = "without the index's files the next open rebuilds it, and no block is lost";

/// Something wrong in the files of an index.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IndexFault {
    /// The file.
    pub file: String,
    /// Byte offset in it.
    pub offset: u64,
    /// What is wrong, and what it costs.
    pub what: String,
}

/// The result of a check.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct IndexCheck {
    /// Tables that were read.
    pub tables: u64,
    /// Bytes that were read.
    pub bytes: u64,
    /// What is wrong; empty for a healthy index, or without an index.
    pub faults: Vec<IndexFault>,
}

/// Checks the index of a closed store. Without `store`, the store of the newest manifest is assumed. `progress` is
/// called with the number of bytes read so far.
///
/// # Errors
///
/// If the device cannot list its files. Everything else is a fault.
pub fn verify_index(
    device: Arc<dyn Device>,
    store: Option<StoreId>,
    progress: &dyn Fn(u64),
) -> Result<IndexCheck, IoError> {
    let files: Arc<dyn TableFiles> = Arc::new(DeviceFiles::closed(device));
    let names: Vec<String> = files.list()?.into_iter().map(|entry| entry.name).collect();
    let report = IndexCheck::default();
    let mut check = Check { files, names: &names, store, report, progress };
    let numbers: BTreeSet<u64> = names.iter().filter_map(|name| manifest_number(name)).collect();
    if let Some(manifest) = check.newest_manifest(numbers) {
        check.store = Some(manifest.store);
        for tables in manifest.levels.iter().flatten() {
            check.run(tables);
        }
    }
    Ok(check.report)
}

struct Check<'a> {
    files: Arc<dyn TableFiles>,
    names: &'a [String],
    store: Option<StoreId>,
    report: IndexCheck,
    progress: &'a dyn Fn(u64),
}

impl Check<'_> {
    fn note(&mut self, file: String, offset: u64, wrong: &str, cost: &str) {
        let what = format!("{wrong}: {cost}");
        self.report.faults.push(IndexFault { file, offset, what });
    }

    fn note_error(&mut self, file: String, offset: u64, error: &TableError, cost: &str) {
        if error.is_io() {
            // The bytes may be intact.
            self.report.faults.push(IndexFault { file, offset, what: error.to_string() });
        } else {
            self.note(file, offset, &error.to_string(), cost);
        }
    }

    fn has_read(&mut self, bytes: u64) {
        self.report.bytes += bytes;
        (self.progress)(self.report.bytes);
    }

    /// The manifest that an open uses. Other manifests only count as faults if there is none.
    fn newest_manifest(&mut self, numbers: BTreeSet<u64>) -> Option<Manifest> {
        let mut faults = Vec::new();
        for number in numbers.into_iter().rev() {
            let name = manifest_file(number);
            let bytes = match read_file(self.files.as_ref(), &name) {
                Ok(bytes) => bytes,
                Err(error) => {
                    faults.push(IndexFault { file: name, offset: 0, what: error.to_string() });
                    continue;
                }
            };
            self.has_read(bytes.len() as u64);
            let wrong = match Manifest::decode(&bytes) {
                Ok(found) if found.number != number => "a manifest of another place",
                Ok(found) if self.store.is_some_and(|store| store != found.store) => {
                    "a manifest of another store"
                }
                Ok(found) => return Some(found),
                Err(_) if is_unfinished(&bytes) => continue,
                Err(wrong) => wrong,
            };
            let (offset, what) = (fault_offset(&bytes), format!("{wrong}: {AT_OPEN}"));
            faults.push(IndexFault { file: name, offset, what });
        }
        self.report.faults = faults;
        None
    }

    /// Checks the tables of a run.
    fn run(&mut self, tables: &[u64]) {
        let mut before = Vec::new();
        for number in tables {
            let (name, mut at) = (table_file(*number), 0);
            if !self.names.contains(&name) {
                self.note(name, 0, "the table is missing", AT_OPEN);
                continue;
            }
            let store = self.store.expect("the manifest names it");
            let table = match Table::open_located(&self.files, store, *number, &mut at) {
                Ok(table) => table,
                Err(error) => {
                    self.note_error(name, at, &error, AT_OPEN);
                    continue;
                }
            };
            self.has_read(table.file_bytes() - table.index.end() * SECTOR_BYTES);
            if !before.is_empty() && *before >= *table.smallest() {
                self.note(name, 0, "its keys do not follow those of the table before", UNNOTICED);
            }
            before = table.largest().to_vec();
            self.table(&table);
            self.report.tables += 1;
        }
    }

    /// Checks all blocks of a table.
    fn table(&mut self, table: &Table) {
        let name = || table_file(table.number());
        let index = &table.index;
        let (mut seen, mut sound) = (CheckedEntries::default(), true);
        let mut next = 0;
        while next < index.len() {
            let from = index.sectors(next).start;
            let mut end = next + 1;
            while end < index.len() && (index.sectors(end).end - from) * SECTOR_BYTES <= AHEAD_BYTES
            {
                end += 1;
            }
            let bytes = (index.sectors(end - 1).end - from) * SECTOR_BYTES;
            let mut ahead = vec![0; usize::try_from(bytes).expect("64-bit addresses")];
            if let Err(error) = table.read_sectors(from, &mut ahead, Deadline::Never) {
                self.note_error(name(), from * SECTOR_BYTES, &error, AT_READ);
                sound = false;
            } else {
                for block in next..end {
                    let sectors = index.sectors(block);
                    let [low, high] = [sectors.start, sectors.end]
                        .map(|at| usize::try_from(at - from).expect("64-bit addresses") * SECTOR);
                    let offset = sectors.start * SECTOR_BYTES;
                    match seen.block(table, block, &ahead[low..high]) {
                        Ok(None) => continue,
                        Ok(Some(wrong)) => self.note(name(), offset, wrong, UNNOTICED),
                        Err(error) => self.note_error(name(), offset, &error, AT_READ),
                    }
                    sound = false;
                }
            }
            self.has_read(bytes);
            next = end;
        }
        if sound && (seen.entries, seen.points) != (table.entries(), table.points()) {
            let footer = table.file_bytes() - SECTOR_BYTES;
            self.note(name(), footer, "the number of entries is wrong", UNNOTICED);
        }
    }
}

/// The entries of a table that were checked so far.
#[derive(Default)]
struct CheckedEntries {
    entries: u64,
    points: u64,
    last_key: Vec<u8>,
}

impl CheckedEntries {
    /// Checks the next block. Returns what is wrong with it even though its checksum is right.
    fn block(
        &mut self,
        table: &Table,
        block: usize,
        bytes: &[u8],
    ) -> Result<Option<&'static str>, TableError> {
        let parsed = Block::parse(bytes, table.place(table.index.sectors(block).start))?;
        let mut cursor = Cursor::default();
        while cursor.next(&parsed)? {
            let (key, value) = (cursor.key(), parsed.slice(cursor.value()));
            let is_first = self.entries == 0;
            let ascends = if is_first && block == 0 {
                *key == *table.smallest()
            } else {
                *self.last_key < *key
            };
            if !ascends || table.index.find(key) != block {
                return Ok(Some("the keys do not ascend"));
            }
            if !is_entry(key, value) {
                return Ok(Some("an entry is not in the format"));
            }
            let is_ruled_out = |key| !table.may_contain(KeyHash::of(key));
            if key[0] != KIND_FORK
                && (is_ruled_out(key) || lineage_of(key).is_some_and(is_ruled_out))
            {
                return Ok(Some("the filter rules out a key of the table"));
            }
            self.entries += 1;
            self.points += u64::from(key[0] == KIND_POINT);
            self.last_key.clear();
            self.last_key.extend_from_slice(key);
        }
        Ok(None)
    }
}

/// Whether key and value follow the format.
fn is_entry(key: &[u8], value: &[u8]) -> bool {
    match key[0] {
        KIND_ORDER => OrderKey::decode(key)
            .is_some_and(|key| value.is_empty() || Record::decode(&key, value).is_some()),
        KIND_POINT => key.len() == 33 && (value.is_empty() || Point::decode(value).is_some()),
        KIND_FORK => ForkKey::decode(key).is_some() && value.is_empty(),
        _ => false,
    }
}

/// Whether a crash interrupted the write of a manifest: a sector of it is still zero.
fn is_unfinished(bytes: &[u8]) -> bool {
    let body_bytes = bytes.get(48..56).map_or(0, |field| {
        u64::from_le_bytes(field.try_into().expect("8 bytes")).min(bytes.len() as u64)
    });
    let used = SECTOR + usize::try_from(body_bytes).expect("64-bit addresses");
    let used = &bytes[..used.min(bytes.len())];
    used.is_empty() || used.chunks(SECTOR).any(|sector| sector.iter().all(|byte| *byte == 0))
}

/// The offset of the damage in a manifest: its body if its header is intact.
fn fault_offset(bytes: &[u8]) -> u64 {
    let is_whole = bytes.get(..SECTOR).is_some_and(|header| {
        header[SECTOR - 4..] == dalsegno_core::crc32c(&header[..SECTOR - 4]).to_le_bytes()
    });
    if is_whole { SECTOR_BYTES } else { 0 }
}
