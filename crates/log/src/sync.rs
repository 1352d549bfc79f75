//! One `fdatasync` for all puts that arrive together.
//!
//! 1. `done <= started <= asked`; a put is durable when `done` reaches the ticket it drew after its writes completed.
//! 2. At most one sync of a segment runs at a time; the first waiter minds it for all.
//! 3. A waiter leaves when its call is over, and that fails nobody: the sync it minded is left to the next one, who
//!    finds out how it ended before another is started.

use std::time::Duration;

use crossbeam_channel::Receiver;
use dalsegno_core::Deadline;
use dalsegno_io::{Completion, FileId, IoError};
use parking_lot::{Condvar, Mutex, MutexGuard};

use crate::call::Call;
use crate::error::LogError;
use crate::log::Core;
use crate::reserve::SYNC_LIMIT;

#[derive(Debug, Default)]
struct Tickets {
    asked: u64,
    done: u64,
    running: bool,
    /// A sync whose minder left, and the last ticket that it covers.
    left: Option<(u64, UnderWay)>,
    failed: bool,
}

/// The gate of one segment.
#[derive(Debug, Default)]
pub(crate) struct SyncGate {
    tickets: Mutex<Tickets>,
    changed: Condvar,
}

/// Why something is not durable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Unsynced {
    /// A sync failed, this one or one before it.
    Failed,
    /// The deadline came first; the sync goes on.
    Deadline,
    /// The caller called it off; the sync goes on.
    Cancelled,
    /// It was never begun: too much is asked of the device.
    Busy,
}

impl From<Unsynced> for LogError {
    fn from(why: Unsynced) -> Self {
        match why {
            Unsynced::Failed => Self::Poisoned,
            Unsynced::Deadline => Self::Deadline,
            Unsynced::Cancelled => Self::Cancelled,
            Unsynced::Busy => Self::Io(IoError::Busy),
        }
    }
}

/// A sync that was handed over.
#[derive(Debug)]
pub(crate) struct UnderWay {
    answer: Receiver<Completion>,
    /// If it takes longer, it has failed.
    limit: Deadline,
}

/// One waiter: how it syncs and how long it waits.
pub(crate) trait Waiter {
    /// Hands a sync to the device.
    fn start(&self) -> UnderWay;
    /// Waits for a sync; an outer error if the waiter's time is up first.
    fn mind(&self, sync: &UnderWay) -> Result<Result<(), IoError>, Unsynced>;
    /// How long to wait for somebody else before asking again; an error if the waiter's time is up.
    fn patience(&self) -> Result<Option<Duration>, Unsynced>;
    /// Told of a sync that failed.
    fn failed(&self, error: &IoError);
}

impl SyncGate {
    /// Returns when everything written before the call is durable.
    pub(crate) fn pass(&self, waiter: &impl Waiter) -> Result<(), Unsynced> {
        let mut tickets = self.tickets.lock();
        tickets.asked += 1;
        let mine = tickets.asked;
        loop {
            if tickets.failed {
                return Err(Unsynced::Failed);
            }
            if tickets.done >= mine {
                return Ok(());
            }
            let patience = waiter.patience()?;
            if tickets.running {
                match patience {
                    None => self.changed.wait(&mut tickets),
                    Some(patience) => drop(self.changed.wait_for(&mut tickets, patience)),
                }
                continue;
            }
            tickets.running = true;
            let (covered, earlier) = match tickets.left.take() {
                Some((covered, sync)) => (covered, Some(sync)),
                None => (tickets.asked, None),
            };
            let (sync, ended) = MutexGuard::unlocked(&mut tickets, || {
                let sync = earlier.unwrap_or_else(|| waiter.start());
                let ended = waiter.mind(&sync);
                (sync, ended)
            });
            tickets.running = false;
            self.changed.notify_all();
            match ended {
                Ok(Ok(())) => tickets.done = tickets.done.max(covered),
                Ok(Err(IoError::Busy)) => return Err(Unsynced::Busy),
                Ok(Err(error)) => {
                    tickets.failed = true;
                    waiter.failed(&error);
                }
                Err(why) => {
                    tickets.left = Some((covered, sync));
                    return Err(why);
                }
            }
        }
    }
}

/// A call that waits until a file is durable.
pub(crate) struct SyncCall<'a> {
    pub(crate) core: &'a Core,
    pub(crate) file: FileId,
    pub(crate) call: &'a Call,
}

impl Waiter for SyncCall<'_> {
    fn start(&self) -> UnderWay {
        let limit = Call::foreground().at_most(SYNC_LIMIT, self.core.clock.as_ref());
        UnderWay { answer: self.core.start_sync(self.file), limit }
    }

    fn mind(&self, sync: &UnderWay) -> Result<Result<(), IoError>, Unsynced> {
        loop {
            if let Ok(completion) = sync.answer.try_recv() {
                return Ok(completion.result);
            }
            let patience = self.patience()?;
            let left = sync.limit.remaining(self.core.clock.now());
            if left.is_some_and(|left| left.is_zero()) {
                return Ok(Err(IoError::Deadline));
            }
            let received = match left.into_iter().chain(patience).min() {
                None => sync.answer.recv().ok(),
                Some(wait) => sync.answer.recv_timeout(wait).ok(),
            };
            if let Some(completion) = received {
                return Ok(completion.result);
            }
        }
    }

    fn patience(&self) -> Result<Option<Duration>, Unsynced> {
        self.call.patience(self.core.clock.as_ref()).map_err(|error| match error {
            LogError::Cancelled => Unsynced::Cancelled,
            _ => Unsynced::Deadline,
        })
    }

    fn failed(&self, error: &IoError) {
        self.core.poison(error);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crossbeam_channel::{Sender, bounded};
    use std::sync::atomic::{AtomicU32, Ordering};

    /// Syncs with what `start` hands out, and waits `patience` at most.
    struct Manual<F: Fn() -> Receiver<Completion>> {
        start: F,
        patience: Option<Duration>,
    }

    impl<F: Fn() -> Receiver<Completion>> Waiter for Manual<F> {
        fn start(&self) -> UnderWay {
            UnderWay { answer: (self.start)(), limit: Deadline::Never }
        }

        fn mind(&self, sync: &UnderWay) -> Result<Result<(), IoError>, Unsynced> {
            let received = match self.patience {
                None => sync.answer.recv().map_err(|_| Unsynced::Cancelled),
                Some(patience) => {
                    sync.answer.recv_timeout(patience).map_err(|_| Unsynced::Deadline)
                }
            };
            received.map(|completion| completion.result)
        }

        fn patience(&self) -> Result<Option<Duration>, Unsynced> {
            Ok(self.patience)
        }

        fn failed(&self, _: &IoError) {}
    }

    fn patient<F: Fn() -> Receiver<Completion>>(start: F) -> Manual<F> {
        Manual { start, patience: None }
    }

    fn answer(sender: &Sender<Completion>, result: Result<(), IoError>) {
        sender.send(Completion { tag: 0, memory: Vec::new(), result }).unwrap();
    }

    fn answered(result: Result<(), IoError>) -> Receiver<Completion> {
        let (sender, receiver) = bounded(1);
        answer(&sender, result);
        receiver
    }

    #[test]
    fn puts_that_arrive_together_share_a_sync() {
        let gate = SyncGate::default();
        let count = AtomicU32::new(0);
        let barrier = std::sync::Barrier::new(8);
        std::thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| {
                    barrier.wait();
                    let synced = gate.pass(&patient(|| {
                        count.fetch_add(1, Ordering::SeqCst);
                        std::thread::sleep(Duration::from_millis(50));
                        answered(Ok(()))
                    }));
                    assert_eq!(synced, Ok(()));
                });
            }
        });
        assert!(count.load(Ordering::SeqCst) < 8, "{count:?}");
    }

    #[test]
    fn after_a_failed_sync_nothing_is_durable_again() {
        let gate = SyncGate::default();
        let refused = patient(|| answered(Err(IoError::Busy)));
        assert_eq!(gate.pass(&refused), Err(Unsynced::Busy));
        assert_eq!(gate.pass(&patient(|| answered(Ok(())))), Ok(()));
        let failing = patient(|| answered(Err(IoError::Deadline)));
        assert_eq!(gate.pass(&failing), Err(Unsynced::Failed));
        assert_eq!(gate.pass(&patient(|| answered(Ok(())))), Err(Unsynced::Failed));
    }

    #[test]
    fn a_sync_whose_minder_left_is_ended_by_the_next_waiter() {
        for result in [Ok(()), Err(IoError::Deadline)] {
            let fails = result.is_err();
            let gate = SyncGate::default();
            let (sender, receiver) = bounded(1);
            let patience = Some(Duration::from_millis(1));
            let hasty = Manual { start: || receiver.clone(), patience };
            assert_eq!(gate.pass(&hasty), Err(Unsynced::Deadline));
            answer(&sender, result);
            // The first sync does not cover the second waiter: what it wrote came later.
            let started = AtomicU32::new(0);
            let synced = gate.pass(&patient(|| {
                started.fetch_add(1, Ordering::SeqCst);
                answered(Ok(()))
            }));
            assert_eq!(synced, if fails { Err(Unsynced::Failed) } else { Ok(()) });
            assert_eq!(started.into_inner(), u32::from(!fails));
        }
    }
}
