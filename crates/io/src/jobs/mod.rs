//! Work that threads of ours do: jobs that callers queue, and work that repeats.

mod lane;
mod periodic;

use std::time::Duration;

pub use self::lane::{JobLane, JobPlace};
pub use self::periodic::{Duty, NextStep, Periodic};

/// How long dropping a lane, or work that repeats, waits for its threads.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(10);

/// What carries out background work.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Executor {
    /// Threads that are started for it.
    #[default]
    Threads,
    /// The threads that call, so that a simulation that replays its calls replays this work too.
    Inline,
}
