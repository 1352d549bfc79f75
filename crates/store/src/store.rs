//! The store as callers hold it.
//!
//! 1. It serves the process that opened it. In a forked child every call is refused before it touches a lock, and what
//!    is dropped is left as it is: nothing reaches the files, the rings or the directory's lock, which the parent uses.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use dalsegno_core::{
    Clock, Compression, Deadline, Error, ErrorKind, Limits, Namespace, NamespaceId, Result, StoreId,
};
use dalsegno_index::Index;
use dalsegno_io::{IoError, Process};
use dalsegno_log::{Log, LogError};
use dalsegno_policy::AdmissionFilter;
use parking_lot::{Mutex, RwLock};

use crate::dram::Dram;
use crate::failed_reads::FailedReads;
use crate::merge::Merger;
use crate::pending::Pending;
use crate::removal_watch::RemovalFeed;
use crate::room::RoomMaker;
use crate::scrub::Scrubber;
use crate::stats::{Counters, Stats};
use crate::transfer::TransferLanes;
use crate::upkeep::Upkeep;
use crate::watch::Watched;

/// How long closing waits for transfers that are under way.
const CLOSE_PATIENCE: Duration = Duration::from_secs(10);
/// How long background work stands back before a piece of I/O.
const DEFERRAL_POLLS: u32 = 50;
const DEFERRAL_POLL: Duration = Duration::from_millis(1);
const CLOSE_POLL: Duration = Duration::from_millis(1);

/// A store of KV-cache blocks. Clones share it; it is closed when [`Store::close`] is called or the last one is
/// dropped.
#[derive(Clone, Debug)]
pub struct Store {
    pub(crate) door: Arc<Door>,
    pub(crate) transfers: Arc<TransferLanes>,
}

/// What every clone of a store shares. A call goes in through [`Store::enter`] and holds what it got until it ends, so
/// files, threads and the lock go only when nobody uses them any more.
#[derive(Debug)]
pub(crate) struct Door {
    inner: RwLock<Option<Arc<Inner>>>,
    /// What was counted, once the store is closed.
    last: Mutex<Option<Stats>>,
    id: StoreId,
    limits: Limits,
    pub(crate) process: Process,
}

#[derive(Debug)]
pub(crate) struct Inner {
    pub(crate) limits: Limits,
    /// The device, as it is asked.
    pub(crate) watch: Arc<Watched>,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) log: Log,
    pub(crate) index: Arc<dyn Index>,
    pub(crate) upkeep: Upkeep,
    pub(crate) dram: Dram,
    pub(crate) pending: Pending,
    pub(crate) failed_reads: FailedReads,
    pub(crate) removal_feed: RemovalFeed,
    pub(crate) admission: Mutex<AdmissionFilter>,
    /// Who may share bytes, and how new extents of theirs are stored.
    pub(crate) namespaces: RwLock<HashMap<NamespaceId, (Arc<Namespace>, Compression)>>,
    /// Held by whoever makes a namespace known.
    pub(crate) registering: Mutex<()>,
    pub(crate) counters: Counters,
    pub(crate) room: RoomMaker,
    pub(crate) merger: Merger,
    pub(crate) scrubber: Scrubber,
    /// Gets under way: background work stands back for them.
    pub(crate) reads: AtomicU32,
}

impl Store {
    pub(crate) fn new(inner: Inner, transfers: TransferLanes) -> Self {
        let (id, limits) = (inner.log.store(), inner.limits.clone());
        let inner = RwLock::new(Some(Arc::new(inner)));
        let door = Door { inner, last: Mutex::default(), id, limits, process: Process::this() };
        Self { door: Arc::new(door), transfers: Arc::new(transfers) }
    }

    /// What a call works with, until it ends.
    pub(crate) fn enter(&self) -> Result<Arc<Inner>> {
        self.check_process()?;
        let closed = || Error::new(ErrorKind::Closed, "the store is closed; open it again");
        self.door.enter().ok_or_else(closed)
    }

    /// Fails in a forked child, as every call does. Never waits, so that whoever must lock something before a call can
    /// ask first: in a child a lock may stay taken for ever.
    ///
    /// # Errors
    ///
    /// `Unavailable`.
    pub fn check_process(&self) -> Result<()> {
        let process = self.door.process;
        if process.is_this() { Ok(()) } else { Err(forked(process)) }
    }

    /// The store's random name.
    #[must_use]
    pub fn id(&self) -> StoreId {
        self.door.id
    }

    /// The bounds it was opened with.
    #[must_use]
    pub fn limits(&self) -> &Limits {
        &self.door.limits
    }

    /// All counters and gauges; of a closed store, as they were in the end.
    ///
    /// # Panics
    ///
    /// In a forked child: see [`Store::check_process`].
    #[must_use]
    pub fn stats(&self) -> Stats {
        match self.enter() {
            Ok(inner) => crate::stats::view(&inner),
            Err(error) => {
                assert!(error.kind() == ErrorKind::Closed, "{error}");
                self.door.last.lock().clone().expect("noted before the store closed")
            }
        }
    }

    /// The namespaces that are known, by id: those with blocks when the store was opened, and those registered since.
    ///
    /// # Errors
    ///
    /// `Closed`.
    pub fn namespaces(&self) -> Result<Vec<Namespace>> {
        let inner = self.enter()?;
        let mut known: Vec<Namespace> =
            inner.namespaces.read().values().map(|(namespace, _)| (**namespace).clone()).collect();
        known.sort_by_key(Namespace::id);
        Ok(known)
    }

    /// Carries out what was begun, lets go of the directory and of everything else. Calling it again does nothing, nor
    /// does calling it in a forked child.
    ///
    /// A call that does not end within ten seconds, because the device hangs, is left behind. The directory stays
    /// locked until it ends and the device has answered every write and sync.
    pub fn close(&self) {
        let Ok(inner) = self.enter() else { return };
        let deadline = Deadline::At(inner.clock.now().after(CLOSE_PATIENCE));
        self.transfers.stop(deadline, inner.clock.as_ref());
        inner.merger.close(deadline.remaining(inner.clock.now()).unwrap_or_default());
        inner.scrubber.close(deadline.remaining(inner.clock.now()).unwrap_or_default());
        *self.door.last.lock() = Some(crate::stats::view(&inner));
        self.door.inner.write().take();
        while Arc::strong_count(&inner) > 1 {
            if deadline.expired(inner.clock.now()) {
                tracing::warn!(
                    "a call did not end in time; the directory is let go when it and its writes do"
                );
                break;
            }
            std::thread::sleep(CLOSE_POLL);
        }
        inner.list_segments(deadline);
        inner.room.close(deadline, inner.clock.as_ref());
        inner.upkeep.close();
        inner.log.close();
        *self.door.last.lock() = Some(crate::stats::view(&inner));
    }

    /// Whether the store was closed. In a forked child it always is.
    #[must_use]
    pub fn is_closed(&self) -> bool {
        !self.door.process.is_this() || self.door.inner.read().is_none()
    }
}

impl Door {
    /// What is behind it, unless the store was closed or this is a forked child, in which a lock may stay taken.
    pub(crate) fn enter(&self) -> Option<Arc<Inner>> {
        self.process.is_this().then(|| self.inner.read().as_ref().map(Arc::clone)).flatten()
    }
}

impl Drop for Door {
    /// In a forked child nothing is dropped: a thread that is not there may have been changing any part of it.
    fn drop(&mut self) {
        if !self.process.is_this() {
            std::mem::forget(self.inner.get_mut().take());
            std::mem::forget(self.last.get_mut().take());
        } else if let Some(inner) = self.inner.get_mut() {
            // While they work they hold the store, and with it the directory.
            inner.merger.close(CLOSE_PATIENCE);
            inner.scrubber.close(CLOSE_PATIENCE);
            let deadline = Deadline::At(inner.clock.now().after(CLOSE_PATIENCE));
            inner.list_segments(deadline);
            inner.room.close(deadline, inner.clock.as_ref());
        }
    }
}

impl Inner {
    /// Stands back while somebody reads, within bounds; `false` if it is called off meanwhile. For work that nobody
    /// waits for, before each piece of I/O.
    pub(crate) fn stand_back(&self, is_stopped: impl Fn() -> bool) -> bool {
        for _ in 0..DEFERRAL_POLLS {
            if is_stopped() {
                return false;
            }
            if self.reads.load(Ordering::Relaxed) == 0 {
                break;
            }
            std::thread::sleep(DEFERRAL_POLL);
        }
        true
    }

    /// A namespace that was registered.
    pub(crate) fn namespace(&self, id: NamespaceId) -> Result<Arc<Namespace>> {
        let found = self.namespaces.read().get(&id).map(|(namespace, _)| Arc::clone(namespace));
        found.ok_or_else(|| {
            Error::invalid(format!(
                "namespace {id} is not registered with this store; register it first"
            ))
        })
    }

    /// How new extents of a namespace are stored.
    pub(crate) fn compression(&self, id: NamespaceId) -> Compression {
        self.namespaces.read().get(&id).map(|(_, compression)| *compression).unwrap_or_default()
    }
}

/// What a forked child is told of a store that its parent opened.
pub(crate) fn forked(process: Process) -> Error {
    let message = format!(
        "this store was opened by process {} and does not work in a forked child: fork before you open it, or start \
         the child anew (with multiprocessing, the start method \"spawn\")",
        process.id()
    );
    Error::new(ErrorKind::Unavailable, message)
}

/// What an open is told when the system gives no more threads.
pub(crate) fn no_thread(error: std::io::Error) -> Error {
    Error::new(ErrorKind::Unavailable, "no thread could be started").with_source(error)
}

/// What the caller can do about an error of the log.
pub(crate) fn to_error(error: LogError) -> Error {
    let (kind, message) = match &error {
        LogError::Full => (
            ErrorKind::Full,
            "the log has no room left and nothing could be given up; raise the capacity or free the disk",
        ),
        LogError::TooLarge { .. } => (ErrorKind::Invalid, "the extent does not fit into a segment"),
        LogError::Poisoned => {
            (ErrorKind::Poisoned, "writing has stopped; close the store and open it again")
        }
        LogError::Deadline | LogError::Cancelled => {
            (ErrorKind::Unavailable, "the call ended early")
        }
        LogError::Io(IoError::Deadline) => (ErrorKind::Unavailable, "the call ended early"),
        LogError::Io(IoError::Suspended) => {
            (ErrorKind::Unavailable, "the store waits for its disk; go on without it")
        }
        LogError::Io(IoError::Busy) => (
            ErrorKind::Unavailable,
            "too much is asked of the store's disk at a time; go on without it, or raise \"staging\"",
        ),
        LogError::Io(error) if error.is_out_of_files() => (
            ErrorKind::Unavailable,
            "this process may not open more files, and a store has one open for each segment; raise its limit \
             (ulimit -n), or create the store with a larger \"segment\"",
        ),
        LogError::Io(_) => (ErrorKind::Unavailable, "the device failed"),
        LogError::Format { source: dalsegno_log::format::FormatError::Newer(_), .. } => (
            ErrorKind::Incompatible,
            "a newer Dalsegno wrote this store; upgrade, or use another directory",
        ),
        LogError::Format { .. } => (ErrorKind::Corrupt, "the store's files are damaged"),
    };
    Error::new(kind, message).with_source(error)
}
