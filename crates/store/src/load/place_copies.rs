//! Copies blocks from their places to the pages of an engine, layer by layer.
//!
//! 1. Layers are copied lowest first, and two at a time. More gain nothing if the processor copies, and would delay the
//!    first one. A device copies one after the other, so some more wait in its queue.
//! 2. A slice counts only if the block was in its place when the copy had ended.
//! 3. Whatever ends a layer begins the next one, so no thread waits for it.

use std::collections::BTreeSet;
use std::sync::Arc;

use dalsegno_core::Clock;
use dalsegno_io::{Call, CopySource};
use parking_lot::{Condvar, Mutex};

use super::target::{CopyKind, PageTarget};

/// Blocks in places of a pool.
pub trait PlacedSource: Send + Sync + 'static {
    /// The number in its load of each block.
    fn numbers(&self) -> &[u32];

    /// Bytes of a block, by its position in [`PlacedSource::numbers`].
    fn source(&self, at: usize, offset: usize, bytes: usize) -> CopySource;

    /// Whether a block has been in its place since it was found.
    fn is_current(&self, at: usize) -> bool;
}

/// The copies of some blocks.
pub struct PlaceCopies<S> {
    source: S,
    target: Arc<PageTarget>,
    most_in_flight: u32,
    window: Mutex<LayerWindow>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct LayerWindow {
    /// The next layer to copy.
    next: u32,
    in_flight: u32,
    /// Whether a thread looks for layers to copy. A copy that ends on that thread leaves the next one to it.
    is_filling: bool,
    is_stopped: bool,
    /// Positions of blocks that were not in their places any more, or could not be copied.
    lost: BTreeSet<usize>,
}

impl<S: PlacedSource> PlaceCopies<S> {
    /// Starts to copy all layers.
    #[must_use]
    pub fn start(source: S, target: &Arc<PageTarget>) -> Arc<Self> {
        let (window, changed) = (Mutex::default(), Condvar::new());
        let (target, count) = (Arc::clone(target), source.numbers().len());
        let most_in_flight = target.window(count * target.slice_bytes());
        let copies = Arc::new(Self { source, target, most_in_flight, window, changed });
        copies.fill_window();
        copies
    }

    /// Waits until everything is copied. If the call ends first, starts no further layer. Returns for each block
    /// whether all of its layers were copied from its place.
    #[must_use]
    pub fn finish(&self, call: &Call, clock: &dyn Clock) -> Vec<bool> {
        let layers = self.target.layers();
        let mut window = self.window.lock();
        while window.in_flight > 0 || (window.next < layers && !window.is_stopped) {
            match call.timeout(clock) {
                Ok(Some(timeout)) if !window.is_stopped => {
                    self.changed.wait_for(&mut window, timeout);
                }
                Ok(None) => self.changed.wait(&mut window),
                // What is being copied ends soon.
                _ => {
                    window.is_stopped = true;
                    if window.in_flight > 0 {
                        self.changed.wait(&mut window);
                    }
                }
            }
        }
        let is_whole = window.next == layers;
        let count = self.source.numbers().len();
        (0..count).map(|at| is_whole && !window.lost.contains(&at)).collect()
    }

    /// Starts as many layers as may be copied at a time.
    fn fill_window(self: &Arc<Self>) {
        let layers = self.target.layers();
        let mut window = self.window.lock();
        if window.is_filling {
            return;
        }
        window.is_filling = true;
        while window.in_flight < self.most_in_flight && window.next < layers && !window.is_stopped {
            let layer = window.next;
            window.next += 1;
            window.in_flight += 1;
            parking_lot::MutexGuard::unlocked(&mut window, || self.copy_layer(layer));
        }
        window.is_filling = false;
        self.changed.notify_all();
    }

    fn copy_layer(self: &Arc<Self>, layer: u32) {
        let bytes = self.target.slice_bytes();
        let offset = layer as usize * bytes;
        let copy = |(at, number): (usize, &u32)| {
            self.target.to_pages(*number, layer, self.source.source(at, offset, bytes))
        };
        let batch = self.source.numbers().iter().enumerate().map(copy).collect();
        let copies = Arc::clone(self);
        self.target
            .copy(CopyKind::Places, batch, move |is_copied, _| copies.end_layer(layer, is_copied));
    }

    fn end_layer(self: &Arc<Self>, layer: u32, is_copied: bool) {
        let count = self.source.numbers().len();
        let is_lost = |at: &usize| !is_copied || !self.source.is_current(*at);
        let lost: Vec<usize> = (0..count).filter(is_lost).collect();
        self.target.progress().deliver(layer, count - lost.len());
        let mut window = self.window.lock();
        window.lost.extend(lost);
        window.in_flight -= 1;
        drop(window);
        self.fill_window();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::time::Duration;

    use dalsegno_core::Class;
    use dalsegno_io::{
        Cancel, Copier, CopyBatch, CopyDone, CopyMark, CpuCopier, Executor, Memory, PagePart,
        PageShape, PagedMemory, SystemClock, copy_all,
    };

    use super::super::progress::{LayerOutcome, LoadProgress};
    use super::*;

    const BYTES: usize = 64;

    /// Keeps batches until somebody lets it copy them.
    #[derive(Default)]
    struct LateCopier(Mutex<Vec<(CopyBatch, CopyDone)>>);

    impl std::fmt::Debug for LateCopier {
        fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
            f.write_str("LateCopier")
        }
    }

    impl Copier for LateCopier {
        fn copy(&self, batch: CopyBatch, done: CopyDone) -> Option<CopyMark> {
            self.0.lock().push((batch, done));
            None
        }

        fn copied_bytes(&self) -> u64 {
            0
        }
    }

    impl LateCopier {
        fn copy_all(&self) {
            let inline = CpuCopier::start(Executor::Inline, 1).unwrap();
            let batches = std::mem::take(&mut *self.0.lock());
            for (batch, done) in batches {
                done(copy_all(&inline, batch));
            }
        }
    }

    /// Two blocks, of which the second may leave its place.
    struct Places(Arc<AtomicBool>);

    impl PlacedSource for Places {
        fn numbers(&self) -> &[u32] {
            &[0, 1]
        }

        fn source(&self, at: usize, offset: usize, bytes: usize) -> CopySource {
            let mut slice = Memory::zeroed(bytes);
            slice.as_mut_slice().fill(u8::try_from(10 * at + offset / BYTES).unwrap());
            CopySource::Memory(vec![slice])
        }

        fn is_current(&self, at: usize) -> bool {
            at == 0 || !self.0.load(Ordering::SeqCst)
        }
    }

    #[test]
    fn a_load_that_is_cancelled_ends_after_the_copies_that_run() {
        let shape = PageShape {
            stride: BYTES,
            parts: vec![PagePart { offset: 0, bytes: BYTES }],
            pages_per_block: 1,
        };
        let memory = PagedMemory::zeroed(3, 2 * BYTES, 2, shape).unwrap();
        let late = Arc::new(LateCopier::default());
        let (progress, _end) = LoadProgress::begin(3, 2);
        let copier: Arc<dyn Copier> = Arc::clone(&late) as _;
        let target = PageTarget::new(memory.blocks(vec![1, 0]).unwrap(), copier, &progress);
        let started = PlaceCopies::start(Places(Arc::default()), &target);
        let call = Call { cancel: Some(Cancel::default()), ..Call::of(Class::Need) };
        call.cancel.as_ref().unwrap().cancel();
        let has_ended = Arc::new(AtomicBool::new(false));
        let seen = Arc::clone(&has_ended);
        let waiting = dalsegno_io::spawn("test", move || {
            assert_eq!(started.finish(&call, &SystemClock::new()), [false, false]);
            seen.store(true, Ordering::SeqCst);
        });
        std::thread::sleep(Duration::from_millis(20));
        assert!(!has_ended.load(Ordering::SeqCst), "two layers are being copied");
        late.copy_all();
        waiting.unwrap().join().unwrap();
        // No further layer was begun.
        assert!(late.0.lock().is_empty() && target.close());
    }

    #[test]
    fn a_layer_is_ready_after_its_last_copy_and_a_block_counts_if_it_stayed_in_its_place() {
        let shape = PageShape {
            stride: BYTES,
            parts: vec![PagePart { offset: 0, bytes: BYTES }],
            pages_per_block: 1,
        };
        let memory = PagedMemory::zeroed(3, 2 * BYTES, 2, shape).unwrap();
        let pages = memory.blocks(vec![1, 0]).unwrap();
        let late = Arc::new(LateCopier::default());
        let (progress, _end) = LoadProgress::begin(3, 2);
        let copier: Arc<dyn Copier> = Arc::clone(&late) as _;
        let target = PageTarget::new(pages, copier, &progress);
        let is_reused = Arc::new(AtomicBool::new(false));
        let started = PlaceCopies::start(Places(Arc::clone(&is_reused)), &target);
        let outcome = |layer| progress.wait_layer(layer, Some(Duration::ZERO));
        assert_eq!([0, 1, 2].map(outcome), [None; 3]);
        late.copy_all();
        assert_eq!(
            [0, 1, 2].map(outcome),
            [Some(LayerOutcome::Ready), Some(LayerOutcome::Ready), None]
        );
        // While the last layer is copied.
        is_reused.store(true, Ordering::SeqCst);
        late.copy_all();
        assert_eq!(outcome(2), None);
        assert_eq!(started.finish(&Call::of(Class::Need), &SystemClock::new()), [true, false]);
        assert!(target.close());
        let blocks = memory.blocks(vec![1, 0]).unwrap();
        for (at, layer) in [(0, 0), (0, 1), (0, 2), (1, 0), (1, 1)] {
            let slice = blocks.read_slice(at, layer).unwrap().into_memory();
            let expected = u8::try_from(10 * at).unwrap() + u8::try_from(layer).unwrap();
            assert!(slice[0].as_slice().iter().all(|byte| *byte == expected), "{at} {layer}");
        }
    }
}
