//! An open store: the paths that callers use, and what runs in the background.

use std::sync::Arc;
use std::time::Duration;

use dalsegno_core::{ChainHash, NamespaceId, Result};

use crate::blocks::recent::RecentBlocks;
use crate::device::{Scheduled, Watched};
use crate::lookup::lookups::Lookups;
use crate::namespaces::registrar::Registrar;
use crate::open::meters::Meters;
use crate::open::workers::Workers;
use crate::put::writer::Writer;
use crate::read::loader::Loader;
use crate::remove::remover::{PublishRemovals, RemovalOrigin, Remover};
use crate::state::removal_feed::RemovalFeed;
use crate::terms::Terms;

/// How long closing waits for transfers, calls and background work under way.
pub(crate) const CLOSE_TIMEOUT: Duration = Duration::from_secs(10);

/// The parts of an open store. Every call holds it until it ends, and with it the directory.
#[derive(Debug)]
pub(crate) struct OpenStore {
    pub(crate) loader: Loader,
    pub(crate) lookups: Lookups,
    pub(crate) writer: Arc<Writer>,
    pub(crate) remover: Arc<Remover>,
    pub(crate) registrar: Registrar,
    pub(crate) recent: Arc<RecentBlocks>,
    pub(crate) feed: Arc<RemovalFeed>,
    pub(crate) meters: Meters,
    /// Who goes first at the device.
    pub(crate) order: Arc<Scheduled<Watched>>,
    /// Dropped last, because the paths use the lanes.
    pub(crate) workers: Workers,
}

impl OpenStore {
    /// See [`Store::remove`](crate::Store::remove).
    pub(crate) fn remove(
        &self,
        namespace: NamespaceId,
        hashes: Option<&[ChainHash]>,
        terms: &Terms,
    ) -> Result<u64> {
        let lanes = self.workers.far.as_ref().map(|far| far as &dyn PublishRemovals);
        self.remover.remove(RemovalOrigin::Caller(lanes), namespace, hashes, terms)
    }
}
