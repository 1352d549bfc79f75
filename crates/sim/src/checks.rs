//! What must hold of a world, whatever happened to it.
//!
//! 1. While a block is promised, a get of it is a hit; once it is removed, never.
//! 2. Where space is scarce a block is promised until the store says that it dropped some, and lists it no longer.
//! 3. What a store lists is durable, if puts are: a power cut takes nothing away that somebody may have seen, or that a
//!    put found present.

use std::sync::Arc;

use dalsegno_core::{Durability, ManualClock};
use dalsegno_io::Device;
use dalsegno_log::format::segment_number;
use dalsegno_log::{Finding, LogError, VerifyReport};
use dalsegno_store::{PutOutcome, PutReport};

use crate::blocks::chain_hashes;
use crate::device::SimDevice;
use crate::history::Part;
use crate::oracle::Expect;
use crate::totals::Totals;
use crate::world::World;

/// No slice of a history is longer: damage that begins within this many bytes before a torn sector is explained by it.
const LONGEST_SLICE_BYTES: u64 = 128 << 10;

impl World {
    /// Reads and checks every block that was ever put, and some that never were. Returns how many are there.
    ///
    /// # Panics
    ///
    /// As [`Self::get`].
    pub fn check_all(&self) -> usize {
        let mut found = 0;
        for namespace in 0..self.namespaces.len() {
            let mut chain = self.oracle.hashes(namespace);
            chain.extend(chain_hashes(u64::MAX / 2, 2));
            let id = self.namespaces[namespace].id();
            let present = self.store().peek(id, &chain).expect("the store is open");
            self.checked(chain.len());
            for (hash, present) in chain.iter().zip(present) {
                let expected = self.oracle.expects(namespace, *hash);
                assert!(!present || expected != Expect::Miss, "{hash} of namespace {id} is listed");
            }
            found += self.get(&Part { namespace, chain, first: 0 }, false);
        }
        found
    }

    /// Puts a chain that never was and reads it back; returns how many blocks the store had no room for.
    ///
    /// # Panics
    ///
    /// If the store does not give back what it took.
    pub fn check_usable(&mut self, turn: u64) -> u64 {
        let mut refused = 0;
        for namespace in 0..self.namespaces.len() {
            let chain = chain_hashes(1_000_000 + 2 * turn, 2);
            let part = Part { namespace, chain, first: 0 };
            let report = self.put(&part, false).expect("the store takes puts");
            let stored = report.kept().iter().filter(|kept| **kept).count();
            assert!(self.get(&part, false) >= stored, "the store gives back what it took");
            refused += report.count(PutOutcome::Failed);
        }
        refused
    }

    /// Verifies the store offline; whatever is found must be explained by an outage.
    ///
    /// # Panics
    ///
    /// If it is not.
    pub fn verify(&self) {
        let device: Arc<dyn Device> = Arc::<SimDevice>::clone(&self.device);
        let clock = Arc::<ManualClock>::clone(&self.clock);
        let index = dalsegno_index::verify_index(Arc::clone(&device), None, &|_| {});
        let report = match dalsegno_log::verify(device, clock, self.pool.clone(), &|_, _| {}) {
            Ok(report) => report,
            Err(LogError::Format { .. }) => {
                assert_eq!(self.oracle.kept_count(), 0, "verify finds no store");
                return;
            }
            Err(error) => panic!("verify fails: {error}"),
        };
        let VerifyReport { mut findings, .. } = report;
        let faults = index.expect("the device lists its files").faults.into_iter();
        findings.extend(faults.map(|f| Finding { file: f.file, offset: f.offset, what: f.what }));
        let contradiction = findings.iter().find(|finding| !self.explains(finding));
        assert!(contradiction.is_none(), "verify contradicts: {contradiction:?}");
    }

    fn explains(&self, finding: &Finding) -> bool {
        // The store's header is made again at open, whatever an outage left of it.
        let remade = finding.file == dalsegno_log::format::STORE_FILE;
        let start = dalsegno_core::sector_down(finding.offset);
        let near = start..start + LONGEST_SLICE_BYTES;
        remade
            || self.torn.iter().any(|torn| torn.file == finding.file && near.contains(&torn.offset))
    }

    /// Checks that the store keeps within its bounds on disk, at this moment and at any since the device was started.
    ///
    /// # Panics
    ///
    /// If it does not.
    pub fn check_bounds(&self) {
        let limits = self.store().limits();
        let (most, peak) = (limits.capacity_bytes, self.device.peak_bytes());
        assert!(peak <= most, "files took {peak} bytes, more than the capacity of {most}");
        // An outage may have come when the store was about to be open.
        let Ok(files) = self.device.list() else { return };
        let segments = files.iter().filter(|file| segment_number(&file.name).is_some()).count();
        let most = limits.segment_count as usize;
        assert!(segments <= most, "{segments} segments, more than {most}");
        let index = files.iter().filter(|file| file.name.starts_with("index-"));
        let (bytes, most) = (index.map(|file| file.bytes).sum::<u64>(), limits.index_bytes);
        assert!(bytes <= most, "the index takes {bytes} bytes, more than {most}");
        self.checked(3);
    }

    /// How many answers were compared so far.
    #[must_use]
    pub fn checks(&self) -> u64 {
        self.checks.get()
    }

    /// What the stores that were closed did, all together.
    #[must_use]
    pub fn totals(&self) -> Totals {
        self.totals
    }

    pub(crate) fn checked(&self, answers: usize) {
        self.checks.set(self.checks.get() + answers as u64);
    }

    /// Takes back promises of blocks that the store has dropped to make room.
    pub(crate) fn settle_drops(&mut self) {
        let Some(store) = self.store.as_ref().filter(|_| self.style.evicts) else { return };
        let dropped = store.stats().evicted_blocks;
        if dropped == self.dropped_blocks {
            return;
        }
        self.dropped_blocks = dropped;
        for (namespace, id) in self.namespaces.iter().map(dalsegno_core::Namespace::id).enumerate()
        {
            let kept = self.oracle.kept(namespace);
            let listed = store.peek(id, &kept).expect("the store is open");
            for (hash, listed) in kept.iter().zip(listed) {
                if !listed {
                    self.oracle.dropped(namespace, *hash);
                }
            }
        }
    }

    /// A put that finds a block present says so of what it did not write: from now on that block must be there. Unless
    /// it is what an outage tore, which nobody has read yet.
    pub(crate) fn promise_present(&mut self, part: &Part, report: &PutReport) {
        if self.style.config.durability == Durability::None || !self.is_calm() {
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

    /// An outage comes: what the store lists must be there afterwards.
    pub(crate) fn promise_what_is_listed(&mut self) {
        let Some(store) = &self.store else { return };
        for (namespace, id) in self.namespaces.iter().map(dalsegno_core::Namespace::id).enumerate()
        {
            let all = self.oracle.hashes(namespace);
            let listed = store.peek(id, &all).expect("the store is open");
            for (hash, _) in all.iter().zip(listed).filter(|(_, listed)| *listed) {
                self.oracle.listed(namespace, *hash);
            }
        }
    }
}
