//! How the messages of a client reach its server: each call on a connection of its own, within its terms.
//!
//! 1. A call ends at its deadline, or a short time later, whatever the server does. It costs no other call anything:
//!    the connection on which its reply is missing is kept, and the reply is read later.
//! 2. A connection that ended says nothing about the server, which may have closed it between two calls. The request is
//!    sent again on another one. Only if none can be opened, or it belongs to another server, this server is gone.
//! 3. A server that does not respond is not asked again until its heartbeat goes on. So a stopped server costs one
//!    deadline, and nothing after that.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use dalsegno_core::{Clock, Deadline, Nanos, Stopped};
use dalsegno_io::{Call, ChannelError, SystemClock};

use super::connection::{Connection, HELLO_TIMEOUT, Unreached};
use super::connections::{Connections, Turn};
use super::lost::Lost;
use super::places::ServedArena;
use super::shared::Shared;
use crate::account::NO_LEASE;
use crate::wire::{self, Reply, Request};

/// How often a call that waits looks at the heartbeat.
const LOOK: Duration = Duration::from_millis(50);
const NEVER_STALLED: u64 = u64::MAX;
/// How long an answer may take beyond the deadline of its call, which the server keeps as well.
const GRACE: Duration = Duration::from_millis(10);
/// A server whose heartbeat stands still for so long does not respond.
const STALL: Duration = Duration::from_secs(1);

/// How many new connections may end without a reply before a call is lost.
const MOST_UNUSED: u32 = 8;

/// A server, and the ways to it.
#[derive(Debug)]
pub(super) struct Reach {
    pub(super) arena: ServedArena,
    pub(super) clock: SystemClock,
    pub(super) connections: Connections,
    pub(super) shared: Arc<Shared>,
    socket: PathBuf,
    /// The heartbeat at which a call got no answer.
    stalled_at: AtomicU64,
    is_gone: AtomicBool,
}

impl Reach {
    /// A server with one connection to it.
    pub(super) fn new(
        socket: PathBuf,
        arena: ServedArena,
        first: Connection,
        clock: SystemClock,
        shared: Arc<Shared>,
    ) -> Self {
        let connections = Connections::of(first, clock.now());
        let (stalled_at, is_gone) = (AtomicU64::new(NEVER_STALLED), AtomicBool::new(false));
        Self { arena, clock, connections, shared, socket, stalled_at, is_gone }
    }

    /// Whether the server ended, as far as a call found out.
    pub(super) fn is_gone(&self) -> bool {
        self.is_gone.load(Ordering::Acquire)
    }

    /// Whether the server did not respond, and its heart has not beaten since.
    pub(super) fn is_stalled(&self) -> bool {
        self.stalled_at.load(Ordering::Relaxed) == self.arena.heartbeat()
    }

    /// Reads replies that came after their calls had ended, and ends the leases in them.
    pub(super) fn read_late_replies(&self) {
        self.connections.read_late_replies(self.clock.now(), |reply| {
            if let Ok((Reply::Acquired { lease, .. } | Reply::Leased { lease, .. }, _)) =
                wire::decode(reply)
                && lease != NO_LEASE
            {
                self.shared.ended.add(self.arena.epoch(), &[lease]);
            }
        });
    }

    /// Has `work` use a connection, and another one if the server had closed it.
    pub(super) fn on_connection<T>(
        &self,
        call: &Call,
        work: impl Fn(&mut Connection) -> std::result::Result<T, Lost>,
    ) -> std::result::Result<T, Lost> {
        let mut unused = 0;
        while unused < MOST_UNUSED {
            let mut connection = self.take(call)?;
            unused += u32::from(!connection.is_used());
            let done = work(&mut connection);
            self.settle(connection, &done);
            if !matches!(done, Err(Lost::Ended)) {
                return done;
            }
        }
        Err(Lost::Away)
    }

    /// As a call, on a connection of the caller's.
    pub(super) fn exchange(
        &self,
        connection: &mut Connection,
        message: &[u8],
        call: &Call,
    ) -> std::result::Result<Vec<u8>, Lost> {
        self.ask(connection, message, call)?;
        self.answer(connection, call)
    }

    /// As several calls, of which the first answer is read when the last message was sent.
    pub(super) fn exchange_all(
        &self,
        connection: &mut Connection,
        messages: impl Iterator<Item = Vec<u8>>,
        call: &Call,
    ) -> std::result::Result<Vec<Vec<u8>>, Lost> {
        let mut asked = 0;
        for message in messages {
            self.ask(connection, &message, call)?;
            asked += 1;
        }
        (0..asked).map(|_| self.answer(connection, call)).collect()
    }

    fn ask(
        &self,
        connection: &mut Connection,
        message: &[u8],
        call: &Call,
    ) -> std::result::Result<(), Lost> {
        if !self.arena.is_here() {
            // A forked child has no part in it.
            return Err(Lost::Away);
        }
        self.report_ended(connection, self.left(call)?.unwrap_or(STALL))?;
        self.send(call, |timeout| connection.send(message, timeout))
    }

    /// Has `work` send something within a call.
    pub(super) fn send(
        &self,
        call: &Call,
        work: impl FnOnce(Option<Duration>) -> std::result::Result<(), ChannelError>,
    ) -> std::result::Result<(), Lost> {
        let timeout = self.left(call)?.unwrap_or(STALL);
        let beat = self.arena.heartbeat();
        work(Some(timeout)).map_err(|error| self.lost(&error, beat))
    }

    /// Sends a message that has no answer, if a connection is idle and takes it at once: this never waits.
    pub(super) fn send_at_once(&self, message: &[u8]) {
        if !self.arena.is_here() {
            return;
        }
        let Some(mut connection) = self.connections.take_idle() else { return };
        let beat = self.arena.heartbeat();
        let sent = match connection.report(message, Some(Duration::ZERO)) {
            Ok(()) | Err(ChannelError::Timeout) => Ok(()),
            Err(error) => Err(self.lost(&error, beat)),
        };
        self.settle(connection, &sent);
    }

    /// Reports leases that ended to the server.
    pub(super) fn report_ended(
        &self,
        connection: &mut Connection,
        timeout: Duration,
    ) -> std::result::Result<(), Lost> {
        let (epoch, ended) = (self.arena.epoch(), &self.shared.ended);
        let leases = ended.take(epoch);
        if leases.is_empty() {
            return Ok(());
        }
        let beat = self.arena.heartbeat();
        let message = wire::encode(&Request::Release { leases: leases.clone() });
        let sent = connection.report(&message, Some(timeout));
        if matches!(sent, Err(ChannelError::Timeout)) {
            ended.add(epoch, &leases);
        } else {
            // Given back with the connection, if it ends before the server has read of them.
            connection.note_reported(leases, (&self.shared, epoch));
        }
        sent.map_err(|error| self.lost(&error, beat))
    }

    /// Waits for an answer.
    pub(super) fn answer(
        &self,
        connection: &mut Connection,
        call: &Call,
    ) -> std::result::Result<Vec<u8>, Lost> {
        let sent_at = self.arena.heartbeat();
        let (mut beat, mut beaten) = (sent_at, self.clock.now());
        loop {
            let left = call.deadline.remaining(self.clock.now());
            let left = left.map_or(LOOK, |left| (left + GRACE).min(LOOK));
            match connection.receive(left) {
                Ok(answer) => return Ok(answer),
                Err(ChannelError::Timeout) => {}
                Err(error) => return Err(self.lost(&error, sent_at)),
            }
            let (now, before) = (self.clock.now(), beat);
            beat = self.arena.heartbeat();
            if beat != before {
                beaten = now;
            }
            if now.since(beaten) > STALL {
                self.stalled_at.store(beat, Ordering::Relaxed);
                return Err(Lost::Away);
            }
            if is_over(call.deadline, now) {
                self.note_silence(sent_at);
                return Err(Stopped::Deadline.into());
            }
            if call.is_cancelled() {
                return Err(Stopped::Cancelled.into());
            }
        }
    }

    /// The time that a call has left; `None` without a deadline.
    pub(super) fn left(&self, call: &Call) -> std::result::Result<Option<Duration>, Stopped> {
        call.left(&self.clock)
    }

    /// The clock of this process.
    pub(super) fn clock(&self) -> &SystemClock {
        &self.clock
    }

    /// Fails once a call has ended.
    pub(super) fn check(&self, call: &Call) -> std::result::Result<(), Stopped> {
        call.check(&self.clock)
    }

    /// What an error means that came after this heartbeat.
    fn lost(&self, error: &ChannelError, beat: u64) -> Lost {
        if matches!(error, ChannelError::Timeout) {
            self.note_silence(beat);
            return Stopped::Deadline.into();
        }
        tracing::debug!(%error, "a connection to the server ended");
        Lost::Ended
    }

    /// The server said nothing since this heartbeat. If its heart has not beaten either, it does not respond.
    fn note_silence(&self, beat: u64) {
        if self.arena.heartbeat() == beat {
            self.stalled_at.store(beat, Ordering::Relaxed);
        }
    }

    /// Takes a connection, opens one, or waits for one.
    fn take(&self, call: &Call) -> std::result::Result<Connection, Lost> {
        let begun = self.clock.now();
        loop {
            if self.is_gone() || self.is_stalled() {
                return Err(Lost::Away);
            }
            self.read_late_replies();
            match self.connections.turn(self.clock.now()) {
                Turn::Use(connection) => return Ok(*connection),
                Turn::Open => match self.open_counted(call) {
                    Err(Lost::Refused) => {}
                    opened => return opened,
                },
                Turn::Wait => {}
            }
            if call.is_cancelled() {
                return Err(Stopped::Cancelled.into());
            }
            let left = self.left(call)?;
            // One of its own comes back in any case.
            let has_none = self.connections.are_none();
            if left.is_none() && has_none && self.clock.now().since(begun) > STALL {
                return Err(Lost::Refused);
            }
            self.connections.wait(left.unwrap_or(LOOK));
        }
    }

    /// Opens a connection that is counted already.
    pub(super) fn open_counted(&self, call: &Call) -> std::result::Result<Connection, Lost> {
        let opened = self.connect(call);
        if opened.is_err() {
            self.connections.lose_one();
            self.connections.pause_opening(self.clock.now());
        }
        match opened {
            // The file of the socket may be gone although the server is there.
            Err(Lost::Away) if !self.connections.are_none() => Err(Lost::Refused),
            Err(Lost::Away) => {
                self.is_gone.store(true, Ordering::Release);
                Err(Lost::Away)
            }
            opened => opened,
        }
    }

    /// Opens a connection that this attachment does not count.
    pub(super) fn connect(&self, call: &Call) -> std::result::Result<Connection, Lost> {
        let beat = self.arena.heartbeat();
        let timeout = self.left(call)?.map_or(HELLO_TIMEOUT, |left| left + GRACE);
        match Connection::open(&self.socket, timeout.min(HELLO_TIMEOUT)) {
            Ok((connection, welcome)) if welcome.epoch == self.arena.epoch() => Ok(connection),
            Ok(_) => {
                // Another server by now, with another arena.
                self.is_gone.store(true, Ordering::Release);
                Err(Lost::Away)
            }
            Err(error) => {
                tracing::debug!(?error, "no further connection");
                Err(match error {
                    Unreached::Away(_) | Unreached::Incompatible(_) => Lost::Away,
                    Unreached::Refused(_) => Lost::Refused,
                    Unreached::Silent(_) => {
                        self.note_silence(beat);
                        Lost::Refused
                    }
                })
            }
        }
    }

    /// Gives a connection back after a call, or closes it if it ended.
    pub(super) fn settle<T>(&self, connection: Connection, done: &std::result::Result<T, Lost>) {
        if matches!(done, Err(Lost::Ended)) {
            drop(connection);
            self.connections.lose_one();
        } else {
            self.connections.put_back(connection, self.clock.now());
        }
    }
}

/// Whether a call whose deadline passed has waited long enough for the answer.
fn is_over(deadline: Deadline, now: Nanos) -> bool {
    match deadline {
        Deadline::Never => false,
        Deadline::At(end) => now >= end.after(GRACE),
    }
}
