//! Which layers of a load are there while it runs.
//!
//! 1. A layer is ready when its slices of all wanted blocks are at their destination. Nothing writes them after that.
//! 2. A layer that is not ready when the load ends is lost. A load always ends, also one that is never started.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::{Condvar, Mutex};

/// How a layer of a load ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LayerOutcome {
    /// All wanted blocks have it.
    Ready,
    /// At least one block lacks it: the report of the load says which.
    Lost,
}

/// The layers of a load.
#[derive(Debug)]
pub struct LoadProgress {
    states: Mutex<LayerStates>,
    changed: Condvar,
}

#[derive(Debug)]
struct LayerStates {
    /// For each layer how many slices are not there.
    missing: Vec<usize>,
    has_ended: bool,
}

/// Ends a load when it is dropped.
#[derive(Debug)]
pub struct LoadEnd(Arc<LoadProgress>);

impl LoadProgress {
    /// The progress of a load of `blocks` blocks, and what ends it.
    #[must_use]
    pub fn begin(layers: u32, blocks: usize) -> (Arc<Self>, LoadEnd) {
        let states = LayerStates { missing: vec![blocks; layers as usize], has_ended: false };
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
        let missing = &mut states.missing[layer as usize];
        *missing = missing.checked_sub(blocks).expect("each slice is delivered once");
        if *missing == 0 {
            self.changed.notify_all();
        }
    }

    /// Notes that so many blocks are at their destination, with all layers.
    ///
    /// # Panics
    ///
    /// If the load has fewer.
    pub fn deliver_blocks(&self, blocks: usize) {
        let layers = u32::try_from(self.states.lock().missing.len()).expect("bounded");
        (0..layers).for_each(|layer| self.deliver(layer, blocks));
    }

    /// Waits until a layer has ended, at most `timeout`; `None` if it has not.
    ///
    /// # Panics
    ///
    /// If the load has no such layer.
    #[must_use]
    pub fn wait_layer(&self, layer: u32, timeout: Option<Duration>) -> Option<LayerOutcome> {
        let mut states = self.states.lock();
        let is_loading = |states: &mut LayerStates| states.outcome(layer).is_none();
        match timeout {
            None => self.changed.wait_while(&mut states, is_loading),
            Some(timeout) => {
                self.changed.wait_while_for(&mut states, is_loading, timeout);
            }
        }
        states.outcome(layer)
    }
}

impl LayerStates {
    fn outcome(&self, layer: u32) -> Option<LayerOutcome> {
        match (self.missing[layer as usize], self.has_ended) {
            (0, _) => Some(LayerOutcome::Ready),
            (_, true) => Some(LayerOutcome::Lost),
            (_, false) => None,
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
    fn a_load_without_blocks_is_ready() {
        let (progress, _end) = LoadProgress::begin(1, 0);
        assert_eq!(progress.wait_layer(0, None), Some(LayerOutcome::Ready));
    }
}
