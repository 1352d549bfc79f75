//! One `fdatasync` for all puts that arrive together.
//!
//! 1. `done <= started <= asked`; a put is durable when `done` reaches the ticket it drew after its writes completed.
//! 2. At most one sync of a segment runs at a time; the first waiter runs it for all.

use dalsegno_io::IoError;
use parking_lot::{Condvar, Mutex};

#[derive(Debug, Default)]
struct Tickets {
    asked: u64,
    done: u64,
    running: bool,
    failed: bool,
}

/// The gate of one segment.
#[derive(Debug, Default)]
pub(crate) struct SyncGate {
    tickets: Mutex<Tickets>,
    changed: Condvar,
}

/// How a wait at the gate ended.
#[derive(Debug)]
pub(crate) enum Synced {
    Durable,
    /// A sync failed, this one or one before it.
    Failed(Option<IoError>),
}

impl SyncGate {
    /// Returns when everything written before the call is durable. `sync` runs on the thread of one of the waiters.
    pub(crate) fn pass(&self, sync: impl Fn() -> Result<(), IoError>) -> Synced {
        let mut tickets = self.tickets.lock();
        tickets.asked += 1;
        let mine = tickets.asked;
        loop {
            if tickets.failed {
                return Synced::Failed(None);
            }
            if tickets.done >= mine {
                return Synced::Durable;
            }
            if tickets.running {
                self.changed.wait(&mut tickets);
                continue;
            }
            tickets.running = true;
            let covered = tickets.asked;
            let result = parking_lot::MutexGuard::unlocked(&mut tickets, &sync);
            tickets.running = false;
            self.changed.notify_all();
            match result {
                Ok(()) => tickets.done = covered,
                Err(error) => {
                    tickets.failed = true;
                    return Synced::Failed(Some(error));
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicU32, Ordering};

    #[test]
    fn puts_that_arrive_together_share_a_sync() {
        let gate = SyncGate::default();
        let count = AtomicU32::new(0);
        let barrier = std::sync::Barrier::new(8);
        std::thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| {
                    barrier.wait();
                    let synced = gate.pass(|| {
                        count.fetch_add(1, Ordering::SeqCst);
                        std::thread::sleep(std::time::Duration::from_millis(50));
                        Ok(())
                    });
                    assert!(matches!(synced, Synced::Durable));
                });
            }
        });
        assert!(count.load(Ordering::SeqCst) < 8, "{count:?}");
    }

    #[test]
    fn after_a_failed_sync_nothing_is_durable_again() {
        let gate = SyncGate::default();
        assert!(matches!(gate.pass(|| Err(IoError::Busy)), Synced::Failed(Some(_))));
        assert!(matches!(gate.pass(|| Ok(())), Synced::Failed(None)));
    }
}
