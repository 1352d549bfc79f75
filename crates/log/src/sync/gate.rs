//! One `fdatasync` for all writers that wait for the same file.
//!
//! 1. `done <= issued`. A writer draws a ticket after its writes completed; it is durable when `done` reaches the
//!    ticket.
//! 2. At most one sync of a file runs at a time. The first waiter runs it for all.
//! 3. A waiter leaves when its call ends, and no other waiter fails because of that: the next one takes over the
//!    abandoned sync, and learns its result before another sync starts.
//!
//! | phase | next phase | when |
//! |---|---|---|
//! | idle | running | a waiter starts a sync |
//! | abandoned | running | a waiter takes the started sync over |
//! | running | idle | the sync succeeded, or the device refused it as busy |
//! | running | abandoned | the waiter's call ended first |
//! | running | failed | the sync failed; every later waiter fails |

use std::time::Duration;

use crossbeam_channel::Receiver;
use dalsegno_core::{Deadline, Stopped};
use dalsegno_io::{Completion, IoError};
use parking_lot::{Condvar, Mutex, MutexGuard};

use crate::error::LogError;

#[derive(Debug, Default)]
struct Tickets {
    issued: u64,
    done: u64,
    phase: SyncPhase,
}

/// What the gate's sync is doing.
#[derive(Debug, Default)]
enum SyncPhase {
    #[default]
    Idle,
    Running,
    Abandoned {
        /// The last ticket that the sync makes durable.
        last_ticket: u64,
        sync: StartedSync,
    },
    Failed,
}

/// Lets the writers of one file share syncs.
#[derive(Debug, Default)]
pub(crate) struct SyncGate {
    tickets: Mutex<Tickets>,
    changed: Condvar,
}

/// Why writes are not durable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Unsynced {
    /// This sync or an earlier one failed.
    Failed,
    /// The call ended, and the sync is still running. Or the device was busy, so that it never started.
    Stopped(Stopped),
}

impl From<Stopped> for Unsynced {
    fn from(stopped: Stopped) -> Self {
        Self::Stopped(stopped)
    }
}

impl From<Unsynced> for LogError {
    fn from(why: Unsynced) -> Self {
        match why {
            Unsynced::Failed => Self::Poisoned,
            Unsynced::Stopped(stopped) => stopped.into(),
        }
    }
}

/// A sync that the device has.
#[derive(Debug)]
pub(super) struct StartedSync {
    pub(super) completion: Receiver<Completion>,
    /// A sync that takes longer has failed.
    pub(super) limit: Deadline,
}

/// One waiter: how it syncs and how long it waits.
pub(super) trait SyncWaiter {
    /// Submits a sync to the device.
    fn start(&self) -> StartedSync;
    /// Waits for a sync; the outer error says that the waiter's call ended first.
    fn finish(&self, sync: &StartedSync) -> Result<Result<(), IoError>, Stopped>;
    /// How long to wait for another waiter before calling this again; an error if the waiter's call ended.
    fn timeout(&self) -> Result<Option<Duration>, Stopped>;
    /// Called when a sync failed.
    fn on_failure(&self, error: &IoError);
}

impl SyncGate {
    /// Returns when everything written before the call is durable.
    pub(super) fn pass(&self, waiter: &impl SyncWaiter) -> Result<(), Unsynced> {
        let mut tickets = self.tickets.lock();
        tickets.issued += 1;
        let mine = tickets.issued;
        loop {
            if matches!(tickets.phase, SyncPhase::Failed) {
                return Err(Unsynced::Failed);
            }
            if tickets.done >= mine {
                return Ok(());
            }
            let timeout = waiter.timeout()?;
            let (last_ticket, abandoned) =
                match std::mem::replace(&mut tickets.phase, SyncPhase::Running) {
                    SyncPhase::Idle => (tickets.issued, None),
                    SyncPhase::Abandoned { last_ticket, sync } => (last_ticket, Some(sync)),
                    SyncPhase::Running | SyncPhase::Failed => {
                        match timeout {
                            None => self.changed.wait(&mut tickets),
                            Some(timeout) => drop(self.changed.wait_for(&mut tickets, timeout)),
                        }
                        continue;
                    }
                };
            let (sync, ended) = MutexGuard::unlocked(&mut tickets, || {
                let sync = abandoned.unwrap_or_else(|| waiter.start());
                let ended = waiter.finish(&sync);
                (sync, ended)
            });
            tickets.phase = SyncPhase::Idle;
            self.changed.notify_all();
            match ended {
                Ok(Ok(())) => tickets.done = tickets.done.max(last_ticket),
                Ok(Err(IoError::Stopped(Stopped::Busy))) => return Err(Stopped::Busy.into()),
                Ok(Err(error)) => {
                    tickets.phase = SyncPhase::Failed;
                    waiter.on_failure(&error);
                }
                Err(stopped) => {
                    tickets.phase = SyncPhase::Abandoned { last_ticket, sync };
                    return Err(stopped.into());
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crossbeam_channel::{Sender, bounded};
    use std::sync::atomic::{AtomicU32, Ordering};

    /// Waits at most `timeout` for the completion that `start` returns.
    struct Manual<F: Fn() -> Receiver<Completion>> {
        start: F,
        timeout: Option<Duration>,
    }

    impl<F: Fn() -> Receiver<Completion>> SyncWaiter for Manual<F> {
        fn start(&self) -> StartedSync {
            StartedSync { completion: (self.start)(), limit: Deadline::Never }
        }

        fn finish(&self, sync: &StartedSync) -> Result<Result<(), IoError>, Stopped> {
            let received = match self.timeout {
                None => sync.completion.recv().map_err(|_| Stopped::Cancelled),
                Some(timeout) => {
                    sync.completion.recv_timeout(timeout).map_err(|_| Stopped::Deadline)
                }
            };
            received.map(|completion| completion.result)
        }

        fn timeout(&self) -> Result<Option<Duration>, Stopped> {
            Ok(self.timeout)
        }

        fn on_failure(&self, _: &IoError) {}
    }

    fn waiter<F: Fn() -> Receiver<Completion>>(start: F) -> Manual<F> {
        Manual { start, timeout: None }
    }

    fn complete(sender: &Sender<Completion>, result: Result<(), IoError>) {
        sender.send(Completion { tag: 0, memory: Vec::new(), crcs: Vec::new(), result }).unwrap();
    }

    fn completed(result: Result<(), IoError>) -> Receiver<Completion> {
        let (sender, receiver) = bounded(1);
        complete(&sender, result);
        receiver
    }

    #[test]
    fn waiters_that_arrive_together_share_a_sync() {
        let gate = SyncGate::default();
        let count = AtomicU32::new(0);
        let barrier = std::sync::Barrier::new(8);
        std::thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| {
                    barrier.wait();
                    let synced = gate.pass(&waiter(|| {
                        count.fetch_add(1, Ordering::SeqCst);
                        std::thread::sleep(Duration::from_millis(50));
                        completed(Ok(()))
                    }));
                    assert_eq!(synced, Ok(()));
                });
            }
        });
        assert!(count.load(Ordering::SeqCst) < 8, "{count:?}");
    }

    #[test]
    fn after_a_failed_sync_every_waiter_fails() {
        let gate = SyncGate::default();
        let refused = waiter(|| completed(Err(IoError::Stopped(Stopped::Busy))));
        assert_eq!(gate.pass(&refused), Err(Stopped::Busy.into()));
        assert_eq!(gate.pass(&waiter(|| completed(Ok(())))), Ok(()));
        let failing = waiter(|| completed(Err(IoError::Stopped(Stopped::Deadline))));
        assert_eq!(gate.pass(&failing), Err(Unsynced::Failed));
        assert_eq!(gate.pass(&waiter(|| completed(Ok(())))), Err(Unsynced::Failed));
    }

    #[test]
    fn the_next_waiter_takes_over_an_abandoned_sync() {
        for result in [Ok(()), Err(IoError::Stopped(Stopped::Deadline))] {
            let fails = result.is_err();
            let gate = SyncGate::default();
            let (sender, receiver) = bounded(1);
            let timeout = Some(Duration::from_millis(1));
            let impatient = Manual { start: || receiver.clone(), timeout };
            assert_eq!(gate.pass(&impatient), Err(Stopped::Deadline.into()));
            complete(&sender, result);
            // The first sync does not count for the second waiter, which wrote after it started.
            let started = AtomicU32::new(0);
            let synced = gate.pass(&waiter(|| {
                started.fetch_add(1, Ordering::SeqCst);
                completed(Ok(()))
            }));
            assert_eq!(synced, if fails { Err(Unsynced::Failed) } else { Ok(()) });
            assert_eq!(started.into_inner(), u32::from(!fails));
        }
    }
}
