//! The pages that a load fills, and the copies to them that run.
//!
//! 1. A load waits for all of its copies before it ends. So nothing writes its pages afterwards, and places that copies
//!    read are free to be reused.
//! 2. After a copy has failed, no block of the load is a hit.

use std::sync::Arc;

use dalsegno_io::{Copier, CopyBatch, CopySource, PagedBlocks, SliceCopy, StreamPoint};
use parking_lot::{Condvar, Mutex};

use super::progress::LoadProgress;

/// Layers that are copied at a time. Measured on an H200: two are as fast as four and eight.
const WINDOW: u32 = 2;

/// Pages of an engine, and how bytes get there.
#[derive(Debug)]
pub struct PageTarget {
    layers: u32,
    slice_bytes: usize,
    /// `None` once the load has ended.
    pages: Mutex<Option<PagedBlocks>>,
    copier: Arc<dyn Copier>,
    after: Option<StreamPoint>,
    progress: Arc<LoadProgress>,
    running: Mutex<RunningCopies>,
    ended: Condvar,
}

/// Where the bytes of copies come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CopyKind {
    /// From places that a read is filling.
    Reads,
    /// From places that hold whole blocks.
    Places,
}

#[derive(Debug, Default)]
struct RunningCopies {
    /// By [`CopyKind`].
    counts: [usize; 2],
    has_failed: bool,
}

/// A batch of copies, until this is dropped. It has failed unless `is_done` was set, also if it was never called.
struct RunningCopy {
    target: Arc<PageTarget>,
    kind: CopyKind,
    is_done: bool,
}

/// The copy of one slice.
#[derive(Debug)]
pub(crate) struct LayerCopy {
    pub(crate) layer: u32,
    pub(crate) copy: SliceCopy,
}

impl PageTarget {
    /// The pages of a load. `copier` fills them if they are in memory of this machine.
    #[must_use]
    pub fn new(
        pages: PagedBlocks,
        copier: Arc<dyn Copier>,
        progress: &Arc<LoadProgress>,
    ) -> Arc<Self> {
        let after = pages.after().cloned();
        let copier = pages.copier().map_or(copier, Arc::clone);
        Arc::new(Self {
            layers: u32::try_from(pages.layers()).expect("bounded by the namespace"),
            slice_bytes: pages.slice_bytes(),
            pages: Mutex::new(Some(pages)),
            copier,
            after,
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

    /// Starts a batch of copies. Calls `then` with whether all bytes were copied, and how many slices of which layers
    /// these were, possibly before this returns.
    pub(crate) fn copy(
        self: &Arc<Self>,
        kind: CopyKind,
        batch: Vec<LayerCopy>,
        then: impl FnOnce(bool, &[(u32, usize)]) + Send + 'static,
    ) {
        self.running.lock().counts[kind as usize] += 1;
        let runs = batch.chunk_by(|one, next| one.layer == next.layer);
        let layers: Arc<[_]> = runs.map(|run| (run[0].layer, run.len())).collect();
        let running = RunningCopy { target: Arc::clone(self), kind, is_done: false };
        let of_end = Arc::clone(&layers);
        let done = move |is_copied: bool| {
            then(is_copied, &of_end);
            running.end(is_copied);
        };
        let copies = batch.into_iter().map(|one| one.copy).collect();
        let batch = CopyBatch { copies, after: self.after.clone() };
        if let Some(mark) = self.copier.copy(batch, Box::new(done)) {
            for (layer, slices) in &*layers {
                self.progress.queue(*layer, *slices, mark);
            }
        }
    }

    /// How many layers may be copied at a time if each has so many bytes.
    pub(crate) fn window(&self, layer_bytes: usize) -> u32 {
        let layers = self.copier.window_bytes() / layer_bytes.max(1);
        WINDOW.max(u32::try_from(layers).unwrap_or(u32::MAX))
    }

    /// Waits until no copy of this kind runs.
    pub(crate) fn wait(&self, kind: CopyKind) {
        let mut running = self.running.lock();
        self.ended.wait_while(&mut running, |running| running.counts[kind as usize] > 0);
    }

    /// Waits until no copy runs, and gives the pages back: another load may use them. Returns whether all copies
    /// succeeded.
    #[must_use]
    pub fn close(&self) -> bool {
        self.wait(CopyKind::Places);
        self.wait(CopyKind::Reads);
        self.pages.lock().take();
        !self.running.lock().has_failed
    }
}

impl RunningCopy {
    fn end(mut self, is_copied: bool) {
        self.is_done = is_copied;
    }
}

impl Drop for RunningCopy {
    fn drop(&mut self) {
        let mut running = self.target.running.lock();
        running.counts[self.kind as usize] -= 1;
        running.has_failed |= !self.is_done;
        self.target.ended.notify_all();
    }
}
