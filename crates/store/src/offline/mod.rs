//! What can be done with a store that nobody has open, and with a far location.

pub(crate) mod far;
pub(crate) mod info;
pub(crate) mod repair;
pub(crate) mod verify;
