//! What receives the slices of a read while it reads.

use std::fmt;

use dalsegno_io::Memory;

/// Receives the slices of one or several reads as they are verified.
///
/// A read reports a slice at most once. It does not report slices that are lost: the result of the read says which
/// blocks these belong to.
pub trait SliceSink: fmt::Debug + Send + Sync {
    /// The slice of `layer` of the block with this [number](super::BlockTarget::number) was verified. The sink may take
    /// its memory, in the order of its bytes, to read it. Then the result of the read lacks it.
    fn verified(&self, number: u32, layer: u32, memory: &mut Vec<Memory>);

    /// No slice follows before something else arrives.
    fn flush(&self);
}
