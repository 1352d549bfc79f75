//! A store in this process or behind a server, with the same calls.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use dalsegno_core::{ChainHash, Config, Error, ErrorKind, Namespace, NamespaceId, Result, StoreId};
use dalsegno_store::{
    EngineId, GetReport, Keep, LayerSpan, LayerWriter, Lease, Load, LoadTarget, LoadTiming,
    Located, Memory, PagedBlocks, Phase, Put, PutReport, Region, RegisterOptions, RemovalWatch,
    Removals, Scope, Store, Terms, Transfer, absolute,
};

use crate::client::{Client, ServedLease, ServedWatch};
use crate::place::{SOCKET_PREFIX, socket_of};
use crate::presence::explained;

/// A store that was opened by its path: in this process, or at a server.
#[derive(Clone, Debug)]
pub enum Handle {
    /// In this process.
    Here(Store),
    /// At a server.
    Served(Client),
}

/// Evaluates an expression for either kind of store.
macro_rules! either {
    ($handle:expr, $store:ident => $value:expr) => {
        match $handle {
            Handle::Here($store) => $value,
            Handle::Served($store) => $value,
        }
    };
}

impl Handle {
    /// Opens the store at a path: `unix:` and the path of a socket for a server, otherwise a directory. If a server
    /// owns the directory, it is used, and the settings are ignored.
    ///
    /// # Errors
    ///
    /// As [`Store::open`] and [`Client::open`].
    pub fn open(path: &Path, config: &Config) -> Result<Self> {
        if let Some(socket) = path.to_str().and_then(|text| text.strip_prefix(SOCKET_PREFIX)) {
            if socket.is_empty() {
                return Err(Error::invalid("unix: needs the path of a socket behind it"));
            }
            return Client::open(Path::new(socket)).map(Self::Served);
        }
        let path = &absolute(path)?;
        match Store::open(path, config) {
            Ok(store) => Ok(Self::Here(store)),
            // Somebody has the directory: a server, perhaps.
            Err(error) if error.kind() == ErrorKind::Unavailable => {
                match Client::open_served(&socket_of(path))? {
                    Some(client) => Ok(Self::Served(client)),
                    None => explained(path, Err(error)),
                }
            }
            Err(error) => Err(error),
        }
    }

    /// See [`Store::check_process`].
    pub fn check_process(&self) -> Result<()> {
        either!(self, store => store.check_process())
    }

    /// See [`Store::id`].
    #[must_use]
    pub fn id(&self) -> StoreId {
        either!(self, store => store.id())
    }

    /// See [`Store::limits`]; as JSON.
    #[must_use]
    pub fn limits(&self) -> serde_json::Value {
        match self {
            Self::Here(store) => serde_json::to_value(store.limits()).expect("plain fields"),
            Self::Served(client) => client.limits(),
        }
    }

    /// See [`Store::stats`]; as JSON.
    ///
    /// # Panics
    ///
    /// In a forked child.
    #[must_use]
    pub fn stats(&self) -> serde_json::Value {
        match self {
            Self::Here(store) => serde_json::to_value(store.stats()).expect("plain fields"),
            Self::Served(client) => client.stats(),
        }
    }

    /// See [`Store::set_phase`]; `engine` is the number of an engine in this process.
    pub fn set_phase(&self, engine: u64, phase: Phase, steps: &[f64]) -> Result<()> {
        match self {
            Self::Here(store) => {
                store.set_phase(EngineId { process: 0, number: engine }, phase, steps)
            }
            Self::Served(client) => client.set_phase(engine, phase, steps),
        }
    }

    /// See [`Store::close`].
    pub fn close(&self) {
        either!(self, store => store.close());
    }

    /// See [`Store::is_closed`].
    #[must_use]
    pub fn is_closed(&self) -> bool {
        either!(self, store => store.is_closed())
    }

    /// See [`Store::register`].
    pub fn register(&self, namespace: &Namespace, options: RegisterOptions) -> Result<()> {
        match self {
            Self::Here(store) => store.register(namespace, options).map(drop),
            Self::Served(client) => client.register(namespace, options),
        }
    }

    /// See [`Store::namespaces`].
    pub fn namespaces(&self) -> Result<Vec<Namespace>> {
        either!(self, store => store.namespaces())
    }

    /// See [`Store::put_batch`].
    pub fn put_batch(
        &self,
        namespace: NamespaceId,
        put: Put<'_>,
        terms: &Terms,
    ) -> Result<PutReport> {
        either!(self, store => store.put_batch(namespace, put, terms))
    }

    /// See [`Store::get_batch`].
    pub fn get_batch(
        &self,
        namespace: NamespaceId,
        chain: &[ChainHash],
        out: Vec<Vec<Memory>>,
        scope: Scope,
        terms: &Terms,
    ) -> Result<GetReport> {
        either!(self, store => store.get_batch(namespace, chain, out, scope, terms))
    }

    /// See [`Store::load`] and [`Client::load`].
    pub fn load(
        &self,
        namespace: NamespaceId,
        chain: Vec<ChainHash>,
        target: LoadTarget,
        timing: LoadTiming,
    ) -> Result<Load> {
        match self {
            Self::Here(store) => store.load(namespace, chain, target, timing),
            // A server reads as soon as it can.
            Self::Served(client) => client.load(namespace, chain, target, timing.timeout),
        }
    }

    /// See [`Store::load_lease`] and [`Client::load_lease`].
    ///
    /// # Errors
    ///
    /// As these; `Invalid` if the lease is of another kind of store.
    pub fn load_lease(
        &self,
        lease: &HandleLease,
        pages: PagedBlocks,
        timeout: Option<Duration>,
    ) -> Result<Load> {
        match (self, lease) {
            (Self::Here(store), HandleLease::Here(lease)) => {
                store.load_lease(lease, pages, timeout)
            }
            (Self::Served(client), HandleLease::Served(lease)) => {
                client.load_lease(lease, pages, timeout)
            }
            _ => Err(Error::invalid("the lease is of another store")),
        }
    }

    /// See [`Store::pool_region`] and [`Client::pool_region`].
    pub fn pool_region(&self) -> Result<Option<Arc<Region>>> {
        either!(self, store => store.pool_region())
    }

    /// See [`Store::lease`].
    pub fn lease(
        &self,
        namespace: NamespaceId,
        chain: &[ChainHash],
        terms: &Terms,
    ) -> Result<HandleLease> {
        Ok(match self {
            Self::Here(store) => HandleLease::Here(Arc::new(store.lease(namespace, chain, terms)?)),
            Self::Served(client) => {
                HandleLease::Served(Arc::new(client.lease(namespace, chain, terms)?))
            }
        })
    }

    /// See [`Store::probe`].
    pub fn probe(&self, namespace: NamespaceId, chain: &[ChainHash]) -> Result<usize> {
        either!(self, store => store.probe(namespace, chain))
    }

    /// See [`Store::contains`].
    pub fn contains(&self, namespace: NamespaceId, hashes: &[ChainHash]) -> Result<Vec<bool>> {
        either!(self, store => store.contains(namespace, hashes))
    }

    /// See [`Store::peek`].
    pub fn peek(&self, namespace: NamespaceId, hashes: &[ChainHash]) -> Result<Vec<bool>> {
        either!(self, store => store.peek(namespace, hashes))
    }

    /// See [`Store::touch`].
    pub fn touch(&self, namespace: NamespaceId, chain: &[ChainHash]) -> Result<usize> {
        either!(self, store => store.touch(namespace, chain))
    }

    /// See [`Store::locate`].
    pub fn locate(&self, namespace: NamespaceId, chain: &[ChainHash]) -> Result<Vec<Located>> {
        either!(self, store => store.locate(namespace, chain))
    }

    /// See [`Store::remove`].
    pub fn remove(
        &self,
        namespace: NamespaceId,
        hashes: Option<&[ChainHash]>,
        terms: &Terms,
    ) -> Result<u64> {
        either!(self, store => store.remove(namespace, hashes, terms))
    }

    /// See [`Store::watch_removals`].
    pub fn watch_removals(&self, capacity: usize) -> Result<HandleWatch> {
        Ok(match self {
            Self::Here(store) => HandleWatch::Here(store.watch_removals(capacity)?),
            Self::Served(client) => HandleWatch::Served(client.watch_removals(capacity)?),
        })
    }

    /// See [`Store::layer_writer`].
    pub fn layer_writer(
        &self,
        namespace: NamespaceId,
        span: LayerSpan<'_>,
        terms: &Terms,
    ) -> Result<LayerWriter> {
        either!(self, store => store.layer_writer(namespace, span, terms))
    }

    /// See [`Store::submit_put`].
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
        either!(self, store => store.submit_put(namespace, chain, first, blocks, keep, timeout))
    }

    /// See [`Store::submit_get`].
    #[must_use]
    pub fn submit_get(
        &self,
        namespace: NamespaceId,
        chain: Vec<ChainHash>,
        out: Vec<Vec<Memory>>,
        scope: Scope,
        timeout: Option<Duration>,
    ) -> Transfer<GetReport> {
        either!(self, store => store.submit_get(namespace, chain, out, scope, timeout))
    }
}

/// A lease of either kind of store.
#[derive(Debug)]
pub enum HandleLease {
    /// Of a store in this process.
    Here(Arc<Lease>),
    /// Of a server's.
    Served(Arc<ServedLease>),
}

impl HandleLease {
    /// See [`Lease::len`].
    #[must_use]
    pub fn len(&self) -> usize {
        match self {
            Self::Here(lease) => lease.len(),
            Self::Served(lease) => lease.len(),
        }
    }

    /// See [`Lease::is_empty`].
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// See [`Lease::is_truncated`].
    #[must_use]
    pub fn is_truncated(&self) -> bool {
        match self {
            Self::Here(lease) => lease.is_truncated(),
            Self::Served(lease) => lease.is_truncated(),
        }
    }

    /// How many leading blocks were not overwritten so far.
    #[must_use]
    pub fn valid_blocks(&self) -> usize {
        match self {
            Self::Here(lease) => lease.len(),
            Self::Served(lease) => lease.valid_blocks(),
        }
    }

    /// Address and length of a block. They stay valid as long as the lease.
    #[must_use]
    pub fn range(&self, at: usize) -> Option<(usize, usize)> {
        match self {
            Self::Here(lease) => {
                let block = lease.block(at)?;
                let bytes = block.as_slice();
                Some((bytes.as_ptr() as usize, bytes.len()))
            }
            Self::Served(lease) => lease.range(at),
        }
    }
}

/// A subscription of either kind of store.
#[derive(Debug)]
pub enum HandleWatch {
    /// Of a store in this process.
    Here(RemovalWatch),
    /// Of a server's.
    Served(ServedWatch),
}

impl HandleWatch {
    /// See [`RemovalWatch::waiting`].
    #[must_use]
    pub fn waiting(&self) -> usize {
        match self {
            Self::Here(watch) => watch.waiting(),
            Self::Served(watch) => watch.waiting(),
        }
    }

    /// See [`RemovalWatch::take`].
    #[must_use]
    pub fn take(&self, limit: usize) -> Removals {
        match self {
            Self::Here(watch) => watch.take(limit),
            Self::Served(watch) => watch.take(limit),
        }
    }
}
