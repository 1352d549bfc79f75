//! Named threads: the one place that starts them, and how an engine's threads are waited for.
//!
//! 1. Waiting for threads is bounded: one that hangs in the kernel is left behind with a warning.
//! 2. A thread never waits for itself, and a forked child never waits for its parent's threads.

use std::convert::Infallible;
use std::io;
use std::thread::{Builder, JoinHandle};
use std::time::Duration;

use crossbeam_channel::{Receiver, RecvTimeoutError, Sender};

/// Starts a thread. The name shows in `top` and debuggers, which cut it after 15 bytes.
///
/// # Errors
///
/// The system's own error when it refuses another thread.
pub fn spawn(name: &str, body: impl FnOnce() + Send + 'static) -> io::Result<JoinHandle<()>> {
    Builder::new().name(name.to_owned()).spawn(body)
}

/// The threads of one engine.
#[derive(Debug)]
pub(crate) struct Workers {
    threads: Vec<JoinHandle<()>>,
    /// Every thread holds a clone; nothing is ever sent, the channel ends when the last thread does.
    alive: Option<Sender<Infallible>>,
    ended: Receiver<Infallible>,
    process: u32,
}

impl Workers {
    pub(crate) fn new() -> Self {
        let (alive, ended) = crossbeam_channel::bounded(0);
        Self { threads: Vec::new(), alive: Some(alive), ended, process: std::process::id() }
    }

    pub(crate) fn start(
        &mut self,
        name: &str,
        body: impl FnOnce() + Send + 'static,
    ) -> io::Result<()> {
        let alive = self.alive.clone();
        self.threads.push(spawn(name, move || {
            let _alive = alive;
            body();
        })?);
        Ok(())
    }

    /// Whether the threads run in this process: a forked child has only copies of their handles, and of locks that
    /// nobody will ever release.
    pub(crate) fn are_ours(&self) -> bool {
        self.process == std::process::id()
    }

    /// Waits until all threads ended, at most `patience`.
    pub(crate) fn join(&mut self, patience: Duration) {
        self.alive = None;
        let here = std::thread::current().id();
        if !self.are_ours() || self.threads.iter().any(|thread| thread.thread().id() == here) {
            return;
        }
        if self.ended.recv_timeout(patience) == Err(RecvTimeoutError::Timeout) {
            tracing::warn!(
                seconds = patience.as_secs(),
                "the device does not answer; its threads and their memory are left behind"
            );
            return;
        }
        for thread in self.threads.drain(..) {
            if thread.join().is_err() {
                tracing::error!("an I/O thread panicked; its requests were answered with an error");
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hanging_thread_is_left_behind() {
        let (hold, blocked) = crossbeam_channel::bounded::<()>(0);
        let mut workers = Workers::new();
        workers.start("hangs", move || assert!(blocked.recv().is_err())).unwrap();
        workers.join(Duration::from_millis(10));
        assert_eq!(workers.threads.len(), 1);
        drop(hold);
        workers.join(Duration::from_secs(10));
        assert!(workers.threads.is_empty());
    }

    #[test]
    fn the_system_refuses_a_thread_with_an_error_not_a_panic() {
        // A name with a NUL panics, a stack that cannot be mapped does not: the same path as a thread limit.
        let refused = Builder::new().stack_size(1 << 60).spawn(|| ());
        assert!(refused.is_err());
    }
}
