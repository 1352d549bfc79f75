//! The pages that a load fills, and the copies to them that run.
//!
//! 1. A load waits for all of its copies before it ends. So nothing writes its pages afterwards, and places that copies
//!    read are free to be reused.
//! 2. After a copy has failed, no block of the load is a hit.

use std::sync::Arc;

use dalsegno_io::{Copier, CopySource, PagedBlocks, SliceCopy};
use parking_lot::{Condvar, Mutex};

use super::progress::LoadProgress;

/// Pages of an engine, and how bytes get there.
#[derive(Debug)]
pub struct PageTarget {
    layers: u32,
    slice_bytes: usize,
    /// `None` once the load has ended.
    pages: Mutex<Option<PagedBlocks>>,
    copier: Arc<dyn Copier>,
    progress: Arc<LoadProgress>,
    running: Mutex<RunningCopies>,
    ended: Condvar,
}

#[derive(Debug, Default)]
struct RunningCopies {
    count: usize,
    has_failed: bool,
}

/// The copy of one slice.
#[derive(Debug)]
pub(crate) struct LayerCopy {
    pub(crate) layer: u32,
    pub(crate) copy: SliceCopy,
}

impl PageTarget {
    /// The pages of a load, which `copier` fills.
    #[must_use]
    pub fn new(
        pages: PagedBlocks,
        copier: Arc<dyn Copier>,
        progress: &Arc<LoadProgress>,
    ) -> Arc<Self> {
        Arc::new(Self {
            layers: u32::try_from(pages.layers()).expect("bounded by the namespace"),
            slice_bytes: pages.slice_bytes(),
            pages: Mutex::new(Some(pages)),
            copier,
            progress: Arc::clone(progress),
            running: Mutex::default(),
            ended: Condvar::new(),
        })
    }

    /// Number of layers.
    pub(crate) fn layers(&self) -> u32 {
        self.layers
    }

    /// Bytes of one layer of one block.
    pub(crate) fn slice_bytes(&self) -> usize {
        self.slice_bytes
    }

    pub(crate) fn progress(&self) -> &LoadProgress {
        &self.progress
    }

    /// The copy of a slice to its pages.
    ///
    /// # Panics
    ///
    /// If the slice was copied before, or the load has ended.
    pub(crate) fn to_pages(&self, block: u32, layer: u32, from: CopySource) -> LayerCopy {
        let pages = self.pages.lock();
        let to = pages.as_ref().and_then(|pages| pages.take_slice(block as usize, layer));
        let to = to.expect("each slice is copied once");
        LayerCopy { layer, copy: SliceCopy::new(from, to) }
    }

    /// Starts a batch of copies. Calls `then` with whether all bytes were copied, possibly before this returns.
    pub(crate) fn copy(
        self: &Arc<Self>,
        batch: Vec<LayerCopy>,
        then: impl FnOnce(bool) + Send + 'static,
    ) {
        self.running.lock().count += 1;
        let target = Arc::clone(self);
        let done = move |is_copied: bool| {
            then(is_copied);
            let mut running = target.running.lock();
            running.count -= 1;
            running.has_failed |= !is_copied;
            if running.count == 0 {
                target.ended.notify_all();
            }
        };
        self.copier.copy(batch.into_iter().map(|one| one.copy).collect(), Box::new(done));
    }

    /// Waits until no copy runs; returns whether all of them succeeded so far.
    pub(crate) fn wait(&self) -> bool {
        let mut running = self.running.lock();
        self.ended.wait_while(&mut running, |running| running.count > 0);
        !running.has_failed
    }

    /// Waits until no copy runs, and gives the pages back: another load may use them. Returns whether all copies
    /// succeeded.
    #[must_use]
    pub fn close(&self) -> bool {
        let are_copied = self.wait();
        self.pages.lock().take();
        are_copied
    }
}
