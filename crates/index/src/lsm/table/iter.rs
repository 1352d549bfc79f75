//! Iterates over a table in the order of its keys.
//!
//! 1. At most one block and the sectors that were read ahead are in memory.
//! 2. After an error there is no entry any more.

use std::sync::Arc;

use dalsegno_core::Deadline;
use dalsegno_io::PageBuffer;

use crate::error::TableError;
use crate::lsm::files::table_files::SECTOR;
use crate::lsm::table::block::{Block, Cursor};
use crate::lsm::table::block_cache::{BlockCache, HeldBlock};
use crate::lsm::table::read_counts::Purpose;
use crate::lsm::table::reader::Table;
use crate::lsm::table::source::Source;

/// How an iterator reads blocks.
#[derive(Clone, Debug)]
pub(crate) enum ReadMode {
    /// For a few entries that a caller waits for: one block at a time, through the cache.
    Cached(BlockCache, Purpose, Deadline),
    /// For whole tables: so many bytes at a time, at least one block. The cache is not used.
    Ahead(usize),
}

/// A position in a table; see [`Source`].
#[derive(Debug)]
pub(crate) struct TableIter {
    table: Arc<Table>,
    mode: ReadMode,
    /// The current block; none after the last entry.
    block: Option<HeldBlock>,
    next_block: usize,
    cursor: Cursor,
    /// The end of the block before.
    before: Cursor,
    /// Sectors that were read ahead, and the number of the first one.
    ahead: PageBuffer,
    ahead_from: u64,
}

impl TableIter {
    /// Starts at the first entry whose key is at least `from`; the empty key is less than every key.
    pub(crate) fn new(table: &Arc<Table>, from: &[u8], mode: ReadMode) -> Result<Self, TableError> {
        let mut iter = Self {
            table: Arc::clone(table),
            mode,
            block: None,
            next_block: table.index.find(from),
            cursor: Cursor::default(),
            before: Cursor::default(),
            ahead: PageBuffer::default(),
            ahead_from: 0,
        };
        iter.load()?;
        if let Some(block) = &iter.block
            && !iter.cursor.seek(&block.view(), from)?
        {
            // All keys of the block may be less: the index may hold a larger key for it.
            iter.load()?;
            iter.advance()?;
        }
        Ok(iter)
    }

    /// Whether the next entry needs no further block.
    pub(crate) fn has_more_at_hand(&self) -> bool {
        self.block.as_ref().is_some_and(|block| !self.cursor.is_last(&block.view()))
    }

    /// Moves before the next block, if there is one.
    fn load(&mut self) -> Result<(), TableError> {
        self.block = None;
        if self.next_block < self.table.index.len() {
            let block = match &self.mode {
                ReadMode::Cached(cache, purpose, deadline) => {
                    self.table.block(self.next_block, cache, *purpose, *deadline)?
                }
                ReadMode::Ahead(bytes) => HeldBlock::Shared(Arc::new(self.read_ahead(*bytes)?)),
            };
            self.block = Some(block);
            self.next_block += 1;
            self.before = std::mem::take(&mut self.cursor);
        }
        Ok(())
    }

    /// The next block, from the sectors that were read ahead.
    fn read_ahead(&mut self, bytes: usize) -> Result<Block, TableError> {
        let index = &self.table.index;
        let sectors = index.sectors(self.next_block);
        let ahead_end = self.ahead_from + (self.ahead.len() / SECTOR) as u64;
        if !(self.ahead_from..ahead_end).contains(&sectors.start) {
            let most = sectors.start + (bytes / SECTOR) as u64;
            let following = (self.next_block + 1..index.len())
                .map(|block| index.sectors(block).end)
                .take_while(|end| *end <= most);
            let end = following.last().unwrap_or(sectors.end);
            self.ahead.clear();
            self.ahead.resize(in_memory(end - sectors.start));
            self.ahead_from = sectors.start;
            let read = self.table.read_sectors(sectors.start, &mut self.ahead, Deadline::Never);
            if read.is_err() {
                self.ahead.clear();
            }
            read?;
        }
        let [from, to] = [sectors.start, sectors.end].map(|at| in_memory(at - self.ahead_from));
        Block::parse(Box::from(&self.ahead[from..to]), self.table.place(sectors.start))
    }

    fn try_advance(&mut self) -> Result<(), TableError> {
        while let Some(block) = &self.block {
            let is_first = self.cursor.key().is_empty();
            if self.cursor.next(&block.view())? {
                // Within a block the cursor checks it.
                if is_first && self.cursor.key() <= self.before.key() {
                    return Err(TableError::Malformed("the order of keys"));
                }
                return Ok(());
            }
            self.load()?;
        }
        Ok(())
    }
}

fn in_memory(sectors: u64) -> usize {
    usize::try_from(sectors).expect("64-bit addresses") * SECTOR
}

impl Source for TableIter {
    fn key(&self) -> Option<&[u8]> {
        self.block.as_ref().map(|_| self.cursor.key())
    }

    fn value(&self) -> &[u8] {
        self.block.as_ref().map_or(&[], |block| block.slice(self.cursor.value()))
    }

    fn advance(&mut self) -> Result<(), TableError> {
        let advanced = self.try_advance();
        if advanced.is_err() {
            self.block = None;
        }
        advanced
    }
}
