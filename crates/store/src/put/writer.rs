//! Putting blocks.
//!
//! 1. A put first writes an extent, then inserts it into the index. A crash in between loses the put, nothing else.
//!    A pool-only put does neither (`pool_only.rs`).
//! 2. If the namespace asks for compression, the caller's thread compresses an extent before space is reserved for it.
//! 3. A call that is over waits for nothing more: a block without space by then ends as failed.

use std::sync::Arc;

use dalsegno_core::{ChainHash, Class, Clock, Error, Namespace, NamespaceId, Result};
use dalsegno_io::{Call, IoError, Memory, Operation};

use crate::counters::{Counters, add};
use crate::error::to_error;
use crate::keep::Keep;
use crate::namespaces::table::NamespaceTable;
use crate::put::group::{ExtentWriter, Group};
use crate::put::plan::{Plan, PlannedPut, PutPlanner};
use crate::put::pool_only::{PooledBytes, keep_in_pool};
use crate::put::report::{PutOutcome, PutReport};
use crate::put::stretch::Stretch;
use crate::sizes::check_blocks;
use crate::state::arena::PlacedBlock;
use crate::state::held_block::HeldBlock;
use crate::state::recent_removals::RemovalMark;
use crate::terms::Terms;
use crate::upkeep::merger::Merger;

/// Blocks to be put.
#[derive(Debug)]
pub struct Put<'a> {
    /// Hashes of consecutive blocks of a prompt, as far as the caller knows them.
    pub chain: &'a [ChainHash],
    /// The position in `chain` of the first given block.
    pub first: usize,
    /// The blocks' bytes: for each block its layers, lowest first, in as many pieces as the caller has.
    pub blocks: Vec<Vec<Memory>>,
    /// Where they are kept.
    pub keep: Keep,
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

/// Blocks to be put that the store holds.
#[derive(Debug)]
pub(crate) struct HeldPut<'a> {
    pub(crate) chain: &'a [ChainHash],
    /// The position in `chain` of the first block.
    pub(crate) first: usize,
    pub(crate) blocks: Vec<HeldBlock>,
    pub(crate) keep: Keep,
}

/// Where the bytes of a put are from.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PutOrigin<'a> {
    /// The same blocks in their places in DRAM, as far as they have one; may be empty.
    pub(crate) placed: &'a [Option<Arc<PlacedBlock>>],
    /// From before the bytes were looked up. Blocks that were removed since are not put.
    pub(crate) mark: RemovalMark,
}

/// The start of a put by layer.
pub(crate) struct LayerStart {
    /// How many leading blocks are not put.
    pub(crate) skipped: usize,
    /// From before that was found out.
    pub(crate) mark: RemovalMark,
}

/// Writes what callers put.
#[derive(Debug)]
pub(crate) struct Writer {
    pub(crate) planner: PutPlanner,
    pub(crate) extents: ExtentWriter,
    pub(crate) merger: Arc<Merger>,
    pub(crate) namespaces: Arc<NamespaceTable>,
    pub(crate) counters: Arc<Counters>,
    pub(crate) clock: Arc<dyn Clock>,
}

impl Writer {
    /// See [`Store::put_batch`](crate::Store::put_batch).
    pub(crate) fn put_batch(
        &self,
        namespace: NamespaceId,
        put: Put<'_>,
        terms: &Terms,
    ) -> Result<PutReport> {
        let mark = self.planner.removals.mark();
        self.put_from(namespace, put, PutOrigin { placed: &[], mark }, terms)
    }

    /// Puts blocks that the store holds; those in a place keep it in DRAM. `mark` is from before their bytes were
    /// received or looked up.
    pub(crate) fn put_held(
        &self,
        namespace: NamespaceId,
        HeldPut { chain, first, blocks, keep }: HeldPut<'_>,
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
        let put = Put { chain, first, blocks: memory, keep };
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
        let namespace = self.namespaces.get(namespace)?;
        put.check(&namespace)?;
        let call = terms.call_of(Class::Save, self.clock.as_ref());
        let report = match put.keep {
            Keep::Stored => self.put(&namespace, put, origin, &call)?,
            Keep::PoolOnly => self.keep_in_pool(namespace.id(), &put, origin, &call),
        };
        self.merger.after_put();
        let counters = &self.counters;
        let stored = report.count(PutOutcome::Stored);
        add(&counters.put_calls, 1);
        add(&counters.put_stored_blocks, stored);
        add(&counters.pool_only_blocks, report.count(PutOutcome::PoolOnly));
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
        self.planner.stored.log.check_writable().map_err(to_error)?;
        let hashes = &put.chain[put.first..put.first + put.blocks.len()];
        if self.planner.device.refuses(Operation::Write, call) {
            return Ok(PutReport { outcomes: vec![PutOutcome::Failed; hashes.len()] });
        }
        let id = namespace.id();
        let planned = PlannedPut { namespace: id, hashes, keep: Keep::Stored, since: mark };
        let Plan { wanted, mut outcomes, claim: _claim } =
            self.planner.plan(planned, call.deadline);
        let mut blocks: Vec<Option<Vec<Memory>>> = put.blocks.into_iter().map(Some).collect();
        let mut group = Group::new(&self.extents, call, mark);
        for Stretch { first, count } in self.extents.stretches(&wanted, namespace) {
            let memory = blocks[first..first + count].iter_mut();
            let memory =
                memory.map(|block| block.take().expect("each block is in one stretch")).collect();
            let placed = placed.get(first..first + count).unwrap_or_default();
            group.add(namespace, put.chain, put.first + first, memory, placed)?;
        }
        for (first, count) in group.finish()? {
            outcomes[first - put.first..][..count].fill(PutOutcome::Stored);
        }
        Ok(PutReport { outcomes })
    }

    fn keep_in_pool(
        &self,
        namespace: NamespaceId,
        put: &Put<'_>,
        PutOrigin { placed, mark }: PutOrigin<'_>,
        call: &Call,
    ) -> PutReport {
        let hashes = &put.chain[put.first..put.first + put.blocks.len()];
        let planned = PlannedPut { namespace, hashes, keep: Keep::PoolOnly, since: mark };
        let bytes = PooledBytes { blocks: &put.blocks, placed };
        keep_in_pool(&self.planner, planned, bytes, call, self.clock.as_ref())
    }

    /// Begins a put by layer of consecutive blocks.
    ///
    /// # Errors
    ///
    /// `Invalid` if the blocks do not fit into one extent; `Unavailable` if writes are suspended; `Poisoned`.
    pub(crate) fn begin_layers(
        &self,
        namespace: &Namespace,
        hashes: &[ChainHash],
        terms: &Terms,
    ) -> Result<LayerStart> {
        let call = terms.call_of(Class::Save, self.clock.as_ref());
        self.planner.stored.log.check_writable().map_err(to_error)?;
        if self.planner.device.refuses(Operation::Write, &call) {
            return Err(to_error(IoError::Suspended.into()));
        }
        let mark = self.planner.removals.mark();
        let skipped = self.planner.leading_present(namespace.id(), hashes, call.deadline);
        let count = hashes.len() - skipped;
        let parts = self.extents.stretches(&vec![true; count], namespace);
        if parts.len() > 1 {
            return Err(Error::invalid(format!(
                "{count} blocks do not fit into one extent; write at most {} at a time",
                parts[0].count
            )));
        }
        Ok(LayerStart { skipped, mark })
    }
}
