//! Merges several sorted sources into one sequence.
//!
//! 1. Of entries with the same key only that of the newest source appears.
//! 2. `heap` orders the sources that have an entry by (key, age), the newest first: a parent before its children.

use std::cmp::Ordering;

use crate::error::TableError;
use crate::lsm::table::source::Source;

/// Several sources as one sequence.
#[derive(Debug)]
pub(crate) struct MergedSources<S> {
    sources: Vec<S>,
    heap: Vec<usize>,
    /// The key that was passed last, to skip older entries of it.
    passed: Vec<u8>,
}

impl<S: Source> MergedSources<S> {
    /// Starts at the smallest key. The newest source comes first.
    pub(crate) fn new(sources: Vec<S>) -> Self {
        let heap = (0..sources.len()).filter(|source| sources[*source].key().is_some()).collect();
        let mut merge = Self { sources, heap, passed: Vec::new() };
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

    /// Advances the first source.
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

impl<S: Source> Source for MergedSources<S> {
    fn key(&self) -> Option<&[u8]> {
        self.heap.first().and_then(|first| self.sources[*first].key())
    }

    fn value(&self) -> &[u8] {
        self.heap.first().map_or(&[], |first| self.sources[*first].value())
    }

    fn advance(&mut self) -> Result<(), TableError> {
        let mut passed = std::mem::take(&mut self.passed);
        passed.clear();
        passed.extend_from_slice(self.key().unwrap_or_default());
        let mut advanced = Ok(());
        // No key is empty, so after the last entry this does nothing.
        while advanced.is_ok() && self.key().is_some_and(|key| key == passed) {
            advanced = self.advance_first();
        }
        self.passed = passed;
        advanced
    }
}
