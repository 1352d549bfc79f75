//! Durability: one sync for all writers that wait together, and the end of all writing after a sync failed.

mod gate;
mod syncer;
mod write_state;

pub(crate) use gate::{SyncGate, Unsynced};
pub(crate) use syncer::Syncer;
