//! Puts and gets in the background.
//!
//! 1. A transfer ends exactly once: done, throttled, cancelled, or failed.
//! 2. When it has ended, nothing touches its memory any more.
//! 3. Queues are bounded. A full queue throttles; it never blocks the caller.
//! 4. Loads and stores have a lane each. So no load waits while stores hang, and no store while loads do.
//! 5. In a forked child every transfer has ended: the thread that would end it does not exist there.
//! 6. A transfer that is withdrawn while it is queued never touches its memory, and ends in its turn.
//! 7. Each function given to [`Transfer::on_end`] is called exactly once: when the transfer ends, or immediately if it
//!    has ended.

use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::Duration;

use dalsegno_core::{Clock, Deadline, Error, ErrorKind, Result};
use dalsegno_io::{Copier, CpuCopier, Executor, JobLane, Process};
use parking_lot::{Condvar, Mutex};

use crate::error::forked;
use crate::terms::{Cancel, Terms};

type Callback = Box<dyn FnOnce() + Send>;

/// Most functions that wait for the end of one transfer.
pub const MAX_CALLBACKS: usize = 8;

/// What a transfer does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// Out of the store.
    Load,
    /// Out of a lease: it never waits behind a disk.
    Lease,
    /// Into the store.
    Store,
}

/// The threads that carry out transfers.
#[derive(Debug)]
pub struct TransferLanes {
    loads: JobLane,
    leases: JobLane,
    stores: JobLane,
    copier: Arc<CpuCopier>,
}

impl TransferLanes {
    /// A lane for each direction, with up to `threads` threads and a queue of `queue` transfers each, and up to
    /// `threads` threads that copy for them.
    ///
    /// # Errors
    ///
    /// The system's own if it refuses the first thread of a direction.
    pub fn start(executor: Executor, threads: u32, queue: u32) -> std::io::Result<Self> {
        let lane = |name| JobLane::start(name, executor, threads, queue as usize);
        let copier = Arc::new(CpuCopier::start(executor, threads)?);
        let [loads, leases, stores] = ["dalsegno-load", "dalsegno-lease", "dalsegno-store"];
        Ok(Self { loads: lane(loads)?, leases: lane(leases)?, stores: lane(stores)?, copier })
    }

    /// What copies between places and the memory of an engine.
    #[must_use]
    pub fn copier(&self) -> Arc<dyn Copier> {
        Arc::clone(&self.copier) as _
    }

    /// Queues work; never waits. If the direction's queue is full, the transfer has ended with `refused`, and is
    /// [throttled](Transfer::is_throttled). `work` gets the rest of `timeout`: the time in the queue counts.
    pub fn run<T: Send + 'static>(
        &self,
        direction: Direction,
        timeout: Option<Duration>,
        clock: &Arc<dyn Clock>,
        refused: Result<T>,
        work: impl FnOnce(&Terms) -> Result<T> + Send + 'static,
    ) -> Transfer<T> {
        let lane = match direction {
            Direction::Load => &self.loads,
            Direction::Lease => &self.leases,
            Direction::Store => &self.stores,
        };
        let Ok(place) = lane.keep_place(Some(Duration::ZERO)) else {
            let throttled = Transfer::new(true);
            throttled.shared.finish(refused);
            return throttled;
        };
        let transfer = Transfer::new(false);
        let terms = Terms { timeout, cancel: Some(transfer.cancel.clone()) };
        let clock = Arc::clone(clock);
        let submitted = clock.now();
        let mut ending = TransferEnd(Arc::clone(&transfer.shared), None);
        place.start(move |permission| {
            let waited = clock.now().since(submitted);
            let timeout = terms.timeout.map(|timeout| timeout.saturating_sub(waited));
            if ending.0.begin() {
                ending.1 = permission.ok().map(|()| work(&Terms { timeout, ..terms }));
            } else {
                // What it holds is dropped before its end is reported.
                drop(work);
            }
            drop(ending);
        });
        transfer
    }

    /// Accepts no more jobs and waits until the queued ones are done, at most until `deadline`.
    pub fn stop(&self, deadline: Deadline, clock: &dyn Clock) {
        let lanes = [&self.loads, &self.leases, &self.stores];
        for lane in lanes {
            lane.close();
        }
        for lane in lanes {
            lane.join(deadline.remaining(clock.now()).unwrap_or_default());
        }
        // Transfers use it until they end.
        self.copier.stop(deadline.remaining(clock.now()).unwrap_or_default());
    }
}

/// The state of a transfer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TransferState {
    /// Queued or under way: its memory is in use.
    Running,
    /// Ended.
    Done,
}

/// A put or get, or one layer of it, in the background. Dropping it does not stop it.
#[derive(Debug)]
pub struct Transfer<T> {
    shared: Arc<TransferShared<T>>,
    cancel: Cancel,
    throttled: bool,
    process: Process,
}

#[derive(Debug)]
struct TransferShared<T> {
    progress: Mutex<TransferProgress<T>>,
    ended: Condvar,
    turn: AtomicU8,
}

/// Still in the queue.
const QUEUED: u8 = 0;
/// Its job has begun.
const BEGUN: u8 = 1;
/// Its job must not begin.
const WITHDRAWN: u8 = 2;

enum TransferProgress<T> {
    Running(Vec<Callback>),
    /// With its result, until somebody takes it.
    Ended(Option<Result<T>>),
}

impl<T> TransferProgress<T> {
    fn has_ended(&self) -> bool {
        matches!(self, Self::Ended(_))
    }
}

impl<T> fmt::Debug for TransferProgress<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.has_ended() { "Ended" } else { "Running" })
    }
}

impl<T> Transfer<T> {
    fn new(throttled: bool) -> Self {
        let progress = Mutex::new(TransferProgress::Running(Vec::new()));
        let shared =
            TransferShared { progress, ended: Condvar::new(), turn: AtomicU8::new(QUEUED) };
        let process = Process::this();
        Self { shared: Arc::new(shared), cancel: Cancel::default(), throttled, process }
    }

    /// A transfer that has ended.
    #[must_use]
    pub fn ended(result: Result<T>) -> Self {
        let transfer = Self::new(false);
        transfer.shared.finish(result);
        transfer
    }

    /// Its state; never waits.
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
        let is_running = |progress: &mut TransferProgress<T>| !progress.has_ended();
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
            if let TransferProgress::Running(callbacks) = &mut *progress {
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

    /// Cancels it; it still ends by itself.
    pub fn cancel(&self) {
        self.cancel.cancel();
    }

    /// Cancels it; whether nothing touches its memory from now on: it has ended, or will not begin. Else it ends soon.
    #[must_use]
    pub fn withdraw(&self) -> bool {
        self.cancel.cancel();
        let was_queued = self.shared.leave_queue(WITHDRAWN);
        was_queued || self.shared.is_withdrawn() || self.state() == TransferState::Done
    }

    /// Whether it was refused because the queue was full (or the store closed).
    #[must_use]
    pub fn is_throttled(&self) -> bool {
        self.throttled
    }

    /// Takes the result of a transfer that has ended; `None` before, or if it was taken. In a forked child the result
    /// is always the error that the store does not work there.
    #[must_use]
    pub fn take(&self) -> Option<Result<T>> {
        if self.is_orphaned() {
            return Some(Err(forked(self.process)));
        }
        match &mut *self.shared.progress.lock() {
            TransferProgress::Running(_) => None,
            TransferProgress::Ended(result) => result.take(),
        }
    }

    /// Whether it was left behind by a fork; then its locks may stay taken.
    fn is_orphaned(&self) -> bool {
        !self.process.is_this()
    }
}

impl<T> TransferShared<T> {
    /// Whether its job may begin.
    fn begin(&self) -> bool {
        self.leave_queue(BEGUN)
    }

    fn is_withdrawn(&self) -> bool {
        self.turn.load(Ordering::Acquire) == WITHDRAWN
    }

    /// Whether it was in the queue still.
    fn leave_queue(&self, turn: u8) -> bool {
        // What the job does is ordered by the lane, and what it has done by the end.
        self.turn.compare_exchange(QUEUED, turn, Ordering::AcqRel, Ordering::Acquire).is_ok()
    }

    fn finish(&self, result: Result<T>) {
        let before =
            std::mem::replace(&mut *self.progress.lock(), TransferProgress::Ended(Some(result)));
        self.ended.notify_all();
        if let TransferProgress::Running(callbacks) = before {
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
struct TransferEnd<T>(Arc<TransferShared<T>>, Option<Result<T>>);

impl<T> Drop for TransferEnd<T> {
    fn drop(&mut self) {
        let lost = || Err(Error::new(ErrorKind::Unavailable, "the transfer broke off"));
        self.0.finish(self.1.take().unwrap_or_else(lost));
    }
}
