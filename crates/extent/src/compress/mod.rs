//! Compression of extents, unit by unit.

mod budget;
mod codec_pool;
mod compressor;
mod stored_copy;
mod unit_codec;

pub use budget::CompressionBudget;
pub use codec_pool::CodecPool;
pub use compressor::{CompressedExtent, Compressor};
pub(crate) use stored_copy::is_whole;
pub use stored_copy::read_stored;
pub use unit_codec::UnitCodec;
