//! Named threads: the one place that starts them, and how those that belong together are waited for.
//!
//! 1. Waiting for threads is bounded: one that hangs in the kernel is left behind with a warning.
//! 2. A thread never waits for itself, and a forked child neither waits for its parent's threads nor lets go of them.

use std::convert::Infallible;
use std::io;
use std::thread::{Builder, JoinHandle};
use std::time::Duration;

use crossbeam_channel::{Receiver, RecvTimeoutError, Sender};

use crate::Process;
use crate::process::RunningThread;

/// Starts a thread. The name shows in `top` and debuggers, which cut it after 15 bytes.
///
/// # Errors
///
/// The system's own error when it refuses another thread; an error of its own kind in a child that was forked amid
/// threads: see [`crate::forked_amid_threads`].
pub fn spawn(name: &str, body: impl FnOnce() + Send + 'static) -> io::Result<JoinHandle<()>> {
    let running = RunningThread::begin().map_err(|parent| {
        io::Error::other(format!("process {} had threads when it forked this one", parent.id()))
    })?;
    Builder::new().name(name.to_owned()).spawn(move || {
        let _running = running;
        body();
    })
}

/// Runs `work` on up to `count` threads, the calling one included, and returns when all of them have. Where the system
/// refuses threads, fewer do the work.
///
/// # Panics
///
/// If `work` panics.
pub fn share_work(name: &str, count: u32, work: impl Fn() + Sync) {
    let work = &work;
    std::thread::scope(|scope| {
        for _ in 1..count {
            let Ok(running) = RunningThread::begin() else { break };
            let body = move || {
                let _running = running;
                work();
            };
            if let Err(error) = Builder::new().name(name.to_owned()).spawn_scoped(scope, body) {
                tracing::warn!(%error, "the system refuses a thread; fewer share the work");
                break;
            }
        }
        work();
    });
}

/// Threads that belong together.
#[derive(Debug)]
pub struct Workers {
    threads: Vec<JoinHandle<()>>,
    /// Every thread holds a clone; nothing is ever sent, the channel ends when the last thread does.
    alive: Option<Sender<Infallible>>,
    ended: Receiver<Infallible>,
    process: Process,
}

impl Default for Workers {
    fn default() -> Self {
        Self::new()
    }
}

impl Workers {
    /// None yet.
    #[must_use]
    pub fn new() -> Self {
        let (alive, ended) = crossbeam_channel::bounded(0);
        Self { threads: Vec::new(), alive: Some(alive), ended, process: Process::this() }
    }

    /// Starts one more.
    ///
    /// # Errors
    ///
    /// As [`spawn`].
    pub fn start(&mut self, name: &str, body: impl FnOnce() + Send + 'static) -> io::Result<()> {
        let alive = self.alive.clone();
        self.threads.push(spawn(name, move || {
            let _alive = alive;
            body();
        })?);
        Ok(())
    }

    /// Whether the threads run in this process: a forked child has only copies of their handles, and of locks that
    /// nobody will ever release.
    #[must_use]
    pub fn are_ours(&self) -> bool {
        self.process.is_this()
    }

    /// Waits until all threads ended, at most `patience`.
    pub fn join(&mut self, patience: Duration) {
        if !self.are_ours() {
            return;
        }
        self.alive = None;
        let here = std::thread::current().id();
        if self.threads.iter().any(|thread| thread.thread().id() == here) {
            return;
        }
        if self.ended.recv_timeout(patience) == Err(RecvTimeoutError::Timeout) {
            tracing::warn!(
                seconds = patience.as_secs(),
                "threads do not end; they and their memory are left behind"
            );
            return;
        }
        for thread in self.threads.drain(..) {
            if thread.join().is_err() {
                tracing::error!("a thread panicked; what it worked on was answered with an error");
            }
        }
    }
}

impl Drop for Workers {
    /// In a forked child nothing is dropped: a handle there names a thread that is not, or by now another one, and the
    /// channel may be locked for ever.
    fn drop(&mut self) {
        if self.are_ours() {
            return;
        }
        std::mem::forget(std::mem::take(&mut self.threads));
        std::mem::forget(self.alive.take());
        std::mem::forget(std::mem::replace(&mut self.ended, crossbeam_channel::never()));
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
