//! Which process a value belongs to.
//!
//! 1. A fork copies memory and descriptors, but no threads. In the child nothing executes requests, locks held by other
//!    threads stay locked, and data that they were changing stays half changed.
//! 2. So a value that depends on threads or locks serves only the process that made it. A child neither uses nor
//!    destroys its copy.
//! 3. The locks that threads wait on share one table, which a fork copies with its waiting threads. So a child that was
//!    forked while threads of ours ran starts none: some would wait in that table forever.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Whether a task that takes long is to stop before it has finished.
#[derive(Clone, Default)]
pub struct StopSignal(Option<Arc<dyn Fn() -> bool + Send + Sync>>);

impl StopSignal {
    /// A signal that a function returns. It is called several times a second.
    pub fn new(is_set: impl Fn() -> bool + Send + Sync + 'static) -> Self {
        Self(Some(Arc::new(is_set)))
    }

    /// Whether it is set.
    #[must_use]
    pub fn is_set(&self) -> bool {
        self.0.as_ref().is_some_and(|is_set| is_set())
    }
}

impl fmt::Debug for StopSignal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("StopSignal")
    }
}

/// The number of running threads of ours and their process, in one value so that a fork copies both consistently.
static RUNNING: AtomicU64 = AtomicU64::new(0);
const COUNT_BITS: u32 = 32;

/// The process that made a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Process(u32);

impl Process {
    /// The calling process.
    #[must_use]
    pub fn this() -> Self {
        Self(std::process::id())
    }

    /// Whether it is the calling process, not a parent of it.
    #[must_use]
    pub fn is_this(self) -> bool {
        self == Self::this()
    }

    /// Its pid, for messages.
    #[must_use]
    pub fn id(self) -> u32 {
        self.0
    }
}

/// The parent, if it had threads of ours when it forked this process. Nothing of ours works here then (invariant 3).
#[must_use]
pub fn forked_amid_threads() -> Option<Process> {
    parent_of(RUNNING.load(Ordering::Acquire))
}

fn parent_of(running: u64) -> Option<Process> {
    let (process, count) = (running >> COUNT_BITS, running & u64::from(u32::MAX));
    let process = Process(u32::try_from(process).expect("the upper half"));
    (count > 0 && !process.is_this()).then_some(process)
}

/// Counts a thread of this process as running until it is dropped.
#[derive(Debug)]
pub(crate) struct RunningThread(());

impl RunningThread {
    /// Fails with the parent if it forked this process while its threads ran.
    pub(crate) fn begin() -> Result<Self, Process> {
        let this = u64::from(Process::this().0) << COUNT_BITS;
        let counted = RUNNING.fetch_update(Ordering::AcqRel, Ordering::Acquire, |running| {
            // Threads that ended before a fork do not count.
            let count = running & u64::from(u32::MAX);
            parent_of(running).is_none().then_some(this | (count + 1))
        });
        match counted {
            Ok(_) => Ok(Self(())),
            Err(running) => Err(parent_of(running).expect("otherwise the thread was counted")),
        }
    }
}

impl Drop for RunningThread {
    fn drop(&mut self) {
        RUNNING.fetch_sub(1, Ordering::AcqRel);
    }
}
