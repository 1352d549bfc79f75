//! The schedule of the device as people see it.

use dalsegno_policy::schedule::{ClassView, Phase, ScheduleView};
use serde::Serialize;

/// The requests of a class.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct ClassStats {
    /// Requests that wait for their turn.
    pub waiting: u64,
    /// Their bytes.
    pub waiting_bytes: u64,
    /// Requests that started.
    pub started: u64,
    /// Requests that started because they had waited for long enough.
    pub aged: u64,
    /// Requests that were refused because too many waited.
    pub refused: u64,
}

/// In which order requests to the device start, and why.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct ScheduleStats {
    /// What the most urgent engine does: `"prefill"`, `"decode"` or `"idle"`; `"unknown"` if no engine says so.
    pub phase: &'static str,
    /// Engines that say what they do.
    pub engines: u64,
    /// What engines wait for.
    pub need: ClassStats,
    /// What engines are about to need.
    pub prefetch: ClassStats,
    /// What engines have computed, and the space for it.
    pub save: ClassStats,
    /// Merging, scrubbing, the index.
    pub upkeep: ClassStats,
    /// Bytes of reads in flight that keep the device busy.
    pub read_window_bytes: u64,
    /// The same of writes.
    pub write_window_bytes: u64,
    /// Bytes per second of saves and upkeep while engines decode.
    pub decode_pace_bytes_per_s: u64,
    /// The rate of reads beside writes over that of reads alone, as measured.
    pub interference: f64,
}

impl From<ClassView> for ClassStats {
    fn from(view: ClassView) -> Self {
        let ClassView { waiting, waiting_bytes, started, aged, refused } = view;
        Self { waiting: waiting as u64, waiting_bytes, started, aged, refused }
    }
}

impl From<ScheduleView> for ScheduleStats {
    fn from(view: ScheduleView) -> Self {
        let [need, prefetch, save, upkeep] = view.classes.map(ClassStats::from);
        let [read_window_bytes, write_window_bytes] = view.window_bytes;
        let phase = match view.phase {
            None => "unknown",
            Some(Phase::Prefill { .. }) => "prefill",
            Some(Phase::Decode) => "decode",
            Some(Phase::Idle) => "idle",
        };
        Self {
            phase,
            engines: view.engines as u64,
            need,
            prefetch,
            save,
            upkeep,
            read_window_bytes,
            write_window_bytes,
            decode_pace_bytes_per_s: view.pace,
            interference: view.interference,
        }
    }
}
