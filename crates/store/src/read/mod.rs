//! Finding blocks and reading them.

mod far_part;
pub(crate) mod get;
pub(crate) mod get_blocks;
pub(crate) mod lease;
pub(crate) mod lookup;
pub(crate) mod outcome;
pub(crate) mod quarantine;
mod run_parts;
mod wanted;
pub(crate) mod whereabouts;
