//! A schedule as people see it.

use super::phases::Phase;

/// The requests of a class.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ClassView {
    /// Requests that wait.
    pub waiting: usize,
    /// Their bytes.
    pub waiting_bytes: u64,
    /// Requests that have started so far.
    pub started: u64,
    /// Of those, how many had waited for longer than their class does.
    pub aged: u64,
    /// Requests that were refused because too many waited.
    pub refused: u64,
}

/// A schedule at one moment.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ScheduleView {
    /// Of the most urgent engine; `None` if no engine says what it does.
    pub phase: Option<Phase>,
    /// Engines that say what they do.
    pub engines: usize,
    /// In the order of [`Class::ALL`](dalsegno_core::Class::ALL).
    pub classes: [ClassView; 4],
    /// Bytes in flight that keep the device busy, for reads and writes.
    pub window_bytes: [u64; 2],
    /// Bytes per second at which engines that decode let saves start.
    pub pace: u64,
    /// The rate of reads beside writes over that of reads alone.
    pub interference: f64,
}
