//! Which process something belongs to.
//!
//! 1. A fork copies memory and descriptors, but no threads. In the child nobody carries out a request, what another
//!    thread had locked stays locked, and what it was changing stays half changed.
//! 2. So what depends on threads or locks serves only the process that made it, and a child leaves its copy where it
//!    is: it neither uses it nor takes it apart.
//! 3. Locks that threads wait for have a table in common, which a fork copies as it is, with the threads that wait in
//!    it. So a child that was forked while threads of ours ran starts none: some would wait in that table for ever.

use std::sync::atomic::{AtomicU64, Ordering};

/// How many threads of ours run, and in which process: one number, so that a fork copies both as they belong together.
static RUNNING: AtomicU64 = AtomicU64::new(0);
const COUNT_BITS: u32 = 32;

/// The process that made something.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Process(u32);

impl Process {
    /// The process that asks.
    #[must_use]
    pub fn this() -> Self {
        Self(std::process::id())
    }

    /// Whether it is the process that asks, and not its parent.
    #[must_use]
    pub fn is_this(self) -> bool {
        self == Self::this()
    }

    /// Its number, for messages.
    #[must_use]
    pub fn id(self) -> u32 {
        self.0
    }
}

/// The process that had threads of ours when it forked this one. Nothing of ours works here then (invariant 3).
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
    /// Fails with the process that forked this one amid its threads.
    pub(crate) fn begin() -> Result<Self, Process> {
        let this = u64::from(Process::this().0) << COUNT_BITS;
        let counted = RUNNING.fetch_update(Ordering::AcqRel, Ordering::Acquire, |running| {
            // Threads that ended before a fork belong to nobody.
            let count = running & u64::from(u32::MAX);
            parent_of(running).is_none().then_some(this | (count + 1))
        });
        match counted {
            Ok(_) => Ok(Self(())),
            Err(running) => Err(parent_of(running).expect("or it would have been counted")),
        }
    }
}

impl Drop for RunningThread {
    fn drop(&mut self) {
        RUNNING.fetch_sub(1, Ordering::AcqRel);
    }
}
