//! The server: it owns a store, and serves its pool to other processes.
//!
//! 1. A connection has one thread, so a client that hangs or asks much holds up nobody else. Connections are bounded,
//!    and so are the descriptors that they need.
//! 2. A client that does not read its answers, or says nothing at first, is left after a bounded time.
//! 3. Closing ends all connections after the requests under way, then closes the store.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use crossbeam_channel::{Receiver, RecvTimeoutError, Sender};
use dalsegno_core::{Clock, Error, ErrorKind, Result};
use dalsegno_io::{BindError, Listener, SystemClock, Workers, allow_open_files};
use dalsegno_store::{Pool, no_thread};
use parking_lot::Mutex;
use serde::Serialize;

use crate::accept::accept;
use crate::account::{Bounds, ClientLines, LeaseShare};
use crate::place::record_of;
use crate::serving::{Offer, Serving, Tenant, TenantStats};

/// Time between two heartbeats.
pub(crate) const HEARTBEAT: Duration = Duration::from_millis(10);
/// Heartbeats between two looks for overdue leases.
const LAPSE_BEATS: u32 = 10;
/// Descriptors that one connection needs at most: its socket, its process, its window, and those of a frame.
const CONNECTION_FILES: u64 = 8;
/// Descriptors of a store besides its segments, and of the program around the server.
const OTHER_FILES: u64 = 128;
/// Connections of a tenant although the system allows too few descriptors for them.
const LEAST_SESSIONS: u64 = 32;
/// How long closing waits for requests under way.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(10);

/// A running server. It is closed by [`Server::close`], or when it is dropped.
#[derive(Debug)]
pub struct Server {
    shared: Arc<Serving>,
    stop: Mutex<Option<Sender<()>>>,
    workers: Mutex<Workers>,
    socket: PathBuf,
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

    /// Serves `pool`, whose store is in `directory`, on the socket `path`; each of `tenants` gets a pool of its own. A
    /// `share` of each may be leased in place.
    ///
    /// # Errors
    ///
    /// `Unavailable` if something else is at `path`, or the system refuses.
    pub fn start(
        path: &Path,
        directory: &Path,
        pool: Pool,
        tenants: Vec<Tenant>,
        share: LeaseShare,
    ) -> Result<Self> {
        let listener =
            Listener::bind(path, &record_of(directory)).map_err(|error| not_served(path, error))?;
        let everybody = Tenant { name: String::new(), uids: BTreeSet::new(), pool };
        let tenants: Vec<Tenant> = std::iter::once(everybody).chain(tenants).collect();
        let sessions = allowed_sessions(&tenants);
        let clock: Arc<dyn Clock> = Arc::new(SystemClock::new());
        let lines = Arc::<ClientLines>::default();
        let offer = |tenant| Offer::new(tenant, sessions, share, &clock, &lines);
        let offers = tenants.into_iter().map(offer).collect::<Result<_>>()?;
        let shared = Arc::new(Serving {
            offers,
            clock,
            lines,
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

/// How many connections each tenant may have, so that descriptors do not run out.
fn allowed_sessions(tenants: &[Tenant]) -> u64 {
    let files =
        |tenant: &Tenant| u64::from(tenant.pool.store().limits().segment_count) + OTHER_FILES;
    let (of_stores, count): (u64, _) = (tenants.iter().map(files).sum(), tenants.len() as u64);
    let allowed = allow_open_files(of_stores + count * CONNECTION_FILES * Bounds::SESSIONS);
    let sessions = allowed.saturating_sub(of_stores) / CONNECTION_FILES / count;
    if sessions < Bounds::SESSIONS {
        let connections = sessions.max(LEAST_SESSIONS);
        tracing::warn!(
            allowed,
            connections,
            "fewer connections: raise the limit on open files (ulimit -n)"
        );
    }
    sessions.clamp(LEAST_SESSIONS, Bounds::SESSIONS)
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
