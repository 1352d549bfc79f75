//! Puts and gets in the background.
//!
//! 1. A transfer ends exactly once, whatever happens: done, throttled, cancelled, or failed.
//! 2. When it has ended, nothing touches its memory any more.
//! 3. Queues are bounded; a full queue throttles, it never blocks the caller.
//! 4. Loads and stores have a lane each, so that no load waits while stores hang, and no store while loads do.
//! 5. In a forked child every transfer has ended: the thread that would end it is not there.
//! 6. Each function given to [`Transfer::on_end`] is called exactly once: when the transfer ends, however it ends, or
//!    immediately if it has ended.

use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;

use crossbeam_channel::TrySendError;
use dalsegno_core::{ChainHash, Clock, Deadline, Error, ErrorKind, NamespaceId, Result};
use dalsegno_index::Scope;
use dalsegno_io::{Memory, Process};
use parking_lot::{Condvar, Mutex};

use crate::get::{GetReport, Outcome};
use crate::lane::Lane;
use crate::put::{Put, PutOutcome, PutReport};
use crate::stats::add;
use crate::store::{Store, forked};
use crate::terms::{Cancel, Terms};

type Job = Box<dyn FnOnce() + Send>;
type Callback = Box<dyn FnOnce() + Send>;

/// Most functions that wait for the end of one transfer.
pub const MAX_CALLBACKS: usize = 8;

/// Which way the bytes of a transfer go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Direction {
    /// Out of the store.
    Load,
    /// Into the store.
    Store,
}

/// The threads that carry out transfers.
#[derive(Debug)]
pub(crate) struct TransferLanes {
    loads: Lane<Job>,
    stores: Lane<Job>,
}

impl TransferLanes {
    /// Starts `threads` threads for each direction, with a queue of `queue` transfers each.
    pub(crate) fn start(threads: u32, queue: u32) -> std::io::Result<Self> {
        let lane = |name| Lane::start(name, threads, queue, |job: Job| job());
        Ok(Self { loads: lane("dalsegno-load")?, stores: lane("dalsegno-store")? })
    }

    /// Queues a job, or gives it back.
    fn submit(&self, direction: Direction, job: Job) -> std::result::Result<(), Job> {
        let lane = match direction {
            Direction::Load => &self.loads,
            Direction::Store => &self.stores,
        };
        match lane.queue() {
            None => Err(job),
            Some(queue) => queue.try_send(job).map_err(TrySendError::into_inner),
        }
    }

    /// Accepts no more jobs and waits until the queued ones are done, at most until `deadline`.
    pub(crate) fn stop(&self, deadline: Deadline, clock: &dyn Clock) {
        let lanes = [&self.loads, &self.stores];
        for lane in lanes {
            lane.close();
        }
        for lane in lanes {
            lane.join(deadline.remaining(clock.now()).unwrap_or_default());
        }
    }
}

/// How far a transfer is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TransferState {
    /// Waiting or at work: its memory is in use.
    Running,
    /// Ended.
    Done,
}

/// A put or get, or one layer of it, in the background. Dropping it does not stop it.
#[derive(Debug)]
pub struct Transfer<T> {
    shared: Arc<Shared<T>>,
    cancel: Cancel,
    throttled: bool,
    process: Process,
}

#[derive(Debug)]
struct Shared<T> {
    progress: Mutex<Progress<T>>,
    ended: Condvar,
}

enum Progress<T> {
    Running(Vec<Callback>),
    /// With its result, until somebody takes it.
    Ended(Option<Result<T>>),
}

impl<T> Progress<T> {
    fn has_ended(&self) -> bool {
        matches!(self, Self::Ended(_))
    }
}

impl<T> fmt::Debug for Progress<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.has_ended() { "Ended" } else { "Running" })
    }
}

impl<T> Transfer<T> {
    fn new(throttled: bool) -> Self {
        let progress = Mutex::new(Progress::Running(Vec::new()));
        let shared = Shared { progress, ended: Condvar::new() };
        let process = Process::this();
        Self { shared: Arc::new(shared), cancel: Cancel::default(), throttled, process }
    }

    /// How far it is; never waits.
    #[must_use]
    pub fn state(&self) -> TransferState {
        if self.is_orphaned() || self.shared.progress.lock().has_ended() {
            TransferState::Done
        } else {
            TransferState::Running
        }
    }

    /// Waits until it has ended; `false` if `timeout` passed first.
    #[must_use]
    pub fn wait(&self, timeout: Option<Duration>) -> bool {
        if self.is_orphaned() {
            return true;
        }
        let mut progress = self.shared.progress.lock();
        let is_running = |progress: &mut Progress<T>| !progress.has_ended();
        match timeout {
            None => self.shared.ended.wait_while(&mut progress, is_running),
            Some(timeout) => {
                self.shared.ended.wait_while_for(&mut progress, is_running, timeout);
            }
        }
        progress.has_ended()
    }

    /// Calls `callback` exactly once when the transfer ends: done, throttled, cancelled or failed, also if the store is
    /// closed. If the transfer has ended, this call calls it before it returns.
    ///
    /// Otherwise a thread of the store calls it, and starts no other transfer until it returns. So it must be short: it
    /// wakes another thread, for example. It must not close the store or wait for another transfer. When it is called,
    /// [`Transfer::state`] is [`TransferState::Done`] and the result can be taken. A panic in it is logged and ignored.
    ///
    /// # Errors
    ///
    /// `Invalid` if [`MAX_CALLBACKS`] functions wait for this transfer. Then `callback` is dropped and not called.
    pub fn on_end(&self, callback: impl FnOnce() + Send + 'static) -> Result<()> {
        if !self.is_orphaned() {
            let mut progress = self.shared.progress.lock();
            if let Progress::Running(callbacks) = &mut *progress {
                if callbacks.len() == MAX_CALLBACKS {
                    let message = format!("a transfer calls at most {MAX_CALLBACKS} functions");
                    return Err(Error::invalid(message));
                }
                callbacks.push(Box::new(callback));
                return Ok(());
            }
        }
        call_back(Box::new(callback));
        Ok(())
    }

    /// Calls it off; it still ends by itself.
    pub fn cancel(&self) {
        self.cancel.cancel();
    }

    /// Whether it was refused because the queue was full (or the store closed).
    #[must_use]
    pub fn is_throttled(&self) -> bool {
        self.throttled
    }

    /// Takes the result of a transfer that has ended; `None` before, or if it was taken. In a forked child the result
    /// is always that the store does not work there.
    #[must_use]
    pub fn take(&self) -> Option<Result<T>> {
        if self.is_orphaned() {
            return Some(Err(forked(self.process)));
        }
        match &mut *self.shared.progress.lock() {
            Progress::Running(_) => None,
            Progress::Ended(result) => result.take(),
        }
    }

    /// Whether it was left behind by a fork; then its locks may be taken for ever.
    fn is_orphaned(&self) -> bool {
        !self.process.is_this()
    }
}

impl<T> Shared<T> {
    fn finish(&self, result: Result<T>) {
        let before = std::mem::replace(&mut *self.progress.lock(), Progress::Ended(Some(result)));
        self.ended.notify_all();
        if let Progress::Running(callbacks) = before {
            callbacks.into_iter().for_each(call_back);
        }
    }
}

/// A panic must end neither the thread of the store nor the calls of the other functions.
fn call_back(callback: Callback) {
    if catch_unwind(AssertUnwindSafe(callback)).is_err() {
        tracing::error!("a function that was called at the end of a transfer panicked");
    }
}

/// Ends the transfer even if its job panics, or is dropped before it runs.
struct Ending<T>(Arc<Shared<T>>, Option<Result<T>>);

impl<T> Drop for Ending<T> {
    fn drop(&mut self) {
        let lost = || Err(Error::new(ErrorKind::Unavailable, "the transfer broke off"));
        self.0.finish(self.1.take().unwrap_or_else(lost));
    }
}

impl Store {
    /// Starts [`Store::put_batch`] in the background; never waits. A full queue gives a transfer that has ended.
    #[must_use]
    pub fn submit_put(
        &self,
        namespace: NamespaceId,
        chain: Vec<ChainHash>,
        first: usize,
        blocks: Vec<Vec<Memory>>,
        timeout: Option<Duration>,
    ) -> Transfer<PutReport> {
        let refused = Ok(PutReport { outcomes: vec![PutOutcome::Failed; blocks.len()] });
        self.start(Direction::Store, refused, timeout, move |store, terms| {
            store.put_batch(namespace, Put { chain: &chain, first, blocks }, terms)
        })
    }

    /// Starts [`Store::get_batch`] in the background; never waits. A full queue gives a transfer that has ended.
    #[must_use]
    pub fn submit_get(
        &self,
        namespace: NamespaceId,
        chain: Vec<ChainHash>,
        out: Vec<Vec<Memory>>,
        scope: Scope,
        timeout: Option<Duration>,
    ) -> Transfer<GetReport> {
        self.start(Direction::Load, Ok(throttled_get(&out)), timeout, move |store, terms| {
            store.get_batch(namespace, &chain, out, scope, terms)
        })
    }

    /// Starts [`Store::retrieve_layer`] in the background; never waits. A full queue gives a transfer that has ended.
    #[must_use]
    pub fn submit_retrieve_layer(
        &self,
        namespace: NamespaceId,
        chain: Vec<ChainHash>,
        layer: u32,
        out: Vec<Vec<Memory>>,
        timeout: Option<Duration>,
    ) -> Transfer<GetReport> {
        self.start(Direction::Load, Ok(throttled_get(&out)), timeout, move |store, terms| {
            store.retrieve_layer(namespace, &chain, layer, out, terms)
        })
    }

    /// Queues work; `refused` is the result if the direction's queue is full.
    pub(crate) fn start<T: Send + 'static>(
        &self,
        direction: Direction,
        refused: Result<T>,
        timeout: Option<Duration>,
        work: impl FnOnce(&Self, &Terms) -> Result<T> + Send + 'static,
    ) -> Transfer<T> {
        let transfer = Transfer::new(false);
        let shared = Arc::clone(&transfer.shared);
        let inner = match self.enter() {
            Ok(inner) => inner,
            Err(closed) => {
                shared.finish(Err(closed));
                return transfer;
            }
        };
        let terms = Terms { timeout, cancel: Some(transfer.cancel.clone()) };
        // The deadline counts from now, the time in the queue included.
        let clock = Arc::clone(&inner.clock);
        let submitted = clock.now();
        let store = self.clone();
        let mut ending = Ending(shared, None);
        let job: Job = Box::new(move || {
            let waited = clock.now().since(submitted);
            let timeout = terms.timeout.map(|timeout| timeout.saturating_sub(waited));
            ending.1 = Some(work(&store, &Terms { timeout, ..terms }));
            drop(ending);
        });
        match self.transfers.submit(direction, job) {
            Ok(()) => transfer,
            Err(job) => {
                drop(job);
                add(&inner.counters.throttled_transfers, 1);
                let throttled = Transfer::new(true);
                throttled.shared.finish(refused);
                throttled
            }
        }
    }
}

fn throttled_get(out: &[Vec<Memory>]) -> GetReport {
    GetReport { outcomes: vec![Outcome::Lost("throttled"); out.len()] }
}
