//! Loads by layer: how far they are, and the copies that they make.

pub(crate) mod place_copies;
pub(crate) mod progress;
pub(crate) mod target;
