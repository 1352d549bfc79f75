//! Putting blocks.
//!
//! 1. A put first writes an extent, then inserts it into the index. A crash in between loses the put, nothing else.
//! 2. A block that is present, or that another put is writing, is not written again, unless a get failed to read it.
//! 3. If the namespace asks for compression, the caller's thread compresses an extent before space is reserved for it.
//! 4. A call that is over waits for nothing more: a block without space by then ends as failed.

use std::sync::Arc;

use dalsegno_core::{ChainHash, Deadline, Error, FarWrite, Namespace, NamespaceId, Result};
use dalsegno_index::{Scope, note_use};
use dalsegno_io::{Call, Memory, Operation};
use dalsegno_policy::AdmissionFilter;
use parking_lot::Mutex;

use crate::counters::add;
use crate::engine::Engine;
use crate::error::to_error;
use crate::rewrite::space::SpaceLane;
use crate::sizes::check_blocks;
use crate::state::arena::PlacedBlock;
use crate::state::recent_removals::RemovalMark;
use crate::terms::Terms;
use crate::upkeep::merger::Merger;
use crate::write::group::{Group, GroupBlocks};
use crate::write::pending::{Claim, Pending};
use crate::write::stretch::{Stretch, stretches};

/// Memory of the filter that remembers blocks put once, with admission `second-put`.
const ADMISSION_BYTES: usize = 8 << 20;

/// Blocks to be put.
#[derive(Debug)]
pub struct Put<'a> {
    /// Hashes of consecutive blocks of a prompt, as far as the caller knows them.
    pub chain: &'a [ChainHash],
    /// The position in `chain` of the first given block.
    pub first: usize,
    /// The blocks' bytes: for each block its layers, lowest first, in as many pieces as the caller has.
    pub blocks: Vec<Vec<Memory>>,
}

impl Put<'_> {
    /// Whether its numbers agree with its chain, and its sizes with the namespace. Fails with `Invalid`.
    pub fn check(&self, namespace: &Namespace) -> Result<()> {
        let given = self.first.checked_add(self.blocks.len());
        if given.is_none_or(|end| end > self.chain.len()) {
            return Err(Error::invalid(format!(
                "first is {} and there are {} blocks; together they must be at most the {} hashes of the chain",
                self.first,
                self.blocks.len(),
                self.chain.len()
            )));
        }
        check_blocks(&self.blocks, namespace.layout().block_bytes())
    }
}

/// Where the bytes of a put are from.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PutOrigin<'a> {
    /// The same blocks in their places in DRAM, as far as they have one; may be empty.
    pub(crate) placed: &'a [Option<Arc<PlacedBlock>>],
    /// From before the bytes were looked up. Blocks that were removed since are not put.
    pub(crate) mark: RemovalMark,
}

/// The bytes of a block that the store itself holds.
pub(crate) enum HeldBlock {
    /// In a place in DRAM.
    Placed(Arc<PlacedBlock>),
    /// In other memory.
    Elsewhere(Memory),
}

/// How one block of a put ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PutOutcome {
    /// Written, and visible; with durability `batch`, durable.
    Stored,
    /// Present already.
    Present,
    /// Being written by another put.
    Pending,
    /// Declined by the admission policy.
    Declined,
    /// Not written: no space, deadline, cancelled, or the device failed. Also a present block that a get failed to
    /// read, as long as reads are suspended.
    Failed,
}

/// How each block of a put ended.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PutReport {
    /// One per block, in order.
    pub outcomes: Vec<PutOutcome>,
}

impl PutReport {
    /// How many blocks ended like this.
    #[must_use]
    pub fn count(&self, outcome: PutOutcome) -> u64 {
        self.outcomes.iter().filter(|other| **other == outcome).count() as u64
    }

    /// Whether each block is in the store now, as far as this put knows.
    #[must_use]
    pub fn kept(&self) -> Vec<bool> {
        let is_kept = |o: &PutOutcome| matches!(o, PutOutcome::Stored | PutOutcome::Present);
        self.outcomes.iter().map(is_kept).collect()
    }
}

/// Writes what callers put.
#[derive(Debug)]
pub(crate) struct Writer {
    pub(crate) engine: Arc<Engine>,
    pub(crate) space: Arc<SpaceLane>,
    pub(crate) merger: Arc<Merger>,
    pending: Pending,
    admission: Mutex<AdmissionFilter>,
}

/// Which blocks of a put are written, and how the others ended.
struct Plan<'a> {
    wanted: Vec<bool>,
    outcomes: Vec<PutOutcome>,
    /// Keeps other puts from writing the wanted blocks.
    _claim: Claim<'a>,
}

impl Writer {
    pub(crate) fn new(engine: Arc<Engine>, space: Arc<SpaceLane>, merger: Arc<Merger>) -> Self {
        let filter = AdmissionFilter::new(engine.limits.admission, ADMISSION_BYTES);
        let (pending, admission) = (Pending::default(), Mutex::new(filter));
        Self { engine, space, merger, pending, admission }
    }

    /// See [`Store::put_batch`](crate::Store::put_batch).
    pub(crate) fn put_batch(
        &self,
        namespace: NamespaceId,
        put: Put<'_>,
        terms: &Terms,
    ) -> Result<PutReport> {
        let mark = self.engine.front.removals.mark();
        self.put_from(namespace, put, PutOrigin { placed: &[], mark }, terms)
    }

    /// Puts blocks that the store holds; those in a place keep it in DRAM. `mark` is from before their bytes were
    /// received or looked up.
    pub(crate) fn put_held(
        &self,
        namespace: NamespaceId,
        chain: &[ChainHash],
        first: usize,
        blocks: Vec<HeldBlock>,
        mark: RemovalMark,
        terms: &Terms,
    ) -> Result<PutReport> {
        let (memory, placed): (Vec<_>, Vec<_>) = blocks
            .into_iter()
            .map(|block| match block {
                HeldBlock::Placed(block) => (vec![block.memory()], Some(block)),
                HeldBlock::Elsewhere(memory) => (vec![memory], None),
            })
            .unzip();
        let put = Put { chain, first, blocks: memory };
        self.put_from(namespace, put, PutOrigin { placed: &placed, mark }, terms)
    }

    /// Puts blocks whose bytes are from `origin`.
    pub(crate) fn put_from(
        &self,
        namespace: NamespaceId,
        put: Put<'_>,
        origin: PutOrigin<'_>,
        terms: &Terms,
    ) -> Result<PutReport> {
        let engine = self.engine.as_ref();
        let namespace = engine.namespaces.get(namespace)?;
        put.check(&namespace)?;
        let call = terms.call(engine.clock.as_ref());
        let report = self.put(&namespace, put, origin, &call)?;
        self.merger.after_put();
        let counters = &engine.counters;
        let stored = report.count(PutOutcome::Stored);
        add(&counters.put_calls, 1);
        add(&counters.put_stored_blocks, stored);
        add(&counters.put_present_blocks, report.count(PutOutcome::Present));
        add(&counters.put_pending_blocks, report.count(PutOutcome::Pending));
        add(&counters.put_declined_blocks, report.count(PutOutcome::Declined));
        add(&counters.put_failed_blocks, report.count(PutOutcome::Failed));
        add(&counters.put_bytes, stored * namespace.layout().block_bytes());
        Ok(report)
    }

    fn put(
        &self,
        namespace: &Namespace,
        put: Put<'_>,
        PutOrigin { placed, mark }: PutOrigin<'_>,
        call: &Call,
    ) -> Result<PutReport> {
        let engine = self.engine.as_ref();
        engine.log.check_writable().map_err(to_error)?;
        let hashes = &put.chain[put.first..put.first + put.blocks.len()];
        if engine.device.refuses(Operation::Write, call) {
            return Ok(PutReport { outcomes: vec![PutOutcome::Failed; hashes.len()] });
        }
        let Plan { wanted, mut outcomes, _claim } =
            self.plan(namespace.id(), hashes, call.deadline);
        let mut blocks: Vec<Option<Vec<Memory>>> = put.blocks.into_iter().map(Some).collect();
        let mut group = Group::new(engine, &self.space, &self.merger, call, mark);
        for Stretch { first, count } in stretches(&wanted, namespace, &engine.limits) {
            let memory = blocks[first..first + count].iter_mut();
            let memory =
                memory.map(|block| block.take().expect("each block is in one stretch")).collect();
            let placed = placed.get(first..first + count).unwrap_or_default();
            group.add(namespace, put.chain, put.first + first, GroupBlocks { memory, placed })?;
        }
        for (first, count) in group.finish()? {
            outcomes[first - put.first..][..count].fill(PutOutcome::Stored);
        }
        Ok(PutReport { outcomes })
    }

    /// Decides which blocks are written.
    fn plan(&self, namespace: NamespaceId, hashes: &[ChainHash], deadline: Deadline) -> Plan<'_> {
        let engine = self.engine.as_ref();
        let mut outcomes = vec![PutOutcome::Failed; hashes.len()];
        let mut claim = self.pending.claim();
        let mark = engine.front.removals.mark();
        let present = engine.index.resolve(namespace, hashes, Scope::Each, deadline);
        note_use(engine.index.as_ref(), &present, engine.log.segments().round(), deadline);
        for run in present {
            if let Some(far) = &engine.far {
                far.offer(&run.extent, mark, FarWrite::SecondPut);
            }
            outcomes[run.at..run.at + run.count as usize].fill(PutOutcome::Present);
        }
        let failed = engine.front.failed_reads.among(namespace, hashes);
        // Blocks that are written while nothing can be read only take the space of others.
        let is_useless = !failed.is_empty() && engine.device.is_suspended();
        let mut failed = failed.iter().peekable();
        let mut wanted = vec![false; hashes.len()];
        for (at, hash) in hashes.iter().enumerate() {
            let has_failed = failed.next_if_eq(&hash).is_some();
            if outcomes[at] != PutOutcome::Present {
                if !self.admission.lock().admit(namespace, hash) {
                    outcomes[at] = PutOutcome::Declined;
                    continue;
                }
            } else if has_failed {
                outcomes[at] = PutOutcome::Failed;
                if is_useless {
                    continue;
                }
            } else {
                continue;
            }
            if claim.take((namespace, *hash)) {
                wanted[at] = true;
            } else {
                outcomes[at] = PutOutcome::Pending;
            }
        }
        Plan { wanted, outcomes, _claim: claim }
    }
}
