//! Storing blocks.

pub(crate) mod group;
pub(crate) mod pending;
pub(crate) mod publish;
pub(crate) mod put;
pub(crate) mod stretch;
