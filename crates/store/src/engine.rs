//! What every path of an open store uses: the device, the log, the index, and what is in front of them.

use std::sync::Arc;

use dalsegno_core::{Clock, Limits};
use dalsegno_index::Index;
use dalsegno_log::Log;

use crate::blocks::dropper::Dropper;
use crate::blocks::recent::RecentBlocks;
use crate::counters::Counters;
use crate::device::Watched;
use crate::far::tier::FarTier;
use crate::namespaces::table::NamespaceTable;
use crate::state::dram::Dram;
use crate::state::failed_reads::FailedReads;
use crate::state::gauge::ReadGauge;
use crate::state::recent_removals::RecentRemovals;
use crate::state::speeds::TierSpeeds;

/// The state that the paths share. Background jobs hold it while they are queued or run, and with it the directory.
#[derive(Debug)]
pub(crate) struct Engine {
    pub(crate) limits: Arc<Limits>,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) device: Arc<Watched>,
    pub(crate) log: Log,
    pub(crate) index: Arc<dyn Index>,
    pub(crate) counters: Arc<Counters>,
    pub(crate) namespaces: Arc<NamespaceTable>,
    pub(crate) front: Front,
    /// Blocks beyond this host, if the store has a far tier.
    pub(crate) far: Option<Arc<FarTier>>,
}

/// What knows of single blocks in front of the log and the index.
#[derive(Debug)]
pub(crate) struct Front {
    pub(crate) dram: Arc<Dram>,
    pub(crate) failed_reads: Arc<FailedReads>,
    /// What was removed lately, for work that is in progress.
    pub(crate) removals: Arc<RecentRemovals>,
    /// Reads in progress.
    pub(crate) reads: Arc<ReadGauge>,
    /// How fast each tier is.
    pub(crate) speeds: Arc<TierSpeeds>,
    pub(crate) recent: Arc<RecentBlocks>,
    pub(crate) dropper: Arc<Dropper>,
}
