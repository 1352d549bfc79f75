//! How a call to a server travels: on a connection of its own, within its limit.
//!
//! 1. A call ends at its deadline, or a short time later, whatever the server does. It costs no other call anything: the
//!    connection on which its reply is missing is kept, and the reply is read later.
//! 2. A connection that ended says nothing about the server, which may have closed it between two calls. The request is
//!    sent again on another one. Only if none can be opened, or it belongs to another server, this server is gone.
//! 3. The server learns of a namespace from the first call that uses it, within the limit of that call.

use std::sync::atomic::Ordering;
use std::time::Duration;

use dalsegno_core::{Clock, Deadline, NamespaceId, Nanos, Result};
use dalsegno_io::{ChannelError, Memory};
use dalsegno_store::Cancel;

use super::attachment::{Attachment, Introduced, LOOK};
use super::connection::{Connection, HELLO_TIMEOUT, Unreached, Window};
use super::connections::Turn;
use super::limit::{Limit, Lost};
use super::namespaces::Known;
use crate::wire::{self, Reply, Request};

/// How long an answer may take beyond the deadline of its call, which the server keeps as well.
const GRACE: Duration = Duration::from_millis(10);
/// A server whose heartbeat stands still for so long does not respond.
const STALL: Duration = Duration::from_secs(1);

/// How many new connections may end without a reply before a call is lost.
const MOST_UNUSED: u32 = 8;

impl Attachment {
    /// Sends a message about a namespace, or about none, and returns its answer.
    pub(super) fn call(
        &self,
        namespace: impl Into<Option<NamespaceId>>,
        message: &[u8],
        limit: &Limit,
    ) -> std::result::Result<Vec<u8>, Lost> {
        let namespace = namespace.into();
        self.on_connection(limit, |connection| {
            self.introduce(connection, namespace, limit)?;
            self.exchange(connection, message, limit)
        })
    }

    /// Sends a put of blocks that are copied into a window of the connection first. `message` is that of a ticket.
    pub(super) fn call_with_blocks(
        &self,
        namespace: NamespaceId,
        message: impl Fn(u64) -> Vec<u8>,
        (blocks, bytes): (&[Vec<Memory>], usize),
        limit: &Limit,
    ) -> std::result::Result<Vec<u8>, Lost> {
        let is_over = || limit.left(&self.clock).is_err();
        self.on_connection(limit, |connection| {
            self.introduce(connection, namespace.into(), limit)?;
            let window = connection.copy_in(blocks, bytes, is_over)?;
            let answered = self.exchange_window(connection, &window, &message, limit);
            if answered.is_ok() {
                connection.trim();
            }
            answered
        })
    }

    /// Sends a put of blocks in a window of the caller's.
    pub(super) fn call_with_window(
        &self,
        namespace: NamespaceId,
        message: impl Fn(u64) -> Vec<u8>,
        window: &Window,
        limit: &Limit,
    ) -> std::result::Result<Vec<u8>, Lost> {
        self.on_connection(limit, |connection| {
            self.introduce(connection, namespace.into(), limit)?;
            self.exchange_window(connection, window, &message, limit)
        })
    }

    /// Has `work` use a connection, and another one if the server had closed it.
    fn on_connection<T>(
        &self,
        limit: &Limit,
        work: impl Fn(&mut Connection) -> std::result::Result<T, Lost>,
    ) -> std::result::Result<T, Lost> {
        let mut unused = 0;
        while unused < MOST_UNUSED {
            let mut connection = self.take(limit)?;
            unused += u32::from(!connection.is_used());
            let done = work(&mut connection);
            self.settle(connection, &done);
            if !matches!(done, Err(Lost::Ended)) {
                return done;
            }
        }
        Err(Lost::Away)
    }

    /// Tells the server of a namespace that it does not know yet.
    fn introduce(
        &self,
        connection: &mut Connection,
        namespace: Option<NamespaceId>,
        limit: &Limit,
    ) -> std::result::Result<(), Lost> {
        let Some(known) = namespace.and_then(|id| self.shared.namespaces.find(id)) else {
            // The server says that nobody registered it.
            return Ok(());
        };
        let id = known.namespace.id();
        let before = self.introduced.lock().get(&id).copied();
        match before {
            Some(Introduced::Known) => return Ok(()),
            Some(Introduced::Refused) => return Err(Lost::Away),
            None => {}
        }
        let answer = self.exchange(connection, &registration(&known), limit)?;
        let Err(error) = understand_registration(&answer) else {
            self.introduced.lock().insert(id, Introduced::Known);
            return Ok(());
        };
        if self.introduced.lock().insert(id, Introduced::Refused).is_none() {
            tracing::warn!(%id, %error, "the server refuses a namespace; its blocks are misses");
        }
        Err(Lost::Away)
    }

    /// Registers a namespace, whatever the server knows of it.
    ///
    /// # Errors
    ///
    /// What the server says. That it says nothing is no error: the next call tells it.
    pub(super) fn register(&self, known: &Known, limit: &Limit) -> Result<()> {
        let Ok(answer) = self.call(None, &registration(known), limit) else { return Ok(()) };
        understand_registration(&answer)?;
        self.introduced.lock().insert(known.namespace.id(), Introduced::Known);
        Ok(())
    }

    fn exchange_window(
        &self,
        connection: &mut Connection,
        window: &Window,
        message: impl Fn(u64) -> Vec<u8>,
        limit: &Limit,
    ) -> std::result::Result<Vec<u8>, Lost> {
        if !connection.knows(window) {
            let left = self.left(limit)?;
            let beat = self.heartbeat();
            let sent = connection.send_window(window, left.or(Some(STALL)));
            sent.map_err(|error| self.lost(&error, beat))?;
            let reply = self.answer(connection, limit)?;
            if !matches!(wire::decode(&reply), Ok((Reply::Done, _))) {
                return Err(Lost::NoMemory);
            }
            connection.window_is_known(window);
        }
        let answered = self.exchange(connection, &message(window.ticket()), limit);
        if answered.is_err() {
            window.give_up();
        }
        answered
    }

    /// As [`Attachment::call`], on a connection of the caller's.
    pub(super) fn exchange(
        &self,
        connection: &mut Connection,
        message: &[u8],
        limit: &Limit,
    ) -> std::result::Result<Vec<u8>, Lost> {
        self.ask(connection, message, limit)?;
        self.answer(connection, limit)
    }

    fn ask(
        &self,
        connection: &mut Connection,
        message: &[u8],
        limit: &Limit,
    ) -> std::result::Result<(), Lost> {
        if !self.region.is_here() {
            // A forked child has no part in it.
            return Err(Lost::Away);
        }
        let timeout = self.left(limit)?.unwrap_or(STALL);
        self.tell_ended(connection, timeout)?;
        let beat = self.heartbeat();
        connection.send(message, Some(timeout)).map_err(|error| self.lost(&error, beat))
    }

    /// Tells the server of leases that ended.
    pub(super) fn tell_ended(
        &self,
        connection: &mut Connection,
        timeout: Duration,
    ) -> std::result::Result<(), Lost> {
        let (epoch, ended) = (self.header.epoch, &self.shared.ended);
        let leases = ended.take(epoch);
        if leases.is_empty() {
            return Ok(());
        }
        let beat = self.heartbeat();
        let message = wire::encode(&Request::Release { leases: leases.clone() });
        connection.tell(&message, Some(timeout)).map_err(|error| {
            for lease in leases {
                ended.add(epoch, lease);
            }
            self.lost(&error, beat)
        })
    }

    /// Waits for an answer.
    fn answer(
        &self,
        connection: &mut Connection,
        limit: &Limit,
    ) -> std::result::Result<Vec<u8>, Lost> {
        let sent_at = self.heartbeat();
        let (mut beat, mut beaten) = (sent_at, self.clock.now());
        loop {
            let left = limit.deadline.remaining(self.clock.now());
            let left = left.map_or(LOOK, |left| (left + GRACE).min(LOOK));
            match connection.receive(left) {
                Ok(answer) => return Ok(answer),
                Err(ChannelError::Timeout) => {}
                Err(error) => return Err(self.lost(&error, sent_at)),
            }
            let (now, before) = (self.clock.now(), beat);
            beat = self.heartbeat();
            if beat != before {
                beaten = now;
            }
            if now.since(beaten) > STALL {
                self.stalled_at.store(beat, Ordering::Relaxed);
                return Err(Lost::Away);
            }
            if is_over(limit.deadline, now) {
                if beat == sent_at {
                    self.stalled_at.store(beat, Ordering::Relaxed);
                }
                return Err(Lost::Late);
            }
            if limit.cancel.as_ref().is_some_and(Cancel::is_cancelled) {
                return Err(Lost::Cancelled);
            }
        }
    }

    /// The time that a call has left; `None` without a deadline.
    pub(super) fn left(&self, limit: &Limit) -> std::result::Result<Option<Duration>, Lost> {
        limit.left(&self.clock)
    }

    /// Fails once a call has ended.
    pub(super) fn check(&self, limit: &Limit) -> std::result::Result<(), Lost> {
        limit.check(&self.clock)
    }

    /// What an error means that came after this heartbeat.
    fn lost(&self, error: &ChannelError, beat: u64) -> Lost {
        if matches!(error, ChannelError::Timeout) {
            self.note_silence(beat);
            return Lost::Late;
        }
        tracing::debug!(%error, "a connection to the server ended");
        Lost::Ended
    }

    /// The server said nothing since this heartbeat. If its heart has not beaten either, it does not respond.
    fn note_silence(&self, beat: u64) {
        if self.heartbeat() == beat {
            self.stalled_at.store(beat, Ordering::Relaxed);
        }
    }

    /// Takes a connection, opens one, or waits for one.
    fn take(&self, limit: &Limit) -> std::result::Result<Connection, Lost> {
        let begun = self.clock.now();
        loop {
            if self.is_gone() || self.is_stalled() {
                return Err(Lost::Away);
            }
            self.read_late_replies();
            match self.connections.turn(self.clock.now()) {
                Turn::Use(connection) => return Ok(*connection),
                Turn::Open => match self.open_counted(limit) {
                    Err(Lost::Refused) => {}
                    opened => return opened,
                },
                Turn::Wait => {}
            }
            if limit.cancel.as_ref().is_some_and(Cancel::is_cancelled) {
                return Err(Lost::Cancelled);
            }
            let left = self.left(limit)?;
            // One of its own comes back in any case.
            let has_none = self.connections.are_none();
            if left.is_none() && has_none && self.clock.now().since(begun) > STALL {
                return Err(Lost::Refused);
            }
            self.connections.wait(left.unwrap_or(LOOK));
        }
    }

    /// Opens a connection that is counted already.
    pub(super) fn open_counted(&self, limit: &Limit) -> std::result::Result<Connection, Lost> {
        let opened = self.connect(limit);
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
    pub(super) fn connect(&self, limit: &Limit) -> std::result::Result<Connection, Lost> {
        let beat = self.heartbeat();
        let timeout = self.left(limit)?.map_or(HELLO_TIMEOUT, |left| left + GRACE);
        match Connection::open(&self.socket, timeout.min(HELLO_TIMEOUT)) {
            Ok((connection, welcome)) if welcome.epoch == self.header.epoch => Ok(connection),
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

/// The message that makes a namespace known.
fn registration(Known { namespace, options }: &Known) -> Vec<u8> {
    let codec = options.compression.map(|one| (one.name().to_owned(), one.element_bytes()));
    wire::encode(&Request::Register { encoding: namespace.encode(), codec })
}

fn understand_registration(answer: &[u8]) -> Result<()> {
    match wire::decode(answer) {
        Ok((Reply::Failed { kind, message }, _)) => Err(wire::error_of(kind, message)),
        _ => Ok(()),
    }
}

/// Whether a call whose deadline passed has waited long enough for the answer.
fn is_over(deadline: Deadline, now: Nanos) -> bool {
    match deadline {
        Deadline::Never => false,
        Deadline::At(end) => now >= end.after(GRACE),
    }
}
