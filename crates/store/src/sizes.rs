//! Checks of what callers give.

use std::ops::Range;

use dalsegno_core::{ChainHash, Error, KvLayout, Result};
use dalsegno_io::Memory;

/// Checks that every block has exactly `bytes` bytes of memory. Fails with `Invalid`.
pub fn check_blocks(blocks: &[Vec<Memory>], bytes: u64) -> Result<()> {
    for (index, pieces) in blocks.iter().enumerate() {
        let given: u64 = pieces.iter().map(|piece| piece.len() as u64).sum();
        if given != bytes {
            return Err(Error::invalid(format!(
                "buffer {index} has {given} bytes; the namespace's layout needs {bytes}"
            )));
        }
    }
    Ok(())
}

/// Checks a get of whole blocks, or of one `layer` of each, and returns the layers. Fails with `Invalid`.
pub fn check_get(
    layout: KvLayout,
    chain: &[ChainHash],
    out: &[Vec<Memory>],
    layer: Option<u32>,
) -> Result<Range<u32>> {
    let layer_count = layout.layers();
    if let Some(layer) = layer.filter(|layer| *layer >= layer_count) {
        return Err(Error::invalid(format!(
            "layer {layer} does not exist; the namespace has layers 0 to {}",
            layer_count - 1
        )));
    }
    if chain.len() != out.len() {
        return Err(Error::invalid(format!(
            "{} hashes but {} buffers; give one buffer per block",
            chain.len(),
            out.len()
        )));
    }
    let layers = layer.map_or(0..layer_count, |layer| layer..layer + 1);
    let wanted = u64::from(layers.end - layers.start);
    check_blocks(out, wanted * u64::from(layout.slice_bytes()))?;
    Ok(layers)
}
