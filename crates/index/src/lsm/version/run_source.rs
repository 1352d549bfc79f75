//! Reads the tables of a run in the order of their keys.

use std::sync::Arc;

use crate::error::TableError;
use crate::lsm::table::iter::{ReadMode, TableIter};
use crate::lsm::table::reader::Table;
use crate::lsm::table::source::Source;

/// Tables that do not overlap, in the order of their keys.
pub(crate) trait Tables {
    fn tables(&self) -> &[Arc<Table>];

    /// The first table whose largest key is at least `key`.
    fn first_table(&self, key: &[u8]) -> usize {
        self.tables().partition_point(|table| table.largest() < key)
    }
}

impl<T: Tables> Tables for Arc<T> {
    fn tables(&self) -> &[Arc<Table>] {
        (**self).tables()
    }

    fn first_table(&self, key: &[u8]) -> usize {
        (**self).first_table(key)
    }
}

/// A position in a run. Its tables are read one after the other, each when it is reached.
#[derive(Debug)]
pub(crate) struct RunSource<T> {
    run: T,
    mode: ReadMode,
    next_table: usize,
    current: Option<TableIter>,
}

impl<T: Tables> RunSource<T> {
    /// Starts at the first entry whose key is at least `from`; the empty key is less than every key.
    pub(crate) fn new(run: T, from: &[u8], mode: ReadMode) -> Result<Self, TableError> {
        let next_table = run.first_table(from);
        let mut source = Self { run, mode, next_table, current: None };
        source.enter(from)?;
        Ok(source)
    }

    /// Moves to the next table, if there is one.
    fn enter(&mut self, from: &[u8]) -> Result<(), TableError> {
        self.current = None;
        if let Some(table) = self.run.tables().get(self.next_table) {
            self.current = Some(TableIter::new(table, from, self.mode.clone())?);
            self.next_table += 1;
        }
        Ok(())
    }
}

impl<T> RunSource<T> {
    /// Whether the next entry needs no further block.
    pub(crate) fn has_more_at_hand(&self) -> bool {
        self.current.as_ref().is_some_and(TableIter::has_more_at_hand)
    }
}

impl<T: Tables> Source for RunSource<T> {
    fn key(&self) -> Option<&[u8]> {
        self.current.as_ref().and_then(Source::key)
    }

    fn value(&self) -> &[u8] {
        self.current.as_ref().map_or(&[], Source::value)
    }

    fn advance(&mut self) -> Result<(), TableError> {
        let Some(current) = &mut self.current else { return Ok(()) };
        current.advance()?;
        if current.key().is_none() { self.enter(&[]) } else { Ok(()) }
    }
}
