//! Finding out which blocks the store has, and from which tiers they would be read.

pub(crate) mod locate;
pub(crate) mod lookups;
