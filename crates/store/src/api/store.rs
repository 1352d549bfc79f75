//! The store as callers hold it: what each call promises.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use dalsegno_core::{ChainHash, Config, Error, Limits, Namespace, NamespaceId, Result, StoreId};
use dalsegno_extent::Cause;
use dalsegno_index::Scope;
use dalsegno_io::{DueTimes, Memory, PagedBlocks, Region};
use dalsegno_policy::schedule::{EngineId, Phase};

use crate::api::door::Door;
use crate::api::door::Start;
use crate::api::gathered::{StoreHost, layer_writer};
use crate::api::layer_writer::{LayerSpan, LayerWriter};
use crate::api::load::{Load, LoadTarget};
use crate::api::removal_watch::RemovalWatch;
use crate::jobs::transfers::{Direction, Transfer, TransferLanes};
use crate::keep::Keep;
use crate::load::progress::LoadProgress;
use crate::lookup::locate::Located;
use crate::namespaces::registrar::RegisterOptions;
use crate::open::assemble::assemble;
use crate::open::parts::{Parts, parts_of};
use crate::put::report::{PutOutcome, PutReport};
use crate::put::writer::{Put, PutOrigin};
use crate::read::lease::{Lease, lease};
use crate::read::load::{GetRequest, LoadWork, copy_lease, get};
use crate::read::outcome::{GetReport, Outcome};
use crate::sizes::check_pages;
use crate::stats::Stats;
use crate::terms::{LoadTiming, Terms};

/// A store of KV-cache blocks. Clones share it. It is closed when [`Store::close`] is called or the last clone is
/// dropped.
#[derive(Clone, Debug)]
pub struct Store {
    pub(super) door: Arc<Door>,
    transfers: Arc<TransferLanes>,
}

impl Store {
    /// Opens the store in `path`, creating both if they do not exist.
    ///
    /// ```
    /// use dalsegno_store::{Config, Store};
    ///
    /// let dir = tempfile::tempdir()?;
    /// let config = Config { capacity: Some(64 << 20), dram: Some(0), ..Config::default() };
    /// let store = Store::open(dir.path(), &config)?;
    /// assert_eq!(store.stats().blocks, 0);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// `Unavailable` if another process owns it, it is read-only, the system refuses, or this process was forked while
    /// a store was open. `Incompatible` if a newer Dalsegno wrote it. `Invalid` for settings that do not fit or a
    /// directory that holds something else.
    pub fn open(path: &Path, config: &Config) -> Result<Self> {
        let store = Self::open_parts(parts_of(path, config)?)?;
        let limits = store.limits();
        tracing::info!(
            id = %store.id(),
            path = %path.display(),
            capacity_bytes = limits.capacity_bytes,
            is_default_capacity = limits.capacity_is_default,
            "store opened"
        );
        Ok(store)
    }

    /// Opens a store from its parts, for tests and simulations. Fails as [`Store::open`] does.
    pub fn open_parts(parts: Parts) -> Result<Self> {
        let (store, transfers) = assemble(parts)?;
        Ok(Self { door: Arc::new(Door::new(store)), transfers: Arc::new(transfers) })
    }

    /// Fails in a forked child, as every call does. Never waits. A caller that locks something before a call can check
    /// first: in a child a lock may stay taken.
    ///
    /// # Errors
    ///
    /// `Unavailable`.
    pub fn check_process(&self) -> Result<()> {
        self.door.check_process()
    }

    /// The store's random name.
    #[must_use]
    pub fn id(&self) -> StoreId {
        self.door.id()
    }

    /// The bounds that the store was opened with.
    #[must_use]
    pub fn limits(&self) -> &Limits {
        self.door.limits()
    }

    /// All counters and gauges; of a closed store, its last ones.
    ///
    /// # Panics
    ///
    /// In a forked child: see [`Store::check_process`].
    #[must_use]
    pub fn stats(&self) -> Stats {
        Stats { engine_copied_bytes: self.transfers.copier().copied_bytes(), ..self.door.stats() }
    }

    /// Completes queued work, then releases the directory and everything else. Calling it again does nothing, nor does
    /// calling it in a forked child.
    ///
    /// A call that does not end within ten seconds, because the device hangs, is left behind. The directory stays
    /// locked until that call ends and the device has completed every write and sync.
    pub fn close(&self) {
        if let Ok(open) = self.door.enter() {
            // What they computed is written now.
            open.order.end_phases();
        }
        self.door.close(|deadline, clock| self.transfers.stop(deadline, clock));
    }

    /// Whether the store was closed. In a forked child it always is.
    #[must_use]
    pub fn is_closed(&self) -> bool {
        self.door.is_closed()
    }

    /// Makes a namespace known, and writes its description to disk. Returns whether it was not known before.
    ///
    /// ```
    /// use dalsegno_store::{KvLayout, Namespace, RegisterOptions};
    /// # mod example { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/support/example.rs")); }
    /// # let (_dir, store, _id) = example::store();
    ///
    /// // Blocks of two layers with 4096 bytes each.
    /// let layout = KvLayout::new(2, 4096)?;
    /// let namespace = Namespace::builder(layout).field("model", "llama").build()?;
    /// assert!(store.register(&namespace, RegisterOptions::default())?, "it is new");
    /// assert!(store.namespaces()?.contains(&namespace));
    /// # Ok::<(), dalsegno_store::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// `Invalid` if its blocks do not fit into a segment or there are too many namespaces; `Closed`. With compression,
    /// `Unavailable` if the store could not be marked as one that may hold compressed extents.
    pub fn register(&self, namespace: &Namespace, options: RegisterOptions) -> Result<bool> {
        self.door.enter()?.registrar.register(namespace, options)
    }

    /// The known namespaces, by id: those with blocks when the store was opened, and those registered since. Fails with
    /// `Closed`.
    pub fn namespaces(&self) -> Result<Vec<Namespace>> {
        Ok(self.door.enter()?.registrar.namespaces.list())
    }

    /// Puts consecutive blocks of a chain.
    ///
    /// ```
    /// use dalsegno_store::{ChainHash, Keep, Put, PutOutcome, Terms, lend};
    /// # mod example { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/support/example.rs")); }
    /// # let (_dir, store, id) = example::store();
    ///
    /// let chain = [ChainHash([1; 32]), ChainHash([2; 32])];
    /// let blocks = [vec![7; 8192], vec![8; 8192]];
    /// let report = lend(|lender| {
    ///     let blocks = blocks.iter().map(|block| vec![lender.shared(block)]).collect();
    ///     let put = Put { chain: &chain, first: 0, blocks, keep: Keep::Stored };
    ///     store.put_batch(id, put, &Terms::default())
    /// })?;
    /// assert_eq!(report.count(PutOutcome::Stored), 2);
    /// # Ok::<(), dalsegno_store::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// `Invalid` if sizes disagree with the namespace (nothing is written); `Poisoned` after a failed sync, unless the
    /// put is [pool-only](Keep::PoolOnly); `Closed`. A full disk, a deadline and a failing device are counted in the
    /// report, and so is a DRAM tier that is off or has no place.
    pub fn put_batch(
        &self,
        namespace: NamespaceId,
        put: Put<'_>,
        terms: &Terms,
    ) -> Result<PutReport> {
        self.door.enter()?.writer.put_batch(namespace, put, terms)
    }

    /// Fills `out[i]` with block `chain[i]`: with [`Scope::Prefix`] up to the first miss, with [`Scope::Each`] every
    /// present block. The contents of memory whose block is no hit are undefined.
    ///
    /// ```
    /// use dalsegno_store::{ChainHash, Scope, Terms, lend};
    /// # mod example { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/support/example.rs")); }
    /// # let (_dir, store, id) = example::store();
    /// let chain = [ChainHash([1; 32])];
    /// let mut block = vec![0; 8192];
    /// let report = lend(|lender| {
    ///     let out = vec![vec![lender.exclusive(&mut block)]];
    ///     store.get_batch(id, &chain, out, Scope::Prefix, &Terms::default())
    /// })?;
    /// assert_eq!(report.leading_blocks(), 0, "nothing was put");
    /// # Ok::<(), dalsegno_store::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// `Invalid` if a size disagrees with the namespace (nothing is read); `Closed`.
    pub fn get_batch(
        &self,
        namespace: NamespaceId,
        chain: &[ChainHash],
        out: Vec<Vec<Memory>>,
        scope: Scope,
        terms: &Terms,
    ) -> Result<GetReport> {
        let request = GetRequest { chain, out, scope };
        get(&self.door.enter()?.loader, namespace, request, terms)
    }

    /// The longest present run of `chain`, to be read in its place in DRAM without a copy. Every byte was verified.
    /// Blocks that are only in the log are read into DRAM first, within `terms`.
    ///
    /// # Errors
    ///
    /// `Closed`.
    pub fn lease(
        &self,
        namespace: NamespaceId,
        chain: &[ChainHash],
        terms: &Terms,
    ) -> Result<Lease> {
        lease(&self.door.enter()?.loader, namespace, chain, terms)
    }

    /// How many leading blocks of `chain` are present, in any tier; it may start at any block of a prompt. While the
    /// device does not respond, only blocks in DRAM are. Present blocks count as used, with all that they depend on.
    ///
    /// ```
    /// use dalsegno_store::ChainHash;
    /// # mod example { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/support/example.rs")); }
    /// # let (_dir, store, id) = example::store();
    ///
    /// let chain = [ChainHash([1; 32]), ChainHash([2; 32])];
    /// assert_eq!(store.probe(id, &chain)?, 0);
    /// assert_eq!(store.contains(id, &chain)?, [false, false]);
    /// # Ok::<(), dalsegno_store::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// `Closed`.
    pub fn probe(&self, namespace: NamespaceId, chain: &[ChainHash]) -> Result<usize> {
        Ok(self.door.enter()?.lookups.probe(namespace, chain))
    }

    /// Which of these blocks are present, each for itself; as for [`Store::probe`]. Fails with `Closed`.
    pub fn contains(&self, namespace: NamespaceId, hashes: &[ChainHash]) -> Result<Vec<bool>> {
        Ok(self.door.enter()?.lookups.contains(namespace, hashes))
    }

    /// As [`Store::contains`], but nothing counts as used: for monitoring. Fails with `Closed`.
    pub fn peek(&self, namespace: NamespaceId, hashes: &[ChainHash]) -> Result<Vec<bool>> {
        Ok(self.door.enter()?.lookups.peek(namespace, hashes))
    }

    /// From which tiers the leading present blocks of a chain would be read: runs in order, each with the speed of its
    /// tier. Waits for no device and no far location, so blocks whose index entries are not in memory end the
    /// answer. Nothing counts as used. Fails with `Closed`, or `Invalid` if the namespace is not registered.
    pub fn locate(&self, namespace: NamespaceId, chain: &[ChainHash]) -> Result<Vec<Located>> {
        self.door.enter()?.lookups.locate(namespace, chain)
    }

    /// Notes that a prompt was used although none of its blocks is loaded: its leading blocks that are present count as
    /// used. Returns how many. An engine calls this for blocks that it serves from its own memory. Otherwise they look
    /// idle here, and blocks stored behind them would be evicted with them.
    ///
    /// Never waits for the device: with an on-disk index, blocks whose entries are not in memory are skipped. Fails
    /// with `Closed`.
    pub fn touch(&self, namespace: NamespaceId, chain: &[ChainHash]) -> Result<usize> {
        Ok(self.door.enter()?.lookups.touch(namespace, chain))
    }

    /// Removes blocks (all of the namespace if `hashes` is `None`) for good: they stay gone after the next open, and on
    /// all hosts that share a far location. Returns how many were there.
    ///
    /// ```
    /// use dalsegno_store::{ChainHash, Terms};
    /// # mod example { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/support/example.rs")); }
    /// # let (_dir, store, id) = example::store();
    ///
    /// assert_eq!(store.remove(id, Some(&[ChainHash([1; 32])]), &Terms::default())?, 0);
    /// assert_eq!(store.remove(id, None, &Terms::default())?, 0, "the namespace is empty");
    /// # Ok::<(), dalsegno_store::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// `Unavailable` if the terms ended first: the message says whether the removal continues, nothing was removed, or
    /// only the far location lacks it. `Poisoned`, `Full` or `Unavailable` if it cannot be made durable.
    pub fn remove(
        &self,
        namespace: NamespaceId,
        hashes: Option<&[ChainHash]>,
        terms: &Terms,
    ) -> Result<u64> {
        self.door.enter()?.remove(namespace, hashes, terms)
    }

    /// An engine says what it does from now on, so that requests to the device start when they delay none of its: see
    /// [`Phase`]. It is believed for five seconds; one that says nothing counts as none.
    ///
    /// `steps` is how long its steps since the last call took: each over the same step beside no write, as its model
    /// predicts it. They set the pace of saves while it decodes.
    ///
    /// ```
    /// use dalsegno_store::{EngineId, Phase};
    /// # mod example { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/support/example.rs")); }
    /// # let (_dir, store, _id) = example::store();
    ///
    /// let engine = EngineId { process: 0, number: 1 };
    /// store.set_phase(engine, Phase::Decode, &[1.01, 0.99])?;
    /// assert_eq!(store.stats().schedule.phase, "decode");
    /// # Ok::<(), dalsegno_store::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// `Closed`.
    pub fn set_phase(&self, engine: EngineId, phase: Phase, steps: &[f64]) -> Result<()> {
        self.door.enter()?.order.set_phase(engine, phase, steps);
        Ok(())
    }

    /// Starts to note the blocks that leave the store: evicted, quarantined or removed, in any namespace. At most
    /// `capacity` blocks wait to be taken.
    ///
    /// ```
    /// # mod example { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/support/example.rs")); }
    /// # let (_dir, store, _id) = example::store();
    /// let watch = store.watch_removals(1000)?;
    /// let removals = watch.take(100);
    /// assert!(removals.blocks.is_empty() && removals.is_complete);
    /// # Ok::<(), dalsegno_store::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// `Invalid` if `capacity` is 0 or above [`MAX_WATCHED_BLOCKS`](crate::MAX_WATCHED_BLOCKS); `Closed`.
    pub fn watch_removals(&self, capacity: usize) -> Result<RemovalWatch> {
        RemovalWatch::of(&self.door, capacity)
    }

    /// Starts a put of some blocks whose layers follow. Leading blocks that are present are skipped. The layers are
    /// gathered in memory: until the commit, nothing is written.
    ///
    /// ```
    /// use dalsegno_store::{ChainHash, Keep, LayerSpan, Memory, Terms};
    /// # mod example { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/support/example.rs")); }
    /// # let (_dir, store, id) = example::store();
    ///
    /// let terms = Terms::default();
    /// let span = LayerSpan { chain: &[ChainHash([1; 32])], first: 0, count: 1 };
    /// let writer = store.layer_writer(id, span, &terms)?;
    /// for layer in 0..2 {
    ///     let slice = Memory::owned(vec![7; 4096], ());
    ///     writer.store_layer(layer, [vec![slice]].into_iter().collect(), &terms)?;
    /// }
    /// assert_eq!(writer.commit(Keep::Stored, &terms)?, 1);
    /// # Ok::<(), dalsegno_store::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// `Invalid` if the blocks do not fit into one extent or into the chain; `Unavailable` if writes are suspended, or
    /// puts by layer gather a GiB already; `Poisoned`; `Closed`.
    pub fn layer_writer(
        &self,
        namespace: NamespaceId,
        span: LayerSpan<'_>,
        terms: &Terms,
    ) -> Result<LayerWriter> {
        let host = StoreHost { door: Arc::clone(&self.door), lanes: Arc::clone(&self.transfers) };
        layer_writer(host, namespace, span, terms)
    }

    /// Starts [`Store::put_batch`] in the background; never waits. A full queue gives a transfer that has ended. Blocks
    /// that are removed before it ends are not put.
    ///
    /// ```
    /// use dalsegno_store::{ChainHash, Keep, Memory, PutOutcome};
    /// # mod example { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/support/example.rs")); }
    /// # let (_dir, store, id) = example::store();
    ///
    /// let block = Memory::owned(vec![7; 8192], ());
    /// let (chain, blocks) = (vec![ChainHash([1; 32])], vec![vec![block]]);
    /// let transfer = store.submit_put(id, chain, 0, blocks, Keep::Stored, None);
    /// transfer.on_end(|| println!("the put has ended"))?;
    /// assert!(transfer.wait(None));
    /// let report = transfer.take().expect("it has ended")?;
    /// assert_eq!(report.count(PutOutcome::Stored), 1);
    /// # Ok::<(), dalsegno_store::Error>(())
    /// ```
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
        // A removal while it is queued removes its blocks, too.
        let (door, mark) = (Arc::clone(&self.door), self.door.removal_mark());
        self.start(Direction::Store, timeout).run(refused, move |terms| {
            let put = Put { chain: &chain, first, blocks, keep };
            let origin = PutOrigin { placed: &[], mark: mark? };
            door.enter()?.writer.put_from(namespace, put, origin, terms)
        })
    }

    /// Starts [`Store::get_batch`] in the background; never waits. A full queue gives a transfer that has ended.
    #[must_use]
    pub fn submit_get(
        &self,
        namespace: NamespaceId,
        chain: Vec<ChainHash>,
        out: Vec<Vec<Memory>>,
        scope: Scope,
        timeout: Option<Duration>,
    ) -> Transfer<GetReport> {
        let (refused, door) = (Ok(throttled(out.len())), Arc::clone(&self.door));
        self.start(Direction::Load, timeout).run(refused, move |terms| {
            let request = GetRequest { chain: &chain, out, scope };
            get(&door.enter()?.loader, namespace, request, terms)
        })
    }

    /// Starts to load leading blocks of a chain; never waits. Layers become ready in their order while it runs, if all
    /// blocks take at most a quarter of the DRAM tier. A full queue gives a load that has ended.
    ///
    /// A layer that is ready stays as it is. The contents of the other layers, and of blocks that are no hits, are
    /// undefined.
    ///
    /// # Errors
    ///
    /// `Invalid` if a size disagrees with the namespace, or if the load is to pages and there is no DRAM tier;
    /// `Closed`.
    pub fn load(
        &self,
        namespace: NamespaceId,
        chain: Vec<ChainHash>,
        target: LoadTarget,
        timing: impl Into<LoadTiming>,
    ) -> Result<Load> {
        let LoadTiming { timeout, due } = timing.into();
        let store = self.door.enter()?;
        let layout = store.registrar.namespaces.get(namespace)?.layout();
        target.check(layout, &chain)?;
        if matches!(target, LoadTarget::Pages(_)) && store.recent.dram.is_off() {
            return Err(Error::invalid("a load to pages needs a DRAM tier; set `dram`"));
        }
        let now = store.loader.tiers.clock.now();
        let due = due.map(|due| DueTimes { first: now.after(due.first), layer: due.layer });
        let (progress, end) = LoadProgress::begin(layout.layers(), chain.len());
        let refused = Ok(throttled(chain.len()));
        let (door, copier) = (Arc::clone(&self.door), self.transfers.copier());
        let start = self.start(Direction::Load, timeout);
        let transfer = start.run(refused, move |terms| {
            let store = door.enter()?;
            let work = LoadWork { namespace, chain, copier, due, end };
            match target {
                LoadTarget::Blocks(out) => work.into_blocks(&store.loader, out, terms),
                LoadTarget::Pages(pages) => work.into_pages(&store.loader, pages, terms),
            }
        });
        Ok(Load::new(transfer, progress, layout.layers()))
    }

    /// Starts to copy the first blocks of a lease into pages; never waits. As [`Store::load`], but nothing is read, so
    /// only the terms can make a block a miss.
    ///
    /// # Errors
    ///
    /// `Invalid` if the lease has fewer blocks, or a size disagrees with its namespace; `Closed`.
    pub fn load_lease(
        &self,
        lease: &Arc<Lease>,
        pages: PagedBlocks,
        timeout: Option<Duration>,
    ) -> Result<Load> {
        drop(self.door.enter()?);
        let layout = lease.layout();
        check_pages(layout, pages.len().min(lease.len()), &pages)?;
        let (progress, end) = LoadProgress::begin(layout.layers(), pages.len());
        let refused = Ok(throttled(pages.len()));
        let (door, copier) = (Arc::clone(&self.door), self.transfers.copier());
        let (lease, start) = (Arc::clone(lease), self.start(Direction::Lease, timeout));
        let transfer = start.run(refused, move |terms| {
            Ok(copy_lease(&door.enter()?.loader, &lease, pages, copier, &end, terms))
        });
        Ok(Load::new(transfer, progress, layout.layers()))
    }

    /// The memory of its DRAM tier, for a device that reads blocks there; `None` if there is none.
    ///
    /// # Errors
    ///
    /// `Closed`.
    pub fn pool_region(&self) -> Result<Option<Arc<Region>>> {
        let store = self.door.enter()?;
        Ok(store.recent.dram.arena().map(|arena| Arc::clone(arena.region())))
    }

    fn start(&self, direction: Direction, timeout: Option<Duration>) -> Start<'_> {
        Start { door: &self.door, lanes: &self.transfers, direction, timeout }
    }
}

/// The report of a get that was refused, because too many are queued.
fn throttled(blocks: usize) -> GetReport {
    GetReport { outcomes: vec![Outcome::Lost(Cause::Throttled); blocks] }
}
