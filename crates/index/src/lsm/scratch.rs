//! Memory that blocks are read into which nobody keeps.
//!
//! 1. A thread keeps at most [`MOST_KEPT`] pieces of at most [`MOST_BYTES`] each.
//! 2. A piece is not zeroed when it is used again: whoever reads into it fills it, or does not look at it.

use std::cell::RefCell;
use std::ops::{Deref, DerefMut};

/// As many as one look-up holds at a time, mostly.
const MOST_KEPT: usize = 4;
const MOST_BYTES: usize = 32 << 10;

thread_local! {
    static KEPT: RefCell<Vec<Vec<u8>>> = const { RefCell::new(Vec::new()) };
}

/// So many bytes, of which nobody knows what they are.
#[derive(Debug)]
pub(crate) struct Scratch {
    memory: Vec<u8>,
    bytes: usize,
}

impl Scratch {
    pub(super) fn of(bytes: usize) -> Self {
        let kept = KEPT.try_with(|kept| kept.borrow_mut().pop()).ok().flatten();
        let mut memory = kept.unwrap_or_default();
        if memory.len() < bytes {
            memory.resize(bytes, 0);
        }
        Self { memory, bytes }
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let memory = std::mem::take(&mut self.memory);
        // A thread that ends keeps nothing.
        let _ = KEPT.try_with(|kept| {
            let mut kept = kept.borrow_mut();
            if kept.len() < MOST_KEPT && memory.len() <= MOST_BYTES {
                kept.push(memory);
            }
        });
    }
}

impl Deref for Scratch {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.memory[..self.bytes]
    }
}

impl DerefMut for Scratch {
    fn deref_mut(&mut self) -> &mut [u8] {
        &mut self.memory[..self.bytes]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_keeps_little_and_uses_it_again() {
        drop(Scratch::of(MOST_BYTES + 1));
        assert_eq!(KEPT.with_borrow(Vec::len), 0);
        let many: Vec<_> = (0..2 * MOST_KEPT).map(|at| Scratch::of(1_000 * at)).collect();
        assert!(many.iter().enumerate().all(|(at, scratch)| scratch.len() == 1_000 * at));
        drop(many);
        assert_eq!(KEPT.with_borrow(Vec::len), MOST_KEPT);
        let scratch = Scratch::of(10);
        assert_eq!((scratch.len(), KEPT.with_borrow(Vec::len)), (10, MOST_KEPT - 1));
    }
}
