//! Removing blocks for good.

pub(crate) mod local;
pub(crate) mod remover;
