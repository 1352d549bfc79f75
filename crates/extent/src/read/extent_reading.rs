//! One extent while it is read.
//!
//! 1. A block is a hit only if the header at the extent's place is the wanted one and names the block, and the checksum
//!    of every wanted slice matches.
//! 2. A payload is planned when its place is known: immediately for a plain extent that the reader knows, otherwise
//!    when the header has arrived.

use std::sync::Arc;

use dalsegno_core::{Extent, Stopped, StoreId};
use dalsegno_io::Memory;

use super::header_cache::{HeaderName, VerifiedHeader};
use super::slice_arrival::SliceArrival;
use super::units::{WantedUnit, gather, plan_units};
use super::wanted::{BlockOutcome, BlockRead, RecordRead, WantedRecord};
use crate::error::Cause;
use crate::format::RecordHeader;
use crate::transfer::{Chunk, Piece, PinnedFile, PlanRules, cut, pieces_of};

/// An extent while it is read.
pub(super) struct ExtentReading {
    /// Its index among the extents of the call.
    number: usize,
    pub(super) pinned: PinnedFile,
    store: StoreId,
    record: WantedRecord,
    /// Once it is verified.
    header: Option<Arc<VerifiedHeader>>,
    payload: PayloadPlan,
    first_layer: u32,
    blocks: Vec<BlockReading>,
    /// Layer-major.
    slices: Vec<SliceArrival>,
}

/// Whether the requests for a payload are planned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum PayloadPlan {
    /// Not before the header is known.
    Waiting,
    Planned,
}

/// A block while it is read.
struct BlockReading {
    /// Its index in the extent.
    block: u32,
    outlives_call: bool,
    outcome: BlockOutcome,
}

/// A request with what it is for.
pub(super) struct ReadRequest {
    /// Index of the [`ExtentReading`].
    pub(super) reading: usize,
    pub(super) chunk: Chunk,
    /// The units in it, if it is part of a compressed payload.
    pub(super) units: Vec<WantedUnit>,
}

impl ExtentReading {
    /// The read of a record in its file. `cached` is its header, if that is cached.
    pub(super) fn new(
        number: usize,
        pinned: PinnedFile,
        read: RecordRead,
        cached: Option<Arc<VerifiedHeader>>,
    ) -> Self {
        let RecordRead { store, record, layers, targets, .. } = read;
        let blocks = targets.iter().map(|target| {
            let (block, outlives_call) = (target.block, target.outlives_call);
            BlockReading { block, outlives_call, outcome: Ok(()) }
        });
        let blocks = blocks.collect();
        let slices = SliceArrival::of_targets(record.layout(), layers.len(), targets);
        let mut reading = Self {
            number,
            pinned,
            store,
            record,
            header: None,
            payload: PayloadPlan::Waiting,
            first_layer: layers.start,
            blocks,
            slices,
        };
        if let Some(header) = cached {
            reading.use_header(header);
        }
        reading
    }

    /// Plans to read the header, unless it is known, and the payload, if its place is known.
    pub(super) fn plan(&mut self, rules: PlanRules) -> Vec<ReadRequest> {
        let header = self.header.is_none().then(|| Piece {
            offset: self.record.offset(),
            len: self.record.header_bytes() as usize,
            memory: None,
            slice: 0,
            slice_offset: 0,
            outlives_call: false,
        });
        self.plan_with(header, rules)
    }

    /// Plans the payload when its place has become known.
    pub(super) fn plan_payload(&mut self, rules: PlanRules) -> Vec<ReadRequest> {
        self.plan_with(None, rules)
    }

    /// Whether the payload waits for the header.
    pub(super) fn needs_header(&self) -> bool {
        self.payload == PayloadPlan::Waiting
    }

    fn plan_with(&mut self, header: Option<Piece>, rules: PlanRules) -> Vec<ReadRequest> {
        let (pieces, units) = self.take_payload();
        let chunks = cut(header.into_iter().chain(pieces), rules).into_iter();
        let number = self.number;
        let plain = chunks.map(|chunk| ReadRequest { reading: number, chunk, units: Vec::new() });
        let coded = gather(units, rules.limit).into_iter();
        let coded = coded.map(|(chunk, units)| ReadRequest { reading: number, chunk, units });
        plain.chain(coded).collect()
    }

    /// The payload of the blocks that are not lost, as pieces or as units. Empty if its place is unknown, or if it was
    /// taken before.
    fn take_payload(&mut self) -> (Vec<Piece>, Vec<WantedUnit>) {
        let header = self.header.clone();
        let known = header.as_ref().map(|header| &header.extent).or(self.record.extent());
        let Some(extent) = known.cloned().filter(|_| self.payload == PayloadPlan::Waiting) else {
            return (Vec::new(), Vec::new());
        };
        if !extent.is_compressed() {
            self.payload = PayloadPlan::Planned;
            return (self.plain_pieces(&extent), Vec::new());
        }
        let Some(units) = header.as_ref().and_then(|header| header.units.as_ref()) else {
            return (Vec::new(), Vec::new());
        };
        self.payload = PayloadPlan::Planned;
        let slices = self.take_memory();
        let blocks: Vec<u32> = self.blocks.iter().map(|block| block.block).collect();
        (Vec::new(), plan_units(&extent, units, self.first_layer, &blocks, slices))
    }

    fn plain_pieces(&mut self, extent: &Extent) -> Vec<Piece> {
        let mut pieces = Vec::new();
        let slices = (0_u32..).zip(self.take_memory());
        for (index, memory) in slices.filter(|(_, memory)| !memory.is_empty()) {
            let (layer, target) = (index as usize / self.blocks.len(), self.target_of(index));
            let layer = self.first_layer + u32::try_from(layer).expect("layer count is bounded");
            let BlockReading { block, outlives_call, .. } = self.blocks[target];
            pieces.extend(pieces_of(
                extent.slice_offset(layer, block),
                index,
                memory,
                outlives_call,
            ));
        }
        pieces
    }

    /// The memory of each slice; empty for the slices of lost blocks.
    fn take_memory(&mut self) -> Vec<Vec<Memory>> {
        let Self { slices, blocks, .. } = self;
        let of_slice = |(index, slice): (usize, &mut SliceArrival)| {
            let is_lost = blocks[index % blocks.len()].outcome.is_err();
            if is_lost { Vec::new() } else { slice.plan() }
        };
        slices.iter_mut().enumerate().map(of_slice).collect()
    }

    fn target_of(&self, slice: u32) -> usize {
        slice as usize % self.blocks.len()
    }

    /// Whether a piece is the extent's header. A direct request gave its memory away, so the place decides.
    pub(super) fn starts_with_header(&self, piece: &Piece) -> bool {
        piece.offset == self.record.offset()
    }

    /// Handles a part of a slice that is in its memory now.
    pub(super) fn arrive(&mut self, piece: &Piece, memory: Memory) {
        self.slices[piece.slice as usize].arrive(piece.slice_offset, memory);
    }

    /// Copies the wanted bytes of a decompressed unit to the caller.
    pub(super) fn scatter(&mut self, unit: WantedUnit, raw: &[u8]) {
        for mut piece in unit.pieces {
            let at = usize::try_from(piece.offset - unit.start).expect("within the unit");
            let mut memory = piece.memory.take().expect("the caller's");
            memory.as_mut_slice().copy_from_slice(&raw[at..at + piece.len]);
            self.arrive(&piece, memory);
        }
    }

    /// Makes the blocks of a failed request misses. Without the header, these are all blocks.
    pub(super) fn fail(&mut self, request: ReadRequest, cause: Cause) {
        for piece in request.chunk.pieces {
            if self.starts_with_header(&piece) {
                let cause = if cause.is_damage() { Cause::Header } else { cause };
                (0..self.blocks.len()).for_each(|target| self.lose(target, cause));
            } else {
                self.fail_piece(piece, cause);
            }
        }
        for unit in request.units {
            self.fail_unit(unit, cause);
        }
    }

    /// Makes the blocks of a unit misses.
    pub(super) fn fail_unit(&mut self, unit: WantedUnit, cause: Cause) {
        unit.pieces.into_iter().for_each(|piece| self.fail_piece(piece, cause));
    }

    fn fail_piece(&mut self, piece: Piece, cause: Cause) {
        self.lose(self.target_of(piece.slice), cause);
        if let Some(memory) = piece.memory {
            self.slices[piece.slice as usize].give_back(piece.slice_offset, memory);
        }
    }

    /// Makes a block a miss. The first of several causes counts, but damage comes before all others, because it decides
    /// what the store does next.
    fn lose(&mut self, target: usize, cause: Cause) {
        let outcome = &mut self.blocks[target].outcome;
        let is_known = outcome.is_err_and(|known| known.is_damage() || !cause.is_damage());
        if !is_known {
            *outcome = Err(cause);
        }
    }

    /// Handles the extent's header, and returns it with its name. Without a valid header, no block is a hit.
    pub(super) fn take_header(
        &mut self,
        bytes: &[u8],
    ) -> Option<(HeaderName, Arc<VerifiedHeader>)> {
        match self.check_header(bytes) {
            Ok(header) => {
                let header = Arc::new(header);
                self.use_header(Arc::clone(&header));
                Some((self.record.header_name(self.pinned.file), header))
            }
            Err(cause) => {
                self.blocks.iter_mut().for_each(|block| block.outcome = Err(cause));
                None
            }
        }
    }

    /// Verifies that the bytes are the header of the wanted record.
    fn check_header(&self, bytes: &[u8]) -> Result<VerifiedHeader, Cause> {
        let header = RecordHeader::decode(bytes).map_err(Cause::of_format)?;
        let is_ours = header.store == self.store;
        let found = VerifiedHeader::of(header).filter(|_| is_ours).ok_or(Cause::WrongPlace)?;
        if !self.record.accepts(&found.extent) {
            return Err(Cause::WrongPlace);
        }
        // The index may share the extent.
        let known = self.record.extent().map(Arc::clone);
        Ok(VerifiedHeader { extent: known.unwrap_or(found.extent), ..found })
    }

    /// Keeps the header. Blocks that it does not name are misses.
    fn use_header(&mut self, header: Arc<VerifiedHeader>) {
        for at in 0..self.blocks.len() {
            if !self.record.names(at, self.blocks[at].block, &header.extent) {
                self.lose(at, Cause::WrongPlace);
            }
        }
        self.header = Some(header);
    }

    /// Compares the slices that arrived with the checksums of the header.
    pub(super) fn verdict(self, stopped: Option<Stopped>) -> Vec<BlockRead> {
        let stopped = stopped.map(Cause::from);
        let Self { record, header, first_layer, blocks, slices, .. } = self;
        let slice_bytes = record.layout().slice_bytes() as usize;
        let of_block = |block: &BlockReading| {
            let outcome = block.outcome;
            BlockRead { outcome, memory: Vec::new(), copy: Vec::new() }
        };
        let mut reads: Vec<_> = blocks.iter().map(of_block).collect();
        // Layer-major, so each block gets its layers lowest first.
        for (index, slice) in slices.into_iter().enumerate() {
            let (layer, target) = (index / blocks.len(), index % blocks.len());
            let read = &mut reads[target];
            if read.outcome.is_ok() {
                let layer = first_layer as usize + layer;
                let crc = header.as_ref().map(|header| header.crc(layer, blocks[target].block));
                read.outcome = match (crc, slice.crc(slice_bytes)) {
                    (None, _) => Err(stopped.unwrap_or(Cause::Header)),
                    (Some(_), None) => Err(stopped.unwrap_or(Cause::Device)),
                    (Some(crc), Some(arrived)) if arrived == crc => Ok(()),
                    (Some(_), Some(_)) => Err(Cause::SliceChecksum),
                };
            }
            let (memory, copy) = slice.into_memory();
            read.memory.extend(memory);
            read.copy.extend(copy);
        }
        reads
    }
}
