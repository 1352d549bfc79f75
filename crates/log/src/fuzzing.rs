//! Entry points for fuzzing decoders that are private to the crate. Only with the feature `fuzzing`, never in a
//! release.

use crate::compress::UnitCodec;
use crate::segment::Checkpoint;

/// Compresses a unit.
#[must_use]
pub fn encode_unit(raw: &[u8], width: usize) -> Vec<u8> {
    let mut out = Vec::new();
    UnitCodec::new().encode(raw, width, &mut out);
    out
}

/// Decompresses a stored unit of `raw_bytes`; `None` if it is not valid.
#[must_use]
pub fn decode_unit(stored: &[u8], width: usize, raw_bytes: usize) -> Option<Vec<u8>> {
    let mut raw = vec![0; raw_bytes];
    UnitCodec::new().decode(stored, width, &mut raw).ok().map(|()| raw)
}

/// Decodes a checkpoint and encodes it again.
#[must_use]
pub fn recode_checkpoint(bytes: &[u8]) -> Option<Vec<u8>> {
    Checkpoint::decode(bytes).map(|checkpoint| checkpoint.encode())
}
