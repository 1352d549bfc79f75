//! The reads under way, to which background work yields.

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

/// How often background work looks whether a read is under way before one piece of I/O: 50 ms in all.
const YIELD_POLLS: u32 = 50;
const YIELD_POLL: Duration = Duration::from_millis(1);

/// Counts the gets under way.
#[derive(Debug, Default)]
pub(crate) struct ReadGauge {
    reads: AtomicU32,
}

/// A get under way; it ends when this is dropped.
pub(crate) struct ReadInProgress<'a>(&'a ReadGauge);

impl ReadGauge {
    /// Counts a get until the result is dropped.
    pub(crate) fn begin(&self) -> ReadInProgress<'_> {
        self.reads.fetch_add(1, Ordering::Relaxed);
        ReadInProgress(self)
    }

    /// Whether a get is under way.
    pub(crate) fn is_busy(&self) -> bool {
        self.reads.load(Ordering::Relaxed) > 0
    }

    /// Waits while a get is under way, at most 50 ms; `false` if the work is to stop. Background work calls this before
    /// each piece of I/O.
    pub(crate) fn yield_to_reads(&self, is_stopped: impl Fn() -> bool) -> bool {
        for _ in 0..YIELD_POLLS {
            if is_stopped() {
                return false;
            }
            if !self.is_busy() {
                break;
            }
            std::thread::sleep(YIELD_POLL);
        }
        true
    }
}

impl Drop for ReadInProgress<'_> {
    fn drop(&mut self) {
        self.0.reads.fetch_sub(1, Ordering::Relaxed);
    }
}
