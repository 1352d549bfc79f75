//! Which layers of a call have been read, while it reads.
//!
//! 1. A layer is ready when its slices of all wanted blocks were verified, from whichever source.
//! 2. A layer ends once. One slice that is lost makes its layer lost, although a later read may find the block
//!    elsewhere.
//! 3. The bytes of a layer that is ready are complete, but they stay as they are only if no other read is given the
//!    memory. So a caller that reads lost blocks again gives that read memory of its own, or reports no layers.

use std::ops::Range;

use dalsegno_core::{Clock, Stopped};
use dalsegno_io::Call;
use parking_lot::{Condvar, Mutex};

use super::wanted::BlockOutcome;
use crate::error::Cause;

/// How a layer ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LayerOutcome {
    /// All wanted bytes of the layer are verified.
    Ready,
    /// A slice is lost, for this cause.
    Lost(Cause),
}

/// How far a layer is.
#[derive(Clone, Copy, Debug)]
enum LayerState {
    /// So many slices are not verified yet.
    Reading(usize),
    Ended(LayerOutcome),
}

/// The layers of a call. Reads report slices to it, and other threads wait for layers.
#[derive(Debug)]
pub struct LayerProgress {
    first: u32,
    layers: Mutex<Vec<LayerState>>,
    ended: Condvar,
}

impl LayerProgress {
    /// The progress of a call that wants some layers of `blocks` blocks.
    #[must_use]
    pub fn new(layers: Range<u32>, blocks: usize) -> Self {
        let state = match blocks {
            0 => LayerState::Ended(LayerOutcome::Ready),
            blocks => LayerState::Reading(blocks),
        };
        let states = vec![state; layers.len()];
        Self { first: layers.start, layers: Mutex::new(states), ended: Condvar::new() }
    }

    /// Notes a block that no read reports: it was served from memory, or is lost.
    pub fn note_block(&self, outcome: BlockOutcome) {
        self.update(|layers| layers.iter_mut().for_each(|layer| layer.note(outcome)));
    }

    /// Notes that a slice was verified, or is lost.
    pub(super) fn note_slice(&self, layer: u32, outcome: BlockOutcome) {
        let at = (layer - self.first) as usize;
        self.update(|layers| layers[at].note(outcome));
    }

    /// Makes the layers lost that have not ended, because the call reads nothing more.
    pub fn end(&self, cause: Cause) {
        self.note_block(Err(cause));
    }

    fn update(&self, change: impl FnOnce(&mut [LayerState])) {
        change(&mut self.layers.lock());
        self.ended.notify_all();
    }

    /// How a layer ended; `None` if it is being read.
    ///
    /// # Panics
    ///
    /// If the call does not read the layer.
    #[must_use]
    pub fn outcome(&self, layer: u32) -> Option<LayerOutcome> {
        self.layers.lock()[(layer - self.first) as usize].outcome()
    }

    /// Waits until a layer has ended, at most as long as `call` lasts. A layer that has ended counts even afterwards.
    ///
    /// # Errors
    ///
    /// [`Stopped::Deadline`] or [`Stopped::Cancelled`] if `call` ends first.
    ///
    /// # Panics
    ///
    /// As [`Self::outcome`].
    pub fn wait_layer(
        &self,
        layer: u32,
        call: &Call,
        clock: &dyn Clock,
    ) -> Result<LayerOutcome, Stopped> {
        let mut layers = self.layers.lock();
        loop {
            if let Some(outcome) = layers[(layer - self.first) as usize].outcome() {
                return Ok(outcome);
            }
            match call.timeout(clock)? {
                None => self.ended.wait(&mut layers),
                Some(timeout) => drop(self.ended.wait_for(&mut layers, timeout)),
            }
        }
    }
}

impl LayerState {
    fn note(&mut self, outcome: BlockOutcome) {
        let Self::Reading(slices) = *self else { return };
        *self = match outcome {
            Err(cause) => Self::Ended(LayerOutcome::Lost(cause)),
            Ok(()) if slices == 1 => Self::Ended(LayerOutcome::Ready),
            Ok(()) => Self::Reading(slices - 1),
        };
    }

    fn outcome(self) -> Option<LayerOutcome> {
        match self {
            Self::Reading(_) => None,
            Self::Ended(outcome) => Some(outcome),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_layer_ends_once_and_a_call_that_ends_leaves_none_waiting() {
        let progress = LayerProgress::new(2..5, 2);
        progress.note_slice(3, Ok(()));
        progress.note_slice(4, Err(Cause::Header));
        assert_eq!([2, 3].map(|layer| progress.outcome(layer)), [None; 2]);
        progress.note_slice(3, Ok(()));
        progress.end(Cause::Cancelled);
        let lost = LayerOutcome::Lost;
        let expected = [lost(Cause::Cancelled), LayerOutcome::Ready, lost(Cause::Header)];
        assert_eq!([2, 3, 4].map(|layer| progress.outcome(layer)), expected.map(Some));
        assert_eq!(LayerProgress::new(0..1, 0).outcome(0), Some(LayerOutcome::Ready));
    }
}
