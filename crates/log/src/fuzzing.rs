//! Ways in for fuzzing to decoders that the crate keeps to itself; only with the feature `fuzzing`, never in a release.

use crate::checkpoint::Checkpoint;
use crate::unit_codec::UnitCodec;

/// A unit as it is stored.
#[must_use]
pub fn encode_unit(raw: &[u8], width: usize) -> Vec<u8> {
    let mut out = Vec::new();
    UnitCodec::new().encode(raw, width, &mut out);
    out
}

/// The unit of `raw_bytes` that is stored like this, if it is one.
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
