//! Named threads: the only place that starts them and waits for them.
//!
//! 1. Waiting for threads is bounded. A thread that hangs in the kernel is abandoned with a warning.
//! 2. A thread never waits for itself. A forked child neither waits for its parent's threads nor drops their handles.

use std::convert::Infallible;
use std::io;
use std::thread::{Builder, JoinHandle};
use std::time::Duration;

use crossbeam_channel::{Receiver, RecvTimeoutError, Sender};

use crate::Process;
use crate::process::RunningThread;

/// Starts a thread. `top` and debuggers show the first 15 bytes of its name.
///
/// # Errors
///
/// The system's error if it refuses another thread. An error of kind `Other` in a child that was forked while threads
/// ran: see [`crate::forked_amid_threads`].
pub fn spawn(name: &str, body: impl FnOnce() + Send + 'static) -> io::Result<JoinHandle<()>> {
    let running = RunningThread::begin().map_err(|parent| {
        io::Error::other(format!("process {} forked this one while its threads ran", parent.id()))
    })?;
    Builder::new().name(name.to_owned()).spawn(move || {
        let _running = running;
        body();
    })
}

/// Starts a thread that takes no signal and is not counted: a child that was forked while it ran may start threads.
///
/// # Errors
///
/// The system's error if it refuses another thread.
pub(crate) fn spawn_uncounted(
    name: &str,
    body: impl FnOnce() + Send + 'static,
) -> io::Result<JoinHandle<()>> {
    Builder::new().name(name.to_owned()).spawn(move || {
        block_signals();
        body();
    })
}

/// Keeps signals from this thread: a write to a closed pipe would end the process, and others are for other threads.
fn block_signals() {
    let mut signals = std::mem::MaybeUninit::<libc::sigset_t>::uninit();
    // SAFETY: the first call initializes the set, and the second one only reads it.
    unsafe {
        libc::sigfillset(signals.as_mut_ptr());
        libc::pthread_sigmask(libc::SIG_BLOCK, signals.as_ptr(), std::ptr::null_mut());
    }
}

/// Runs `work` on up to `count` threads, including the calling one, and returns when all of them have finished. If the
/// system refuses threads, fewer run.
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
                tracing::warn!(%error, "cannot start another thread; fewer threads share the work");
                break;
            }
        }
        work();
    });
}

/// A group of threads that end together.
#[derive(Debug)]
pub struct Workers {
    threads: Vec<JoinHandle<()>>,
    /// Every thread holds a clone. Nothing is ever sent: the channel closes when the last thread ends.
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
    /// An empty group.
    #[must_use]
    pub fn new() -> Self {
        let (alive, ended) = crossbeam_channel::bounded(0);
        Self { threads: Vec::new(), alive: Some(alive), ended, process: Process::this() }
    }

    /// Starts another thread of the group.
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

    /// Whether the threads run in this process. A forked child has only copies of their handles and of locks that are
    /// never released.
    #[must_use]
    pub fn are_ours(&self) -> bool {
        self.process.is_this()
    }

    /// Waits until all threads have ended, at most `timeout`.
    pub fn join(&mut self, timeout: Duration) {
        if !self.are_ours() {
            return;
        }
        self.alive = None;
        let here = std::thread::current().id();
        if self.threads.iter().any(|thread| thread.thread().id() == here) {
            return;
        }
        if self.ended.recv_timeout(timeout) == Err(RecvTimeoutError::Timeout) {
            tracing::warn!(
                timeout_s = timeout.as_secs(),
                "threads did not end; abandoning them and their memory"
            );
            return;
        }
        for thread in self.threads.drain(..) {
            if thread.join().is_err() {
                tracing::error!("a thread panicked; its request completed with an error");
            }
        }
    }
}

impl Drop for Workers {
    /// A forked child drops nothing: a handle may name no thread or another one, and the channel may be locked forever.
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
        // A NUL in the name would panic. A stack that cannot be mapped takes the same path as a thread limit.
        let refused = Builder::new().stack_size(1 << 60).spawn(|| ());
        assert!(refused.is_err());
    }
}
