//! Flushes, compactions and manifests.

pub(crate) mod directory;
pub(crate) mod level_changes;
pub(crate) mod manifests;
pub(crate) mod pace;
pub(crate) mod retention;
pub(crate) mod run_output;
pub(crate) mod steps;
