//! Entry points for fuzzing decoders that are private to the crate, without a feature: see those of the index.

use crate::segment::Checkpoint;

/// Decodes a checkpoint and encodes it again.
#[must_use]
pub fn recode_checkpoint(bytes: &[u8]) -> Option<Vec<u8>> {
    Checkpoint::decode(bytes).map(|checkpoint| checkpoint.encode())
}
