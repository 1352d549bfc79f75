//! Which layers of a load are there while it runs.
//!
//! 1. A layer is ready when its slices of all wanted blocks are at their destination. Nothing writes them after that.
//! 2. A device has a layer in its queue before it is ready. Its other work can be ordered behind that.
//! 3. A layer that is not ready when the load ends is lost. A load always ends, also one that is never started.

use std::sync::Arc;
use std::time::Duration;

use dalsegno_io::CopyMark;
use parking_lot::{Condvar, Mutex};

/// How a layer of a load ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LayerOutcome {
    /// All wanted blocks have it.
    Ready,
    /// At least one block lacks it: the report of the load says which.
    Lost,
}

/// When the work of a device may use a layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LayerOrder {
    /// Any time: it is ready.
    Any,
    /// After the copies up to this mark.
    After(CopyMark),
    /// Never: the layer is lost.
    Never,
}

/// The layers of a load.
#[derive(Debug)]
pub struct LoadProgress {
    states: Mutex<LayerStates>,
    changed: Condvar,
}

#[derive(Debug)]
struct LayerStates {
    layers: Vec<LayerState>,
    has_ended: bool,
}

#[derive(Clone, Debug)]
struct LayerState {
    /// How many slices are not there.
    missing: usize,
    /// How many slices no device has in its queue.
    unqueued: usize,
    /// Of the last slices that were queued.
    mark: Option<CopyMark>,
}

/// Ends a load when it is dropped.
#[derive(Debug)]
pub struct LoadEnd(Arc<LoadProgress>);

impl LoadProgress {
    /// The progress of a load of `blocks` blocks, and what ends it.
    #[must_use]
    pub fn begin(layers: u32, blocks: usize) -> (Arc<Self>, LoadEnd) {
        let layer = LayerState { missing: blocks, unqueued: blocks, mark: None };
        let states = LayerStates { layers: vec![layer; layers as usize], has_ended: false };
        let progress = Arc::new(Self { states: Mutex::new(states), changed: Condvar::new() });
        (Arc::clone(&progress), LoadEnd(progress))
    }

    /// Notes that the slices of `layer` of so many more blocks are at their destination.
    ///
    /// # Panics
    ///
    /// If the load has no such layer, or fewer blocks.
    pub(crate) fn deliver(&self, layer: u32, blocks: usize) {
        let mut states = self.states.lock();
        let missing = &mut states.layers[layer as usize].missing;
        *missing = missing.checked_sub(blocks).expect("each slice is delivered once");
        if *missing == 0 {
            self.changed.notify_all();
        }
    }

    /// Notes that a device has the copies of so many more slices of `layer` in its queue, up to `mark`.
    ///
    /// # Panics
    ///
    /// As [`Self::deliver`].
    pub(crate) fn queue(&self, layer: u32, slices: usize, mark: CopyMark) {
        let mut states = self.states.lock();
        let state = &mut states.layers[layer as usize];
        state.unqueued = state.unqueued.checked_sub(slices).expect("each slice is queued once");
        state.mark = state.mark.max(Some(mark));
        if state.unqueued == 0 {
            self.changed.notify_all();
        }
    }

    /// Notes that so many blocks are at their destination, with all layers.
    ///
    /// # Panics
    ///
    /// If the load has fewer.
    pub fn deliver_blocks(&self, blocks: usize) {
        let layers = u32::try_from(self.states.lock().layers.len()).expect("bounded");
        (0..layers).for_each(|layer| self.deliver(layer, blocks));
    }

    /// Waits until a layer has ended, at most `timeout`; `None` if it has not.
    ///
    /// # Panics
    ///
    /// If the load has no such layer.
    #[must_use]
    pub fn wait_layer(&self, layer: u32, timeout: Option<Duration>) -> Option<LayerOutcome> {
        self.wait(timeout, |states| states.outcome(layer))
    }

    /// Waits until a device has all copies of a layer in its queue, or it has ended, at most `timeout`; `None` if
    /// neither happened.
    ///
    /// # Panics
    ///
    /// If the load has no such layer.
    #[must_use]
    pub fn wait_order(&self, layer: u32, timeout: Option<Duration>) -> Option<LayerOrder> {
        self.wait(timeout, |states| states.order(layer))
    }

    fn wait<T>(
        &self,
        timeout: Option<Duration>,
        look: impl Fn(&LayerStates) -> Option<T>,
    ) -> Option<T> {
        let mut states = self.states.lock();
        let is_loading = |states: &mut LayerStates| look(states).is_none();
        match timeout {
            None => self.changed.wait_while(&mut states, is_loading),
            Some(timeout) => {
                self.changed.wait_while_for(&mut states, is_loading, timeout);
            }
        }
        look(&states)
    }
}

impl LayerStates {
    fn outcome(&self, layer: u32) -> Option<LayerOutcome> {
        match (self.layers[layer as usize].missing, self.has_ended) {
            (0, _) => Some(LayerOutcome::Ready),
            (_, true) => Some(LayerOutcome::Lost),
            (_, false) => None,
        }
    }

    fn order(&self, layer: u32) -> Option<LayerOrder> {
        match (self.outcome(layer), &self.layers[layer as usize]) {
            (Some(LayerOutcome::Ready), _) => Some(LayerOrder::Any),
            (Some(LayerOutcome::Lost), _) => Some(LayerOrder::Never),
            (None, LayerState { unqueued: 0, mark, .. }) => mark.map(LayerOrder::After),
            (None, _) => None,
        }
    }
}

impl LoadEnd {
    /// The progress of the load.
    #[must_use]
    pub fn progress(&self) -> &Arc<LoadProgress> {
        &self.0
    }
}

impl Drop for LoadEnd {
    fn drop(&mut self) {
        self.0.states.lock().has_ended = true;
        self.0.changed.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_layer_is_ready_with_its_last_slice_and_lost_with_the_end_of_its_load() {
        let (progress, end) = LoadProgress::begin(3, 2);
        progress.deliver(0, 2);
        progress.deliver(1, 1);
        let outcomes = || [0, 1, 2].map(|layer| progress.wait_layer(layer, Some(Duration::ZERO)));
        assert_eq!(outcomes(), [Some(LayerOutcome::Ready), None, None]);
        assert_eq!(progress.wait_layer(1, Some(Duration::ZERO)), None);
        progress.deliver(1, 1);
        drop(end);
        assert_eq!(progress.wait_layer(2, None), Some(LayerOutcome::Lost));
        assert_eq!(outcomes()[1], Some(LayerOutcome::Ready));
    }

    #[test]
    fn work_is_ordered_behind_the_last_copy_of_a_layer_until_that_has_ended() {
        let (progress, end) = LoadProgress::begin(2, 2);
        let order = |layer| progress.wait_order(layer, Some(Duration::ZERO));
        progress.queue(0, 1, CopyMark(7));
        assert_eq!(order(0), None);
        progress.queue(0, 1, CopyMark(5));
        progress.queue(1, 1, CopyMark(6));
        progress.queue(1, 1, CopyMark(8));
        assert_eq!(order(0), Some(LayerOrder::After(CopyMark(7))));
        progress.deliver(0, 2);
        progress.deliver(1, 1);
        assert_eq!(order(0), Some(LayerOrder::Any));
        assert_eq!(order(1), Some(LayerOrder::After(CopyMark(8))));
        drop(end);
        assert_eq!(order(1), Some(LayerOrder::Never));
    }

    #[test]
    fn a_load_without_blocks_is_ready() {
        let (progress, _end) = LoadProgress::begin(1, 0);
        assert_eq!(progress.wait_layer(0, None), Some(LayerOutcome::Ready));
    }
}
