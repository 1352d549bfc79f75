//! Bytes as numbers of a model, and back.

#[expect(clippy::cast_precision_loss, reason = "a rate needs no more than 52 bits of bytes")]
pub(super) fn real(bytes: u64) -> f64 {
    bytes as f64
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "bytes per second of a device; a cast saturates"
)]
pub(super) fn whole(bytes: f64) -> u64 {
    bytes as u64
}
