//! A store on a simulated device, with its oracle.

use std::cell::Cell;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use dalsegno_core::{ChainHash, Clock, Durability, ErrorKind, Nanos};
use dalsegno_io::{BufferPool, lend};
use dalsegno_store::testing::{HeldSpace, hold_space};
use dalsegno_store::{Error, Keep, Put, PutOutcome, PutReport, Stats, Store};

use crate::agreement::{Block, MayReturn, check_agreement};
use crate::blocks::{Blocks, chain_hashes};
use crate::checks;
use crate::device::{DeviceOptions, Outage, SimDevice};
use crate::disk::Torn;
use crate::history::{Action, Part, Style};
use crate::layer_puts::put_layers;
use crate::oracle::{Expect, Oracle};
use crate::reads::{CheckedReads, terms};
use crate::setup::Setup;
use crate::totals::Totals;

/// A store that survives outages.
#[derive(Debug)]
pub struct World {
    /// The device of the store.
    pub device: Arc<SimDevice>,
    /// What the store must have.
    pub oracle: Oracle,
    setup: Setup,
    store: Option<Store>,
    past: Past,
    /// Whether rules, not outages, make the device fail. Then less can be promised.
    faulty: bool,
    seen: Seen,
    /// Whether the store is compared with its files at all.
    agrees: bool,
    /// Blocks whose last put was reported as failed.
    failed: BTreeSet<Block>,
    checks: Cell<u64>,
}

/// What happened to the stores of a world.
#[derive(Debug, Default)]
struct Past {
    openings: u32,
    outages: u32,
    /// Writes that outages tore so far.
    torn: Vec<Torn>,
    totals: Totals,
}

/// What is known of the open store.
#[derive(Debug, Default)]
struct Seen {
    /// Blocks that it has dropped for space, as far as the oracle knows.
    dropped_blocks: u64,
    /// Segments that it had reclaimed when it was last compared with its files.
    agreed_segments: u64,
}

impl World {
    /// A world with an empty device and no open store. `blocks` and `pool` may be shared with other worlds.
    ///
    /// # Panics
    ///
    /// If the style's shapes are not valid.
    #[must_use]
    pub fn new(style: &Style, options: DeviceOptions, blocks: &Blocks, pool: &BufferPool) -> Self {
        let setup = Setup::new(style, blocks, pool);
        Self {
            device: Arc::new(SimDevice::new(options, Arc::clone(&setup.clock))),
            oracle: Oracle::new(style.config.durability),
            setup,
            store: None,
            past: Past::default(),
            faulty: false,
            seen: Seen::default(),
            agrees: false,
            failed: BTreeSet::new(),
            checks: Cell::new(0),
        }
    }

    /// Opens the store and registers the namespaces.
    ///
    /// # Errors
    ///
    /// The store's error.
    pub fn open(&mut self) -> Result<(), Error> {
        self.close();
        let device = Arc::<SimDevice>::clone(&self.device);
        let store = self.setup.open_store(device, &self.setup.style)?;
        self.past.openings += 1;
        self.seen = Seen::default();
        self.setup.register(&store, self.past.openings.is_multiple_of(3))?;
        self.store = Some(store);
        Ok(())
    }

    /// From now on compares the store with its files after every reclaimed segment.
    pub fn expect_agreement(&mut self) {
        self.agrees = true;
    }

    /// Closes the store, if it is open.
    pub fn close(&mut self) {
        if let Some(store) = self.store.take() {
            store.close();
            self.past.totals.add(&store.stats());
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

    /// Advances the virtual clock.
    pub fn pass(&self, time: Duration) {
        self.setup.clock.advance(time);
    }

    /// The virtual time.
    #[must_use]
    pub fn now(&self) -> Nanos {
        self.setup.clock.now()
    }

    /// The store's counters.
    #[must_use]
    pub fn stats(&self) -> Stats {
        self.store().stats()
    }

    /// From now on rules may make the device fail. Then only wrong bytes are a violation.
    pub fn expect_faults(&mut self) {
        self.faulty = true;
    }

    /// The device recovers, and nothing was destroyed meanwhile: promises made meanwhile hold.
    pub fn expect_no_faults(&mut self) {
        self.device.heal();
        self.faulty = false;
    }

    /// Permits damage: withdraws all promises so far.
    pub fn forgive(&mut self) {
        self.oracle.damaged();
    }

    /// Ends the process or cuts the power, and starts another device over what is left, without closing the store.
    pub fn reboot(&mut self, outage: Outage) {
        self.device.note(|| format!("the outage: {outage:?}"));
        // Later runs may list what an outage tore until it is read.
        if self.past.outages == 0
            && !self.faulty
            && let Some(store) = &self.store
        {
            checks::promise_listed(store, &self.setup, &mut self.oracle);
        }
        self.past.outages += 1;
        let (device, torn) = self.device.reboot(outage);
        // What the store writes and syncs when it is dropped must not reach the disk.
        assert!(self.device.is_down(), "an outage comes before the store that it meets is dropped");
        if let Some(store) = self.store.take() {
            self.past.totals.add(&store.stats());
        }
        self.device = Arc::new(device);
        self.past.torn.extend(torn);
        if outage == Outage::Power {
            self.oracle.power_cut();
        }
    }

    /// Executes one action and checks the result. An error of the right kind is valid if the device is down or faulty.
    ///
    /// # Panics
    ///
    /// If the result is wrong.
    pub fn act(&mut self, action: &Action) {
        self.device.note(|| action.to_string());
        match action {
            Action::Put(part, timed) => drop(self.put(part, *timed)),
            Action::PutLayers(part, commit) => self.put_layers(part, *commit),
            Action::Get(part, timed) => drop(self.get(part, *timed)),
            Action::Load(part, into_pages) => self.reads().load(part, *into_pages),
            Action::Probe(part) => self.reads().probe(part),
            Action::Remove(part) => self.remove(part.namespace, Some(part.hashes()), false),
            Action::RemoveAll(namespace) => self.remove(*namespace, None, false),
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

    /// Whether the store is open: an outage may come during an open.
    #[must_use]
    pub fn is_open(&self) -> bool {
        self.store.is_some()
    }

    /// Puts blocks.
    ///
    /// # Errors
    ///
    /// The kind of the store's error.
    ///
    /// # Panics
    ///
    /// If the result cannot be right.
    pub fn put(&mut self, part: &Part, timed: bool) -> Result<PutReport, ErrorKind> {
        let expects = |hash: &ChainHash| self.oracle.expects(part.namespace, *hash);
        let was_there: Vec<bool> =
            part.hashes().iter().map(|h| expects(h) != Expect::Miss).collect();
        self.oracle.put_begins(part.namespace, part.hashes());
        let blocks: Vec<Arc<[u8]>> =
            part.hashes().iter().map(|hash| self.setup.block(part.namespace, *hash)).collect();
        let id = self.setup.id(part.namespace);
        let set_aside = self.stats().quarantined_blocks;
        let result = lend(|lender| {
            let blocks = blocks.iter().map(|block| vec![lender.shared(block)]).collect();
            let put = Put { chain: &part.chain, first: part.first, blocks, keep: Keep::Stored };
            self.store().put_batch(id, put, &terms(timed))
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
            // A torn extent is present until it is read. Merging reads it, so it may disappear meanwhile.
            let found_bad = self.stats().quarantined_blocks > set_aside;
            // An on-disk index cannot be read on a device that is down or hangs, and unreadable blocks are misses. On a
            // suspended device lookups find nothing.
            let explained = self.device.is_down()
                || self.device.held() > 0
                || self.stats().device.reads != "working"
                || found_bad && (outcome == PutOutcome::Present || !self.is_calm());
            if kept && !self.setup.style.evicts && !explained {
                assert!(present[at], "put says {outcome:?}, but {hash} is not there");
            }
            // A put also fails if an on-disk index cannot find out in time whether the block is present.
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

    /// Gets blocks, each independently of the others, and compares every answer. Returns the number of hits.
    ///
    /// # Panics
    ///
    /// If bytes are wrong, or if a block is lost or present that must not be.
    pub fn get(&self, part: &Part, timed: bool) -> usize {
        self.reads().get(part, timed)
    }

    /// Reads and checks every block that was ever put, and some that never were. Returns how many are present.
    /// Panics as [`Self::get`] does.
    pub fn check_all(&self) -> usize {
        self.reads().check_all()
    }

    fn reads(&self) -> CheckedReads<'_> {
        CheckedReads {
            store: self.store(),
            setup: &self.setup,
            oracle: &self.oracle,
            is_calm: self.is_calm(),
            is_after_outage: self.past.outages > 0,
            checks: &self.checks,
        }
    }

    /// Removes blocks, or a namespace; with a timeout if `timed`.
    pub fn remove(&mut self, namespace: usize, hashes: Option<&[ChainHash]>, timed: bool) {
        self.oracle.removal_begins(namespace, hashes);
        let id = self.setup.id(namespace);
        match self.store().remove(id, hashes, &terms(timed)) {
            Ok(_) => self.oracle.removed(namespace, hashes),
            Err(error) => self.check_error(&error),
        }
    }

    /// Puts a new chain and reads it back. Returns how many blocks the store had no space for.
    ///
    /// # Panics
    ///
    /// If the store does not return what it stored.
    pub fn check_usable(&mut self, turn: u64) -> u64 {
        let mut refused = 0;
        for namespace in 0..self.setup.namespaces.len() {
            let chain = chain_hashes(1_000_000 + 2 * turn, 2);
            let part = Part { namespace, chain, first: 0 };
            let report = self.put(&part, false).expect("the store takes puts");
            let stored = report.kept().iter().filter(|kept| **kept).count();
            assert!(self.get(&part, false) >= stored, "the store gives back what it took");
            refused += report.count(PutOutcome::Failed);
        }
        refused
    }

    /// Reserves space for the blocks, as a put does, and holds it.
    ///
    /// # Panics
    ///
    /// If the store refuses.
    #[must_use]
    pub fn hold_space(&self, part: &Part) -> HeldSpace {
        let blocks = part.hashes().len() as u64;
        let bytes =
            blocks * self.setup.layout(part.namespace).block_bytes() + dalsegno_core::SECTOR_BYTES;
        hold_space(self.store(), bytes).expect("nothing fails")
    }

    fn put_layers(&mut self, part: &Part, commit: bool) {
        self.oracle.put_begins(part.namespace, part.hashes());
        match put_layers(self.store(), &self.setup, part, commit) {
            Ok(added) => {
                for hash in added {
                    self.oracle.put_ended(part.namespace, hash, PutOutcome::Stored);
                }
            }
            Err(error) => self.check_error(&error),
        }
    }

    /// Compares the open store with its files if it reclaimed segments since the last comparison.
    fn agree_after_reclaim(&mut self) {
        let Some(store) = self.store.as_ref().filter(|_| self.is_calm()) else { return };
        let reclaimed = store.stats().log.segments_recycled;
        if reclaimed != self.seen.agreed_segments {
            self.seen.agreed_segments = reclaimed;
            self.check_agreement();
        }
    }

    /// Compares the open store with what an open of its files finds, with either index.
    ///
    /// # Panics
    ///
    /// If they differ.
    pub fn check_agreement(&self) {
        let any = self.stats().merging.merges > 0 || self.past.totals.merges > 0;
        let may_return = MayReturn { failed: &self.failed, any };
        let (store, device) = (self.store(), &*self.device);
        let compared = check_agreement(store, device, &self.setup, &self.oracle, may_return);
        self.checked(2 * compared);
    }

    /// Verifies the store offline. An outage must explain every finding.
    ///
    /// # Panics
    ///
    /// If one is unexplained.
    pub fn verify(&self) {
        checks::verify(&self.device, &self.setup, &self.oracle, &self.past.torn);
    }

    /// Checks that the store is within its bounds on disk, now and at every moment since the device was started.
    ///
    /// # Panics
    ///
    /// If it is not.
    pub fn check_bounds(&self) {
        self.checked(checks::check_bounds(self.store(), &self.device));
    }

    /// Withdraws promises of blocks that the store has dropped for space.
    fn settle_drops(&mut self) {
        let Some(store) = self.store.as_ref().filter(|_| self.setup.style.evicts) else { return };
        let dropped = store.stats().evicted_blocks;
        if dropped != self.seen.dropped_blocks {
            self.seen.dropped_blocks = dropped;
            checks::forget_dropped(store, &self.setup, &mut self.oracle);
        }
    }

    /// Number of answers compared so far.
    #[must_use]
    pub fn checks(&self) -> u64 {
        self.checks.get()
    }

    /// The sum over all closed stores.
    #[must_use]
    pub fn totals(&self) -> Totals {
        self.past.totals
    }

    fn checked(&self, answers: usize) {
        self.checks.set(self.checks.get() + answers as u64);
    }

    /// A put that finds a block present promises it without writing it. It must be there from now on, unless it is torn
    /// and was not read yet.
    fn promise_present(&mut self, part: &Part, report: &PutReport) {
        if self.setup.style.config.durability == Durability::None || !self.is_calm() {
            return;
        }
        let namespace = part.namespace;
        for (hash, outcome) in part.hashes().iter().zip(&report.outcomes) {
            let is_open = self.oracle.expects(namespace, *hash) == Expect::Either;
            let chain = vec![*hash];
            if *outcome == PutOutcome::Present
                && is_open
                && self.get(&Part { namespace, chain, first: 0 }, false) == 1
            {
                self.oracle.put_ended(namespace, *hash, PutOutcome::Stored);
            }
        }
    }

    /// Whether only the history can have made a block a miss.
    fn is_calm(&self) -> bool {
        !self.faulty && self.device.is_healthy()
    }

    /// Whether a put may find no space: always if the device is faulty, otherwise only if space is scarce.
    fn may_be_full(&self) -> bool {
        self.setup.style.evicts || !self.is_calm()
    }

    fn check_error(&self, error: &Error) {
        let kind = error.kind();
        let full = kind == ErrorKind::Full && self.may_be_full();
        assert!(full || !self.is_calm(), "an error without a fault: {error}");
        let excusable = [ErrorKind::Poisoned, ErrorKind::Unavailable, ErrorKind::Full];
        assert!(excusable.contains(&kind), "a failing device must not end in {kind:?}: {error}");
    }
}
