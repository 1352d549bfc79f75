//! The memory layout of a block.

use crate::{Error, Result};

/// Most layers a layout may have.
pub const MAX_LAYERS: u32 = 1024;
/// Largest slice, in bytes.
pub const MAX_SLICE_BYTES: u32 = 1 << 28;

/// The layout of every block of a namespace: `layers` slices of `slice_bytes` bytes each.
///
/// In the caller's memory the slices of a block follow each other, layer 0 first. An engine with opaque rows uses one
/// layer.
///
/// ```
/// use dalsegno_core::KvLayout;
///
/// // 32 layers, each with 16 tokens of 4 KiB.
/// let layout = KvLayout::new(32, 16 * 4096)?;
/// assert_eq!(layout.block_bytes(), 2 << 20);
/// # Ok::<(), dalsegno_core::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct KvLayout {
    layers: u32,
    slice_bytes: u32,
}

impl KvLayout {
    /// Checks the dimensions.
    ///
    /// # Errors
    ///
    /// `Invalid` if a dimension is zero or above [`MAX_LAYERS`] / [`MAX_SLICE_BYTES`].
    pub fn new(layers: u32, slice_bytes: u32) -> Result<Self> {
        if layers == 0 || layers > MAX_LAYERS {
            return Err(Error::invalid(format!("layers must be 1 to {MAX_LAYERS}, got {layers}")));
        }
        if slice_bytes == 0 || slice_bytes > MAX_SLICE_BYTES {
            return Err(Error::invalid(format!(
                "slice_bytes (one layer of one block) must be 1 to {MAX_SLICE_BYTES}, got {slice_bytes}"
            )));
        }
        Ok(Self { layers, slice_bytes })
    }

    /// Layers per block.
    #[must_use]
    pub fn layers(self) -> u32 {
        self.layers
    }

    /// Bytes of one layer of one block.
    #[must_use]
    pub fn slice_bytes(self) -> u32 {
        self.slice_bytes
    }

    /// Bytes of one block, all layers.
    #[must_use]
    pub fn block_bytes(self) -> u64 {
        u64::from(self.layers) * u64::from(self.slice_bytes)
    }

    /// Bytes from the start of one layer of an extent to the next: whole sectors, so that direct I/O can read and write
    /// a layer alone.
    #[must_use]
    pub fn layer_stride_bytes(self, block_count: u32) -> u64 {
        crate::sector_up(u64::from(block_count) * u64::from(self.slice_bytes))
    }

    /// Bytes of the payload of a plain extent of `block_count` blocks.
    #[must_use]
    pub fn payload_bytes(self, block_count: u32) -> u64 {
        self.layer_stride_bytes(block_count) * u64::from(self.layers)
    }
}
