//! Getting blocks, whole or by layer.
//!
//! 1. DRAM first, then the log; a block counts as a hit only after every slice was verified.
//! 2. A block with a bad slice is a miss; it leaves the index at once, so nobody reads it again. Its neighbours stay.
//! 3. A block that the device failed to read stays in the index, and is noted: a put writes it again.
//! 4. A block is looked up once, for DRAM and the log together; once more only if its segment was recycled between
//!    lookup and read.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use dalsegno_core::{ChainHash, DramAdmission, Extent, Namespace, NamespaceId, Result};
use dalsegno_index::{Run, Scope, note_use};
use dalsegno_io::{Memory, Operation, patiently};
use dalsegno_log::{BlockTarget, Call, Cause, ExtentRead};

use crate::put::check_blocks;
use crate::stats::add;
use crate::store::{Inner, Store};
use crate::terms::Terms;

/// How a wanted block ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Served from DRAM.
    Dram,
    /// Served from the log.
    Log,
    /// Not stored, or behind the first miss of a prefix.
    Absent,
    /// Stored, but it could not be had; the counter of the same name says how often.
    Lost(&'static str),
}

impl Outcome {
    /// Whether the bytes are in the caller's memory.
    #[must_use]
    pub fn is_hit(self) -> bool {
        matches!(self, Self::Dram | Self::Log)
    }
}

/// What became of the blocks of a get.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GetReport {
    /// One per block, in order.
    pub outcomes: Vec<Outcome>,
}

impl GetReport {
    /// How many leading blocks are hits.
    #[must_use]
    pub fn leading_blocks(&self) -> usize {
        self.outcomes.iter().take_while(|outcome| outcome.is_hit()).count()
    }

    /// How many blocks are hits.
    #[must_use]
    pub fn hit_blocks(&self) -> usize {
        self.outcomes.iter().filter(|outcome| outcome.is_hit()).count()
    }
}

impl Store {
    /// Fills `out[i]` with block `chain[i]`: with [`Scope::Prefix`] up to the first miss, with [`Scope::Each`] whatever
    /// is there. Contents of memory whose block is no hit are undefined.
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
        self.get(namespace, (chain, out), None, scope, terms)
    }

    /// Fills `out[i]` with one layer of block `chain[i]`, up to the first miss.
    ///
    /// # Errors
    ///
    /// `Invalid` if the layer does not exist or a size is not the layout's slice size; `Closed`.
    pub fn retrieve_layer(
        &self,
        namespace: NamespaceId,
        chain: &[ChainHash],
        layer: u32,
        out: Vec<Vec<Memory>>,
        terms: &Terms,
    ) -> Result<GetReport> {
        self.get(namespace, (chain, out), Some(layer), Scope::Prefix, terms)
    }

    /// Gets one layer, or all.
    fn get(
        &self,
        namespace: NamespaceId,
        (chain, out): (&[ChainHash], Vec<Vec<Memory>>),
        layer: Option<u32>,
        scope: Scope,
        terms: &Terms,
    ) -> Result<GetReport> {
        let inner = self.enter()?;
        let namespace = inner.namespace(namespace)?;
        let layer_count = namespace.layout().layers();
        if let Some(layer) = layer.filter(|layer| *layer >= layer_count) {
            return Err(dalsegno_core::Error::invalid(format!(
                "layer {layer} does not exist; the namespace has layers 0 to {}",
                layer_count - 1
            )));
        }
        let layers = layer.map_or(0..layer_count, |layer| layer..layer + 1);
        if chain.len() != out.len() {
            return Err(dalsegno_core::Error::invalid(format!(
                "{} hashes but {} buffers; give one buffer per block",
                chain.len(),
                out.len()
            )));
        }
        let wanted = u64::from(layers.end - layers.start);
        let bytes = wanted * u64::from(namespace.layout().slice_bytes());
        check_blocks(&out, bytes)?;
        let call = terms.call(inner.clock.as_ref());
        let _reading = Reading::of(&inner);
        let mut get = Get::new(&inner, &namespace, chain, layers, &call);
        patiently(call.deadline, inner.clock.as_ref(), || get.run(out, scope));
        let report = GetReport { outcomes: get.outcomes };
        inner.count_get(&report, bytes);
        Ok(report)
    }
}

/// Counts a get that is under way.
struct Reading<'a>(&'a Inner);

impl<'a> Reading<'a> {
    fn of(inner: &'a Inner) -> Self {
        inner.reads.fetch_add(1, Ordering::Relaxed);
        Self(inner)
    }
}

impl Drop for Reading<'_> {
    fn drop(&mut self) {
        self.0.reads.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Inner {
    fn count_get(&self, report: &GetReport, bytes: u64) {
        let count = |wanted: &dyn Fn(&Outcome) -> bool| {
            report.outcomes.iter().filter(|outcome| wanted(outcome)).count() as u64
        };
        let (dram, log) = (count(&|o| *o == Outcome::Dram), count(&|o| *o == Outcome::Log));
        let counters = &self.counters;
        add(&counters.get_calls, 1);
        add(&counters.get_dram_blocks, dram);
        add(&counters.get_log_blocks, log);
        add(&counters.get_missed_blocks, report.outcomes.len() as u64 - dram - log);
        add(&counters.get_bytes, (dram + log) * bytes);
    }
}

/// One get under way.
struct Get<'a> {
    inner: &'a Inner,
    namespace: &'a Namespace,
    chain: &'a [ChainHash],
    layers: Range<u32>,
    call: &'a Call,
    outcomes: Vec<Outcome>,
}

impl<'a> Get<'a> {
    fn new(
        inner: &'a Inner,
        namespace: &'a Namespace,
        chain: &'a [ChainHash],
        layers: Range<u32>,
        call: &'a Call,
    ) -> Self {
        let outcomes = vec![Outcome::Absent; chain.len()];
        Self { inner, namespace, chain, layers, call, outcomes }
    }

    fn run(&mut self, out: Vec<Vec<Memory>>, scope: Scope) {
        let mut out: Vec<Option<Vec<Memory>>> = out.into_iter().map(Some).collect();
        // DRAM holds only what the index knows, so this says what can be had at all.
        let runs = self.inner.index.resolve(self.namespace.id(), self.chain, scope);
        note_use(self.inner.index.as_ref(), &runs, self.inner.log.segments().round());
        self.take_dram(&runs, &mut out);
        let rest = runs.iter().flat_map(|run| missing_parts(run, &out)).collect();
        self.take_log(rest, &mut out);
    }

    /// Serves what DRAM holds of the blocks that were found.
    fn take_dram(&mut self, runs: &[Run], out: &mut [Option<Vec<Memory>>]) {
        if self.inner.dram.is_off() {
            return;
        }
        let slice = self.namespace.layout().slice_bytes() as usize;
        let layers_start = self.layers.start as usize * slice;
        for run in runs {
            for at in positions_of(run) {
                let key = (self.namespace.id(), self.chain[at]);
                let pieces = out[at].as_mut().expect("each block is asked for once");
                if self.inner.dram.copy_to(&key, layers_start, pieces) {
                    out[at] = None;
                    self.outcomes[at] = Outcome::Dram;
                }
            }
        }
    }

    /// Reads blocks from the log, looking up once more what was moved meanwhile.
    fn take_log(&mut self, runs: Vec<Run>, out: &mut [Option<Vec<Memory>>]) {
        if self.inner.watch.refuses(Operation::Read, self.call) {
            let suspended: Vec<usize> = runs.iter().flat_map(positions_of).collect();
            let cause = Cause::Suspended;
            self.inner.log.stats().count_miss(cause, suspended.len() as u64);
            return self.lose(suspended, cause);
        }
        let positions: Vec<usize> = (0..self.chain.len()).collect();
        let moved = self.read_runs(runs, &positions, out);
        if moved.is_empty() {
            return;
        }
        let hashes: Vec<ChainHash> = moved.iter().map(|at| self.chain[*at]).collect();
        let runs = self.inner.index.resolve(self.namespace.id(), &hashes, Scope::Each);
        let moved_again = self.read_runs(runs, &moved, out);
        self.lose(moved_again, Cause::Recycled);
    }

    fn lose(&mut self, positions: Vec<usize>, cause: Cause) {
        for at in positions {
            self.outcomes[at] = Outcome::Lost(cause.name());
        }
    }

    /// Reads runs side by side; `positions` says where in the chain each hash stands that was looked up. Returns where
    /// those stand whose segment was recycled meanwhile.
    fn read_runs(
        &mut self,
        runs: Vec<Run>,
        positions: &[usize],
        out: &mut [Option<Vec<Memory>>],
    ) -> Vec<usize> {
        let mut moved = Vec::new();
        let mut reads = Vec::new();
        let mut read_runs = Vec::new();
        // Memory is given away only for a segment that stays until it is read.
        let mut pins = Vec::new();
        for run in runs {
            if run.extent.layout != self.namespace.layout() {
                // Its checksum is right, but no put made it: nothing of it fits the caller's memory.
                self.inner.quarantine(&run.extent, &[(run.first_block, Cause::WrongPlace)]);
                self.lose(positions[positions_of(&run)].to_vec(), Cause::WrongPlace);
                continue;
            }
            let Some(pin) = self.inner.log.pin(run.extent.location) else {
                moved.extend_from_slice(&positions[positions_of(&run)]);
                continue;
            };
            pins.push(pin);
            reads.push(self.extent_read(&run, positions, out));
            read_runs.push(run);
        }
        let results = self.inner.log.read(reads, self.call);
        drop(pins);
        for (run, blocks) in read_runs.iter().zip(results) {
            self.settle(run, positions, blocks);
        }
        moved
    }

    fn extent_read(
        &self,
        run: &Run,
        positions: &[usize],
        out: &mut [Option<Vec<Memory>>],
    ) -> ExtentRead {
        let targets = (0..run.count).map(|offset| BlockTarget {
            block: run.first_block + offset,
            memory: out[positions[run.at + offset as usize]].take().expect("asked for once"),
        });
        let targets = targets.collect();
        ExtentRead { extent: Arc::clone(&run.extent), layers: self.layers.clone(), targets }
    }

    /// Takes in what became of a run: outcomes, DRAM, quarantine.
    fn settle(&mut self, run: &Run, positions: &[usize], blocks: Vec<dalsegno_log::BlockRead>) {
        let (mut damaged, mut failed, mut read) = (Vec::new(), Vec::new(), Vec::new());
        let whole = self.layers.end - self.layers.start == self.namespace.layout().layers();
        for (offset, block) in (0_u32..).zip(blocks) {
            let at = positions[run.at + offset as usize];
            match block.outcome {
                Ok(()) => {
                    self.outcomes[at] = Outcome::Log;
                    read.push(self.chain[at]);
                    if whole && self.inner.limits.dram_admission == DramAdmission::Get {
                        let key = (self.namespace.id(), self.chain[at]);
                        self.inner.bring_to_dram(key, &block.memory);
                    }
                }
                Err(cause) => {
                    self.outcomes[at] = Outcome::Lost(cause.name());
                    if cause.is_damage() {
                        damaged.push((run.first_block + offset, cause));
                    } else if cause == Cause::Device {
                        failed.push(self.chain[at]);
                    }
                }
            }
        }
        self.inner.quarantine(&run.extent, &damaged);
        self.inner.failed_reads.note(self.namespace.id(), &failed);
        self.inner.failed_reads.forget(self.namespace.id(), &read);
    }
}

/// Where the blocks of a run stand in the hashes that were looked up.
fn positions_of(run: &Run) -> Range<usize> {
    run.at..run.at + run.count as usize
}

/// What of a run has not been served, as runs.
fn missing_parts(run: &Run, out: &[Option<Vec<Memory>>]) -> Vec<Run> {
    let mut parts: Vec<Run> = Vec::new();
    for (first_block, at) in (run.first_block..).zip(positions_of(run)) {
        if out[at].is_none() {
            continue;
        }
        match parts.last_mut() {
            Some(part) if positions_of(part).end == at => part.count += 1,
            _ => parts.push(Run { at, extent: Arc::clone(&run.extent), first_block, count: 1 }),
        }
    }
    parts
}

impl Inner {
    /// Copies a block to DRAM, unless it was removed or evicted while it was read.
    fn bring_to_dram(&self, key: (NamespaceId, ChainHash), memory: &[Memory]) {
        if self.dram.is_off() {
            return;
        }
        self.dram.insert(key, memory);
        if self.index.probe(key.0, &[key.1]) == 0 {
            self.dram.remove(key.0, &[key.1]);
        }
    }

    /// Takes blocks with bad bytes out of the index, so that they can be put again; all of their extent, if it is its
    /// header that is bad. `damaged` are positions in the extent, and why.
    pub(crate) fn quarantine(&self, extent: &Extent, damaged: &[(u32, Cause)]) {
        let of_header = damaged.iter().find(|(_, cause)| cause.is_of_header());
        let Some((_, cause)) = of_header.or(damaged.first()) else { return };
        let blocks: Vec<u32> = if cause.is_of_header() {
            (0..extent.block_count()).collect()
        } else {
            damaged.iter().map(|(block, _)| *block).collect()
        };
        let removed = self.index.remove_from_extent(extent, &blocks);
        self.log.forget(extent.id);
        let hashes: Vec<ChainHash> =
            blocks.iter().map(|block| extent.hashes[*block as usize]).collect();
        self.dram.remove(extent.namespace, &hashes);
        if removed.blocks > 0 {
            self.removal_feed.note(extent.namespace, &hashes);
            add(&self.counters.quarantined_blocks, removed.blocks);
            tracing::warn!(
                segment = extent.location.segment,
                offset = extent.location.offset,
                blocks = removed.blocks,
                cause = cause.name(),
                "stored bytes are bad; these blocks are set aside and are misses until they are stored again"
            );
        }
    }
}
