//! The health of an index: can it be read, can it be written.
//!
//! | event | before | after |
//! |---|---|---|
//! | a read fails | reads `Intact` | reads `Missed` |
//! | damage is found | reads `Intact` or `Missed` | reads `Damaged` |
//! | a write finds no space | `Writable` | `Writable`, one more failed write, with the shortage |
//! | a write succeeds | `Writable` | `Writable`, no failed write, no shortage |
//! | the owner freed space | `Writable` | `Writable`, no shortage |
//! | a manifest may be durable or not | `Writable` | `Stopped(Unsure)` |
//! | the owner condemns the index | `Writable` | `Stopped(Condemned)` |
//! | the newest manifest names no tables | `Stopped(Condemned)` | `Stopped(TablesDropped)` |
//!
//! 1. Reads only get worse, and `Stopped` is final: the next open starts over.
//! 2. A stopped index writes nothing. It serves reads as before.

use parking_lot::Mutex;

use crate::error::{Shortage, TableError};

/// After so many failed writes in a row, something other than free space is missing: the file system reports some.
const FAILED_WRITES_OF_DISK: u32 = 3;

/// What reads met since the index was opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum ReadHealth {
    /// No error.
    Intact,
    /// Something could not be read, though it may be readable again.
    Missed,
    /// A table is damaged.
    Damaged,
}

/// Why nothing is written any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum StopCause {
    /// A manifest may be durable or not, so no other is written.
    Unsure,
    /// The owner condemned the index. The newest manifest may still name tables.
    Condemned,
    /// The owner condemned the index, and the next open finds no tables.
    TablesDropped,
}

#[derive(Clone, Copy, Debug)]
enum HealthState {
    Writable { reads: ReadHealth, failed_writes: u32, shortage: Option<Shortage> },
    Stopped { reads: ReadHealth, cause: StopCause },
}

impl HealthState {
    fn reads(&mut self) -> &mut ReadHealth {
        match self {
            Self::Writable { reads, .. } | Self::Stopped { reads, .. } => reads,
        }
    }
}

/// The health of an index.
#[derive(Debug)]
pub(crate) struct Health(Mutex<HealthState>);

impl Default for Health {
    fn default() -> Self {
        let reads = ReadHealth::Intact;
        Self(Mutex::new(HealthState::Writable { reads, failed_writes: 0, shortage: None }))
    }
}

impl Health {
    /// Whether a table is damaged. Then the index must be rebuilt.
    pub(crate) fn is_damaged(&self) -> bool {
        *self.0.lock().reads() == ReadHealth::Damaged
    }

    /// Whether something could not be read.
    pub(crate) fn has_missed(&self) -> bool {
        *self.0.lock().reads() >= ReadHealth::Missed
    }

    /// Whether nothing is written any more.
    pub(crate) fn is_stopped(&self) -> bool {
        self.stop_cause().is_some()
    }

    /// Why nothing is written any more.
    pub(crate) fn stop_cause(&self) -> Option<StopCause> {
        match *self.0.lock() {
            HealthState::Writable { .. } => None,
            HealthState::Stopped { cause, .. } => Some(cause),
        }
    }

    /// What was missing for the last write, unless a write succeeded since.
    pub(crate) fn shortage(&self) -> Option<Shortage> {
        match *self.0.lock() {
            HealthState::Writable { shortage, .. } => shortage,
            HealthState::Stopped { .. } => None,
        }
    }

    /// Records that there is space again.
    pub(crate) fn has_space_again(&self) {
        if let HealthState::Writable { shortage, .. } = &mut *self.0.lock() {
            *shortage = None;
        }
    }

    /// Records a successful write.
    pub(crate) fn has_written(&self) {
        if let HealthState::Writable { failed_writes, shortage, .. } = &mut *self.0.lock() {
            (*failed_writes, *shortage) = (0, None);
        }
    }

    /// Stops all writes.
    pub(crate) fn stop(&self, cause: StopCause) {
        let state = &mut *self.0.lock();
        *state = HealthState::Stopped { reads: *state.reads(), cause };
    }

    /// Records an error and logs it.
    pub(crate) fn record(&self, error: &TableError) {
        let state = &mut *self.0.lock();
        if error.is_no_space() {
            if let HealthState::Writable { failed_writes, shortage, .. } = state {
                *failed_writes += 1;
                let is_hidden = *failed_writes > FAILED_WRITES_OF_DISK;
                *shortage = error
                    .shortage()
                    .map(|shortage| if is_hidden { Shortage::Hidden } else { shortage });
            }
            tracing::warn!(%error, "index write found no space; entries stay in memory");
            return;
        }
        let reads = state.reads();
        if !error.is_io() && *reads < ReadHealth::Damaged {
            *reads = ReadHealth::Damaged;
            tracing::error!(%error, "index damaged; the next open rebuilds it");
        } else {
            *reads = (*reads).max(ReadHealth::Missed);
            tracing::warn!(%error, "index read failed; its blocks are misses");
        }
    }
}

#[cfg(test)]
mod tests {
    use dalsegno_core::Stopped;
    use dalsegno_io::IoError;

    use super::*;

    fn no_space() -> TableError {
        let source = std::io::Error::from_raw_os_error(28);
        TableError::Io(IoError::Os { operation: "write", file: "index".into(), source })
    }

    #[test]
    fn reads_only_get_worse() {
        let health = Health::default();
        assert!(!health.has_missed() && !health.is_damaged());
        health.record(&TableError::Io(Stopped::Deadline.into()));
        assert!(health.has_missed() && !health.is_damaged());
        health.record(&TableError::Checksum);
        health.record(&TableError::Io(Stopped::Deadline.into()));
        assert!(health.has_missed() && health.is_damaged());
        health.stop(StopCause::Condemned);
        assert!(health.is_damaged(), "a stopped index keeps what reads met");
    }

    #[test]
    fn a_shortage_lasts_until_a_write_succeeds_and_repeated_ones_are_hidden() {
        let health = Health::default();
        for _ in 0..FAILED_WRITES_OF_DISK {
            health.record(&no_space());
            assert_eq!(health.shortage(), Some(Shortage::Disk));
            health.has_space_again();
            assert_eq!(health.shortage(), None);
        }
        health.record(&no_space());
        assert_eq!(health.shortage(), Some(Shortage::Hidden));
        health.has_written();
        health.record(&no_space());
        assert_eq!(health.shortage(), Some(Shortage::Disk));
    }

    #[test]
    fn a_stopped_index_reports_no_shortage_and_keeps_its_cause() {
        let health = Health::default();
        health.record(&no_space());
        health.stop(StopCause::Unsure);
        health.record(&no_space());
        health.has_written();
        assert_eq!((health.shortage(), health.stop_cause()), (None, Some(StopCause::Unsure)));
    }
}
