//! Jobs of a store: those that a call waits for, and transfers.

pub(crate) mod calls;
pub(crate) mod transfers;
