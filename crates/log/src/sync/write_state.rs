//! Whether a log may still write.
//!
//! | state | `poison` | `close` | a write |
//! |---|---|---|---|
//! | writable | poisoned | closed | proceeds |
//! | poisoned | poisoned | closed after poison | fails: [`LogError::Poisoned`] |
//! | closed | closed after poison | closed | fails: [`IoError::Closed`] |
//! | closed after poison | unchanged | unchanged | fails: [`IoError::Closed`] |
//! | read-only | unchanged | unchanged | panics: a bug |

use std::fmt::Display;
use std::sync::atomic::{AtomicU8, Ordering};

use dalsegno_io::IoError;

use crate::error::LogError;

const POISONED: u8 = 1;
const CLOSED: u8 = 2;
const READ_ONLY: u8 = 4;

/// The state of the table above: its two halves change on their own, so each is a bit.
#[derive(Debug)]
pub(super) struct WriteState(AtomicU8);

impl WriteState {
    pub(super) fn new(read_only: bool) -> Self {
        Self(AtomicU8::new(if read_only { READ_ONLY } else { 0 }))
    }

    pub(super) fn poison(&self, why: &dyn Display) {
        if self.0.fetch_or(POISONED, Ordering::AcqRel) & POISONED == 0 {
            tracing::error!(
                error = %why,
                "writing stopped: data may not be durable; reads continue, reopen the store to recover"
            );
        }
    }

    pub(super) fn close(&self) {
        self.0.fetch_or(CLOSED, Ordering::AcqRel);
    }

    pub(super) fn is_poisoned(&self) -> bool {
        self.0.load(Ordering::Acquire) & POISONED != 0
    }

    pub(super) fn is_read_only(&self) -> bool {
        self.0.load(Ordering::Acquire) & READ_ONLY != 0
    }

    pub(super) fn check(&self) -> Result<(), LogError> {
        let state = self.0.load(Ordering::Acquire);
        assert!(state & READ_ONLY == 0, "a read-only log is never written");
        match state {
            0 => Ok(()),
            POISONED => Err(LogError::Poisoned),
            _ => Err(LogError::Io(IoError::Closed)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_transition_is_that_of_the_table() {
        let state = WriteState::new(false);
        assert!(state.check().is_ok() && !state.is_poisoned());
        state.poison(&"a test");
        assert!(matches!(state.check(), Err(LogError::Poisoned)) && state.is_poisoned());
        state.close();
        assert!(matches!(state.check(), Err(LogError::Io(IoError::Closed))));
        assert!(state.is_poisoned(), "closing hides no failed sync");
        let state = WriteState::new(false);
        state.close();
        assert!(matches!(state.check(), Err(LogError::Io(IoError::Closed))));
        assert!(!state.is_poisoned());
        state.poison(&"a test");
        assert!(matches!(state.check(), Err(LogError::Io(IoError::Closed))) && state.is_poisoned());
    }
}
