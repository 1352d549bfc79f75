//! A client's part in the pool of one server: its memory, its connections, and what the server knows of the client.
//!
//! 1. A server that does not respond is not asked again until its heartbeat goes on. So a stopped server costs one
//!    deadline, and nothing after that.
//! 2. A lease that the client does not use, also one whose reply came too late, is ended as soon as the server can be
//!    told.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use dalsegno_core::{Clock, Error, ErrorKind, NamespaceId, Nanos, Result, StoreId};
use dalsegno_io::{Access, Region, SystemClock};
use dalsegno_pool::ArenaHeader;
use parking_lot::Mutex;

use super::connection::{Connection, HELLO_TIMEOUT, Unreached, Welcome};
use super::connections::{Connections, Turn};
use super::ended_leases::EndedLeases;
use super::facts::Facts;
use super::limit::{Limit, Lost};
use super::namespaces::Namespaces;
use super::waker::Waker;
use crate::account::NO_LEASE;
use crate::wire::{self, Reply};

/// How often a call that waits looks at the heartbeat.
pub(super) const LOOK: Duration = Duration::from_millis(50);
/// How long the connection for news is kept.
const KEEP_NEWS: Duration = Duration::from_secs(2);
const NEVER_STALLED: u64 = u64::MAX;

/// A server that was reached.
#[derive(Debug)]
pub(super) struct Attachment {
    pub(super) socket: PathBuf,
    pub(super) region: Arc<Region>,
    pub(super) header: ArenaHeader,
    pub(super) clock: SystemClock,
    pub(super) connections: Connections,
    /// The heartbeat at which a call got no answer.
    pub(super) stalled_at: AtomicU64,
    pub(super) is_gone: AtomicBool,
    pub(super) shared: Arc<Shared>,
    /// What this server said of the namespaces that it was told of.
    pub(super) introduced: Mutex<HashMap<NamespaceId, Introduced>>,
    /// A connection for the news that leases ended, while calls use all others: they may wait for just that.
    news: Mutex<Option<(Connection, Nanos)>>,
    /// Whether the client does not use it any more, but for leases.
    is_retired: AtomicBool,
}

/// What the attachments of a client share.
#[derive(Debug, Default)]
pub(super) struct Shared {
    pub(super) namespaces: Namespaces,
    /// Leases that ended here, and that their server has not heard of.
    pub(super) ended: EndedLeases,
    /// Wakes the thread that looks after the connections.
    pub(super) waker: Waker,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Introduced {
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
        let strange = || Error::new(ErrorKind::Incompatible, "the pool has an unknown format");
        let bytes = usize::try_from(arena_bytes).map_err(|_| strange())?;
        let region = Region::map(arena, bytes, Access::Read, "the pool of the server");
        let region = region.map_err(|error| {
            let message = "the pool of the server cannot be mapped";
            Error::new(ErrorKind::Unavailable, message).with_source(error)
        })?;
        let header = header_of(&region)
            .filter(|header| header.epoch == epoch && header.arena_bytes() == region.bytes());
        let limits = serde_json::from_str(&limits).map_err(|_| strange())?;
        let facts = Facts { store: StoreId(store), limits };
        let attachment = Self {
            socket: socket.to_owned(),
            region: Arc::new(region),
            header: header.ok_or_else(strange)?,
            clock,
            connections: Connections::of(connection, clock.now()),
            stalled_at: AtomicU64::new(NEVER_STALLED),
            is_gone: AtomicBool::new(false),
            shared: Arc::clone(shared),
            introduced: Mutex::default(),
            news: Mutex::default(),
            is_retired: AtomicBool::new(false),
        };
        Ok((attachment, facts))
    }

    /// Looks after the connections between calls. `false` if the server is gone.
    pub(super) fn look_after(&self) -> bool {
        self.read_late_replies();
        self.connections.tidy(self.clock.now());
        if self.connections.are_none() && !self.is_gone() && !self.is_stalled() {
            // The server closed them all: either it ended, or others needed them.
            let limit = Limit::within(HELLO_TIMEOUT, self.clock.now());
            if let Turn::Open = self.connections.turn(self.clock.now())
                && let Ok(connection) = self.open_counted(&limit)
            {
                self.connections.put_back(connection, self.clock.now());
            }
        }
        self.flush_leases();
        self.close_unused_news();
        !self.is_gone()
    }

    /// Reads replies that came after their calls had ended, and ends the leases in them.
    pub(super) fn read_late_replies(&self) {
        self.connections.read_late_replies(self.clock.now(), |reply| {
            if let Ok((Reply::Acquired { lease, .. } | Reply::Leased { lease, .. }, _)) =
                wire::decode(reply)
                && lease != NO_LEASE
            {
                self.shared.ended.add(self.header.epoch, lease);
            }
        });
    }

    /// Whether the server ended, as far as a call found out.
    pub(super) fn is_gone(&self) -> bool {
        self.is_gone.load(Ordering::Acquire)
    }

    /// Whether the server did not respond, and its heart has not beaten since.
    pub(super) fn is_stalled(&self) -> bool {
        self.stalled_at.load(Ordering::Relaxed) == self.heartbeat()
    }

    pub(super) fn heartbeat(&self) -> u64 {
        self.region.counter(ArenaHeader::HEARTBEAT_OFFSET).expect("within the header")
    }

    /// Says that a lease ended. The server hears of it with the next call.
    pub(super) fn end_lease(&self, lease: u64) {
        if !self.region.is_here() {
            return;
        }
        self.shared.ended.add(self.header.epoch, lease);
        if self.is_retired.load(Ordering::Acquire) {
            // No call follows that could take the news along.
            self.read_late_replies();
            self.flush_leases();
        } else if self.connections.are_all_used() {
            // Calls may wait at the server for this lease to end, and none of them takes the news along.
            self.shared.waker.wake();
        }
    }

    /// Says that the client does not use it any more.
    pub(super) fn retire(&self) {
        self.is_retired.store(true, Ordering::Release);
        self.read_late_replies();
        self.flush_leases();
    }

    /// Sends ended leases to the server without waiting for a connection.
    fn flush_leases(&self) {
        let is_idle = self.shared.ended.are_none(self.header.epoch);
        if is_idle || !self.region.is_here() || self.is_gone() || self.is_stalled() {
            return;
        }
        while let Some(mut connection) = self.connections.take_idle() {
            let told = self.tell_ended(&mut connection, LOOK);
            self.settle(connection, &told);
            if told != Err(Lost::Ended) {
                return;
            }
        }
        let mut news = self.news.lock();
        let now = self.clock.now();
        let limit = Limit::within(HELLO_TIMEOUT, now);
        let open = news.take().map(|(connection, _)| connection);
        let Some(mut connection) = open.or_else(|| self.connect(&limit).ok()) else { return };
        if self.tell_ended(&mut connection, LOOK) != Err(Lost::Ended) {
            *news = Some((connection, now));
        }
    }

    /// Closes the connection for news that was not used for a while.
    fn close_unused_news(&self) {
        let now = self.clock.now();
        self.news.lock().take_if(|(_, used)| now.since(*used) > KEEP_NEWS);
    }
}

fn header_of(region: &Region) -> Option<ArenaHeader> {
    if region.bytes() < ArenaHeader::BYTES {
        return None;
    }
    let mut bytes = vec![0; ArenaHeader::BYTES];
    dalsegno_io::lend(|lender| region.copy_racing(0, &mut [lender.exclusive(&mut bytes)]));
    ArenaHeader::decode(&bytes)
}
