//! Whether a client has a server: the thread that connects, and connects again.
//!
//! 1. No call connects to a server that is away: it is a miss immediately. One thread tries again, with pauses that
//!    double up to [`LONGEST_PAUSE`].
//! 2. No lock is held while anybody waits for a server.
//! 3. That a server is away is logged once, and once that it is back.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use dalsegno_core::{Error, ErrorKind, Namespace, NamespaceId, Result};
use dalsegno_io::{SystemClock, Workers};
use dalsegno_store::{RegisterOptions, Terms, no_thread};
use parking_lot::{Mutex, RwLock};

use super::attachment::Attachment;
use super::facts::Facts;
use super::namespaces::Known;
use super::shared::Shared;

const FIRST_PAUSE: Duration = Duration::from_millis(10);
const LONGEST_PAUSE: Duration = Duration::from_millis(250);
/// How often the thread looks after the connections to the server.
const WATCH: Duration = Duration::from_millis(100);
const REGISTER_TIMEOUT: Duration = Duration::from_secs(5);
const CLOSE_TIMEOUT: Duration = Duration::from_secs(10);

/// The way to a server.
#[derive(Debug)]
pub(super) struct Link {
    shared: Arc<LinkState>,
    worker: Mutex<Workers>,
}

#[derive(Debug)]
struct LinkState {
    socket: PathBuf,
    clock: SystemClock,
    attached: RwLock<Option<Arc<Attachment>>>,
    of_all: Arc<Shared>,
    facts: Mutex<Facts>,
    is_away_logged: AtomicBool,
}

impl Link {
    /// Tries to reach the server once, and starts the thread that tries again.
    ///
    /// # Errors
    ///
    /// `Incompatible` if the server does not speak our version; `Unavailable` if the system refuses the thread. That
    /// nobody answers is no error.
    pub(super) fn start(socket: &Path, clock: SystemClock) -> Result<Self> {
        let shared = Arc::new(LinkState {
            socket: socket.to_owned(),
            clock,
            attached: RwLock::new(None),
            of_all: Arc::default(),
            facts: Mutex::default(),
            is_away_logged: AtomicBool::new(false),
        });
        match shared.attach() {
            Err(error) if error.kind() == ErrorKind::Incompatible => return Err(error),
            Err(error) => shared.log_away(&error),
            Ok(()) => {}
        }
        let mut workers = Workers::new();
        let of_thread = Arc::clone(&shared);
        let body = move || keep_attached(&of_thread);
        workers.start("dalsegno-connect", body).map_err(no_thread)?;
        Ok(Self { shared, worker: Mutex::new(workers) })
    }

    /// Where the server is expected.
    pub(super) fn socket(&self) -> &Path {
        &self.shared.socket
    }

    /// The server, unless it is away.
    pub(super) fn server(&self) -> Option<Arc<Attachment>> {
        let attached = self.shared.attached.read().as_ref().map(Arc::clone)?;
        if attached.reach().is_gone() {
            self.shared.of_all.waker.wake();
            return None;
        }
        (!attached.reach().is_stalled()).then_some(attached)
    }

    /// What is known of the store of the last server that was reached.
    pub(super) fn facts(&self) -> Facts {
        self.shared.facts.lock().clone()
    }

    /// Makes a namespace known to this client, and to the server if it is there.
    ///
    /// # Errors
    ///
    /// What the server says; then the namespace is not known here either.
    pub(super) fn register(&self, namespace: &Namespace, options: RegisterOptions) -> Result<()> {
        let namespaces = &self.shared.of_all.namespaces;
        if let Some(server) = self.server() {
            let known = Known { namespace: Arc::new(namespace.clone()), options };
            let call = Terms::within(REGISTER_TIMEOUT).call(&self.shared.clock);
            server.register(&known, &call)?;
        }
        namespaces.add(namespace, options);
        Ok(())
    }

    /// The namespaces of this client.
    pub(super) fn namespaces(&self) -> Vec<Namespace> {
        self.shared.of_all.namespaces.all()
    }

    /// A namespace of this client.
    ///
    /// # Errors
    ///
    /// `Invalid` if it was not registered.
    pub(super) fn namespace(&self, id: NamespaceId) -> Result<Arc<Namespace>> {
        self.shared.of_all.namespaces.get(id)
    }

    /// Remembers a namespace that the server knows.
    pub(super) fn learn(&self, namespace: &Namespace) {
        self.shared.of_all.namespaces.learn(namespace);
    }

    /// Ends the connections.
    pub(super) fn close(&self) {
        self.shared.of_all.waker.close();
        self.worker.lock().join(CLOSE_TIMEOUT);
        if let Some(last) = self.shared.attached.write().take() {
            last.retire();
        }
    }
}

impl LinkState {
    /// Connects to the server.
    fn attach(&self) -> Result<()> {
        let (server, facts) = Attachment::open(&self.socket, self.clock, &self.of_all)?;
        self.of_all.ended.forget_others(server.arena().epoch());
        *self.facts.lock() = facts;
        *self.attached.write() = Some(Arc::new(server));
        self.log_back();
        Ok(())
    }

    fn log_back(&self) {
        if self.is_away_logged.swap(false, Ordering::AcqRel) {
            tracing::warn!(socket = %self.socket.display(), "the server is there; its blocks are used from now on");
        }
    }

    /// Logs whether an attached server responds.
    fn log_silence(&self, is_stalled: bool) {
        if is_stalled {
            let message = format!("the server at {} does not respond", self.socket.display());
            self.log_away(&Error::new(ErrorKind::Unavailable, message));
        } else {
            self.log_back();
        }
    }

    fn log_away(&self, error: &Error) {
        if !self.is_away_logged.swap(true, Ordering::AcqRel) {
            tracing::warn!(%error, "the server is away; until it is there, every block is a miss");
        }
    }
}

/// Connects whenever the server is away, until the client is closed.
fn keep_attached(shared: &LinkState) {
    let mut pause = FIRST_PAUSE;
    // Servers that ended. To unmap their memory takes a while, and no call may pay for it.
    let mut former: Vec<Arc<Attachment>> = Vec::new();
    loop {
        former.retain(|server| Arc::strong_count(server) > 1);
        let attached = shared.attached.read().as_ref().map(Arc::clone);
        let wait = match &attached {
            Some(server) if server.look_after() => {
                shared.log_silence(server.reach().is_stalled());
                pause = FIRST_PAUSE;
                WATCH
            }
            Some(_) => {
                former.extend(shared.attached.write().take());
                continue;
            }
            None => match shared.attach() {
                Ok(()) => {
                    pause = FIRST_PAUSE;
                    continue;
                }
                Err(error) => {
                    shared.log_away(&error);
                    let now = pause;
                    pause = (2 * pause).min(LONGEST_PAUSE);
                    now
                }
            },
        };
        drop(attached);
        if !shared.of_all.waker.wait(wait) {
            return;
        }
    }
}
