//! Checks of what callers give.

use dalsegno_core::{ChainHash, Error, KvLayout, Result};
use dalsegno_io::{Memory, PagedBlocks};

/// Checks that every block has exactly `bytes` bytes of memory. Fails with `Invalid`.
pub fn check_blocks(blocks: &[Vec<Memory>], bytes: u64) -> Result<()> {
    let size = |pieces: &Vec<Memory>| pieces.iter().map(Memory::len).sum();
    check_sizes(blocks.iter().map(size), bytes)
}

/// Checks that every block has exactly `bytes` bytes. Fails with `Invalid`.
pub(crate) fn check_sizes(blocks: impl Iterator<Item = usize>, bytes: u64) -> Result<()> {
    for (index, given) in blocks.enumerate() {
        if given as u64 != bytes {
            return Err(Error::invalid(format!(
                "buffer {index} has {given} bytes; the namespace's layout needs {bytes}"
            )));
        }
    }
    Ok(())
}

/// Checks that a layer exists. Fails with `Invalid`.
pub(crate) fn check_layer(layer: u32, layers: u32) -> Result<()> {
    if layer >= layers {
        let message = format!("layer {layer} does not exist; the namespace has {layers}");
        return Err(Error::invalid(message));
    }
    Ok(())
}

/// Checks a get of whole blocks. Fails with `Invalid`.
pub fn check_get(layout: KvLayout, chain: &[ChainHash], out: &[Vec<Memory>]) -> Result<()> {
    if chain.len() != out.len() {
        return Err(Error::invalid(format!(
            "{} hashes but {} buffers; give one buffer per block",
            chain.len(),
            out.len()
        )));
    }
    check_blocks(out, layout.block_bytes())
}

/// Checks a load of blocks into pages. Fails with `Invalid`.
pub fn check_pages(layout: KvLayout, blocks: usize, pages: &PagedBlocks) -> Result<()> {
    check_page_sizes(layout, blocks, pages)?;
    if !pages.is_unused() {
        return Err(Error::invalid("these pages were stored or loaded already; give other ones"));
    }
    Ok(())
}

/// Checks that there are pages for each block. Fails with `Invalid`.
pub(crate) fn check_page_sizes(layout: KvLayout, blocks: usize, pages: &PagedBlocks) -> Result<()> {
    if blocks != pages.len() {
        return Err(Error::invalid(format!(
            "{blocks} blocks, but pages for {}; give pages for each block",
            pages.len()
        )));
    }
    let (layers, slice_bytes) = (layout.layers() as usize, layout.slice_bytes() as usize);
    if (layers, slice_bytes) != (pages.layers(), pages.slice_bytes()) {
        return Err(Error::invalid(format!(
            "the pages have {} layers of {} bytes per block; the namespace has {layers} of {slice_bytes}",
            pages.layers(),
            pages.slice_bytes()
        )));
    }
    Ok(())
}
