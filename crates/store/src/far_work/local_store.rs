//! The store as the threads of its far tier use it.
//!
//! 1. A thread that waits for the location holds nothing that keeps the directory locked. So it holds weakly what has
//!    the log. What is held strongly is memory only.

use std::sync::{Arc, Weak};

use crate::blocks::indexed_log::IndexedLog;
use crate::blocks::recent::RecentBlocks;
use crate::far::removal_notes::RemovalNotes;
use crate::namespaces::table::NamespaceTable;
use crate::put::writer::Writer;
use crate::remove::remover::Remover;
use crate::state::recent_removals::RecentRemovals;

/// The parts of a store that the threads divide among them.
pub(crate) struct LocalStore {
    pub(crate) stored: Weak<IndexedLog>,
    pub(crate) recent: Weak<RecentBlocks>,
    pub(crate) writer: Weak<Writer>,
    pub(crate) remover: Weak<Remover>,
    pub(crate) namespaces: Arc<NamespaceTable>,
    pub(crate) removals: Arc<RecentRemovals>,
    pub(crate) notes: Arc<RemovalNotes>,
}
