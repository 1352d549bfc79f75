//! The server: it owns a store, and serves its pool to other processes.
//!
//! 1. A connection has one thread, so a client that hangs or asks much holds up nobody else. Connections are bounded.
//! 2. A client that does not read its answers, or says nothing at first, is left after a bounded time.
//! 3. Closing ends all connections after the requests under way, then closes the store.

use std::collections::BTreeSet;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use crossbeam_channel::{Receiver, RecvTimeoutError, Sender};
use dalsegno_core::{Clock, Error, ErrorKind, Result};
use dalsegno_io::{BindError, Channel, ChannelError, Listener, SystemClock, Workers};
use dalsegno_store::{Pool, PoolUse, no_thread};
use parking_lot::Mutex;
use serde::Serialize;

use crate::account::{AccountStats, Accounts, Bounds, SessionSlot};
use crate::place::record_of;
use crate::session::{Answer, Session};
use crate::wire::MOST_FRAME_BYTES;

/// Time between two heartbeats.
pub(crate) const HEARTBEAT: Duration = Duration::from_millis(10);
/// Heartbeats between two looks for overdue leases.
const LAPSE_BEATS: u32 = 10;
/// How often a thread that waits looks whether the server closes.
const POLL: Duration = Duration::from_millis(200);
/// How long a client may take to read an answer, or to say hello.
const PATIENCE: Duration = Duration::from_secs(5);
/// Set in the numbers of connections whose process has none.
const NAMELESS: u64 = 1 << 62;
/// How long closing waits for requests under way.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(10);

/// The pool of some users, apart from those of others.
#[derive(Debug)]
pub struct Tenant {
    /// Its name, for messages.
    pub name: String,
    /// The users who get it.
    pub uids: BTreeSet<u32>,
    /// Their pool.
    pub pool: Pool,
}

/// A running server. It is closed by [`Server::close`], or when it is dropped.
#[derive(Debug)]
pub struct Server {
    shared: Arc<Serving>,
    stop: Mutex<Option<Sender<()>>>,
    workers: Mutex<Workers>,
    socket: PathBuf,
}

#[derive(Debug)]
struct Serving {
    /// The first is for users of no other.
    offers: Vec<Offer>,
    clock: Arc<dyn Clock>,
    is_closing: AtomicBool,
    requests: AtomicU64,
    /// Connections of processes without a number.
    nameless: AtomicU64,
}

/// A pool, who gets it, and who holds what of it.
#[derive(Debug)]
struct Offer {
    tenant: Tenant,
    accounts: Arc<Accounts>,
}

/// Everything that the server counts for one tenant.
#[derive(Clone, Debug, Serialize)]
pub struct TenantStats {
    /// Its name; empty for the users of no tenant.
    pub tenant: String,
    /// Bytes of the pool.
    pub pool_bytes: u64,
    /// Bytes of the pool in no place.
    pub pool_free_bytes: u64,
    /// Clients, and what they hold.
    #[serde(flatten)]
    pub accounts: AccountStats,
    /// The store behind the pool.
    pub store: dalsegno_store::Stats,
}

/// Everything that the server counts.
#[derive(Clone, Debug, Serialize)]
pub struct ServerStats {
    /// Requests that were handled.
    pub requests: u64,
    /// By tenant, those of no tenant first.
    pub tenants: Vec<TenantStats>,
}

impl Server {
    /// Fails if [`Self::start`] would refuse what is at the socket `path`. Nothing is changed.
    ///
    /// # Errors
    ///
    /// `Unavailable`.
    pub fn check_socket(path: &Path, directory: &Path) -> Result<()> {
        Listener::check(path, &record_of(directory)).map_err(|error| not_served(path, error))
    }

    /// Serves `pool`, whose store is in `directory`, on the socket `path`; each of `tenants` gets a pool of its own.
    ///
    /// # Errors
    ///
    /// `Unavailable` if something else is at `path`, or the system refuses.
    pub fn start(path: &Path, directory: &Path, pool: Pool, tenants: Vec<Tenant>) -> Result<Self> {
        let listener =
            Listener::bind(path, &record_of(directory)).map_err(|error| not_served(path, error))?;
        let everybody = Tenant { name: String::new(), uids: BTreeSet::new(), pool };
        let offers = std::iter::once(everybody).chain(tenants).map(|tenant| {
            let bounds = tenant.pool.usage().map(|usage| Bounds::of_pool(usage.capacity_bytes))?;
            Ok(Offer { tenant, accounts: Accounts::new(bounds) })
        });
        let shared = Arc::new(Serving {
            offers: offers.collect::<Result<_>>()?,
            clock: Arc::new(SystemClock::new()),
            is_closing: AtomicBool::new(false),
            requests: AtomicU64::new(0),
            nameless: AtomicU64::new(0),
        });
        let socket = listener.path().to_owned();
        let (stop, stopped) = crossbeam_channel::bounded(0);
        let mut workers = Workers::new();
        let (beating, accepting) = (Arc::clone(&shared), Arc::clone(&shared));
        workers.start("dalsegno-beat", move || beat(&beating, &stopped)).map_err(no_thread)?;
        workers
            .start("dalsegno-accept", move || accept(&accepting, &listener))
            .map_err(no_thread)?;
        let (stop, workers) = (Mutex::new(Some(stop)), Mutex::new(workers));
        Ok(Self { shared, stop, workers, socket })
    }

    /// Where it listens.
    #[must_use]
    pub fn socket(&self) -> &Path {
        &self.socket
    }

    /// All counters and gauges.
    #[must_use]
    pub fn stats(&self) -> ServerStats {
        let tenants = self.shared.offers.iter().map(Offer::stats).collect();
        ServerStats { requests: self.shared.requests.load(Ordering::Relaxed), tenants }
    }

    /// Ends all connections, then closes the store. Calling it again does nothing.
    pub fn close(&self) {
        let Some(stop) = self.stop.lock().take() else { return };
        self.shared.is_closing.store(true, Ordering::Release);
        let clock = &self.shared.clock;
        let until = clock.now().after(CLOSE_TIMEOUT);
        while self.shared.sessions() > 0 {
            if clock.now() >= until {
                tracing::warn!("a request is still under way; closing the store without it");
                break;
            }
            std::thread::sleep(HEARTBEAT);
        }
        // The heart beats until the last request was answered.
        drop(stop);
        self.workers.lock().join(CLOSE_TIMEOUT);
        for offer in &self.shared.offers {
            offer.tenant.pool.store().close();
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // A forked child has no part in it.
        if self.workers.lock().are_ours() {
            self.close();
        }
    }
}

impl Serving {
    fn sessions(&self) -> u64 {
        self.offers.iter().map(|offer| offer.accounts.stats().sessions).sum()
    }

    /// What a user is offered.
    fn offer(&self, uid: u32) -> &Offer {
        let own = self.offers.iter().find(|offer| offer.tenant.uids.contains(&uid));
        own.unwrap_or(&self.offers[0])
    }
}

impl Offer {
    fn stats(&self) -> TenantStats {
        let pool = &self.tenant.pool;
        let none = PoolUse { capacity_bytes: 0, free_bytes: 0, leased_bytes: 0 };
        let usage = pool.usage().unwrap_or(none);
        TenantStats {
            tenant: self.tenant.name.clone(),
            pool_bytes: usage.capacity_bytes,
            pool_free_bytes: usage.free_bytes,
            accounts: self.accounts.stats(),
            store: pool.store().stats(),
        }
    }
}

fn not_served(path: &Path, error: BindError) -> Error {
    let message = format!("cannot serve on {}", path.display());
    Error::new(ErrorKind::Unavailable, message).with_source(error)
}

/// Shows clients that the server runs, and ends overdue leases.
fn beat(shared: &Serving, stopped: &Receiver<()>) {
    let mut beats = 0_u32;
    while stopped.recv_timeout(HEARTBEAT) == Err(RecvTimeoutError::Timeout) {
        beats = beats.wrapping_add(1);
        for offer in &shared.offers {
            offer.tenant.pool.beat();
            if beats.is_multiple_of(LAPSE_BEATS) {
                offer.accounts.lapse(shared.clock.now());
            }
        }
    }
}

fn accept(shared: &Arc<Serving>, listener: &Listener) {
    while !shared.is_closing.load(Ordering::Acquire) {
        match listener.accept(POLL) {
            Ok(Some(channel)) => start_session(shared, channel),
            Ok(None) => {}
            Err(error) => {
                tracing::warn!(%error, "a connection was not accepted");
                // Too many open files, for example: what comes next would fail as well.
                std::thread::sleep(POLL);
            }
        }
    }
}

fn start_session(shared: &Arc<Serving>, channel: Channel) {
    let (pid, uid) = (channel.peer().pid, channel.peer().uid);
    let offer = shared.offer(uid);
    // Without a number, a connection counts as a process of its own.
    let process = channel
        .peer()
        .process()
        .unwrap_or_else(|| NAMELESS | shared.nameless.fetch_add(1, Ordering::Relaxed));
    let Some(slot) = offer.accounts.open_session(process) else {
        tracing::warn!(pid, "too many connections; one more is refused");
        return;
    };
    tracing::debug!(pid, uid, tenant = offer.tenant.name, "a client connected");
    let (shared, pool) = (Arc::clone(shared), offer.tenant.pool.clone());
    let body = move || serve(&shared, channel, pool, slot);
    if let Err(error) = dalsegno_io::spawn("dalsegno-session", body) {
        tracing::warn!(pid, %error, "no thread for a connection; it is refused");
    }
}

/// Answers one client until it or the server ends.
fn serve(shared: &Serving, mut channel: Channel, pool: Pool, slot: SessionSlot) {
    let (pid, arena) = (channel.peer().pid, pool.clone());
    let mut session = Session::new(pool, Arc::clone(&shared.clock), slot);
    let silent_until = shared.clock.now().after(PATIENCE);
    let mut is_silent = true;
    while !shared.is_closing.load(Ordering::Acquire) {
        let frame = match channel.receive(MOST_FRAME_BYTES, Some(POLL)) {
            Ok(frame) => frame,
            Err(ChannelError::Timeout) if is_silent && shared.clock.now() > silent_until => break,
            Err(ChannelError::Timeout) => continue,
            Err(ChannelError::Ended) => break,
            Err(error) => {
                session.note_malformed();
                tracing::warn!(pid, %error, "a connection was closed");
                break;
            }
        };
        is_silent = false;
        shared.requests.fetch_add(1, Ordering::Relaxed);
        let sent = match session.handle(&frame.bytes, frame.descriptors) {
            Answer::Nothing => Ok(()),
            Answer::Send { bytes, with_arena } => {
                let files = [arena.file().as_fd()];
                let files = if with_arena { &files[..] } else { &[] };
                channel.send(&bytes, files, Some(PATIENCE))
            }
            Answer::End(malformed) => {
                tracing::warn!(pid, %malformed, "a connection was closed");
                break;
            }
        };
        if let Err(error) = sent {
            tracing::debug!(pid, %error, "an answer was not sent");
            break;
        }
        if !shared.is_closing.load(Ordering::Acquire) {
            session.read_ahead();
        }
    }
}
