//! A client's part in the pool of one server: its memory, the calls to it, and what it knows of the client.
//!
//! 1. A lease that the client does not use, also one whose reply came too late, is ended as soon as the server can be
//!    informed.
//! 2. The server learns of a namespace from the first call that uses it, within its terms.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use dalsegno_core::{Clock, Error, ErrorKind, NamespaceId, Nanos, Result, Stopped, StoreId};
use dalsegno_io::{Call, Memory, SystemClock};
use dalsegno_store::Terms;
use parking_lot::Mutex;

use super::connection::{Connection, HELLO_TIMEOUT, Unreached, Welcome, Window};
use super::connections::Turn;
use super::facts::Facts;
use super::lost::Lost;
use super::namespaces::Known;
use super::places::ServedArena;
use super::reach::Reach;
use super::shared::Shared;
use crate::wire::{self, Reply, Request};

/// How long the report of ended leases may take.
const REPORT_TIMEOUT: Duration = Duration::from_millis(50);
/// How long the connection for reports is kept.
const KEEP_NEWS: Duration = Duration::from_secs(2);

/// A server that was reached.
#[derive(Debug)]
pub(super) struct Attachment {
    reach: Reach,
    /// What this server said of namespaces.
    introduced: Mutex<HashMap<NamespaceId, Introduced>>,
    /// A connection for reports of ended leases, while calls use all others: they may wait for just that.
    news: Mutex<Option<(Connection, Nanos)>>,
    /// Whether the client does not use it any more, but for leases.
    is_retired: AtomicBool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Introduced {
    /// The server knows it.
    Known,
    /// The server refuses it. Its blocks are misses.
    Refused,
}

impl Attachment {
    /// Connects to the server at `socket` and maps its arena.
    ///
    /// # Errors
    ///
    /// `Unavailable` if nobody answers there; `Incompatible` if the server does not speak our version, or its arena has
    /// another format.
    pub(super) fn open(
        socket: &Path,
        clock: SystemClock,
        shared: &Arc<Shared>,
    ) -> Result<(Self, Facts)> {
        let (connection, welcome) =
            Connection::open(socket, HELLO_TIMEOUT).map_err(Unreached::into_error)?;
        let Welcome { store, epoch, arena_bytes, limits, arena } = welcome;
        let arena = ServedArena::map(arena, arena_bytes, epoch)?;
        let strange =
            |_| Error::new(ErrorKind::Incompatible, "the limits of the store are unknown");
        let facts = Facts {
            store: StoreId(store),
            limits: serde_json::from_str(&limits).map_err(strange)?,
        };
        let reach = Reach::new(socket.to_owned(), arena, connection, clock, Arc::clone(shared));
        let attachment = Self {
            reach,
            introduced: Mutex::default(),
            news: Mutex::default(),
            is_retired: AtomicBool::new(false),
        };
        Ok((attachment, facts))
    }

    /// Its memory.
    pub(super) fn arena(&self) -> &ServedArena {
        &self.reach.arena
    }

    /// The ways to it.
    pub(super) fn reach(&self) -> &Reach {
        &self.reach
    }

    /// Looks after the connections between calls. `false` if the server is gone.
    pub(super) fn look_after(&self) -> bool {
        self.reach.read_late_replies();
        self.reach.connections.tidy(self.reach.clock.now());
        if self.reach.connections.are_none() && !self.reach.is_gone() {
            // The server closed them all: either it ended, also after it had hung, or others needed them.
            let call = Terms::within(HELLO_TIMEOUT).call(&self.reach.clock);
            if let Turn::Open = self.reach.connections.turn(self.reach.clock.now())
                && let Ok(connection) = self.reach.open_counted(&call)
            {
                self.reach.connections.put_back(connection, self.reach.clock.now());
            }
        }
        self.flush_leases();
        self.close_unused_news();
        !self.reach.is_gone()
    }

    /// Says that a lease ended. The server hears of it with the next call.
    pub(super) fn end_lease(&self, lease: u64) {
        if !self.reach.arena.is_here() {
            return;
        }
        self.reach.shared.ended.add(self.reach.arena.epoch(), &[lease]);
        if self.is_retired.load(Ordering::Acquire) {
            // No call follows that could take the news along.
            self.reach.read_late_replies();
            self.flush_leases();
        } else if self.reach.connections.are_all_used() {
            // Calls may wait at the server for this lease to end, and none of them takes the news along.
            self.reach.shared.waker.wake();
        }
    }

    /// Says that the client does not use it any more.
    pub(super) fn retire(&self) {
        self.is_retired.store(true, Ordering::Release);
        self.reach.read_late_replies();
        self.flush_leases();
    }

    /// Sends ended leases to the server without waiting for a connection.
    fn flush_leases(&self) {
        let is_idle = self.reach.shared.ended.are_none(self.reach.arena.epoch());
        if is_idle || !self.reach.arena.is_here() || self.reach.is_gone() || self.reach.is_stalled()
        {
            return;
        }
        while let Some(mut connection) = self.reach.connections.take_idle() {
            let reported = self.reach.report_ended(&mut connection, REPORT_TIMEOUT);
            self.reach.settle(connection, &reported);
            if reported != Err(Lost::Ended) {
                return;
            }
        }
        let mut news = self.news.lock();
        let now = self.reach.clock.now();
        let call = Terms::within(HELLO_TIMEOUT).call(&self.reach.clock);
        let open = news.take().map(|(connection, _)| connection);
        let Some(mut connection) = open.or_else(|| self.reach.connect(&call).ok()) else { return };
        if self.reach.report_ended(&mut connection, REPORT_TIMEOUT) != Err(Lost::Ended) {
            *news = Some((connection, now));
        }
    }

    /// Closes the connection for news that was not used for a while.
    fn close_unused_news(&self) {
        let now = self.reach.clock.now();
        self.news.lock().take_if(|(_, used)| now.since(*used) > KEEP_NEWS);
    }

    /// Sends a message about a namespace, or about none, and returns its answer.
    pub(super) fn call(
        &self,
        namespace: impl Into<Option<NamespaceId>>,
        message: &[u8],
        call: &Call,
    ) -> std::result::Result<Vec<u8>, Lost> {
        let namespace = namespace.into();
        self.reach.on_connection(call, |connection| {
            self.introduce(connection, namespace, call)?;
            self.reach.exchange(connection, message, call)
        })
    }

    /// Sends a question in parts, of which the server answers one while the next is on its way, and returns the
    /// answers. All of them together must be small: nobody reads the first one before the last part was sent.
    pub(super) fn call_in_parts(
        &self,
        namespace: NamespaceId,
        parts: &(impl Iterator<Item = Vec<u8>> + Clone),
        call: &Call,
    ) -> std::result::Result<Vec<Vec<u8>>, Lost> {
        self.reach.on_connection(call, |connection| {
            self.introduce(connection, namespace.into(), call)?;
            self.reach.exchange_all(connection, parts.clone(), call)
        })
    }

    /// Sends a put of blocks that are copied into a window of the connection first. `message` is that of a ticket.
    pub(super) fn call_with_blocks(
        &self,
        namespace: NamespaceId,
        message: impl Fn(u64) -> Vec<u8>,
        blocks: &[Vec<Memory>],
        bytes: usize,
        call: &Call,
    ) -> std::result::Result<Vec<u8>, Lost> {
        let is_over = || call.left(&self.reach.clock).is_err();
        self.reach.on_connection(call, |connection| {
            self.introduce(connection, namespace.into(), call)?;
            let window = connection.copy_in(blocks, bytes, is_over)?;
            let answered = self.exchange_window(connection, &window, &message, call);
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
        call: &Call,
    ) -> std::result::Result<Vec<u8>, Lost> {
        self.reach.on_connection(call, |connection| {
            self.introduce(connection, namespace.into(), call)?;
            self.exchange_window(connection, window, &message, call)
        })
    }

    /// Makes a namespace known that the server does not know yet.
    fn introduce(
        &self,
        connection: &mut Connection,
        namespace: Option<NamespaceId>,
        call: &Call,
    ) -> std::result::Result<(), Lost> {
        let Some(known) = namespace.and_then(|id| self.reach.shared.namespaces.find(id)) else {
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
        let answer = self.reach.exchange(connection, &registration(&known), call)?;
        let Err(error) = understand_registration(&answer) else {
            self.introduced.lock().insert(id, Introduced::Known);
            return Ok(());
        };
        // A server that is about to end refuses nothing.
        if error.kind() != ErrorKind::Closed && self.refuse(id) {
            tracing::warn!(%id, %error, "the server refuses a namespace; its blocks are misses");
        }
        Err(Lost::Away)
    }

    /// Remembers that the server refuses a namespace, unless another call found out that it knows it. Returns whether
    /// that is news.
    fn refuse(&self, id: NamespaceId) -> bool {
        match self.introduced.lock().entry(id) {
            Entry::Occupied(_) => false,
            Entry::Vacant(entry) => {
                entry.insert(Introduced::Refused);
                true
            }
        }
    }

    /// Registers a namespace, whatever the server knows of it.
    ///
    /// # Errors
    ///
    /// What the server says. That it says nothing is no error: the next call registers it.
    pub(super) fn register(&self, known: &Known, call: &Call) -> Result<()> {
        let Ok(answer) = self.call(None, &registration(known), call) else { return Ok(()) };
        match understand_registration(&answer) {
            // It is about to end.
            Err(error) if error.kind() == ErrorKind::Closed => return Ok(()),
            understood => understood?,
        }
        self.introduced.lock().insert(known.namespace.id(), Introduced::Known);
        Ok(())
    }

    fn exchange_window(
        &self,
        connection: &mut Connection,
        window: &Window,
        message: impl Fn(u64) -> Vec<u8>,
        call: &Call,
    ) -> std::result::Result<Vec<u8>, Lost> {
        if !connection.knows(window) {
            self.reach.send(call, |timeout| connection.send_window(window, timeout))?;
            let reply = self.reach.answer(connection, call)?;
            if !matches!(wire::decode(&reply), Ok((Reply::Done, _))) {
                return Err(Stopped::Busy.into());
            }
            connection.window_is_known(window);
        }
        let answered = self.reach.exchange(connection, &message(window.ticket()), call);
        if answered.is_err() {
            window.give_up();
        }
        answered
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
