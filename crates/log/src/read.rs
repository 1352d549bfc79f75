//! Reading blocks, or layers of blocks, and verifying every slice before it is handed over.
//!
//! 1. A block is a hit only when the extent's header names this store, segment, epoch, offset, namespace and hash, and
//!    the crc of every slice that was asked for matches.
//! 2. Bytes that cannot be read cost the blocks they belong to: `salvage.rs`.
//! 3. Requests of all extents of one call share one pump, so small extents are read as fast as one large.

use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;
use std::sync::Arc;

use dalsegno_core::Extent;
use dalsegno_io::{Memory, Operation};

use crate::append::{pieces_of, take_front};
use crate::call::Call;
use crate::error::Cause;
use crate::format::{RecordHeader, RecordKind};
use crate::headers::{SharedTables, Tables};
use crate::log::{Core, Log};
use crate::plan::{Chunk, Piece, cut};
use crate::pump::{Pump, Stop, Work};
use crate::read_units::WantedUnit;
use crate::salvage;
use crate::segment::Pin;
use crate::stats::LogStats;

/// One wanted block of an extent.
#[derive(Debug)]
pub struct Target {
    /// Which block of the extent.
    pub block: u32,
    /// Where its wanted layers go, lowest layer first, in as many pieces as the caller has.
    pub memory: Vec<Memory>,
}

/// What to read of one extent.
#[derive(Debug)]
pub struct ExtentRead {
    /// The extent.
    pub extent: Extent,
    /// Which layers.
    pub layers: Range<u32>,
    /// Which blocks, in ascending order.
    pub targets: Vec<Target>,
}

/// How a wanted block ended.
pub type BlockOutcome = Result<(), Cause>;

/// A wanted block after the read.
#[derive(Debug)]
pub struct BlockRead {
    /// Whether the bytes are there and verified.
    pub outcome: BlockOutcome,
    /// Of a hit, the target's memory with its bytes, in order; else whatever came back.
    pub memory: Vec<Memory>,
}

/// A slice while its parts arrive, in any order. They are summed in theirs: joining the checksums of parts costs as
/// much as summing half a megabyte.
#[derive(Default)]
pub(crate) struct Slice {
    /// Bytes summed so far.
    summed: usize,
    crc: u32,
    /// Parts summed, in order.
    memory: Vec<Memory>,
    /// Parts that came before their predecessors, by offset.
    early: BTreeMap<usize, Memory>,
}

impl Slice {
    pub(crate) fn arrive(&mut self, offset: usize, memory: Memory) {
        if offset != self.summed {
            self.early.insert(offset, memory);
            return;
        }
        self.sum(memory);
        while let Some(memory) = self.early.remove(&self.summed) {
            self.sum(memory);
        }
    }

    fn sum(&mut self, memory: Memory) {
        self.crc = crc32c::crc32c_append(self.crc, memory.as_slice());
        self.summed += memory.len();
        self.memory.push(memory);
    }
}

/// An extent while it is read.
pub(crate) struct Reading {
    pub(crate) extent: Extent,
    pub(crate) first_layer: u32,
    pub(crate) blocks: Vec<u32>,
    pub(crate) tables: Option<SharedTables>,
    /// Of a compressed extent, where its slices go, until its tables are known.
    pub(crate) unplanned: Vec<Vec<Memory>>,
    pub(crate) slices: Vec<Slice>,
    pub(crate) outcomes: Vec<BlockOutcome>,
    pub(crate) pin: Arc<Pin>,
}

/// A chunk on its way: what it was for.
pub(crate) struct InFlight {
    pub(crate) reading: usize,
    pub(crate) chunk: Chunk,
    /// Units in it, if it is part of a compressed payload.
    pub(crate) units: Vec<WantedUnit>,
}

impl Log {
    /// Reads blocks of several extents; returns one outcome per target, in the order given.
    ///
    /// Without a deadline aligned memory is read into directly; the contents of a block that is no hit are then
    /// undefined. With a deadline blocks are copied from staging buffers and nothing touches the caller's memory after
    /// the call.
    #[must_use]
    pub fn read(&self, reads: Vec<ExtentRead>, call: &Call) -> Vec<Vec<BlockRead>> {
        let core = &self.core;
        let mut readings = Vec::with_capacity(reads.len());
        let mut chunks = VecDeque::new();
        let mut results: Vec<Vec<BlockRead>> = Vec::with_capacity(reads.len());
        for (index, read) in reads.into_iter().enumerate() {
            results.push(read.targets.iter().map(|_| BlockRead::lost(Cause::Recycled)).collect());
            if let Some((mut reading, planned)) = core.plan_read(read, call) {
                let number = readings.len();
                let plain = |chunk| InFlight { reading: number, chunk, units: Vec::new() };
                chunks.extend(planned.into_iter().map(plain));
                chunks.extend(core.units_of(number, &mut reading));
                readings.push((index, reading));
            }
        }
        let mut pump = Pump::new(core, call);
        let stop = core
            .pump_reads(&mut pump, chunks, &mut readings)
            .and_then(|failed| core.salvage(&mut pump, failed, &mut readings));
        if stop.is_err() && !call.must_stage() {
            pump.drain();
        }
        for (index, reading) in readings {
            results[index] = reading.verdict(stop.err());
        }
        for cause in results.iter().flatten().filter_map(|read| read.outcome.err()) {
            core.stats.count_miss(cause, 1);
        }
        results
    }
}

impl Core {
    fn plan_read(&self, read: ExtentRead, call: &Call) -> Option<(Reading, Vec<Chunk>)> {
        let ExtentRead { extent, layers, targets } = read;
        let pin = Arc::new(self.pin(extent.location)?);
        let tables = self.headers.get(extent.id);
        let layer_count = layers.end - layers.start;
        let blocks: Vec<u32> = targets.iter().map(|target| target.block).collect();
        let slice_bytes = extent.layout.slice_bytes() as usize;
        // Slices of the plan are numbered layer-major over the wanted grid: the order in which they lie on the device.
        let mut slices: Vec<Vec<Memory>> = Vec::new();
        slices.resize_with(targets.len() * layer_count as usize, Vec::new);
        for (target, Target { memory, .. }) in targets.into_iter().enumerate() {
            let mut memory = VecDeque::from(memory);
            for layer in 0..layer_count as usize {
                slices[layer * blocks.len() + target] = take_front(&mut memory, slice_bytes);
            }
        }
        let header = tables.is_none().then(|| Piece {
            offset: extent.location.offset,
            len: extent.location.header_bytes as usize,
            memory: None,
            slice: 0,
            slice_offset: 0,
        });
        let (unplanned, slices) =
            if extent.is_compressed() { (slices, Vec::new()) } else { (Vec::new(), slices) };
        let payload = slices.into_iter().enumerate().flat_map(|(index, memory)| {
            let (layer, target) = (index / blocks.len(), index % blocks.len());
            let layer = layers.start + u32::try_from(layer).expect("layer count is bounded");
            let offset = extent.slice_offset(layer, blocks[target]);
            pieces_of(offset, u32::try_from(index).expect("slice count is bounded"), memory)
        });
        let chunks = cut(header.into_iter().chain(payload), self.rules(!call.must_stage()));
        let mut arriving = Vec::new();
        arriving.resize_with(blocks.len() * layer_count as usize, Slice::default);
        let outcomes = vec![Ok(()); blocks.len()];
        let first_layer = layers.start;
        let slices = arriving;
        let reading =
            Reading { extent, first_layer, blocks, tables, unplanned, slices, outcomes, pin };
        Some((reading, chunks))
    }

    /// Requests for a compressed extent, as soon as its tables are known.
    pub(crate) fn units_of(&self, number: usize, reading: &mut Reading) -> Vec<InFlight> {
        if reading.unplanned.is_empty() {
            return Vec::new();
        }
        let planned = reading.plan_units(self.rules(false).limit).into_iter();
        planned.map(|(chunk, units)| InFlight { reading: number, chunk, units }).collect()
    }

    /// Reads what was planned, and what is known to be wanted meanwhile; returns the requests that failed.
    fn pump_reads(
        &self,
        pump: &mut Pump<'_>,
        mut waiting: VecDeque<InFlight>,
        readings: &mut [(usize, Reading)],
    ) -> Result<Vec<InFlight>, Stop> {
        let mut slots: Vec<Option<InFlight>> = Vec::new();
        let mut failed = Vec::new();
        while !waiting.is_empty() || !pump.is_idle() {
            if let Some(next) = waiting.front().filter(|_| pump.can_submit()) {
                let first = next.chunk.pieces.first();
                let header = first.filter(|piece| piece.memory.is_none()).map(|piece| piece.len);
                let len = if next.chunk.direct { header.unwrap_or(0) } else { next.chunk.bytes };
                let staging = if len == 0 { Some(None) } else { pump.staging(len)?.map(Some) };
                if let Some(staging) = staging {
                    let next = waiting.pop_front().expect("looked at above");
                    let slot = slots.iter().position(Option::is_none).unwrap_or(slots.len());
                    if slot == slots.len() {
                        slots.push(None);
                    }
                    let pin = Arc::clone(&readings[next.reading].1.pin);
                    slots[slot] = Some(self.submit_read(pump, next, staging, slot as u64, pin));
                    continue;
                }
            }
            let completion = pump.next()?;
            let slot = usize::try_from(completion.tag).expect("a small number");
            let done = slots[slot].take().expect("each tag completes once");
            let number = done.reading;
            let reading = &mut readings[number].1;
            if let Err(error) = completion.result {
                failed.extend(salvage::failed(reading, done, completion.memory, &error));
                continue;
            }
            self.arrive(reading, done, completion.memory);
            waiting.extend(self.units_of(number, reading));
        }
        Ok(failed)
    }

    pub(crate) fn submit_read(
        &self,
        pump: &mut Pump<'_>,
        mut work: InFlight,
        staging: Option<Memory>,
        tag: u64,
        pin: Arc<Pin>,
    ) -> InFlight {
        LogStats::add(&self.stats.read_bytes, work.chunk.bytes as u64);
        LogStats::add(&self.stats.read_requests, 1);
        let memory = if work.chunk.direct {
            let mut staging = staging;
            let pieces = work.chunk.pieces.iter_mut();
            pieces
                .map(|piece| {
                    piece.memory.take().unwrap_or_else(|| staging.take().expect("for the header"))
                })
                .collect()
        } else {
            LogStats::add(&self.stats.staged_read_bytes, work.chunk.bytes as u64);
            vec![staging.expect("taken for the chunk")]
        };
        let (operation, file, offset) = (Operation::Read, pin.segment.file, work.chunk.offset);
        pump.submit(Work { operation, file, offset, memory, tag, guard: Some(pin) });
        work
    }

    /// Takes in a completed chunk: checksums its pieces and, if it was staged, copies them to the caller.
    pub(crate) fn arrive(&self, reading: &mut Reading, done: InFlight, memory: Vec<Memory>) {
        let InFlight { chunk, units, .. } = done;
        if !units.is_empty() {
            self.arrive_units(reading, chunk.offset, units, memory[0].as_slice());
            return;
        }
        if chunk.direct {
            for (piece, memory) in chunk.pieces.iter().zip(memory) {
                if reading.starts_with_header(piece) {
                    reading.take_header(memory.as_slice(), self);
                } else {
                    reading.slices[piece.slice as usize].arrive(piece.slice_offset, memory);
                }
            }
            return;
        }
        let staged = memory[0].as_slice();
        for mut piece in chunk.pieces {
            let at = usize::try_from(piece.offset - chunk.offset).expect("within the chunk");
            let bytes = &staged[at..at + piece.len];
            let Some(mut memory) = piece.memory.take() else {
                reading.take_header(bytes, self);
                continue;
            };
            memory.as_mut_slice().copy_from_slice(bytes);
            reading.slices[piece.slice as usize].arrive(piece.slice_offset, memory);
        }
    }
}

impl BlockRead {
    fn lost(cause: Cause) -> Self {
        Self { outcome: Err(cause), memory: Vec::new() }
    }
}

impl Reading {
    /// A direct chunk gave its memory away, so a header is told by its place.
    pub(crate) fn starts_with_header(&self, piece: &Piece) -> bool {
        piece.offset == self.extent.location.offset
    }

    /// Whoever wanted something of a request cannot have it. Without the header that is everybody.
    pub(crate) fn fail(&mut self, work: &InFlight, cause: Cause) {
        for piece in &work.chunk.pieces {
            if self.starts_with_header(piece) {
                let cause = if cause.is_damage() { Cause::Header } else { cause };
                (0..self.blocks.len()).for_each(|target| self.lose(target, cause));
            } else {
                self.lose(piece.slice as usize % self.blocks.len(), cause);
            }
        }
        self.fail_units(&work.units, cause);
    }

    /// A block cannot be had. Of several causes the first one counts, but damage before all others: it says what to do.
    pub(crate) fn lose(&mut self, target: usize, cause: Cause) {
        let outcome = &mut self.outcomes[target];
        let is_known = outcome.is_err_and(|known| known.is_damage() || !cause.is_damage());
        if !is_known {
            *outcome = Err(cause);
        }
    }

    /// Takes in the extent's header; without a good one nothing of it is a hit.
    fn take_header(&mut self, bytes: &[u8], core: &Core) {
        match self.check_header(bytes, core) {
            Ok(tables) => {
                core.headers.insert(self.extent.id, Arc::clone(&tables));
                self.tables = Some(tables);
            }
            Err(cause) => self.outcomes.fill(Err(cause)),
        }
    }

    /// Verifies that the bytes are the header of this very extent.
    fn check_header(&self, bytes: &[u8], core: &Core) -> Result<SharedTables, Cause> {
        let header = RecordHeader::decode(bytes).map_err(Cause::of_format)?;
        let found = header.extent().ok_or(Cause::WrongPlace)?;
        if header.store != core.store || found != self.extent {
            return Err(Cause::WrongPlace);
        }
        match header.kind {
            RecordKind::Extent { slice_crcs: crcs, units, .. } => {
                Ok(Arc::new(Tables { crcs, units }))
            }
            _ => Err(Cause::WrongPlace),
        }
    }

    /// Compares what arrived with what the header says.
    fn verdict(self, stop: Option<Stop>) -> Vec<BlockRead> {
        let stopped = stop.map(|stop| match stop {
            Stop::Deadline => Cause::Deadline,
            Stop::Cancelled => Cause::Cancelled,
            Stop::Throttled => Cause::Throttled,
        });
        let Self { extent, first_layer, blocks, tables, slices, outcomes, .. } = self;
        let outcomes = outcomes.into_iter();
        let Some(tables) = tables else {
            let cause = stopped.unwrap_or(Cause::Header);
            return outcomes.map(|o| BlockRead::lost(o.err().unwrap_or(cause))).collect();
        };
        let slice_bytes = extent.layout.slice_bytes() as usize;
        let mut reads: Vec<_> =
            outcomes.map(|outcome| BlockRead { outcome, memory: Vec::new() }).collect();
        // Layer-major, so each block gets its layers lowest first.
        for (index, slice) in slices.into_iter().enumerate() {
            let (layer, target) = (index / blocks.len(), index % blocks.len());
            let row = (first_layer as usize + layer) * extent.hashes.len();
            let crc = tables.crcs[row + blocks[target] as usize];
            let verdict = if slice.summed < slice_bytes {
                Err(stopped.unwrap_or(Cause::Device))
            } else if slice.crc == crc {
                Ok(())
            } else {
                Err(Cause::SliceChecksum)
            };
            reads[target].outcome = reads[target].outcome.and(verdict);
            reads[target].memory.extend(slice.memory);
        }
        reads
    }
}
