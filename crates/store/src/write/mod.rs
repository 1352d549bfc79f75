//! Storing blocks, removing them, and making namespaces known.

pub(crate) mod group;
pub(crate) mod pending;
pub(crate) mod publish;
pub(crate) mod put;
pub(crate) mod register;
pub(crate) mod remove;
pub(crate) mod stretch;
