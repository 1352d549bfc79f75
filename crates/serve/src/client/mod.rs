//! A store of another process, with the calls of a store of this one.
//!
//! 1. While the server is away, stopped or incompatible, every call is a miss, within its terms. No call fails because
//!    of it.
//! 2. Bytes that a call returns were in their place, unchanged, until the last one was copied.
//! 3. A client serves the process that opened it. In a forked child every call is refused before it touches a lock.

mod attachment;
mod connection;
mod connections;
mod ended_leases;
mod facts;
mod inner;
mod layers;
mod lease;
mod link;
mod load;
mod lost;
mod namespaces;
mod placed_blocks;
mod places;
mod reach;
mod removals;
mod remove;
mod save;
mod shared;
mod submitted;
mod waker;
mod watch_lines;

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use dalsegno_core::{ChainHash, ErrorKind, Namespace, NamespaceId, Result, StoreId};
use dalsegno_io::{Executor, SystemClock};
use dalsegno_store::{
    Cause, Direction, GetReport, Keep, LayerSpan, LayerWriter, Load, LoadProgress, LoadTarget,
    Located, Memory, Outcome, PageTarget, PagedBlocks, Phase, Put, PutOutcome, PutReport, Region,
    RegisterOptions, Scope, Terms, Transfer, TransferLanes, absolute, check_get, check_pages,
    no_thread,
};
use parking_lot::Mutex;

#[cfg(test)]
pub(crate) use self::connection::{FIRST_TICKET, Window};
pub use self::lease::ServedLease;
pub use self::removals::ServedWatch;
pub use self::save::{Allocation, AllocationPut};

use self::inner::{Inner, Parts, look};
use self::link::Link;
pub(crate) use self::load::understand;
use self::load::{BlockLoad, Destination};
use self::watch_lines::WatchLines;
use crate::wire::{self, Look, MOST_HASHES, MOST_STEPS, Reply, Request};

/// Threads of each direction for transfers, and transfers that may wait for them.
const LANES: (u32, u32) = (2, 256);

/// A store that a server shares. Clones share it. It is closed when [`Client::close`] is called or the last clone is
/// dropped.
#[derive(Clone, Debug)]
pub struct Client {
    inner: Arc<Inner>,
}

impl Client {
    /// Connects to the server at `socket`, now or as soon as it is there.
    ///
    /// # Errors
    ///
    /// `Incompatible` if the server does not speak our version; `Unavailable` if the system refuses a thread.
    pub fn open(socket: &Path) -> Result<Self> {
        // The client connects again and again, wherever the process works then.
        let socket = &absolute(socket)?;
        let clock = SystemClock::new();
        let lanes = TransferLanes::start(Executor::Threads, LANES.0, LANES.1).map_err(no_thread)?;
        let parts = Parts {
            link: Link::start(socket, clock)?,
            lanes,
            clock,
            is_closed: AtomicBool::new(false),
            last_stats: Mutex::default(),
            submitted: Arc::default(),
            watches: WatchLines::default(),
        };
        Ok(Self { inner: Arc::new(Inner::new(parts)) })
    }

    /// Connects to the server at `socket` if there is one; `None` if nobody answers there.
    ///
    /// # Errors
    ///
    /// `Incompatible` if the server does not speak our version.
    pub(crate) fn open_served(socket: &Path) -> Result<Option<Self>> {
        match Self::open(socket) {
            Ok(client) if client.is_served() => Ok(Some(client)),
            Err(error) if error.kind() == ErrorKind::Incompatible => Err(error),
            // It closes itself.
            Ok(_) | Err(_) => Ok(None),
        }
    }

    /// Fails in a forked child, as every call does. Never waits.
    ///
    /// # Errors
    ///
    /// `Unavailable`.
    pub fn check_process(&self) -> Result<()> {
        self.inner.check_process()
    }

    fn enter(&self) -> Result<&Parts> {
        self.inner.enter()
    }

    fn parts(&self) -> &Parts {
        self.inner.parts()
    }

    /// The name of the store; all zeros as long as no server was reached.
    #[must_use]
    pub fn id(&self) -> StoreId {
        self.check_process()
            .map_or_else(|_| StoreId::default(), |()| self.parts().link.facts().store)
    }

    /// Where the server is expected.
    #[must_use]
    pub fn socket(&self) -> &Path {
        self.parts().link.socket()
    }

    /// Whether a server is there and responds.
    #[must_use]
    pub fn is_served(&self) -> bool {
        self.enter().is_ok_and(|parts| parts.link.server().is_some())
    }

    /// The bounds of the store, as JSON; zeros as long as no server was reached.
    #[must_use]
    pub fn limits(&self) -> serde_json::Value {
        self.check_process()
            .map_or_else(|_| serde_json::Value::Null, |()| self.parts().link.facts().limits)
    }

    /// The counters of the store, as JSON; the last known ones if the server is away, zeros if there are none.
    #[must_use]
    pub fn stats(&self) -> serde_json::Value {
        if self.check_process().is_err() {
            return serde_json::Value::Null;
        }
        self.parts().stats()
    }

    /// Ends the connections after the transfers under way. Calling it again does nothing, nor does calling it in a
    /// forked child.
    pub fn close(&self) {
        self.inner.close();
    }

    /// Whether it was closed. In a forked child it always is.
    #[must_use]
    pub fn is_closed(&self) -> bool {
        self.enter().is_err()
    }

    /// See [`Store::register`](dalsegno_store::Store::register). While the server is away, it is remembered.
    pub fn register(&self, namespace: &Namespace, options: RegisterOptions) -> Result<()> {
        self.enter()?.link.register(namespace, options)
    }

    /// See [`Store::namespaces`](dalsegno_store::Store::namespaces). While the server is away, those of this client.
    pub fn namespaces(&self) -> Result<Vec<Namespace>> {
        let parts = self.enter()?;
        let mut known = Vec::new();
        loop {
            let skip = u32::try_from(known.len()).unwrap_or(u32::MAX);
            let message = wire::encode(&Request::Namespaces { skip });
            let Ok(answer) = parts.ask(None, &message) else { break };
            let Ok((Reply::Namespaces { encodings }, _)) = wire::decode::<Reply>(&answer) else {
                break;
            };
            let before = known.len();
            for namespace in encodings.iter().filter_map(|one| Namespace::decode(one).ok()) {
                parts.link.learn(&namespace);
                known.push(namespace);
            }
            if known.len() == before {
                return Ok(known);
            }
        }
        Ok(parts.link.namespaces())
    }

    /// See [`Store::set_phase`](dalsegno_store::Store::set_phase); `engine` is the number of an engine in this process.
    /// It never waits: while the server is away or all connections are used, nothing is said.
    pub fn set_phase(&self, engine: u64, phase: Phase, steps: &[f64]) -> Result<()> {
        let parts = self.enter()?;
        if let Ok(server) = parts.server() {
            let steps = &steps[steps.len().saturating_sub(MOST_STEPS)..];
            server.reach().send_at_once(&wire::phase_message(engine, phase, steps));
        }
        Ok(())
    }

    /// See [`Store::probe`](dalsegno_store::Store::probe).
    pub fn probe(&self, namespace: NamespaceId, chain: &[ChainHash]) -> Result<usize> {
        self.inner.count_leading(namespace, chain, Look::Probe, &Terms::default())
    }

    /// See [`Store::touch`](dalsegno_store::Store::touch).
    pub fn touch(&self, namespace: NamespaceId, chain: &[ChainHash]) -> Result<usize> {
        self.inner.count_leading(namespace, chain, Look::Touch, &Terms::default())
    }

    /// See [`Store::contains`](dalsegno_store::Store::contains).
    pub fn contains(&self, namespace: NamespaceId, hashes: &[ChainHash]) -> Result<Vec<bool>> {
        self.flags(namespace, hashes, Look::Contains)
    }

    /// See [`Store::peek`](dalsegno_store::Store::peek).
    pub fn peek(&self, namespace: NamespaceId, hashes: &[ChainHash]) -> Result<Vec<bool>> {
        self.flags(namespace, hashes, Look::Peek)
    }

    /// See [`Store::locate`](dalsegno_store::Store::locate). Nothing while the server is away.
    pub fn locate(&self, namespace: NamespaceId, chain: &[ChainHash]) -> Result<Vec<Located>> {
        self.inner.locate(namespace, chain)
    }

    fn flags(&self, namespace: NamespaceId, hashes: &[ChainHash], how: Look) -> Result<Vec<bool>> {
        let parts = self.enter()?;
        let mut flags = Vec::with_capacity(hashes.len());
        for part in hashes.chunks(MOST_HASHES) {
            let message = look(namespace, how, part);
            let Ok(answer) = parts.ask(namespace, &message) else { break };
            let Ok((Reply::Flags, tail)) = wire::decode::<Reply>(&answer) else { break };
            flags.extend(tail.iter().take(part.len()).map(|flag| *flag == 1));
        }
        flags.resize(hashes.len(), false);
        Ok(flags)
    }

    /// See [`Store::get_batch`](dalsegno_store::Store::get_batch).
    pub fn get_batch(
        &self,
        namespace: NamespaceId,
        chain: &[ChainHash],
        out: Vec<Vec<Memory>>,
        scope: Scope,
        terms: &Terms,
    ) -> Result<GetReport> {
        let parts = self.enter()?;
        let namespace = parts.link.namespace(namespace)?;
        check_get(namespace.layout(), chain, &out)?;
        let load = BlockLoad::new(&namespace, chain, Destination::Memory(out, None));
        Ok(parts.run(load, scope, terms))
    }

    /// See [`Store::load`](dalsegno_store::Store::load). The server reads whole blocks: the layers of those that are
    /// not in its pool become ready together.
    ///
    /// # Errors
    ///
    /// `Invalid` if a size disagrees with the namespace; `Closed`.
    pub fn load(
        &self,
        namespace: NamespaceId,
        chain: Vec<ChainHash>,
        target: LoadTarget,
        timeout: Option<Duration>,
    ) -> Result<Load> {
        let parts = self.enter()?;
        let namespace = parts.link.namespace(namespace)?;
        let layers = namespace.layout().layers();
        target.check(namespace.layout(), &chain)?;
        let (progress, end) = LoadProgress::begin(layers, chain.len());
        let (refused, client) = (Ok(throttled(chain.len())), self.clone());
        let transfer = self.inner.start(Direction::Load, timeout, refused, move |terms| {
            let parts = client.enter()?;
            let to = match target {
                LoadTarget::Blocks(out) => Destination::Memory(out, Some(end.progress())),
                LoadTarget::Pages(pages) => {
                    Destination::Pages(PageTarget::new(pages, parts.lanes.copier(), end.progress()))
                }
            };
            let pages = match &to {
                Destination::Pages(pages) => Some(Arc::clone(pages)),
                Destination::Memory(..) => None,
            };
            let report = parts.run(BlockLoad::new(&namespace, &chain, to), Scope::Prefix, terms);
            let are_copied = pages.is_none_or(|pages| pages.close());
            if are_copied { Ok(report) } else { Ok(lost(chain.len(), Cause::Device)) }
        });
        Ok(Load::new(transfer, progress, layers))
    }

    /// See [`Store::load_lease`](dalsegno_store::Store::load_lease). A block that the server has overwritten is a miss.
    ///
    /// # Errors
    ///
    /// `Invalid` if the lease has fewer blocks, or a size disagrees with its namespace; `Closed`.
    pub fn load_lease(
        &self,
        lease: &Arc<ServedLease>,
        pages: PagedBlocks,
        timeout: Option<Duration>,
    ) -> Result<Load> {
        let (layout, count) = (lease.layout(), pages.len());
        check_pages(layout, count.min(lease.len()), &pages)?;
        let (progress, end) = LoadProgress::begin(layout.layers(), count);
        let (refused, lease) = (Ok(throttled(count)), Arc::clone(lease));
        let copier = self.enter()?.lanes.copier();
        let transfer = self.inner.start(Direction::Lease, timeout, refused, move |terms| {
            let pages = PageTarget::new(pages, copier, end.progress());
            Ok(lease.copy_to(&pages, count, terms))
        });
        Ok(Load::new(transfer, progress, layout.layers()))
    }

    /// See [`Store::pool_region`](dalsegno_store::Store::pool_region): that of the server, which this process may only
    /// read. `None` while the server is away. Another server has another one.
    ///
    /// # Errors
    ///
    /// `Closed`.
    pub fn pool_region(&self) -> Result<Option<Arc<Region>>> {
        let server = self.enter()?.server();
        Ok(server.ok().map(|server| Arc::clone(server.arena().region())))
    }

    /// See [`Store::lease`](dalsegno_store::Store::lease).
    pub fn lease(
        &self,
        namespace: NamespaceId,
        chain: &[ChainHash],
        terms: &Terms,
    ) -> Result<ServedLease> {
        let parts = self.enter()?;
        let namespace = parts.link.namespace(namespace)?;
        Ok(match parts.server() {
            Ok(server) => lease::lease(&server, &namespace, chain, &terms.call(&parts.clock)),
            Err(_) => ServedLease::none(namespace.layout()),
        })
    }

    /// See [`Store::put_batch`](dalsegno_store::Store::put_batch).
    #[expect(
        clippy::needless_pass_by_value,
        reason = "the blocks are released when it returns, as by a store"
    )]
    pub fn put_batch(
        &self,
        namespace: NamespaceId,
        put: Put<'_>,
        terms: &Terms,
    ) -> Result<PutReport> {
        self.inner.put_batch(namespace, &put, terms)
    }

    /// Puts the first blocks of an allocation, as many as its chain has from `first` on. Nobody may write them
    /// meanwhile.
    ///
    /// # Errors
    ///
    /// As [`Client::put_batch`].
    pub fn commit(
        &self,
        allocation: &Allocation,
        put: AllocationPut<'_>,
        terms: &Terms,
    ) -> Result<PutReport> {
        self.inner.commit(allocation, put, terms)
    }

    /// See [`Store::layer_writer`](dalsegno_store::Store::layer_writer). Layers are gathered in this process, and put
    /// together by the commit.
    pub fn layer_writer(
        &self,
        namespace: NamespaceId,
        span: LayerSpan<'_>,
        terms: &Terms,
    ) -> Result<LayerWriter> {
        let found = self.enter()?.link.namespace(namespace)?;
        layers::layer_writer(Arc::clone(&self.inner), &found, span, terms)
    }

    /// See [`Store::remove`](dalsegno_store::Store::remove). First waits until the puts that this client has submitted
    /// have ended, so that their blocks are removed, too. More than 4,096 blocks are several removals.
    ///
    /// # Errors
    ///
    /// `Unavailable` also if the server is away. The message says what was not removed.
    pub fn remove(
        &self,
        namespace: NamespaceId,
        hashes: Option<&[ChainHash]>,
        terms: &Terms,
    ) -> Result<u64> {
        remove::remove(self.enter()?, namespace, hashes, terms)
    }

    /// See [`Store::watch_removals`](dalsegno_store::Store::watch_removals).
    pub fn watch_removals(&self, capacity: usize) -> Result<ServedWatch> {
        ServedWatch::open(Arc::clone(&self.inner), capacity)
    }

    /// See [`Store::submit_put`](dalsegno_store::Store::submit_put).
    #[must_use]
    pub fn submit_put(
        &self,
        namespace: NamespaceId,
        chain: Vec<ChainHash>,
        first: usize,
        blocks: Vec<Vec<Memory>>,
        keep: Keep,
        timeout: Option<Duration>,
    ) -> Transfer<PutReport> {
        let refused = Ok(PutReport { outcomes: vec![PutOutcome::Failed; blocks.len()] });
        let client = self.clone();
        let submitted = self.enter().map(|parts| parts.submitted.begin());
        self.inner.start(Direction::Store, timeout, refused, move |terms| {
            let _until_it_ends = submitted;
            client.put_batch(namespace, Put { chain: &chain, first, blocks, keep }, terms)
        })
    }

    /// See [`Store::submit_get`](dalsegno_store::Store::submit_get).
    #[must_use]
    pub fn submit_get(
        &self,
        namespace: NamespaceId,
        chain: Vec<ChainHash>,
        out: Vec<Vec<Memory>>,
        scope: Scope,
        timeout: Option<Duration>,
    ) -> Transfer<GetReport> {
        let (refused, client) = (throttled(out.len()), self.clone());
        self.inner.start(Direction::Load, timeout, Ok(refused), move |terms| {
            client.get_batch(namespace, &chain, out, scope, terms)
        })
    }
}

fn throttled(blocks: usize) -> GetReport {
    lost(blocks, Cause::Throttled)
}

fn lost(blocks: usize, cause: Cause) -> GetReport {
    GetReport { outcomes: vec![Outcome::Lost(cause); blocks] }
}
