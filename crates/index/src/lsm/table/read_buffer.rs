//! Buffers for blocks that are read and not cached.
//!
//! 1. A thread keeps at most [`MOST_KEPT`] buffers of at most [`MOST_BYTES`] each.
//! 2. A buffer is not zeroed when it is used again. A reader fills it, or ignores its contents after an error.

use std::cell::RefCell;
use std::ops::{Deref, DerefMut};

/// Mostly as many as one lookup holds at a time.
const MOST_KEPT: usize = 4;
const MOST_BYTES: usize = 32 << 10;

thread_local! {
    static KEPT: RefCell<Vec<Vec<u8>>> = const { RefCell::new(Vec::new()) };
}

/// A buffer of unspecified contents.
#[derive(Debug)]
pub(crate) struct ReadBuffer {
    memory: Vec<u8>,
    bytes: usize,
}

impl ReadBuffer {
    pub(crate) fn new(bytes: usize) -> Self {
        let kept = KEPT.try_with(|kept| kept.borrow_mut().pop()).ok().flatten();
        let mut memory = kept.unwrap_or_default();
        if memory.len() < bytes {
            memory.resize(bytes, 0);
        }
        Self { memory, bytes }
    }
}

impl Drop for ReadBuffer {
    fn drop(&mut self) {
        let memory = std::mem::take(&mut self.memory);
        // A thread that ends keeps no buffers.
        let _ = KEPT.try_with(|kept| {
            let mut kept = kept.borrow_mut();
            if kept.len() < MOST_KEPT && memory.len() <= MOST_BYTES {
                kept.push(memory);
            }
        });
    }
}

impl Deref for ReadBuffer {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.memory[..self.bytes]
    }
}

impl DerefMut for ReadBuffer {
    fn deref_mut(&mut self) -> &mut [u8] {
        &mut self.memory[..self.bytes]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_keeps_few_buffers_and_reuses_them() {
        drop(ReadBuffer::new(MOST_BYTES + 1));
        assert_eq!(KEPT.with_borrow(Vec::len), 0);
        let many: Vec<_> = (0..2 * MOST_KEPT).map(|at| ReadBuffer::new(1_000 * at)).collect();
        assert!(many.iter().enumerate().all(|(at, buffer)| buffer.len() == 1_000 * at));
        drop(many);
        assert_eq!(KEPT.with_borrow(Vec::len), MOST_KEPT);
        let buffer = ReadBuffer::new(10);
        assert_eq!((buffer.len(), KEPT.with_borrow(Vec::len)), (10, MOST_KEPT - 1));
    }
}
