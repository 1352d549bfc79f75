//! Writing extents: whole, layer by layer, or merged from others.

mod layers;
mod merge;
mod writer;

pub use layers::LayerAppend;
pub use merge::{CompressedMerge, MergeAppend};
pub use writer::{Append, Appended, Writer};
