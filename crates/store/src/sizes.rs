//! Checks of what callers give.

use dalsegno_core::{Error, Result};
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
