//! What loading blocks uses.

use std::sync::Arc;

use dalsegno_core::{Clock, DramAdmission};

use crate::blocks::dropper::Dropper;
use crate::blocks::finder::Finder;
use crate::blocks::indexed_log::IndexedLog;
use crate::blocks::recent::RecentBlocks;
use crate::counters::Counters;
use crate::device::Watched;
use crate::namespaces::table::NamespaceTable;
use crate::state::failed_reads::FailedReads;
use crate::state::speeds::TierSpeeds;

/// The tiers that a get reads, and what it notes about them.
#[derive(Debug)]
pub(crate) struct LoadTiers {
    pub(crate) finder: Arc<Finder>,
    pub(crate) recent: Arc<RecentBlocks>,
    pub(crate) stored: Arc<IndexedLog>,
    pub(crate) device: Arc<Watched>,
    pub(crate) dropper: Arc<Dropper>,
    pub(crate) failed_reads: Arc<FailedReads>,
    /// How fast each tier is.
    pub(crate) speeds: Arc<TierSpeeds>,
    /// When DRAM admits a block.
    pub(crate) admission: DramAdmission,
    pub(crate) clock: Arc<dyn Clock>,
}

/// Loads blocks for callers.
#[derive(Debug)]
pub(crate) struct Loader {
    pub(crate) tiers: LoadTiers,
    pub(crate) namespaces: Arc<NamespaceTable>,
    pub(crate) counters: Arc<Counters>,
}
