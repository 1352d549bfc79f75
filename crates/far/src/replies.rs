//! Calls of a tier that one thread waits for.

use std::sync::Arc;
use std::time::Duration;

use crossbeam_channel::{Receiver, Sender, unbounded};
use dalsegno_core::{Clock, Deadline, Stopped};
use dalsegno_io::IoError;

use crate::tier::{Ask, Reply};

/// How often a wait looks at the clock, which in a simulation only moves between calls.
const POLL: Duration = Duration::from_millis(100);

/// Starts calls and receives their replies. Replies that arrive too late are dropped.
#[derive(Debug)]
pub(crate) struct Replies<T> {
    clock: Arc<dyn Clock>,
    sender: Sender<Reply<T>>,
    receiver: Receiver<Reply<T>>,
}

impl<T> Replies<T> {
    pub(crate) fn new(clock: &Arc<dyn Clock>) -> Self {
        let (sender, receiver) = unbounded();
        Self { clock: Arc::clone(clock), sender, receiver }
    }

    /// A call that is to start within `limit`.
    pub(crate) fn ask(&self, tag: u64, limit: Duration) -> Ask<T> {
        let deadline = Deadline::At(self.clock.now().after(limit));
        Ask { tag, deadline, reply: self.sender.clone() }
    }

    /// A reply that has arrived.
    pub(crate) fn arrived(&self) -> Option<Reply<T>> {
        self.receiver.try_recv().ok()
    }

    /// The next reply; `None` if none arrives until `deadline`.
    pub(crate) fn next(&self, deadline: Deadline) -> Option<Reply<T>> {
        loop {
            let left = deadline.remaining(self.clock.now());
            let wait = left.map_or(POLL, |left| left.min(POLL));
            if let Ok(reply) = self.receiver.recv_timeout(wait) {
                return Some(reply);
            }
            if deadline.expired(self.clock.now()) {
                return None;
            }
        }
    }
}

/// Makes one call of a tier, and waits for its reply.
///
/// # Errors
///
/// That of the call; [`Stopped::Deadline`] if it does not end within `limit`.
pub fn wait_for<T>(
    clock: &Arc<dyn Clock>,
    limit: Duration,
    call: impl FnOnce(Ask<T>),
) -> Result<T, IoError> {
    let replies = Replies::new(clock);
    call(replies.ask(0, limit));
    let deadline = Deadline::At(clock.now().after(limit));
    replies.next(deadline).map_or(Err(IoError::Stopped(Stopped::Deadline)), |reply| reply.result)
}
