//! The puts that a client has submitted and that have not ended.
//!
//! A removal of the same client waits for them, so that it also removes blocks that were submitted before it.

use std::collections::BTreeSet;
use std::sync::Arc;

use dalsegno_core::{Clock, Stopped};
use dalsegno_io::Call;
use parking_lot::{Condvar, Mutex};

/// The puts in the background of one client.
#[derive(Debug, Default)]
pub(super) struct SubmittedPuts {
    numbers: Mutex<PutNumbers>,
    ended: Condvar,
}

#[derive(Debug, Default)]
struct PutNumbers {
    next: u64,
    running: BTreeSet<u64>,
}

/// One of them, until it is dropped.
#[derive(Debug)]
pub(super) struct SubmittedPut {
    puts: Arc<SubmittedPuts>,
    number: u64,
}

impl SubmittedPuts {
    pub(super) fn begin(self: &Arc<Self>) -> SubmittedPut {
        let mut numbers = self.numbers.lock();
        let number = numbers.next;
        numbers.next += 1;
        numbers.running.insert(number);
        SubmittedPut { puts: Arc::clone(self), number }
    }

    /// Waits until the puts end that were submitted before.
    ///
    /// # Errors
    ///
    /// [`Stopped::Deadline`] or [`Stopped::Cancelled`] if the call ends first.
    pub(super) fn wait_for_earlier(&self, call: &Call, clock: &dyn Clock) -> Result<(), Stopped> {
        let mut numbers = self.numbers.lock();
        let next = numbers.next;
        while numbers.running.first().is_some_and(|first| *first < next) {
            match call.timeout(clock)? {
                None => self.ended.wait(&mut numbers),
                Some(time) => {
                    self.ended.wait_for(&mut numbers, time);
                }
            }
        }
        Ok(())
    }
}

impl Drop for SubmittedPut {
    fn drop(&mut self) {
        self.puts.numbers.lock().running.remove(&self.number);
        self.puts.ended.notify_all();
    }
}
