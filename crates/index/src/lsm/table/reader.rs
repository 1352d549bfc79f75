//! Reads a table: a lookup costs at most one block.
//!
//! 1. Filter and block index are checked at open and stay in memory. A block is checked whenever it is read.
//! 2. The file is open as long as the table is.

use std::sync::Arc;

use dalsegno_core::{Deadline, SECTOR_BYTES, StoreId};
use dalsegno_io::{FileId, PageBuffer};

use crate::error::TableError;
use crate::lsm::files::table_files::{SECTOR, TableFiles};
use crate::lsm::format::keys::KIND_FORK;
use crate::lsm::table::block::BlockPlace;
use crate::lsm::table::block_cache::{BlockCache, HeldBlock};
use crate::lsm::table::block_index::BlockIndex;
use crate::lsm::table::filter::{Filter, KeyHash};
use crate::lsm::table::footer::{Footer, TableFacts, table_file};
use crate::lsm::table::read_counts::Purpose;

/// An open file. Dropping it closes it.
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
    fn read(&self, offset: u64, buffer: &mut [u8], deadline: Deadline) -> Result<(), TableError> {
        Ok(self.files.read_at(self.file, offset, buffer, deadline)?)
    }

    /// Reads `from..to`. Both are inside the file, so a damaged length cannot make it allocate more bytes than that
    /// has.
    fn read_range(&self, from: u64, to: u64) -> Result<PageBuffer, TableError> {
        let mut bytes = PageBuffer::default();
        bytes.resize(usize::try_from(to - from).expect("64-bit addresses"));
        self.read(from, &mut bytes, Deadline::Never)?;
        Ok(bytes)
    }
}

/// A table that is open for reading.
#[derive(Debug)]
pub(crate) struct Table {
    file: OpenFile,
    facts: TableFacts,
    filter: Filter,
    pub(crate) index: BlockIndex,
}

impl Table {
    /// Opens a table and checks all but its blocks.
    pub(crate) fn open(
        files: &Arc<dyn TableFiles>,
        store: StoreId,
        number: u64,
    ) -> Result<Self, TableError> {
        Self::open_located(files, store, number, &mut 0)
    }

    /// Like [`Self::open`]. After an error `at` is the offset of the damage.
    pub(crate) fn open_located(
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
        file.read(footer_offset, &mut sector, Deadline::Never)?;
        let footer = Footer::decode(&sector, store, number, opened.bytes)?;
        let place = |offset: u64| BlockPlace { table: number, sector: offset / SECTOR_BYTES };
        *at = footer.filter_offset;
        let filter = file.read_range(footer.filter_offset, footer.index_offset)?;
        let filter = Filter::decode(&filter, place(footer.filter_offset))?;
        *at = footer.index_offset;
        let index = file.read_range(footer.index_offset, footer_offset)?;
        let index = BlockIndex::decode(index, place(footer.index_offset), &footer)?;
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

    /// Bytes of memory that the open table takes.
    pub(crate) fn memory_bytes(&self) -> u64 {
        let parts = [size_of::<Self>(), self.filter.memory_bytes(), self.index.memory_bytes()];
        parts.iter().map(|part| *part as u64).sum()
    }

    /// Whether the table may hold a key of kind order or point, or a place; `false` is certain.
    #[inline]
    pub(crate) fn may_contain(&self, hash: KeyHash) -> bool {
        self.filter.may_contain(hash)
    }

    /// Calls `use_value` with the value of a key. The caller passes the hash of the key, which it uses for many tables.
    pub(crate) fn get<R>(
        &self,
        key: &[u8],
        hash: KeyHash,
        cache: &BlockCache,
        deadline: Deadline,
        use_value: impl FnOnce(&[u8]) -> R,
    ) -> Result<Option<R>, TableError> {
        if key.first() != Some(&KIND_FORK) && !self.may_contain(hash) {
            return Ok(None);
        }
        let block = self.index.find(key);
        if block == self.index.len() {
            return Ok(None);
        }
        let purpose = Purpose::of_lookup(key);
        let before = cache.counts().sectors(purpose);
        let block = self.block(block, cache, purpose, deadline)?;
        let block = block.view();
        let found = block.find(key)?.map(|range| use_value(block.slice(range)));
        if found.is_none() {
            cache.counts().count_useless(purpose, before);
        }
        Ok(found)
    }

    /// The place of a sector of this table.
    pub(crate) fn place(&self, sector: u64) -> BlockPlace {
        BlockPlace { table: self.facts.number, sector }
    }

    /// A block, from the cache if it is there. It is inside the file, so a damaged length cannot make it allocate more.
    pub(crate) fn block(
        &self,
        block: usize,
        cache: &BlockCache,
        purpose: Purpose,
        deadline: Deadline,
    ) -> Result<HeldBlock, TableError> {
        let sectors = self.index.sectors(block);
        let bytes = (sectors.end - sectors.start) * SECTOR_BYTES;
        let read = |buffer: &mut [u8]| {
            cache.counts().count_read(purpose, bytes);
            self.read_sectors(sectors.start, buffer, deadline)
        };
        let bytes = usize::try_from(bytes).expect("64-bit addresses");
        cache.get_or(self.place(sectors.start), bytes, read)
    }

    /// Fills `buffer`, starting at a sector.
    pub(crate) fn read_sectors(
        &self,
        sector: u64,
        buffer: &mut [u8],
        deadline: Deadline,
    ) -> Result<(), TableError> {
        self.file.read(sector * SECTOR_BYTES, buffer, deadline)
    }
}
