//! A client's part in the pool of one server: its memory, and the connections to it.
//!
//! 1. A call ends at its deadline, or a short time later, whatever the server does.
//! 2. A server that does not respond is not asked again until its heartbeat goes on. So a stopped server costs one
//!    deadline, and nothing after that.
//! 3. A connection on which an answer is missing is closed: the next answer on it would be another call's.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use dalsegno_core::{Clock, Deadline, Error, ErrorKind, Nanos, Result, StoreId};
use dalsegno_io::{Access, ChannelError, Memory, Region, SystemClock};
use dalsegno_pool::{ArenaHeader, Stamp, UNIT_BYTES, is_current};
use dalsegno_store::Cancel;
use parking_lot::{Condvar, Mutex};

use super::connection::{Connection, HELLO_TIMEOUT, Welcome, Window};
use super::ended_leases::EndedLeases;
use super::facts::Facts;
use super::limit::{Limit, Lost};
use crate::wire::{self, PlaceRow, Reply, Request};

/// Most connections of a client. Further calls wait for one of them.
const MOST_CONNECTIONS: usize = 16;
/// How long an answer may take beyond the deadline of its call, which the server keeps as well.
const GRACE: Duration = Duration::from_millis(10);
/// How often a call that waits looks at the heartbeat.
const LOOK: Duration = Duration::from_millis(50);
/// A server whose heartbeat stands still for so long does not respond.
const STALL: Duration = Duration::from_secs(1);
const NEVER_STALLED: u64 = u64::MAX;

/// A server that was reached.
#[derive(Debug)]
pub(super) struct Attachment {
    socket: PathBuf,
    region: Arc<Region>,
    header: ArenaHeader,
    clock: SystemClock,
    connections: Mutex<Connections>,
    returned: Condvar,
    /// The heartbeat at which a call got no answer.
    stalled_at: AtomicU64,
    is_gone: AtomicBool,
    /// Leases that ended here, and that the server has not heard of.
    ended: Arc<EndedLeases>,
    /// Whether the client does not use it any more, but for leases.
    is_retired: AtomicBool,
}

#[derive(Debug, Default)]
struct Connections {
    idle: Vec<Connection>,
    open: usize,
}

impl Attachment {
    /// Connects to the server at `socket` and maps its arena.
    ///
    /// # Errors
    ///
    /// As [`Connection::open`]; `Incompatible` if the arena has another format.
    pub(super) fn open(
        socket: &Path,
        clock: SystemClock,
        ended: &Arc<EndedLeases>,
    ) -> Result<(Self, Facts)> {
        let (connection, welcome) = Connection::open(socket, HELLO_TIMEOUT)?;
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
        let connections = Connections { idle: vec![connection], open: 1 };
        let limits = serde_json::from_str(&limits).map_err(|_| strange())?;
        let facts = Facts { store: StoreId(store), limits };
        let attachment = Self {
            socket: socket.to_owned(),
            region: Arc::new(region),
            header: header.ok_or_else(strange)?,
            clock,
            connections: Mutex::new(connections),
            returned: Condvar::new(),
            stalled_at: AtomicU64::new(NEVER_STALLED),
            is_gone: AtomicBool::new(false),
            ended: Arc::clone(ended),
            is_retired: AtomicBool::new(false),
        };
        Ok((attachment, facts))
    }

    /// Whether the server is there, as far as a look at a connection shows.
    pub(super) fn looks_alive(&self) -> bool {
        if let Some(connection) = self.connections.lock().idle.last()
            && connection.has_ended()
        {
            self.is_gone.store(true, Ordering::Release);
        }
        !self.is_gone()
    }

    /// Whether the server ended, as far as a call found out.
    pub(super) fn is_gone(&self) -> bool {
        self.is_gone.load(Ordering::Acquire)
    }

    /// Whether the server did not respond, and its heart has not beaten since.
    pub(super) fn is_stalled(&self) -> bool {
        self.stalled_at.load(Ordering::Relaxed) == self.heartbeat()
    }

    fn heartbeat(&self) -> u64 {
        self.region.counter(ArenaHeader::HEARTBEAT_OFFSET).expect("within the header")
    }

    /// Says that leases ended. The server hears of it with the next call.
    pub(super) fn end_lease(&self, lease: u64) {
        if !self.region.is_here() {
            return;
        }
        self.ended.add(self.header.epoch, lease);
        if self.is_retired.load(Ordering::Acquire) {
            // No call follows that could take the news along.
            self.flush_leases();
        }
    }

    /// Says that the client does not use it any more.
    pub(super) fn retire(&self) {
        self.is_retired.store(true, Ordering::Release);
        self.flush_leases();
    }

    /// Sends ended leases to the server without waiting for a connection.
    pub(super) fn flush_leases(&self) {
        if !self.region.is_here() || self.is_gone() || self.is_stalled() {
            return;
        }
        let Some(mut connection) = self.connections.lock().idle.pop() else { return };
        let sent = self.send_ended(&mut connection, Some(LOOK));
        // If it failed, the connection is closed, and the leases end with the last one.
        let _ = self.settle(connection, sent);
    }

    /// The bytes of a block that lies in the arena, as address and length; `None` if it does not.
    pub(super) fn range(&self, row: PlaceRow, bytes: usize) -> Option<(usize, usize)> {
        let offset = self.offset(row, 0, bytes)?;
        Some((self.region.address_of(offset, bytes)?, bytes))
    }

    /// Copies bytes of a block out of the arena. `false` if its place ended before the last byte was copied: then what
    /// was copied is worthless.
    pub(super) fn copy(
        &self,
        row: PlaceRow,
        block_bytes: usize,
        from: usize,
        pieces: &mut [Memory],
    ) -> bool {
        let Some(offset) = self.offset(row, from, block_bytes - from) else { return false };
        self.region.copy_racing(offset, pieces);
        self.is_current(row, block_bytes)
    }

    /// Whether a block is still in its place.
    pub(super) fn is_current(&self, row: PlaceRow, block_bytes: usize) -> bool {
        let units = units_of(block_bytes);
        let generation = |unit: usize| {
            self.region.counter(ArenaHeader::GENERATIONS_OFFSET + unit * size_of::<u64>())
        };
        let last = row.unit.checked_add(units).filter(|end| *end <= self.header.unit_count);
        last.is_some() && is_current(generation, row.unit, units, row.stamp)
    }

    /// Where the bytes of a block from `from` on are; `None` if they are not in the arena.
    fn offset(&self, row: PlaceRow, from: usize, bytes: usize) -> Option<usize> {
        let unit = usize::try_from(UNIT_BYTES).expect("64-bit addresses");
        let start = self.header.units_offset() + row.unit as usize * unit + from;
        let end = start.checked_add(bytes)?;
        (end <= self.region.bytes() && row.stamp != Stamp(0)).then_some(start)
    }

    /// Sends a message and returns its answer.
    pub(super) fn call(&self, message: &[u8], limit: &Limit) -> std::result::Result<Vec<u8>, Lost> {
        let mut connection = self.take(limit)?;
        let answered = self.exchange(&mut connection, message, limit);
        self.settle(connection, answered)
    }

    /// Sends a put of blocks that are copied into a window of the connection first.
    pub(super) fn call_with_blocks(
        &self,
        message: &[u8],
        (blocks, bytes): (&[Vec<Memory>], usize),
        limit: &Limit,
    ) -> std::result::Result<Vec<u8>, Lost> {
        let mut connection = self.take(limit)?;
        let Ok(window) = connection.copy_in(blocks, bytes) else {
            self.put_back(connection);
            return Err(Lost::NoMemory);
        };
        let answered = self.exchange_window(&mut connection, &window, message, limit);
        if answered.is_err() {
            window.give_up();
        }
        self.settle(connection, answered)
    }

    /// Sends a put of blocks in a window of the caller's.
    pub(super) fn call_with_window(
        &self,
        message: &[u8],
        window: &Window,
        limit: &Limit,
    ) -> std::result::Result<Vec<u8>, Lost> {
        let mut connection = self.take(limit)?;
        let answered = self.exchange_window(&mut connection, window, message, limit);
        if answered.is_err() {
            window.give_up();
        }
        self.settle(connection, answered)
    }

    fn exchange_window(
        &self,
        connection: &mut Connection,
        window: &Window,
        message: &[u8],
        limit: &Limit,
    ) -> std::result::Result<Vec<u8>, Lost> {
        let left = self.left(limit)?;
        let sent = connection.send_window(window, left);
        if sent.map_err(|error| self.lost(&error))? {
            let reply = self.answer(connection, limit)?;
            if !matches!(wire::decode(&reply), Ok((Reply::Done, _))) {
                return Err(Lost::NoMemory);
            }
        }
        self.exchange(connection, message, limit)
    }

    /// As [`Attachment::call`], on a connection of the caller's. After an error it must be dropped.
    pub(super) fn exchange(
        &self,
        connection: &mut Connection,
        message: &[u8],
        limit: &Limit,
    ) -> std::result::Result<Vec<u8>, Lost> {
        let left = self.left(limit)?;
        self.send_ended(connection, left)?;
        connection.send(message, left.or(Some(STALL))).map_err(|error| self.lost(&error))?;
        self.answer(connection, limit)
    }

    fn send_ended(
        &self,
        connection: &mut Connection,
        timeout: Option<Duration>,
    ) -> std::result::Result<(), Lost> {
        let leases = self.ended.take(self.header.epoch);
        if leases.is_empty() {
            return Ok(());
        }
        let message = wire::encode(&Request::Release { leases });
        connection.send(&message, timeout.or(Some(STALL))).map_err(|error| self.lost(&error))
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
                Err(error) => return Err(self.lost(&error)),
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

    fn lost(&self, error: &ChannelError) -> Lost {
        if matches!(error, ChannelError::Timeout) {
            self.stalled_at.store(self.heartbeat(), Ordering::Relaxed);
            return Lost::Late;
        }
        tracing::debug!(%error, "a connection to the server ended");
        self.is_gone.store(true, Ordering::Release);
        Lost::Away
    }

    /// Takes a connection, opens one, or waits for one.
    fn take(&self, limit: &Limit) -> std::result::Result<Connection, Lost> {
        if self.is_gone() || self.is_stalled() {
            return Err(Lost::Away);
        }
        let mut connections = self.connections.lock();
        loop {
            if let Some(connection) = connections.idle.pop() {
                return Ok(connection);
            }
            if connections.open < MOST_CONNECTIONS {
                connections.open += 1;
                drop(connections);
                return self.connect(limit).inspect_err(|_| self.connections.lock().open -= 1);
            }
            let left = self.left(limit)?.unwrap_or(LOOK).min(LOOK);
            self.returned.wait_for(&mut connections, left);
            if self.is_gone() || self.is_stalled() {
                return Err(Lost::Away);
            }
        }
    }

    /// Opens a connection.
    pub(super) fn connect(&self, limit: &Limit) -> std::result::Result<Connection, Lost> {
        let timeout = self.left(limit)?.map_or(HELLO_TIMEOUT, |left| left + GRACE);
        match Connection::open(&self.socket, timeout.min(HELLO_TIMEOUT)) {
            Ok((connection, welcome)) if welcome.epoch == self.header.epoch => Ok(connection),
            Ok(_) => {
                // Another server by now, with another arena.
                self.is_gone.store(true, Ordering::Release);
                Err(Lost::Away)
            }
            Err(error) => {
                tracing::debug!(%error, "no further connection");
                self.stalled_at.store(self.heartbeat(), Ordering::Relaxed);
                Err(Lost::Away)
            }
        }
    }

    /// Gives a connection back after a call, or closes it if its answer is missing.
    fn settle<T>(
        &self,
        connection: Connection,
        answered: std::result::Result<T, Lost>,
    ) -> std::result::Result<T, Lost> {
        if answered.is_ok() {
            self.put_back(connection);
        } else {
            drop(connection);
            self.connections.lock().open -= 1;
            self.returned.notify_one();
        }
        answered
    }

    fn put_back(&self, connection: Connection) {
        self.connections.lock().idle.push(connection);
        self.returned.notify_one();
    }
}

/// Whether a call whose deadline passed has waited long enough for the answer.
fn is_over(deadline: Deadline, now: Nanos) -> bool {
    match deadline {
        Deadline::Never => false,
        Deadline::At(end) => now >= end.after(GRACE),
    }
}

fn units_of(block_bytes: usize) -> u32 {
    dalsegno_pool::Places::units_of(block_bytes as u64).unwrap_or(u32::MAX)
}

fn header_of(region: &Region) -> Option<ArenaHeader> {
    if region.bytes() < ArenaHeader::BYTES {
        return None;
    }
    let mut bytes = vec![0; ArenaHeader::BYTES];
    dalsegno_io::lend(|lender| region.copy_racing(0, &mut [lender.exclusive(&mut bytes)]));
    ArenaHeader::decode(&bytes)
}
