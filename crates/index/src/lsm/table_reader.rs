//! Reads a table: a key at the cost of one block, if that.
//!
//! 1. Filter and index are checked at open and stay in memory; a block is checked whenever it comes from the device.
//! 2. The file is open as long as the table is.

use std::sync::Arc;

use dalsegno_core::{SECTOR_BYTES, StoreId};
use dalsegno_io::{FileId, PageBuffer, WaitLimit};

use super::block::{Place, SECTOR};
use super::cache::{BlockCache, Held};
use super::counts::Purpose;
use super::file::TableFiles;
use super::filter::{Filter, KeyHash};
use super::keys::KIND_FORK;
use super::table::{Footer, TableError, TableFacts, table_file};
use super::table_index::TableIndex;

/// An open file that is closed with its last user.
#[derive(Debug)]
struct OpenFile {
    files: Arc<dyn TableFiles>,
    file: FileId,
}

impl Drop for OpenFile {
    fn drop(&mut self) {
        self.files.close(self.file);
    }
}

impl OpenFile {
    fn read(&self, offset: u64, buffer: &mut [u8], wait: WaitLimit) -> Result<(), TableError> {
        Ok(self.files.read_at(self.file, offset, buffer, wait)?)
    }

    /// Reads `from..to`; both are inside the file, so no damaged length asks for more memory than the file has bytes.
    fn read_range(&self, from: u64, to: u64) -> Result<PageBuffer, TableError> {
        let mut bytes = PageBuffer::default();
        bytes.resize(usize::try_from(to - from).expect("64-bit addresses"));
        self.read(from, &mut bytes, WaitLimit::Unlimited)?;
        Ok(bytes)
    }
}

/// A table that is open for reading.
#[derive(Debug)]
pub(crate) struct Table {
    file: OpenFile,
    facts: TableFacts,
    filter: Filter,
    pub(super) index: TableIndex,
}

impl Table {
    /// Opens a table and checks all but its blocks.
    pub(crate) fn open(
        files: &Arc<dyn TableFiles>,
        store: StoreId,
        number: u64,
    ) -> Result<Self, TableError> {
        Self::open_telling(files, store, number, &mut 0)
    }

    /// As [`Self::open`]; after an error `at` is the offset of what is wrong.
    pub(super) fn open_telling(
        files: &Arc<dyn TableFiles>,
        store: StoreId,
        number: u64,
        at: &mut u64,
    ) -> Result<Self, TableError> {
        let opened = files.open(&table_file(number))?;
        let file = OpenFile { files: Arc::clone(files), file: opened.file };
        let footer_offset =
            opened.bytes.checked_sub(SECTOR_BYTES).ok_or(TableError::Malformed("a table"))?;
        *at = footer_offset;
        let mut sector = [0; SECTOR];
        file.read(footer_offset, &mut sector, WaitLimit::Unlimited)?;
        let footer = Footer::decode(&sector, store, number, opened.bytes)?;
        let place = |offset: u64| Place { table: number, sector: offset / SECTOR_BYTES };
        *at = footer.filter_offset;
        let filter = file.read_range(footer.filter_offset, footer.index_offset)?;
        let filter = Filter::decode(&filter, place(footer.filter_offset))?;
        *at = footer.index_offset;
        let index = file.read_range(footer.index_offset, footer_offset)?;
        let index = TableIndex::decode(index, place(footer.index_offset), &footer)?;
        Ok(Self { file, facts: footer.facts, filter, index })
    }

    pub(crate) fn number(&self) -> u64 {
        self.facts.number
    }

    pub(crate) fn smallest(&self) -> &[u8] {
        &self.facts.smallest
    }

    pub(crate) fn largest(&self) -> &[u8] {
        &self.facts.largest
    }

    pub(crate) fn file_bytes(&self) -> u64 {
        self.facts.file_bytes
    }

    /// Entries of all kinds.
    pub(crate) fn entries(&self) -> u64 {
        self.facts.entries
    }

    /// Entries of kind point.
    pub(crate) fn points(&self) -> u64 {
        self.facts.points
    }

    /// Bytes of memory while it is open.
    pub(crate) fn memory_bytes(&self) -> u64 {
        let parts = [size_of::<Self>(), self.filter.memory_bytes(), self.index.memory_bytes()];
        parts.iter().map(|part| *part as u64).sum()
    }

    /// Whether a key of kind order or point, or a place, may be here; a `false` is certain.
    #[inline]
    pub(crate) fn may_contain(&self, hash: KeyHash) -> bool {
        self.filter.may_contain(hash)
    }

    /// What `use_value` makes of the value of a key; `hash` is that of the key, for a caller asks several tables.
    pub(crate) fn get<R>(
        &self,
        key: &[u8],
        hash: KeyHash,
        cache: &BlockCache,
        wait: WaitLimit,
        use_value: impl FnOnce(&[u8]) -> R,
    ) -> Result<Option<R>, TableError> {
        if key.first() != Some(&KIND_FORK) && !self.may_contain(hash) {
            return Ok(None);
        }
        let block = self.index.find(key);
        if block == self.index.len() {
            return Ok(None);
        }
        let purpose = Purpose::look_up(key);
        let before = cache.asked().sectors(purpose);
        let block = self.block(block, cache, purpose, wait)?;
        let block = block.view();
        let found = block.find(key)?.map(|range| use_value(block.slice(range)));
        if found.is_none() {
            cache.asked().in_vain(purpose, before);
        }
        Ok(found)
    }

    pub(super) fn place(&self, sector: u64) -> Place {
        Place { table: self.facts.number, sector }
    }

    /// A block, from the cache if it is there. It is inside the file, so no damaged length asks for more than that has.
    pub(super) fn block(
        &self,
        block: usize,
        cache: &BlockCache,
        purpose: Purpose,
        wait: WaitLimit,
    ) -> Result<Held, TableError> {
        let sectors = self.index.sectors(block);
        let bytes = (sectors.end - sectors.start) * SECTOR_BYTES;
        let read = |buffer: &mut [u8]| {
            cache.asked().read(purpose, bytes);
            self.read_sectors(sectors.start, buffer, wait)
        };
        let bytes = usize::try_from(bytes).expect("64-bit addresses");
        cache.get_or(self.place(sectors.start), bytes, read)
    }

    /// Fills `buffer` from a sector on.
    pub(super) fn read_sectors(
        &self,
        sector: u64,
        buffer: &mut [u8],
        wait: WaitLimit,
    ) -> Result<(), TableError> {
        self.file.read(sector * SECTOR_BYTES, buffer, wait)
    }
}
