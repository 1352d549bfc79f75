//! The connections of a client to one server, while no call uses them.
//!
//! 1. A connection is used by one call at a time. One on which a reply is still to come is *owing*: nothing is asked on
//!    it before that reply was read. So a call that gives up costs no connection.
//! 2. There are at most [`MOST_CONNECTIONS`], those in use included.
//! 3. What a client does not need for a while it gives back: first the memory of its puts, then its connections, all
//!    but the last, which shows the server that the process lives.

use std::time::Duration;

use dalsegno_core::Nanos;
use dalsegno_io::ChannelError;
use parking_lot::{Condvar, Mutex};

use super::connection::Connection;

/// Most connections of a client. Further calls wait for one of them.
const MOST_CONNECTIONS: usize = 16;
/// After this time without a call, the memory of puts is given back.
const KEEP_WINDOW: Duration = Duration::from_secs(2);
/// After this time without a call, a connection is closed.
const KEEP_OPEN: Duration = Duration::from_secs(10);
/// How long no further connection is tried after the server refused one.
const REFUSED_PAUSE: Duration = Duration::from_millis(20);
/// How often a call that waits for a connection looks for late replies.
const LOOK: Duration = Duration::from_millis(2);

/// Connections that no call uses.
#[derive(Debug, Default)]
pub(super) struct Connections {
    held: Mutex<Unused>,
    returned: Condvar,
}

#[derive(Debug, Default)]
struct Unused {
    /// Since when they are idle. The last one was used last.
    idle: Vec<(Connection, Nanos)>,
    owing: Vec<Connection>,
    /// All, also those in use.
    open: usize,
    /// The server refused a further one; it is asked again then.
    refused_until: Nanos,
}

/// What a call that needs a connection does.
#[derive(Debug)]
pub(super) enum Turn {
    /// Use this one, which the server may have closed meanwhile.
    Use(Box<Connection>),
    /// Open one. It is counted already.
    Open,
    /// Wait for one.
    Wait,
}

impl Connections {
    /// One connection, which is open and idle.
    pub(super) fn of(first: Connection, now: Nanos) -> Self {
        let connections = Self::default();
        connections.held.lock().open = 1;
        connections.put_back(first, now);
        connections
    }

    /// What a call that needs a connection does next.
    pub(super) fn turn(&self, now: Nanos) -> Turn {
        let mut held = self.held.lock();
        if let Some((connection, _)) = held.idle.pop() {
            return Turn::Use(Box::new(connection));
        }
        if held.open < MOST_CONNECTIONS && now >= held.refused_until {
            held.open += 1;
            return Turn::Open;
        }
        Turn::Wait
    }

    /// Whether calls use all of them.
    pub(super) fn are_all_used(&self) -> bool {
        self.held.lock().idle.is_empty()
    }

    /// Takes an idle connection, if there is one.
    pub(super) fn take_idle(&self) -> Option<Connection> {
        Some(self.held.lock().idle.pop()?.0)
    }

    /// Waits until a connection may be there, at most `most`.
    pub(super) fn wait(&self, most: Duration) {
        let mut held = self.held.lock();
        if held.idle.is_empty() {
            self.returned.wait_for(&mut held, most.min(LOOK));
        }
    }

    /// Takes a connection back after a call. If its reply is missing, it is owing.
    pub(super) fn put_back(&self, connection: Connection, now: Nanos) {
        let mut held = self.held.lock();
        if connection.is_owing() {
            held.owing.push(connection);
        } else {
            held.idle.push((connection, now));
        }
        drop(held);
        self.returned.notify_one();
    }

    /// One connection was closed, or could not be opened.
    pub(super) fn lose_one(&self) {
        self.held.lock().open -= 1;
        self.returned.notify_one();
    }

    /// The server refused a further connection.
    pub(super) fn pause_opening(&self, now: Nanos) {
        self.held.lock().refused_until = now.after(REFUSED_PAUSE);
    }

    /// Whether there is none at all, not even one in use.
    pub(super) fn are_none(&self) -> bool {
        self.held.lock().open == 0
    }

    /// Reads the late replies that have arrived. Their connections can be used again.
    pub(super) fn read_late_replies(&self, now: Nanos, mut with: impl FnMut(&[u8])) {
        let owing = std::mem::take(&mut self.held.lock().owing);
        for mut connection in owing {
            match connection.receive(Duration::ZERO) {
                Ok(reply) => with(&reply),
                Err(ChannelError::Timeout) => {}
                Err(_) => {
                    drop(connection);
                    self.lose_one();
                    continue;
                }
            }
            self.put_back(connection, now);
        }
    }

    /// Gives back what was not used for a while, and drops what the server closed.
    pub(super) fn tidy(&self, now: Nanos) {
        while let Some((mut connection, since)) = self.take_unused(now) {
            // Without the lock: it takes the system a moment.
            connection.give_memory_back();
            self.held.lock().idle.insert(0, (connection, since));
        }
        let mut over = Vec::new();
        let mut held = self.held.lock();
        for (connection, since) in std::mem::take(&mut held.idle) {
            let has_others = held.open > over.len() + 1;
            if connection.has_ended() || has_others && now.since(since) > KEEP_OPEN {
                over.push(connection);
            } else {
                held.idle.push((connection, since));
            }
        }
        held.open -= over.len();
        drop(held);
    }

    /// Takes an idle connection that has not been used for a while and has memory to give back.
    fn take_unused(&self, now: Nanos) -> Option<(Connection, Nanos)> {
        let mut held = self.held.lock();
        let has_memory = |(connection, since): &(Connection, Nanos)| {
            now.since(*since) > KEEP_WINDOW && connection.has_memory()
        };
        let at = held.idle.iter().position(has_memory)?;
        Some(held.idle.remove(at))
    }
}
