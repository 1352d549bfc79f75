//! Connections that can be taken over when there are too many.
//!
//! 1. Only a connection between two requests is taken over, and none with a watch of removals.
//! 2. A process that holds a lease keeps a connection, so that its leases stay.
//! 3. A process takes connections over only from itself, or from one that has more.

use std::cmp::Reverse;
use std::sync::Arc;
use std::time::Duration;

use dalsegno_core::Nanos;
use parking_lot::Mutex;

use super::book::{Book, Guest};
use super::bounds::Resource;

/// How long a connection without a hello counts as one that is about to say it.
const HELLO: Duration = Duration::from_millis(250);
/// Most connections that were taken over and have not ended yet.
const MOST_LEAVING: usize = 64;

/// A connection as the others see it.
#[derive(Clone, Debug)]
pub(super) struct Seat {
    pub(super) guest: Guest,
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

/// Which bound a further connection would exceed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Limit {
    Process,
    User,
    All,
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

    pub(super) fn set_watch(&mut self, has_watch: bool) {
        self.has_watch = has_watch;
    }

    fn is_half_open(&self, now: Nanos) -> bool {
        self.phase == Phase::New && now.since(self.since) >= HELLO
    }

    fn can_end(&self, now: Nanos) -> bool {
        !self.has_watch && (self.phase == Phase::Idle || self.is_half_open(now))
    }
}

impl Book {
    /// The bound that keeps a process from a further connection.
    pub(super) fn session_limit(&self, guest: Guest) -> Option<Limit> {
        if self.offer(guest, Resource::Sessions) > 0 {
            return None;
        }
        let bound = self.bounds().sessions;
        Some(if self.own(guest.process, Resource::Sessions) >= bound.process {
            Limit::Process
        } else if self.all().of(Resource::Sessions) < bound.all
            && self.of_user(guest.user, Resource::Sessions) >= bound.user()
        {
            Limit::User
        } else {
            Limit::All
        })
    }

    /// Ends a connection, so that `guest` can have one more. `false` if none can be ended.
    pub(super) fn take_over(&mut self, guest: Guest, limit: Limit, now: Nanos) -> bool {
        if self.leaving >= MOST_LEAVING {
            return false;
        }
        let own = self.own(guest.process, Resource::Sessions);
        let mut candidates = Vec::new();
        for (number, seat) in &self.seats {
            let standing = seat.standing.lock();
            let count = self.own(seat.guest.process, Resource::Sessions);
            let is_own = seat.guest.process == guest.process;
            let is_in_reach = match limit {
                Limit::Process => is_own,
                Limit::User => seat.guest.user == guest.user,
                Limit::All => true,
            };
            let is_half_open = standing.is_half_open(now);
            // With one more the process would have as many as the other one is left with.
            let has_more = count > own + 1 || own == 0;
            if is_in_reach && (is_own || is_half_open || has_more) && standing.can_end(now) {
                let of_user = self.of_user(seat.guest.user, Resource::Sessions);
                let key = (Reverse(is_half_open), Reverse(count), Reverse(of_user), standing.since);
                candidates.push((key, *number));
            }
        }
        candidates.sort_unstable();
        candidates.into_iter().any(|(_, number)| self.end(number, now))
    }

    /// Ends a connection if it still can be ended, and its process keeps its leases.
    fn end(&mut self, number: u64, now: Nanos) -> bool {
        let Some(seat) = self.seats.get(&number).cloned() else { return false };
        let mut standing = seat.standing.lock();
        let keeps_leases = self.has_others(number, &seat) || !self.has_leases(seat.guest.process);
        if !standing.can_end(now) || !keeps_leases {
            return false;
        }
        standing.phase = Phase::TakenOver;
        drop(standing);
        let leases = self.get_up(number);
        debug_assert!(
            leases.is_none_or(|leases| leases.is_empty()),
            "a lease ended by a take-over"
        );
        self.leaving += 1;
        true
    }

    /// Whether the process of a connection has another one that has said hello.
    fn has_others(&self, number: u64, seat: &Seat) -> bool {
        let is_other = |(other, one): (&u64, &Seat)| {
            *other != number
                && one.guest.process == seat.guest.process
                && one.standing.lock().phase != Phase::New
        };
        self.seats.iter().any(is_other)
    }
}
