//! The door of a store: every call passes it, and closing shuts it.
//!
//! 1. A call holds what it got here until it ends. So files, threads and the lock are released only when no call uses
//!    them any more.
//! 2. A store serves the process that opened it. In a forked child every call is refused before it touches a lock, and
//!    nothing is dropped: the files, the rings and the directory's lock belong to the parent.

use std::sync::Arc;
use std::time::Duration;

use dalsegno_core::{Clock, Deadline, Error, ErrorKind, Limits, Result, StoreId};
use dalsegno_io::Process;
use parking_lot::{Mutex, RwLock};

use crate::counters::add;
use crate::error::forked;
use crate::jobs::transfers::{Direction, Transfer, TransferLanes};
use crate::open::open_store::{CLOSE_TIMEOUT, OpenStore};
use crate::state::recent_removals::RemovalMark;
use crate::stats::Stats;
use crate::terms::Terms;

const CLOSE_POLL: Duration = Duration::from_millis(1);

/// What every clone of a store shares.
#[derive(Debug)]
pub(crate) struct Door {
    /// None once the store is closed.
    open: RwLock<Option<Arc<OpenStore>>>,
    /// The last counters of a closed store.
    last: Mutex<Option<Stats>>,
    /// Held while the store is closed.
    closing: Mutex<()>,
    id: StoreId,
    limits: Arc<Limits>,
    process: Process,
}

impl Door {
    pub(crate) fn new(store: OpenStore) -> Self {
        let (id, limits) = (store.workers.stored.log.store(), Arc::clone(&store.meters.limits));
        let open = RwLock::new(Some(Arc::new(store)));
        Self {
            open,
            last: Mutex::default(),
            closing: Mutex::default(),
            id,
            limits,
            process: Process::this(),
        }
    }

    /// The store's random name.
    pub(crate) fn id(&self) -> StoreId {
        self.id
    }

    /// The bounds that the store was opened with.
    pub(crate) fn limits(&self) -> &Limits {
        &self.limits
    }

    /// Fails in a forked child; takes no lock.
    ///
    /// # Errors
    ///
    /// `Unavailable`.
    pub(crate) fn check_process(&self) -> Result<()> {
        if self.process.is_this() { Ok(()) } else { Err(forked(self.process)) }
    }

    /// The open store, for one call.
    ///
    /// # Errors
    ///
    /// `Closed`, or `Unavailable` in a forked child.
    pub(crate) fn enter(&self) -> Result<Arc<OpenStore>> {
        self.check_process()?;
        let closed = || Error::new(ErrorKind::Closed, "the store is closed; open it again");
        self.open.read().as_ref().map(Arc::clone).ok_or_else(closed)
    }

    /// The present moment between two removals.
    ///
    /// # Errors
    ///
    /// As [`Self::enter`].
    pub(crate) fn removal_mark(&self) -> Result<RemovalMark> {
        Ok(self.enter()?.recent.removals.mark())
    }

    /// Whether the store is closed, or this is a forked child.
    pub(crate) fn is_closed(&self) -> bool {
        !self.process.is_this() || self.open.read().is_none()
    }

    /// The counters; of a closed store, its last ones.
    ///
    /// # Panics
    ///
    /// In a forked child.
    pub(crate) fn stats(&self) -> Stats {
        match self.enter() {
            Ok(store) => store.meters.view(),
            Err(error) => {
                assert!(error.kind() == ErrorKind::Closed, "{error}");
                self.last.lock().clone().expect("kept before the store closed")
            }
        }
    }

    /// Closes the store; `end_transfers` runs first, with the deadline of the whole. While another thread closes it,
    /// waits for that.
    pub(crate) fn close(&self, end_transfers: impl FnOnce(Deadline, &dyn Clock)) {
        // In a forked child a thread of the parent may have locked it.
        if self.check_process().is_err() {
            return;
        }
        let _closing = self.closing.lock();
        let Ok(store) = self.enter() else { return };
        let clock = Arc::clone(&store.workers.clock);
        let deadline = Deadline::At(clock.now().after(CLOSE_TIMEOUT));
        end_transfers(deadline, clock.as_ref());
        store.workers.close_periodic_work(deadline);
        *self.last.lock() = Some(store.meters.view());
        self.open.write().take();
        while Arc::strong_count(&store) > 1 {
            if deadline.expired(clock.now()) {
                tracing::warn!(
                    "close timed out with a call under way; the directory stays locked until it and its writes end"
                );
                break;
            }
            std::thread::sleep(CLOSE_POLL);
        }
        store.workers.close_lanes(deadline);
        store.workers.close_log();
        *self.last.lock() = Some(store.meters.view());
    }
}

impl Drop for Door {
    /// In a forked child nothing is dropped: a thread that does not exist there may have been changing any part of it.
    fn drop(&mut self) {
        if !self.process.is_this() {
            std::mem::forget(self.open.get_mut().take());
            std::mem::forget(self.last.get_mut().take());
        } else if let Some(store) = self.open.get_mut() {
            // While background work runs it holds the log, and with it the directory.
            let workers = &store.workers;
            let timeout = || Deadline::At(workers.clock.now().after(CLOSE_TIMEOUT));
            workers.close_periodic_work(timeout());
            workers.close_lanes(timeout());
        }
    }
}

/// A transfer that is about to start.
pub(crate) struct Start<'a> {
    pub(crate) door: &'a Door,
    pub(crate) lanes: &'a TransferLanes,
    pub(crate) direction: Direction,
    pub(crate) timeout: Option<Duration>,
}

impl Start<'_> {
    /// Queues work; `refused` is the result if the direction's queue is full.
    pub(crate) fn run<T: Send + 'static>(
        self,
        refused: Result<T>,
        work: impl FnOnce(&Terms) -> Result<T> + Send + 'static,
    ) -> Transfer<T> {
        let store = match self.door.enter() {
            Ok(store) => store,
            Err(closed) => return Transfer::ended(Err(closed)),
        };
        let Self { lanes, direction, timeout, .. } = self;
        let transfer = lanes.run(direction, timeout, &store.workers.clock, refused, work);
        if transfer.is_throttled() {
            add(&store.meters.counters.throttled_transfers, 1);
        }
        transfer
    }
}
