//! Copies between the memory of a store and the KV cache of an engine.
//!
//! 1. A [`Copier`] calls `done` exactly once for each batch, after the last byte or after it failed.
//! 2. A copy fails only as a whole batch. Then the contents of all destinations are undefined.
//! 3. Work that waits for threads is bounded. Beyond the bound, the calling thread copies.
//! 4. Pages of a device are copied by the copier of that device, all others by [`CpuCopier`](crate::CpuCopier).

use std::fmt;
use std::sync::Arc;

use crossbeam_channel::bounded;

use super::handle::Memory;
use super::page_slice::{DeviceSlice, PageSlice, StreamPoint};
use super::region::Region;

/// Bytes that are copied, in order, from one place to another one.
#[derive(Debug)]
pub struct SliceCopy {
    from: CopySource,
    to: PageSlice,
    bytes: usize,
}

/// Where bytes are copied from.
#[derive(Debug)]
pub enum CopySource {
    /// Memory that nobody writes, in order.
    Memory(Vec<Memory>),
    /// Bytes of a region, from an offset on, that another process may be writing: see [`Region::copy_racing`].
    Racing(Arc<Region>, usize),
    /// Memory of a device.
    Device(DeviceSlice),
}

impl From<PageSlice> for CopySource {
    fn from(slice: PageSlice) -> Self {
        match slice {
            PageSlice::Memory(memory) => Self::Memory(memory),
            PageSlice::Device(slice) => Self::Device(slice),
        }
    }
}

/// Copies that succeed or fail together.
#[derive(Debug)]
pub struct CopyBatch {
    /// The copies, in no order.
    pub copies: Vec<SliceCopy>,
    /// What a device does before: it may still use the pages.
    pub after: Option<StreamPoint>,
}

/// The number of a batch that a device has in its queue. The device ends batches in this order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct CopyMark(pub u64);

/// Is called when a batch of copies has ended, with whether all bytes were copied.
pub type CopyDone = Box<dyn FnOnce(bool) + Send>;

/// Copies batches of slices.
pub trait Copier: fmt::Debug + Send + Sync {
    /// Copies a batch. May return before the end, and may call `done` before it returns. Returns a mark if a device has
    /// the batch in its queue: work that is queued after it can be ordered behind it.
    fn copy(&self, batch: CopyBatch, done: CopyDone) -> Option<CopyMark>;

    /// Bytes copied so far by the processor.
    fn copied_bytes(&self) -> u64;

    /// How many bytes of one load may be queued at a time, beyond two layers. Copies that were queued cannot be
    /// cancelled.
    fn window_bytes(&self) -> usize {
        0
    }
}

/// Copies a batch and waits for its end. Returns whether all bytes were copied.
pub fn copy_all(copier: &dyn Copier, batch: CopyBatch) -> bool {
    let (sender, receiver) = bounded(1);
    let done = move |is_copied| sender.send(is_copied).expect("the receiver waits below");
    copier.copy(batch, Box::new(done));
    receiver.recv().unwrap_or(false)
}

impl SliceCopy {
    /// A copy of all bytes of `from` to `to`.
    ///
    /// # Panics
    ///
    /// If memory to copy from has another number of bytes than `to`, if `to` cannot be written, or if both are of a
    /// device.
    #[must_use]
    pub fn new(from: CopySource, to: PageSlice) -> Self {
        let bytes = to.bytes();
        let given = match &from {
            CopySource::Memory(from) => from.iter().map(Memory::len).sum(),
            CopySource::Device(from) => from.bytes(),
            CopySource::Racing(..) => bytes,
        };
        assert_eq!(given, bytes, "a copy has as many bytes as its source");
        match &to {
            PageSlice::Memory(to) => {
                assert!(to.iter().all(Memory::is_writable), "a copy is written");
            }
            PageSlice::Device(_) => {
                assert!(!matches!(from, CopySource::Device(_)), "one side is of this machine");
            }
        }
        Self { from, to, bytes }
    }

    /// Number of bytes.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Both sides.
    #[must_use]
    pub fn into_sides(self) -> (CopySource, PageSlice) {
        (self.from, self.to)
    }
}
