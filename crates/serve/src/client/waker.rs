//! How calls wake the thread that looks after a client's connections.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crossbeam_channel::{Receiver, Sender};

/// Wakes a thread, and ends it. Waking it twice before it looks is waking it once.
#[derive(Debug)]
pub(super) struct Waker {
    sender: Sender<()>,
    receiver: Receiver<()>,
    is_closing: AtomicBool,
}

impl Default for Waker {
    fn default() -> Self {
        let (sender, receiver) = crossbeam_channel::bounded(1);
        Self { sender, receiver, is_closing: AtomicBool::new(false) }
    }
}

impl Waker {
    /// The thread looks now.
    pub(super) fn wake(&self) {
        // A full queue means that it was woken already.
        let _ = self.sender.try_send(());
    }

    /// The thread ends.
    pub(super) fn close(&self) {
        self.is_closing.store(true, Ordering::Release);
        self.wake();
    }

    /// Waits to be woken, at most for `timeout`. `false` if the thread is to end.
    pub(super) fn wait(&self, timeout: Duration) -> bool {
        if !self.is_closing.load(Ordering::Acquire) {
            let _ = self.receiver.recv_timeout(timeout);
        }
        !self.is_closing.load(Ordering::Acquire)
    }
}
