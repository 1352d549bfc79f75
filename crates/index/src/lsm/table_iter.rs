//! Walks over a table in the order of its keys.
//!
//! 1. At most one block and what was read ahead are in memory.
//! 2. After an error there is no entry any more.

use std::sync::Arc;

use dalsegno_io::{PageBuffer, WaitLimit};

use super::block::{Block, Cursor, SECTOR};
use super::cache::{BlockCache, Held};
use super::counts::Purpose;
use super::merge::Source;
use super::table::{Table, TableError};

/// Where a walk has its blocks from.
#[derive(Clone, Debug)]
pub(crate) enum Reading {
    /// For a few entries that somebody waits for: a block at a time, kept for others.
    Cached(BlockCache, Purpose, WaitLimit),
    /// For whole tables: so many bytes at a time, and no block at least. The cache neither helps nor is disturbed.
    Ahead(usize),
}

/// A place in a table; see [`Source`].
#[derive(Debug)]
pub(crate) struct TableIter {
    table: Arc<Table>,
    reading: Reading,
    /// The present block; none behind the last entry.
    block: Option<Held>,
    next_block: usize,
    cursor: Cursor,
    /// Where the block before ended.
    before: Cursor,
    /// Sectors that were read ahead, and which is the first of them.
    ahead: PageBuffer,
    ahead_from: u64,
}

impl Table {
    /// Stands at the first entry whose key is at least `from`; an empty one is less than every key.
    pub(crate) fn iter(
        self: &Arc<Self>,
        from: &[u8],
        reading: Reading,
    ) -> Result<TableIter, TableError> {
        let mut iter = TableIter {
            table: Arc::clone(self),
            reading,
            block: None,
            next_block: self.index.find(from),
            cursor: Cursor::default(),
            before: Cursor::default(),
            ahead: PageBuffer::default(),
            ahead_from: 0,
        };
        iter.load()?;
        if let Some(block) = &iter.block
            && !iter.cursor.seek(&block.view(), from)?
        {
            // The index may give a block whose keys are all less: its own key may be larger than they are.
            iter.load()?;
            iter.advance()?;
        }
        Ok(iter)
    }
}

impl TableIter {
    /// Goes before the next block, if there is one.
    fn load(&mut self) -> Result<(), TableError> {
        self.block = None;
        if self.next_block < self.table.index.len() {
            let block = match &self.reading {
                Reading::Cached(cache, purpose, wait) => {
                    self.table.block(self.next_block, cache, *purpose, *wait)?
                }
                Reading::Ahead(bytes) => Held::Kept(Arc::new(self.read_ahead(*bytes)?)),
            };
            self.block = Some(block);
            self.next_block += 1;
            self.before = std::mem::take(&mut self.cursor);
        }
        Ok(())
    }

    /// The next block, out of what was read ahead.
    fn read_ahead(&mut self, bytes: usize) -> Result<Block, TableError> {
        let index = &self.table.index;
        let sectors = index.sectors(self.next_block);
        let ahead_end = self.ahead_from + (self.ahead.len() / SECTOR) as u64;
        if !(self.ahead_from..ahead_end).contains(&sectors.start) {
            let most = sectors.start + (bytes / SECTOR) as u64;
            let behind = (self.next_block + 1..index.len())
                .map(|block| index.sectors(block).end)
                .take_while(|end| *end <= most);
            let end = behind.last().unwrap_or(sectors.end);
            self.ahead.clear();
            self.ahead.resize(in_memory(end - sectors.start));
            self.ahead_from = sectors.start;
            let read =
                self.table.read_sectors(sectors.start, &mut self.ahead, WaitLimit::Unlimited);
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
                // Within a block the cursor itself sees to it.
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

impl TableIter {
    /// Whether the next entry can be had without reading a block.
    pub(super) fn has_more_at_hand(&self) -> bool {
        self.block.as_ref().is_some_and(|block| !self.cursor.is_last(&block.view()))
    }
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
