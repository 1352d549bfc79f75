//! Delivers the slices of a load as they are verified.
//!
//! 1. A slice is delivered once. A block that was delivered in part and then lost is read from no other tier.
//! 2. The places that copies read are completed, or given up, only when no copy runs.

use std::sync::Arc;

use dalsegno_extent::SliceSink;
use dalsegno_io::{CopySource, Memory};
use parking_lot::Mutex;

use crate::load::progress::LoadProgress;
use crate::load::target::{CopyKind, LayerCopy, PageTarget};

/// A batch of this many bytes is copied although further slices have arrived.
const BATCH_BYTES: usize = 4 << 20;

/// Where a get delivers slices.
#[derive(Debug)]
pub(super) struct Delivery {
    pub(super) progress: Arc<LoadProgress>,
    /// `None` if blocks are read into memory of the caller.
    pub(super) pages: Option<Arc<PageTarget>>,
    /// The number in the load of the first block of the get.
    pub(super) first: u32,
    batch: Mutex<SliceBatch>,
}

#[derive(Debug, Default)]
struct SliceBatch {
    copies: Vec<LayerCopy>,
    bytes: usize,
}

impl Delivery {
    /// Slices are read to where they belong.
    pub(super) fn in_place(progress: &Arc<LoadProgress>) -> Self {
        Self { progress: Arc::clone(progress), pages: None, first: 0, batch: Mutex::default() }
    }

    /// Slices of a get, whose first block has the number `first` in its load, are copied to pages.
    pub(super) fn to_pages(
        progress: &Arc<LoadProgress>,
        pages: &Arc<PageTarget>,
        first: usize,
    ) -> Self {
        let first = u32::try_from(first).expect("a load has fewer blocks");
        Self { pages: Some(Arc::clone(pages)), first, ..Self::in_place(progress) }
    }

    /// Waits until no copy runs of what was read.
    pub(super) fn wait(&self) {
        if let Some(pages) = &self.pages {
            self.flush();
            pages.wait(CopyKind::Reads);
        }
    }

    /// Whether blocks are read into memory of the caller, who may use layers that are ready.
    pub(super) fn is_in_place(&self) -> bool {
        self.pages.is_none()
    }

    fn send(&self, pages: &Arc<PageTarget>, batch: SliceBatch) {
        let progress = Arc::clone(&self.progress);
        pages.copy(CopyKind::Reads, batch.copies, move |is_copied, slices| {
            for (layer, count) in slices.iter().filter(|_| is_copied) {
                progress.deliver(*layer, *count);
            }
        });
    }
}

impl SliceSink for Delivery {
    fn verified(&self, number: u32, layer: u32, memory: &mut Vec<Memory>) {
        let Some(pages) = &self.pages else { return self.progress.deliver(layer, 1) };
        let from = CopySource::Memory(std::mem::take(memory));
        let copy = pages.to_pages(self.first + number, layer, from);
        let full = {
            let mut batch = self.batch.lock();
            batch.bytes += copy.copy.bytes();
            batch.copies.push(copy);
            (batch.bytes >= BATCH_BYTES).then(|| std::mem::take(&mut *batch))
        };
        if let Some(batch) = full {
            self.send(pages, batch);
        }
    }

    fn flush(&self) {
        let Some(pages) = &self.pages else { return };
        let batch = std::mem::take(&mut *self.batch.lock());
        if !batch.copies.is_empty() {
            self.send(pages, batch);
        }
    }
}
