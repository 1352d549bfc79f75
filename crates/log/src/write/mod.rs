//! Writing extents: whole, layer by layer, or merged from others.

mod layers;
mod merge;
mod record_write;
mod writer;

pub use layers::LayerAppend;
pub use merge::{CompressedMerge, MergeAppend};
pub(crate) use record_write::{RecordWrite, write_one};
pub use writer::{Append, Appended, Writer};
