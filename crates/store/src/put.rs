//! Putting blocks.
//!
//! 1. Phase one writes the extent, phase two inserts it into the index; a crash between them loses the put, nothing
//!    else.
//! 2. A block that is present, or that another put is writing, is not written again; unless a get failed to read it.
//! 3. Where the namespace asks for it an extent is compressed on the caller's thread, before room is taken for it.
//! 4. A call that is over waits for nothing any more: what has no room by then ends as failed.

use std::sync::Arc;

use dalsegno_core::{
    ChainHash, DramAdmission, Error, Extent, Limits, MAX_EXTENT_BLOCKS, MAX_EXTENT_SLICES,
    Namespace, NamespaceId, Result,
};
use dalsegno_index::{Placement, Scope, note_use, raise_parent};
use dalsegno_io::{Memory, Operation, patiently};
use dalsegno_log::{Append, Appended, Call, CompressedExtent, LogError, NewExtent};
use dalsegno_policy::recency::Use;

use crate::stats::add;
use crate::store::{Inner, Store, to_error};
use crate::terms::Terms;

/// Blocks to be put.
#[derive(Debug)]
pub struct Put<'a> {
    /// Hashes of consecutive blocks of a prompt, as far as the caller knows them.
    pub chain: &'a [ChainHash],
    /// Position in `chain` of the first block that is given.
    pub first: usize,
    /// The blocks' bytes: for each block its layers, lowest first, in as many pieces as the caller has.
    pub blocks: Vec<Vec<Memory>>,
}

/// What became of one block of a put.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PutOutcome {
    /// Written, and visible; with durability `batch`, durable.
    Stored,
    /// There already.
    Present,
    /// Being written by another put.
    Pending,
    /// Declined by the admission policy.
    Declined,
    /// Not written: no room, deadline, cancelled, or the device failed. Also a block that is there, but that a get
    /// failed to read, as long as reads are suspended.
    Failed,
}

/// What became of the blocks of a put.
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

/// A run of neighbouring blocks to be written as one extent.
pub(crate) struct Stretch {
    pub(crate) first: usize,
    pub(crate) count: usize,
}

impl Store {
    /// Puts consecutive blocks of a chain.
    ///
    /// # Errors
    ///
    /// `Invalid` if sizes disagree with the namespace (nothing is written), `Poisoned` after a failed sync, `Closed`. A
    /// full disk, a deadline and a failing device are counted in the report.
    pub fn put_batch(
        &self,
        namespace: NamespaceId,
        put: Put<'_>,
        terms: &Terms,
    ) -> Result<PutReport> {
        let inner = self.enter()?;
        let namespace = inner.namespace(namespace)?;
        check_sizes(&namespace, &put)?;
        let call = terms.call(inner.clock.as_ref());
        let report =
            patiently(call.deadline, inner.clock.as_ref(), || inner.put(&namespace, put, &call))?;
        inner.merge_inline();
        let counters = &inner.counters;
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
}

fn check_sizes(namespace: &Namespace, put: &Put<'_>) -> Result<()> {
    let given = put.first.checked_add(put.blocks.len());
    if given.is_none_or(|end| end > put.chain.len()) {
        return Err(Error::invalid(format!(
            "first is {} and there are {} blocks; together they must be at most the {} hashes of the chain",
            put.first,
            put.blocks.len(),
            put.chain.len()
        )));
    }
    check_blocks(&put.blocks, namespace.layout().block_bytes())
}

/// Checks that every block has exactly `bytes` bytes of memory.
pub(crate) fn check_blocks(blocks: &[Vec<Memory>], bytes: u64) -> Result<()> {
    for (index, pieces) in blocks.iter().enumerate() {
        let given: u64 = pieces.iter().map(|piece| piece.len() as u64).sum();
        if given != bytes {
            return Err(Error::invalid(format!(
                "buffer {index} has {given} bytes; the namespace's layout needs {bytes}"
            )));
        }
    }
    Ok(())
}

impl Inner {
    fn put(
        self: &Arc<Self>,
        namespace: &Namespace,
        put: Put<'_>,
        call: &Call,
    ) -> Result<PutReport> {
        self.log.check_writable().map_err(to_error)?;
        let id = namespace.id();
        let hashes = &put.chain[put.first..put.first + put.blocks.len()];
        let mut outcomes = vec![PutOutcome::Failed; hashes.len()];
        if self.watch.refuses(Operation::Write, call) {
            return Ok(PutReport { outcomes });
        }
        let mut claim = self.pending.claim();
        let present = self.index.resolve(id, hashes, Scope::Each);
        note_use(self.index.as_ref(), &present, self.log.segments().round());
        for run in present {
            outcomes[run.at..run.at + run.count as usize].fill(PutOutcome::Present);
        }
        let failed = self.failed_reads.among(id, hashes);
        // What is written while nothing can be read only takes the space of others.
        let is_in_vain = !failed.is_empty() && self.watch.is_suspended();
        let mut failed = failed.iter().peekable();
        let mut wanted = vec![false; hashes.len()];
        for (at, hash) in hashes.iter().enumerate() {
            let has_failed = failed.next_if_eq(&hash).is_some();
            if outcomes[at] != PutOutcome::Present {
                if !self.admission.lock().admit(id, hash) {
                    outcomes[at] = PutOutcome::Declined;
                    continue;
                }
            } else if has_failed {
                outcomes[at] = PutOutcome::Failed;
                if is_in_vain {
                    continue;
                }
            } else {
                continue;
            }
            if claim.take((id, *hash)) {
                wanted[at] = true;
            } else {
                outcomes[at] = PutOutcome::Pending;
            }
        }
        let mut blocks: Vec<Option<Vec<Memory>>> = put.blocks.into_iter().map(Some).collect();
        let mut group = Group::new(self, call);
        for Stretch { first, count } in stretches(&wanted, namespace, &self.limits) {
            let memory = blocks[first..first + count].iter_mut();
            let memory =
                memory.map(|block| block.take().expect("each block is in one stretch")).collect();
            group.add(namespace, put.chain, put.first + first, memory)?;
        }
        for (first, count) in group.finish()? {
            outcomes[first - put.first..][..count].fill(PutOutcome::Stored);
        }
        Ok(PutReport { outcomes })
    }

    /// Names an extent's place in the order of the index.
    pub(crate) fn new_extent(
        &self,
        namespace: &Namespace,
        chain: &[ChainHash],
        first: usize,
        hashes: Vec<ChainHash>,
    ) -> NewExtent {
        let parent = first.checked_sub(1).map(|before| chain[before]);
        let number = u32::try_from(first).unwrap_or(u32::MAX);
        let place = self.index.place(namespace.id(), parent, chain[first], number);
        NewExtent {
            namespace: namespace.id(),
            lineage: place.lineage,
            first_block_index: place.first_block_index,
            parent: parent.unwrap_or_default(),
            layout: namespace.layout(),
            hashes,
            born: None,
        }
    }

    /// Phase two: from here on the blocks are visible. `false` if the index did not insert them; then the caller
    /// removes from DRAM what it copied there.
    pub(crate) fn publish(&self, appended: Appended, call: &Call) -> bool {
        let Appended { extent, pin } = appended;
        let (id, namespace, born) = (extent.id, extent.namespace, extent.born);
        self.upkeep.before_write(call, self.clock.as_ref());
        let failed = self.failed_reads.among(namespace, &extent.hashes);
        self.take_over(&extent, &failed);
        let round = self.log.segments().round();
        raise_parent(self.index.as_ref(), &extent, round);
        let mut visible = self.index.insert(extent.clone(), Use::written(round), &|_| true);
        // None may be new because all are there: what could not be read when it was looked up can be read now.
        let are_there = visible > 0
            || failed.is_empty()
                && self.index.probe(namespace, &extent.hashes) == extent.hashes.len();
        if visible > 0 {
            self.failed_reads.forget(namespace, &failed);
        }
        self.merger.note(&extent, self.clock.now());
        // Whoever removes announces it before it looks at the index: either it found these blocks there, or they are
        // told here. Without this they would be visible until the store is opened again, and gone then.
        let removed = self.log.removals().removed_since(namespace, born, &extent.hashes);
        let gone: Vec<ChainHash> =
            extent.hashes.iter().filter(|hash| removed.contains(hash)).copied().collect();
        if !gone.is_empty() {
            self.index.remove_extent(&extent);
            let wanted = |hash: &ChainHash| !removed.contains(hash);
            visible = self.index.insert(extent, Use::written(round), &wanted);
            self.dram.remove(namespace, &gone);
            self.removal_feed.note(namespace, &gone);
        }
        if visible == 0 {
            self.log.forget(id);
        }
        drop(pin);
        self.upkeep.after_write();
        are_there || !gone.is_empty()
    }
}

impl Inner {
    /// Blocks that a get failed to read leave the extents that hold them, so that a new one can.
    fn take_over(&self, extent: &Extent, failed: &[ChainHash]) {
        if failed.is_empty() || self.upkeep.is_stalled() {
            return;
        }
        for run in self.index.resolve(extent.namespace, failed, Scope::Each) {
            let blocks: Vec<u32> = (run.first_block..run.first_block + run.count).collect();
            let removed = self.index.remove_from_extent(&run.extent, &blocks);
            for id in &removed.extents {
                self.log.forget(*id);
            }
            if removed.blocks > 0 {
                let end = run.at + run.count as usize;
                self.removal_feed.note(extent.namespace, &failed[run.at..end]);
            }
        }
    }
}

/// The names of an extent's blocks.
type Names = (NamespaceId, Vec<ChainHash>);

/// Extents of one put that are written together.
struct Group<'a> {
    inner: &'a Arc<Inner>,
    call: &'a Call,
    waiting: Vec<(usize, usize, Append, Names)>,
    bytes: u64,
    /// Where the next extent goes if it continues the last one, which the index does not know yet.
    next: Option<(usize, Placement)>,
    stored: Vec<(usize, usize)>,
}

impl<'a> Group<'a> {
    fn new(inner: &'a Arc<Inner>, call: &'a Call) -> Self {
        Self { inner, call, waiting: Vec::new(), bytes: 0, next: None, stored: Vec::new() }
    }

    /// Reserves room for one more extent, making room first if needed; what finds none is left out.
    fn add(
        &mut self,
        namespace: &Namespace,
        chain: &[ChainHash],
        first: usize,
        blocks: Vec<Vec<Memory>>,
    ) -> Result<()> {
        let count = blocks.len();
        let mut extent =
            self.inner.new_extent(namespace, chain, first, chain[first..first + count].to_vec());
        if let Some((_, place)) = self.next.filter(|(next, _)| *next == first) {
            (extent.lineage, extent.first_block_index) = (place.lineage, place.first_block_index);
        }
        let blocks_in_extent = u32::try_from(count).expect("bounded by MAX_EXTENT_BLOCKS");
        let lineage = extent.lineage;
        let first_block_index = extent.first_block_index.saturating_add(blocks_in_extent);
        self.next = Some((first + count, Placement { lineage, first_block_index }));
        let compressed = match self.encode(&extent, &blocks)? {
            Ok(compressed) => compressed,
            Err(error) => return not_put(count, &error),
        };
        let plain_bytes = extent.total_bytes();
        let bytes =
            compressed.as_ref().map_or(plain_bytes, |compressed| compressed.total_bytes(&extent));
        // Reserved room pins its segments, so a large put must let go of them before room runs out.
        if self.bytes + bytes > self.inner.limits.segment_bytes / 2 {
            self.write()?;
        }
        match self.inner.reserve(bytes, self.call) {
            Ok(place) => {
                self.bytes += bytes;
                let names = (extent.namespace, extent.hashes.clone());
                if self.inner.limits.dram_admission == DramAdmission::Put {
                    for (hash, block) in extent.hashes.iter().zip(&blocks) {
                        self.inner.dram.insert((extent.namespace, *hash), block);
                    }
                }
                let append = match compressed {
                    Some(compressed) => Append::compressed(extent, compressed, place),
                    None => Append::new(extent, blocks, place),
                };
                self.waiting.push((first, count, append, names));
                Ok(())
            }
            Err(error) => not_put(count, &error),
        }
    }

    /// Compresses an extent if its namespace asks for that. Compressed extents that wait hold memory, so they are
    /// written before more is waited for.
    fn encode(
        &mut self,
        extent: &NewExtent,
        blocks: &[Vec<Memory>],
    ) -> Result<std::result::Result<Option<CompressedExtent>, LogError>> {
        let compression = self.inner.compression(extent.namespace);
        if compression.is_plain() {
            return Ok(Ok(None));
        }
        let room = if let Some(room) = self.inner.log.compressor().try_budget(extent) {
            Ok(room)
        } else {
            self.write()?;
            self.inner.log.compressor().budget(extent, self.call)
        };
        Ok(room.and_then(|room| {
            self.inner.log.compressor().compress(extent, blocks, compression, room, self.call)
        }))
    }

    /// Removes from DRAM what did not become visible.
    fn forget(&self, (namespace, hashes): &Names) {
        self.inner.dram.remove(*namespace, hashes);
    }

    /// Writes what waits and makes it visible.
    fn write(&mut self) -> Result<()> {
        self.bytes = 0;
        let waiting = std::mem::take(&mut self.waiting);
        let mut places = Vec::with_capacity(waiting.len());
        let mut appends = Vec::with_capacity(waiting.len());
        for (first, count, append, names) in waiting {
            places.push((first, count, names));
            appends.push(append);
        }
        let mut outcome = Ok(());
        for (place, result) in
            places.into_iter().zip(self.inner.log.writer().append(appends, self.call))
        {
            let (first, count, names) = place;
            match result {
                Ok(appended) => {
                    if self.inner.publish(appended, self.call) {
                        self.stored.push((first, count));
                    } else {
                        self.forget(&names);
                    }
                }
                Err(error) => {
                    self.forget(&names);
                    outcome = outcome.and(not_put(count, &error));
                }
            }
        }
        outcome
    }

    /// Writes the rest; returns position and count of what was stored.
    fn finish(mut self) -> Result<Vec<(usize, usize)>> {
        self.write()?;
        Ok(std::mem::take(&mut self.stored))
    }
}

impl Drop for Group<'_> {
    /// A put that ends with an error leaves nothing in DRAM of what it had not written by then.
    fn drop(&mut self) {
        for (.., names) in &self.waiting {
            self.forget(names);
        }
    }
}

/// What a put makes of an extent that was not written: its blocks count as failed, unless writing has stopped.
fn not_put(blocks: usize, error: &LogError) -> Result<()> {
    tracing::debug!("{blocks} blocks were not put: {error}");
    match error {
        LogError::Poisoned => Err(to_error(LogError::Poisoned)),
        _ => Ok(()),
    }
}

/// Cuts the wanted blocks into runs that fit an extent.
pub(crate) fn stretches(wanted: &[bool], namespace: &Namespace, limits: &Limits) -> Vec<Stretch> {
    let layout = namespace.layout();
    let by_bytes = limits.extent_bytes / layout.block_bytes().max(1);
    let by_slices = u64::from(MAX_EXTENT_SLICES / layout.layers());
    let most = by_bytes.min(by_slices).min(u64::from(MAX_EXTENT_BLOCKS)).max(1);
    let most = usize::try_from(most).expect("at most MAX_EXTENT_BLOCKS");
    let mut stretches: Vec<Stretch> = Vec::new();
    for (at, _) in wanted.iter().enumerate().filter(|(_, wanted)| **wanted) {
        match stretches.last_mut() {
            Some(last) if last.first + last.count == at && last.count < most => last.count += 1,
            _ => stretches.push(Stretch { first: at, count: 1 }),
        }
    }
    stretches
}
