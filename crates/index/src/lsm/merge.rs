//! Walks over several sorted sources as if they were one.
//!
//! 1. Of entries with the same key only the one of the newest source is seen.
//! 2. `heap` orders the sources that have an entry by (key, age), the newest first: a parent before its children.

use std::cmp::Ordering;
use std::sync::Arc;

use super::table::{Reading, Table, TableError, TableIter};

/// A place in a sequence of entries with ascending keys.
pub(crate) trait Source {
    /// The present entry's key; none behind the last entry.
    fn key(&self) -> Option<&[u8]>;

    /// The present entry's value.
    fn value(&self) -> &[u8];

    /// Goes to the next entry. After an error there is none.
    fn advance(&mut self) -> Result<(), TableError>;
}

impl<S: Source + ?Sized> Source for Box<S> {
    fn key(&self) -> Option<&[u8]> {
        (**self).key()
    }

    fn value(&self) -> &[u8] {
        (**self).value()
    }

    fn advance(&mut self) -> Result<(), TableError> {
        (**self).advance()
    }
}

/// Several sources as one.
#[derive(Debug)]
pub(crate) struct Merge<S> {
    sources: Vec<S>,
    heap: Vec<usize>,
    /// The key that was seen last, to find older entries of it.
    seen: Vec<u8>,
}

impl<S: Source> Merge<S> {
    /// Begins at the smallest key. The newest source comes first.
    pub(crate) fn new(sources: Vec<S>) -> Self {
        let heap = (0..sources.len()).filter(|source| sources[*source].key().is_some()).collect();
        let mut merge = Self { sources, heap, seen: Vec::new() };
        for at in (0..merge.heap.len() / 2).rev() {
            merge.sift_down(at);
        }
        merge
    }

    fn is_before(&self, one: usize, two: usize) -> bool {
        // Sources without an entry leave the heap, so keys are there.
        let keys = self.sources[one].key().cmp(&self.sources[two].key());
        keys.then(one.cmp(&two)) == Ordering::Less
    }

    fn sift_down(&mut self, mut at: usize) {
        loop {
            let left = 2 * at + 1;
            let Some(&first) = self.heap.get(left) else { return };
            let right = self.heap.get(left + 1).filter(|right| self.is_before(**right, first));
            let child = if right.is_some() { left + 1 } else { left };
            if !self.is_before(self.heap[child], self.heap[at]) {
                return;
            }
            self.heap.swap(at, child);
            at = child;
        }
    }

    /// Moves the first source on.
    fn advance_first(&mut self) -> Result<(), TableError> {
        let first = self.heap[0];
        let advanced = self.sources[first].advance();
        if advanced.is_err() {
            self.heap.clear();
            return advanced;
        }
        if self.sources[first].key().is_none() {
            self.heap.swap_remove(0);
        }
        self.sift_down(0);
        Ok(())
    }
}

impl<S: Source> Source for Merge<S> {
    fn key(&self) -> Option<&[u8]> {
        self.heap.first().and_then(|first| self.sources[*first].key())
    }

    fn value(&self) -> &[u8] {
        self.heap.first().map_or(&[], |first| self.sources[*first].value())
    }

    fn advance(&mut self) -> Result<(), TableError> {
        let mut seen = std::mem::take(&mut self.seen);
        seen.clear();
        seen.extend_from_slice(self.key().unwrap_or_default());
        let mut advanced = Ok(());
        // No key is empty, so behind the last entry this does nothing.
        while advanced.is_ok() && self.key().is_some_and(|key| key == seen) {
            advanced = self.advance_first();
        }
        self.seen = seen;
        advanced
    }
}

/// Tables that do not overlap, in the order of their keys.
pub(crate) trait Tables {
    fn tables(&self) -> &[Arc<Table>];

    /// The first table whose largest key is not less than this one.
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

/// A place in a run; its tables are read one after the other, and none before it is reached.
#[derive(Debug)]
pub(crate) struct RunSource<T> {
    run: T,
    reading: Reading,
    next_table: usize,
    current: Option<TableIter>,
}

impl<T: Tables> RunSource<T> {
    /// Stands at the first entry whose key is at least `from`; an empty one is less than every key.
    pub(crate) fn new(run: T, from: &[u8], reading: Reading) -> Result<Self, TableError> {
        let next_table = run.first_table(from);
        let mut source = Self { run, reading, next_table, current: None };
        source.enter(from)?;
        Ok(source)
    }

    /// Goes to the next table, if there is one.
    fn enter(&mut self, from: &[u8]) -> Result<(), TableError> {
        self.current = None;
        if let Some(table) = self.run.tables().get(self.next_table) {
            self.current = Some(table.iter(from, self.reading.clone())?);
            self.next_table += 1;
        }
        Ok(())
    }
}

impl<T> RunSource<T> {
    /// Whether the next entry can be had without reading a block.
    pub(super) fn has_more_at_hand(&self) -> bool {
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
