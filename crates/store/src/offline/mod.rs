//! What can be done with a store that nobody has open.

pub(crate) mod info;
pub(crate) mod repair;
pub(crate) mod verify;
