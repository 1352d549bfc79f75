//! What a connection does now, as the others see it.

use std::sync::Arc;
use std::time::Duration;

use dalsegno_core::Nanos;
use parking_lot::Mutex;

/// How long a connection without a hello counts as one that is about to say it.
const HELLO: Duration = Duration::from_millis(250);

/// A process that is connected, and its user.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ClientId {
    pub(crate) process: u64,
    pub(crate) user: u32,
}

/// A connection as the others see it.
#[derive(Clone, Debug)]
pub(super) struct Seat {
    pub(super) client: ClientId,
    pub(super) standing: Arc<Mutex<Standing>>,
}

/// What a connection does now.
#[derive(Debug)]
pub(super) struct Standing {
    phase: Phase,
    /// Since when it is in this phase.
    since: Nanos,
    has_watch: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// It has not said hello.
    New,
    /// It waits for a request.
    Idle,
    /// A request is under way.
    Busy,
    /// Its place was given to another connection.
    TakenOver,
}

impl Standing {
    pub(super) fn new(now: Nanos) -> Self {
        Self { phase: Phase::New, since: now, has_watch: false }
    }

    /// A request begins. `false` if the connection was taken over.
    pub(super) fn begin(&mut self) -> bool {
        if self.phase == Phase::TakenOver {
            return false;
        }
        self.phase = Phase::Busy;
        true
    }

    /// The request has ended.
    pub(super) fn rest(&mut self, now: Nanos) {
        if self.phase == Phase::Busy {
            (self.phase, self.since) = (Phase::Idle, now);
        }
    }

    pub(super) fn is_taken_over(&self) -> bool {
        self.phase == Phase::TakenOver
    }

    pub(super) fn has_said_hello(&self) -> bool {
        self.phase != Phase::New
    }

    /// When it became what it is.
    pub(super) fn since(&self) -> Nanos {
        self.since
    }

    pub(super) fn set_taken_over(&mut self) {
        self.phase = Phase::TakenOver;
    }

    pub(super) fn set_watch(&mut self, has_watch: bool) {
        self.has_watch = has_watch;
    }

    pub(super) fn is_half_open(&self, now: Nanos) -> bool {
        self.phase == Phase::New && now.since(self.since) >= HELLO
    }

    pub(super) fn can_end(&self, now: Nanos) -> bool {
        !self.has_watch && (self.phase == Phase::Idle || self.is_half_open(now))
    }
}
