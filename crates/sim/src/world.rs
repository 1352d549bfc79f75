//! A store over a simulated device, its oracle, and what a history does to both.

use std::cell::Cell;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use dalsegno_core::{
    ChainHash, Clock, ErrorKind, KvLayout, ManualClock, Namespace, Nanos, SpaceFacts, StoreId,
};
use dalsegno_io::{BufferPool, Memory, lend};
use dalsegno_store::{
    Compression, Error, Parts, Put, PutOutcome, PutReport, Scope, ScrubRules, Stats, Store, Terms,
};

use crate::agreement::Block;
use crate::blocks::Blocks;
use crate::device::{DeviceOptions, Outage, SimDevice};
use crate::disk::Torn;
use crate::history::{Action, Part, Style};
use crate::oracle::{Expect, Oracle};
use crate::totals::Totals;

/// Why a miss may be no more than what an outage left of an extent. An index leads to nothing whose header is not
/// there: it was read when the store was opened, or was durable before the index was.
const TORN: [&str; 2] = ["slice_checksum", "codec"];

/// Says where a test was when it failed: the seed and the number of the operation.
#[derive(Debug)]
pub struct Label(pub String);

impl Drop for Label {
    #[expect(clippy::print_stderr, reason = "whoever reads a failed test needs the seed")]
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("failed at {}", self.0);
        }
    }
}

/// A store that lives through outages.
#[derive(Debug)]
pub struct World {
    /// What the store runs on.
    pub device: Arc<SimDevice>,
    /// What it must know.
    pub oracle: Oracle,
    pub(crate) store: Option<Store>,
    pub(crate) style: Style,
    pub(crate) clock: Arc<ManualClock>,
    pub(crate) pool: BufferPool,
    blocks: Blocks,
    pub(crate) namespaces: Vec<Namespace>,
    openings: u32,
    /// What outages left to chance so far.
    pub(crate) torn: Vec<Torn>,
    /// Faults that came from rules, not from outages: then less can be promised.
    pub(crate) faulty: bool,
    outages: u32,
    /// Blocks that the open store has dropped to make room, as far as the oracle knows.
    pub(crate) dropped_blocks: u64,
    /// Segments that the open store had recycled when it was last compared with its files; none if it never is.
    pub(crate) agreed_segments: u64,
    agrees: bool,
    /// Blocks whose last put was reported as failed.
    pub(crate) failed: BTreeSet<Block>,
    pub(crate) totals: Totals,
    pub(crate) checks: Cell<u64>,
}

impl World {
    /// A world with an empty device and no open store. `blocks` and `pool` may be shared with other worlds.
    ///
    /// # Panics
    ///
    /// If the style's shapes are not valid.
    #[must_use]
    pub fn new(style: &Style, options: DeviceOptions, blocks: &Blocks, pool: &BufferPool) -> Self {
        let clock = Arc::new(ManualClock::default());
        let namespaces = (0_u64..).zip(&style.shapes).map(|(salt, (layers, slice_bytes))| {
            let layout = KvLayout::new(*layers, *slice_bytes).expect("a style's shapes are valid");
            Namespace::builder(layout).field("salt", salt.to_string()).build().expect("one field")
        });
        Self {
            device: Arc::new(SimDevice::new(options, Arc::clone(&clock))),
            oracle: Oracle::new(style.config.durability),
            store: None,
            style: style.clone(),
            clock,
            pool: pool.clone(),
            blocks: blocks.clone(),
            namespaces: namespaces.collect(),
            openings: 0,
            torn: Vec::new(),
            faulty: false,
            outages: 0,
            dropped_blocks: 0,
            agreed_segments: 0,
            agrees: false,
            failed: BTreeSet::new(),
            totals: Totals::default(),
            checks: Cell::new(0),
        }
    }

    /// Opens the store and registers the namespaces.
    ///
    /// # Errors
    ///
    /// Whatever the store says.
    pub fn open(&mut self) -> Result<(), Error> {
        self.close();
        let mut limits = self.style.config.validate(Self::space())?;
        if let Some(bytes) = self.style.memtable_bytes {
            limits.index_memory_bytes = 8 * bytes;
        }
        let store = Store::open_parts(Parts {
            device: Arc::<SimDevice>::clone(&self.device),
            clock: Arc::<ManualClock>::clone(&self.clock),
            pool: self.pool.clone(),
            limits,
            lock: None,
            new_store: StoreId([7; 16]),
            inline_upkeep: true,
            merging: self.style.merging,
            scrubbing: ScrubRules::default(),
        })?;
        self.openings += 1;
        self.dropped_blocks = 0;
        self.agreed_segments = 0;
        let is_plain = self.style.compression.is_plain() || self.openings.is_multiple_of(3);
        for namespace in &self.namespaces {
            let compression = if is_plain { Compression::PLAIN } else { self.style.compression };
            store.register_compressed(namespace, compression)?;
        }
        self.store = Some(store);
        Ok(())
    }

    /// What a simulated device has room for.
    pub(crate) fn space() -> SpaceFacts {
        SpaceFacts { free_bytes: 1 << 40, own_bytes: 0, existing_segment_bytes: Some(1 << 20) }
    }

    /// From now on the store is compared with its files after every recycled segment.
    pub fn expect_agreement(&mut self) {
        self.agrees = true;
    }

    /// Closes the store, if it is open.
    pub fn close(&mut self) {
        if let Some(store) = self.store.take() {
            store.close();
            self.totals.add(&store.stats());
        }
    }

    /// The open store.
    ///
    /// # Panics
    ///
    /// If it is closed.
    #[must_use]
    pub fn store(&self) -> &Store {
        self.store.as_ref().expect("the store is open")
    }

    /// Lets time pass.
    pub fn pass(&self, time: Duration) {
        self.clock.advance(time);
    }

    /// What the virtual clock says.
    #[must_use]
    pub fn now(&self) -> Nanos {
        self.clock.now()
    }

    /// The store's counters.
    #[must_use]
    pub fn stats(&self) -> Stats {
        self.store().stats()
    }

    /// From now on rules may make the device fail, so that only wrong bytes are wrong.
    pub fn expect_faults(&mut self) {
        self.faulty = true;
    }

    /// The device is well again, and nothing was destroyed while it was not: what was promised meanwhile holds.
    pub fn expect_no_faults(&mut self) {
        self.device.heal();
        self.faulty = false;
    }

    /// Damage from here on is no surprise: nothing is promised of what was stored so far.
    pub fn forgive(&mut self) {
        self.oracle.damaged();
    }

    /// Ends the process or cuts the power, and starts another device over what is left. The store is not closed first.
    pub fn reboot(&mut self, outage: Outage) {
        self.device.note(|| format!("the outage: {outage:?}"));
        // Later lives may list what an outage tore, until somebody reads it.
        if self.outages == 0 && !self.faulty {
            self.promise_what_is_listed();
        }
        self.outages += 1;
        let (device, torn) = self.device.reboot(outage);
        // The store ends where it is: what it writes and syncs when it is dropped must not reach the disk.
        assert!(self.device.is_down(), "an outage comes before the store that it meets is dropped");
        if let Some(store) = self.store.take() {
            self.totals.add(&store.stats());
        }
        self.device = Arc::new(device);
        self.torn.extend(torn);
        if outage == Outage::Power {
            self.oracle.power_cut();
        }
    }

    /// Does one thing; checks whatever the store answers. Errors are answers as well, as long as they are of the right
    /// kind: the device may be down or faulty.
    ///
    /// # Panics
    ///
    /// If an answer is wrong.
    pub fn act(&mut self, action: &Action) {
        self.device.note(|| action.to_string());
        match action {
            Action::Put(part, timed) => drop(self.put(part, *timed)),
            Action::PutLayers(part, commit) => self.put_layers(part, *commit),
            Action::Get(part, timed) => drop(self.get(part, *timed)),
            Action::GetLayer(part, layer) => self.get_layer(part, *layer),
            Action::Probe(part) => self.probe(part),
            Action::Remove(part) => self.remove(part.namespace, Some(part.hashes())),
            Action::RemoveAll(namespace) => self.remove(*namespace, None),
            Action::Reopen => {
                if let Err(error) = self.open() {
                    self.check_error(&error);
                }
            }
        }
        self.settle_drops();
        if self.agrees {
            self.agree_after_reclaim();
        }
    }

    /// Whether the store is open: an outage may come while it opens.
    #[must_use]
    pub fn is_open(&self) -> bool {
        self.store.is_some()
    }

    pub(crate) fn block(&self, namespace: usize, hash: ChainHash) -> Arc<[u8]> {
        let layout = self.namespaces[namespace].layout();
        let bytes = usize::try_from(layout.block_bytes()).expect("64-bit addresses");
        self.blocks.bytes(namespace as u64, hash, bytes)
    }

    fn terms(timed: bool) -> Terms {
        if timed { Terms::within(Duration::from_secs(1)) } else { Terms::default() }
    }

    /// Puts blocks.
    ///
    /// # Errors
    ///
    /// Whatever the store says.
    ///
    /// # Panics
    ///
    /// If the answer cannot be right.
    pub fn put(&mut self, part: &Part, timed: bool) -> Result<PutReport, ErrorKind> {
        let expects = |hash: &ChainHash| self.oracle.expects(part.namespace, *hash);
        let was_there: Vec<bool> =
            part.hashes().iter().map(|h| expects(h) != Expect::Miss).collect();
        self.oracle.put_begins(part.namespace, part.hashes());
        let blocks: Vec<Arc<[u8]>> =
            part.hashes().iter().map(|hash| self.block(part.namespace, *hash)).collect();
        let id = self.namespaces[part.namespace].id();
        let set_aside = self.stats().quarantined_blocks;
        let result = lend(|lender| {
            let blocks = blocks.iter().map(|block| vec![lender.shared(block)]).collect();
            let put = Put { chain: &part.chain, first: part.first, blocks };
            self.store().put_batch(id, put, &Self::terms(timed))
        });
        let report = match result {
            Ok(report) => report,
            Err(error) => {
                self.check_error(&error);
                return Err(error.kind());
            }
        };
        let present = self.store().peek(id, part.hashes()).expect("the store is open");
        for (at, hash) in part.hashes().iter().enumerate() {
            let outcome = report.outcomes[at];
            let kept = matches!(outcome, PutOutcome::Stored | PutOutcome::Present);
            assert!(kept || outcome == PutOutcome::Failed, "a lone put ended as {outcome:?}");
            // What a crash left of an extent is present until it is read, and merging reads; so it may meet a fault.
            let found_bad = self.stats().quarantined_blocks > set_aside;
            // An index in files cannot be read once the device is gone or while it hangs, and what cannot be read is
            // not there. Look-ups find nothing on a device that is not asked because it fails.
            let explained = self.device.is_down()
                || self.device.held() > 0
                || self.stats().device.reads != "working"
                || found_bad && (outcome == PutOutcome::Present || !self.is_calm());
            if kept && !self.style.evicts && !explained {
                assert!(present[at], "put says {outcome:?}, but {hash} is not there");
            }
            // A put fails as well if an index in files cannot tell in time that the block is there.
            let may_be_there = was_there[at] && !self.is_calm();
            assert!(kept || !present[at] || may_be_there, "a failed put left {hash} visible");
            assert!(kept || self.may_be_full(), "a put failed without a fault");
            self.oracle.put_ended(part.namespace, *hash, outcome);
            if outcome == PutOutcome::Failed {
                self.failed.insert((part.namespace, *hash));
            } else {
                self.failed.remove(&(part.namespace, *hash));
            }
        }
        self.promise_present(part, &report);
        self.checked(part.hashes().len());
        self.settle_drops();
        Ok(report)
    }

    /// Gets blocks, each for itself, and compares every answer; returns how many were hits.
    ///
    /// # Panics
    ///
    /// If bytes are wrong, a block is lost that must not be, or one is back that must not be.
    pub fn get(&self, part: &Part, timed: bool) -> usize {
        let layout = self.namespaces[part.namespace].layout();
        let bytes = usize::try_from(layout.block_bytes()).expect("64-bit addresses");
        let mut out = vec![vec![0xee_u8; bytes]; part.hashes().len()];
        let id = self.namespaces[part.namespace].id();
        let report = lend(|lender| {
            let targets: Vec<Vec<Memory>> =
                out.iter_mut().map(|block| vec![lender.exclusive(block)]).collect();
            self.store().get_batch(id, part.hashes(), targets, Scope::Each, &Self::terms(timed))
        });
        let report = report.expect("a get of the right sizes never fails");
        self.checked(part.hashes().len());
        for ((hash, got), outcome) in part.hashes().iter().zip(&out).zip(&report.outcomes) {
            let expected = self.oracle.expects(part.namespace, *hash);
            if outcome.is_hit() {
                let right = self.block(part.namespace, *hash);
                assert!(*got == *right, "wrong bytes for {hash} of namespace {id}");
                assert!(expected != Expect::Miss, "{hash} of namespace {id} came back");
            } else if self.is_calm() {
                assert!(expected != Expect::Hit, "{hash} of namespace {id} is lost: {outcome:?}");
                if let dalsegno_store::Outcome::Lost(cause) = outcome {
                    let is_left = TORN.contains(cause) && self.outages > 0;
                    assert!(is_left, "{hash} of namespace {id} leads to no extent: {cause}");
                }
            }
        }
        report.hit_blocks()
    }

    fn get_layer(&self, part: &Part, layer: u32) {
        let slice_bytes = self.namespaces[part.namespace].layout().slice_bytes() as usize;
        let mut out = vec![vec![0xee_u8; slice_bytes]; part.chain.len()];
        let id = self.namespaces[part.namespace].id();
        let report = lend(|lender| {
            let targets = out.iter_mut().map(|slice| vec![lender.exclusive(slice)]).collect();
            self.store().retrieve_layer(id, &part.chain, layer, targets, &Terms::default())
        });
        let report = report.expect("a get of the right sizes never fails");
        self.checked(report.leading_blocks());
        for (hash, got) in part.chain.iter().zip(&out).take(report.leading_blocks()) {
            let right = self.block(part.namespace, *hash);
            let at = layer as usize * slice_bytes;
            assert!(*got == right[at..][..slice_bytes], "wrong bytes for layer {layer} of {hash}");
            let expected = self.oracle.expects(part.namespace, *hash);
            assert!(expected != Expect::Miss, "{hash} of namespace {id} came back");
        }
    }

    fn probe(&self, part: &Part) {
        let id = self.namespaces[part.namespace].id();
        let present = self.store().probe(id, &part.chain).expect("the store is open");
        self.checked(present);
        for hash in &part.chain[..present] {
            let expected = self.oracle.expects(part.namespace, *hash);
            assert!(expected != Expect::Miss, "probe finds {hash}, which is not there");
        }
    }

    fn remove(&mut self, namespace: usize, hashes: Option<&[ChainHash]>) {
        self.oracle.removal_begins(namespace, hashes);
        let id = self.namespaces[namespace].id();
        match self.store().remove(id, hashes, &Terms::default()) {
            Ok(_) => self.oracle.removed(namespace, hashes),
            Err(error) => self.check_error(&error),
        }
    }

    /// Whether nothing but what the history did can have made a block a miss.
    pub(crate) fn is_calm(&self) -> bool {
        !self.faulty && self.device.is_healthy()
    }

    /// Whether a put may find no room: always if something is wrong, else only where space is scarce.
    fn may_be_full(&self) -> bool {
        self.style.evicts || !self.is_calm()
    }

    pub(crate) fn check_error(&self, error: &Error) {
        let kind = error.kind();
        let full = kind == ErrorKind::Full && self.may_be_full();
        assert!(full || !self.is_calm(), "an error without a fault: {error}");
        let excusable = [ErrorKind::Poisoned, ErrorKind::Unavailable, ErrorKind::Full];
        assert!(excusable.contains(&kind), "a failing device must not end in {kind:?}: {error}");
    }
}
