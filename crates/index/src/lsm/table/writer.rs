//! Writes a table.
//!
//! 1. Keys come in strictly ascending order.
//! 2. The whole table is built in memory and written in one go. The device creates files of a fixed size, and the size
//!    of a table is known only at its end. A caller bounds the memory with [`TableWriter::estimated_bytes`].
//! 3. A failed table leaves no file, or one that no manifest names.

use dalsegno_core::StoreId;
use dalsegno_io::PageBuffer;

use crate::error::TableError;
use crate::lsm::files::table_files::{SECTOR, TableFiles};
use crate::lsm::format::keys::{KIND_FORK, KIND_POINT};
use crate::lsm::format::varint;
use crate::lsm::table::block::{BlockBuilder, BlockPlace, common_bytes};
use crate::lsm::table::filter::FilterBuilder;
use crate::lsm::table::footer::{Footer, TableFacts, table_file};

/// Points are looked up one by one, so their blocks have one sector. Order entries are large, and they and forks are
/// read in their order, so their blocks are larger.
const POINT_AIM_BYTES: usize = 4096;
const OTHER_AIM_BYTES: usize = 16384;

/// How a table is written.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TableOptions {
    /// Bits of filter per key; with zero there is no filter.
    pub(crate) filter_bits: f64,
    /// Bytes of one write, whole sectors.
    pub(crate) request_bytes: usize,
}

/// Builds a table.
#[derive(Debug)]
pub(crate) struct TableWriter<'a> {
    files: &'a dyn TableFiles,
    store: StoreId,
    options: TableOptions,
    /// What is known of the table so far.
    facts: TableFacts,
    /// The finished blocks; at the end the whole file.
    out: PageBuffer,
    block: BlockBuilder,
    index: BlockBuilder,
    filter: FilterBuilder,
}

impl<'a> TableWriter<'a> {
    /// Starts a table. No file had its number before, and nothing is written until [`Self::finish`].
    pub(crate) fn new(
        files: &'a dyn TableFiles,
        store: StoreId,
        number: u64,
        options: TableOptions,
    ) -> Self {
        let request_bytes = options.request_bytes;
        assert!(request_bytes > 0 && request_bytes.is_multiple_of(SECTOR), "whole sectors");
        Self {
            files,
            store,
            options,
            facts: TableFacts { number, ..TableFacts::default() },
            out: PageBuffer::default(),
            block: BlockBuilder::default(),
            index: BlockBuilder::default(),
            filter: FilterBuilder::new(options.filter_bits),
        }
    }

    /// Uses the memory of a finished table.
    pub(crate) fn with_memory(mut self, mut memory: PageBuffer) -> Self {
        memory.clear();
        self.out = memory;
        self
    }

    /// Whether there is no entry yet.
    pub(crate) fn is_empty(&self) -> bool {
        self.facts.entries == 0
    }

    /// Bytes of the file if the table ended here.
    pub(crate) fn estimated_bytes(&self) -> u64 {
        let parts = [self.block.bytes(), self.filter.bytes(), self.index.bytes(), SECTOR];
        self.out.len() as u64 + parts.iter().map(|part| *part as u64).sum::<u64>()
    }

    /// Adds an entry whose key is larger than those before.
    pub(crate) fn add(&mut self, key: &[u8], value: &[u8]) {
        if self.is_empty() {
            self.facts.smallest = Box::from(key);
        } else {
            assert!(self.block.last_key() < key, "the keys of a table ascend");
        }
        let kind = key[0];
        let aim_bytes = if kind == KIND_POINT { POINT_AIM_BYTES } else { OTHER_AIM_BYTES };
        if !self.block.is_empty()
            && (self.block.last_key()[0] != kind || !self.block.fits(key, value, aim_bytes))
        {
            self.finish_block(Some(key));
        }
        self.block.add(key, value);
        self.facts.entries += 1;
        self.facts.points += u64::from(kind == KIND_POINT);
        if kind != KIND_FORK {
            self.filter.add(key);
        }
    }

    fn place(&self) -> BlockPlace {
        BlockPlace { table: self.facts.number, sector: self.sector() }
    }

    fn sector(&self) -> u64 {
        (self.out.len() / SECTOR) as u64
    }

    /// Ends a block. The index holds for it the shortest key that separates it from the first key of the next block.
    fn finish_block(&mut self, next: Option<&[u8]>) {
        let (place, mut value) = (self.place(), Vec::with_capacity(20));
        let sectors = self.block.finish(place, &mut self.out);
        varint::put(&mut value, place.sector);
        varint::put(&mut value, sectors);
        let last = self.block.last_key();
        let divider = next
            .and_then(|next| next.get(..=common_bytes(last, next)).filter(|key| *key < next))
            .unwrap_or(last);
        self.index.add(divider, &value);
        self.facts.blocks += 1;
    }

    /// Writes the table and makes its bytes durable, but not its name. `pace` is called with the bytes of each write
    /// before it, and may wait to leave the device to others. Also returns the memory for another table.
    ///
    /// # Panics
    ///
    /// If there is no entry.
    pub(crate) fn finish(
        mut self,
        pace: &dyn Fn(u64),
    ) -> Result<(TableFacts, PageBuffer), TableError> {
        assert!(!self.is_empty(), "a table has an entry");
        self.finish_block(None);
        let filter = self.place();
        self.filter.finish(filter, &mut self.out);
        let index = self.place();
        self.index.finish(index, &mut self.out);
        let facts = TableFacts {
            file_bytes: (self.out.len() + SECTOR) as u64,
            largest: Box::from(self.block.last_key()),
            ..self.facts.clone()
        };
        let [filter_offset, index_offset] = [filter, index].map(|at| at.sector * SECTOR as u64);
        let footer = Footer { facts, filter_offset, index_offset };
        footer.encode(self.store, &mut self.out);
        self.write(pace)?;
        Ok((footer.facts, self.out))
    }

    fn write(&self, pace: &dyn Fn(u64)) -> Result<(), TableError> {
        let name = table_file(self.facts.number);
        let file = self.files.create(&name, self.out.len() as u64)?;
        let mut offset = 0;
        let mut written = Ok(());
        for request in self.out.chunks(self.options.request_bytes) {
            let bytes = request.len() as u64;
            pace(bytes);
            written = self.files.write_at(file, offset, request);
            if written.is_err() {
                break;
            }
            offset += bytes;
        }
        let synced = written.and_then(|()| self.files.sync(file));
        self.files.close(file);
        if synced.is_err()
            && let Err(error) = self.files.remove(&name)
        {
            // The next open removes it: no manifest names it.
            tracing::warn!("{name} could not be removed: {error}");
        }
        Ok(synced?)
    }
}
