//! The parts that several paths of a store share, while the store is opened.
//!
//! 1. Each part is made once. A path gets the parts that it uses, and no path gets all of them.

use std::sync::Arc;

use dalsegno_core::{Clock, Limits};
use dalsegno_io::JobLane;

use crate::blocks::dropper::Dropper;
use crate::blocks::finder::Finder;
use crate::blocks::indexed_log::IndexedLog;
use crate::blocks::recent::RecentBlocks;
use crate::counters::Counters;
use crate::device::{Scheduled, Watched};
use crate::far::removal_notes::RemovalNotes;
use crate::far::tier::FarTier;
use crate::far_work::local_store::LocalStore;
use crate::lookup::lookups::Lookups;
use crate::namespaces::registrar::Registrar;
use crate::namespaces::table::NamespaceTable;
use crate::open::meters::Meters;
use crate::put::group::ExtentWriter;
use crate::put::pending::Pending;
use crate::put::plan::{PutPlanner, admission_filter};
use crate::put::publish::ExtentPublisher;
use crate::put::writer::Writer;
use crate::read::loader::{LoadTiers, Loader};
use crate::remove::local::LocalRemover;
use crate::remove::remover::Remover;
use crate::rewrite::merge_row::RowMerger;
use crate::rewrite::reclaimer::Reclaimer;
use crate::rewrite::relocate::Relocator;
use crate::rewrite::space::SpaceLane;
use crate::state::failed_reads::FailedReads;
use crate::state::recent_removals::RecentRemovals;
use crate::state::speeds::TierSpeeds;
use crate::upkeep::merger::Merger;
use crate::upkeep::scrubber::ScrubParts;

/// The shared parts of a store, from which its paths are made.
pub(super) struct SharedParts {
    pub(super) limits: Arc<Limits>,
    pub(super) clock: Arc<dyn Clock>,
    pub(super) device: Arc<Watched>,
    /// Who goes first at the device.
    pub(super) order: Arc<Scheduled<Watched>>,
    pub(super) counters: Arc<Counters>,
    pub(super) namespaces: Arc<NamespaceTable>,
    pub(super) dropper: Arc<Dropper>,
    pub(super) failed_reads: Arc<FailedReads>,
    /// How fast each tier is.
    pub(super) speeds: Arc<TierSpeeds>,
    /// The removals that other hosts must follow, if the store has a far tier or had one before.
    pub(super) notes: Option<Arc<RemovalNotes>>,
}

impl SharedParts {
    pub(super) fn stored(&self) -> Arc<IndexedLog> {
        Arc::clone(&self.dropper.stored)
    }

    pub(super) fn recent(&self) -> Arc<RecentBlocks> {
        Arc::clone(&self.dropper.recent)
    }

    pub(super) fn finder(&self) -> Arc<Finder> {
        Arc::clone(&self.dropper.recent.finder)
    }

    fn removals(&self) -> Arc<RecentRemovals> {
        Arc::clone(&self.dropper.recent.removals)
    }

    fn far(&self) -> Option<Arc<FarTier>> {
        self.finder().far.clone()
    }

    pub(super) fn loader(&self) -> Loader {
        let tiers = LoadTiers {
            finder: self.finder(),
            recent: self.recent(),
            stored: self.stored(),
            device: Arc::clone(&self.device),
            dropper: Arc::clone(&self.dropper),
            failed_reads: Arc::clone(&self.failed_reads),
            speeds: Arc::clone(&self.speeds),
            admission: self.limits.dram_admission,
            clock: Arc::clone(&self.clock),
        };
        Loader {
            tiers,
            namespaces: Arc::clone(&self.namespaces),
            counters: Arc::clone(&self.counters),
        }
    }

    pub(super) fn lookups(&self) -> Lookups {
        Lookups {
            finder: self.finder(),
            recent: self.recent(),
            device: Arc::clone(&self.device),
            namespaces: Arc::clone(&self.namespaces),
            speeds: Arc::clone(&self.speeds),
            counters: Arc::clone(&self.counters),
            clock: Arc::clone(&self.clock),
        }
    }

    pub(super) fn registrar(&self, records: &Arc<JobLane>) -> Registrar {
        Registrar {
            namespaces: Arc::clone(&self.namespaces),
            log: self.stored().log.clone(),
            records: Arc::clone(records),
            limits: Arc::clone(&self.limits),
            clock: Arc::clone(&self.clock),
        }
    }

    pub(super) fn reclaimer(&self) -> Reclaimer {
        let namespaces = Arc::clone(&self.namespaces);
        Reclaimer {
            stored: self.stored(),
            relocator: Relocator { stored: self.stored(), namespaces },
            dropper: Arc::clone(&self.dropper),
            removals: self.removals(),
            far: self.far(),
            limits: Arc::clone(&self.limits),
        }
    }

    pub(super) fn row_merger(&self, space: &Arc<SpaceLane>) -> RowMerger {
        RowMerger {
            stored: self.stored(),
            namespaces: Arc::clone(&self.namespaces),
            dropper: Arc::clone(&self.dropper),
            space: Arc::clone(space),
            counters: Arc::clone(&self.counters),
        }
    }

    pub(super) fn scrub_parts(&self) -> ScrubParts {
        ScrubParts {
            stored: self.stored(),
            dropper: Arc::clone(&self.dropper),
            device: Arc::clone(&self.device),
            counters: Arc::clone(&self.counters),
            clock: Arc::clone(&self.clock),
        }
    }

    pub(super) fn writer(&self, space: &Arc<SpaceLane>, merger: &Arc<Merger>) -> Writer {
        let planner = PutPlanner {
            stored: self.stored(),
            failed_reads: Arc::clone(&self.failed_reads),
            removals: self.removals(),
            far: self.far(),
            device: Arc::clone(&self.device),
            hidden: Arc::clone(&self.finder().hidden),
            dram: Arc::clone(&self.recent().dram),
            pending: Pending::default(),
            admission: admission_filter(self.limits.admission),
        };
        let publisher = ExtentPublisher {
            stored: self.stored(),
            dropper: Arc::clone(&self.dropper),
            failed_reads: Arc::clone(&self.failed_reads),
            removals: self.removals(),
            far: self.far(),
            merger: Arc::clone(merger),
        };
        let extents = ExtentWriter {
            log: self.stored().log.clone(),
            publisher,
            space: Arc::clone(space),
            dram: Arc::clone(&self.recent().dram),
            removals: self.removals(),
            namespaces: Arc::clone(&self.namespaces),
            limits: Arc::clone(&self.limits),
        };
        Writer {
            planner,
            extents,
            merger: Arc::clone(merger),
            namespaces: Arc::clone(&self.namespaces),
            counters: Arc::clone(&self.counters),
            clock: Arc::clone(&self.clock),
        }
    }

    pub(super) fn remover(&self, space: &Arc<SpaceLane>, records: &Arc<JobLane>) -> Remover {
        let local = LocalRemover {
            stored: self.stored(),
            dropper: Arc::clone(&self.dropper),
            removals: self.removals(),
            hidden: Arc::clone(&self.finder().hidden),
            notes: self.notes.clone(),
            space: Arc::clone(space),
            index: self.limits.index,
        };
        Remover {
            local: Arc::new(local),
            records: Arc::clone(records),
            finder: self.finder(),
            limits: Arc::clone(&self.limits),
            clock: Arc::clone(&self.clock),
        }
    }

    /// What the threads of the far tier use.
    pub(super) fn local_store(
        &self,
        writer: &Arc<Writer>,
        remover: &Arc<Remover>,
        notes: &Arc<RemovalNotes>,
    ) -> LocalStore {
        LocalStore {
            stored: Arc::downgrade(&self.dropper.stored),
            recent: Arc::downgrade(&self.dropper.recent),
            writer: Arc::downgrade(writer),
            remover: Arc::downgrade(remover),
            namespaces: Arc::clone(&self.namespaces),
            removals: self.removals(),
            notes: Arc::clone(notes),
        }
    }

    pub(super) fn meters(&self, merger: &Arc<Merger>) -> Meters {
        Meters {
            counters: Arc::clone(&self.counters),
            merger: Arc::clone(merger),
            stored: self.stored(),
            dram: Arc::clone(&self.recent().dram),
            device: Arc::clone(&self.device),
            order: Arc::clone(&self.order),
            far: self.far(),
            notes: self.notes.clone(),
            limits: Arc::clone(&self.limits),
        }
    }
}
