//! One extent while it is read.
//!
//! 1. A block is a hit only if the header at the extent's place is the wanted one and names the block, and the checksum
//!    of every wanted slice matches.
//! 2. A slice is verified when all of it and the header have arrived, whichever comes last.
//! 3. A payload is planned when its place is known: immediately if it is not compressed and the reader knows how many
//!    blocks it has, otherwise when the header has arrived.

use std::sync::Arc;

use dalsegno_core::{Stopped, StoreId};
use dalsegno_io::Memory;

use super::header_cache::{HeaderName, VerifiedHeader};
use super::slice_arrival::SliceArrival;
use super::slice_sink::SliceSink;
use super::units::{gather, plan_units};
use super::wanted::{BlockOutcome, BlockRead, BlockTarget, PlainPayload, RecordRead, WantedRecord};
use crate::error::Cause;
use crate::format::RecordHeader;
use crate::transfer::{Chunk, Piece, PinnedFile, PlanRules, WantedUnit, cut, pieces_of};

/// An extent while it is read.
pub(super) struct ExtentReading {
    /// Its index among the extents of the call.
    number: usize,
    /// `None` if its file was recycled, and all blocks are lost.
    pinned: Option<PinnedFile>,
    store: StoreId,
    record: WantedRecord,
    /// Once it is verified.
    header: Option<Arc<VerifiedHeader>>,
    payload: PayloadPlan,
    first_layer: u32,
    blocks: Vec<BlockReading>,
    /// Layer-major.
    slices: Vec<SliceArrival>,
    sink: Option<Arc<dyn SliceSink>>,
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
    /// The caller's.
    number: u32,
    outlives_call: bool,
    outcome: BlockOutcome,
}

impl ExtentReading {
    /// The read of a record. `cached` is its header, if that is cached.
    pub(super) fn new(
        number: usize,
        read: RecordRead,
        cached: Option<Arc<VerifiedHeader>>,
    ) -> Self {
        let RecordRead { store, record, pinned, layers, targets } = read;
        let blocks = targets.iter().map(|target| {
            let BlockTarget { block, number, outlives_call, .. } = *target;
            BlockReading { block, number, outlives_call, outcome: Ok(()) }
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
            sink: None,
        };
        if reading.pinned.is_none() {
            reading.lose_all(Cause::Recycled);
        } else if let Some(header) = cached {
            reading.use_header(header);
        } else if let Some(plain) = reading.record.plain_payload() {
            reading.lose_beyond(plain.blocks());
        }
        reading
    }

    /// Reports to `sink` the slices that are verified from now on. None was before: nothing was requested.
    ///
    /// # Panics
    ///
    /// If it reports already.
    pub(super) fn report_to(&mut self, sink: &Arc<dyn SliceSink>) {
        assert!(self.sink.is_none(), "a read reports to one sink");
        self.sink = Some(Arc::clone(sink));
    }

    /// The file, of a record that is requested.
    pub(super) fn pinned(&self) -> &PinnedFile {
        self.pinned.as_ref().expect("nothing is requested of a recycled file")
    }

    /// Plans to read the header, unless it is known, and the payload, if its place is known.
    pub(super) fn plan(&mut self, rules: PlanRules) -> Vec<Chunk> {
        if self.pinned.is_none() {
            return Vec::new();
        }
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
    pub(super) fn plan_payload(&mut self, rules: PlanRules) -> Vec<Chunk> {
        self.plan_with(None, rules)
    }

    /// Whether the payload waits for the header.
    pub(super) fn needs_header(&self) -> bool {
        self.payload == PayloadPlan::Waiting
    }

    fn plan_with(&mut self, header: Option<Piece>, rules: PlanRules) -> Vec<Chunk> {
        let (pieces, units) = self.take_payload();
        let record = self.number;
        let plain = cut(header.into_iter().chain(pieces), rules).into_iter();
        let plain = plain.map(|chunk| Chunk { record, ..chunk });
        plain.chain(gather(record, units, rules.limit)).collect()
    }

    /// The payload of the blocks that are not lost, as pieces or as units. Empty if its place is unknown, or if it was
    /// taken before.
    fn take_payload(&mut self) -> (Vec<Piece>, Vec<WantedUnit>) {
        if self.payload == PayloadPlan::Planned {
            return (Vec::new(), Vec::new());
        }
        let header = self.header.clone();
        let plain = match &header {
            Some(header) => PlainPayload::of(&header.extent),
            None => self.record.plain_payload(),
        };
        if let Some(plain) = plain {
            self.payload = PayloadPlan::Planned;
            return (self.plain_pieces(plain), Vec::new());
        }
        let Some((header, units)) =
            header.as_ref().and_then(|one| Some((one, one.units.as_ref()?)))
        else {
            return (Vec::new(), Vec::new());
        };
        self.payload = PayloadPlan::Planned;
        let slices = self.take_memory();
        let blocks: Vec<u32> = self.blocks.iter().map(|block| block.block).collect();
        (Vec::new(), plan_units(&header.extent, units, self.first_layer, &blocks, slices))
    }

    fn plain_pieces(&mut self, plain: PlainPayload) -> Vec<Piece> {
        let mut pieces = Vec::new();
        let slices = (0_u32..).zip(self.take_memory());
        for (index, memory) in slices.filter(|(_, memory)| !memory.is_empty()) {
            let (layer, target) = (self.layer_of(index as usize), self.target_of(index as usize));
            let BlockReading { block, outlives_call, .. } = self.blocks[target];
            let offset = plain.slice_offset(layer, block);
            pieces.extend(pieces_of(offset, index, memory, outlives_call));
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

    fn target_of(&self, slice: usize) -> usize {
        slice % self.blocks.len()
    }

    /// The first layer of which a request has bytes.
    pub(super) fn first_layer_of(&self, chunk: &Chunk) -> u32 {
        let in_unit = || chunk.units.first()?.pieces.first();
        let first = chunk.pieces.first().or_else(in_unit);
        first.map_or(self.first_layer, |piece| self.layer_of(piece.slice as usize))
    }

    fn layer_of(&self, slice: usize) -> u32 {
        let layer = slice / self.blocks.len();
        self.first_layer + u32::try_from(layer).expect("layer count is bounded")
    }

    /// Whether a piece is the extent's header. A direct request gave its memory away, so the place decides.
    pub(super) fn starts_with_header(&self, piece: &Piece) -> bool {
        piece.offset == self.record.offset()
    }

    /// Handles a part of a slice that is in its memory now. `crc` is its checksum, if its source summed it.
    pub(super) fn arrive(&mut self, piece: &Piece, memory: Memory, crc: Option<u32>) {
        let slice = piece.slice as usize;
        self.slices[slice].arrive(piece.slice_offset, memory, crc);
        self.verify(slice);
    }

    /// Compares a slice with the checksum in the header, if all of it and the header have arrived. A slice that is lost
    /// may have memory that was not read.
    fn verify(&mut self, slice: usize) {
        let arrival = &self.slices[slice];
        if arrival.outcome.is_some() {
            return;
        }
        let Some(header) = &self.header else { return };
        let slice_bytes = self.record.layout().slice_bytes() as usize;
        let Some(crc) = arrival.crc(slice_bytes) else { return };
        let (layer, target) = (self.layer_of(slice), self.target_of(slice));
        if crc == header.crc(layer, self.blocks[target].block) {
            self.end_slice(slice, Ok(()));
        } else {
            self.lose_slice(slice, Cause::SliceChecksum);
        }
    }

    /// Notes how a slice ended, unless that is known.
    fn end_slice(&mut self, slice: usize, outcome: BlockOutcome) {
        if self.slices[slice].outcome.is_some() {
            return;
        }
        self.slices[slice].outcome = Some(outcome);
        if let Some(sink) = self.sink.as_ref().filter(|_| outcome.is_ok()) {
            let (layer, number) = (self.layer_of(slice), self.blocks[self.target_of(slice)].number);
            sink.verified(number, layer, self.slices[slice].verified_memory());
        }
    }

    /// Copies the wanted bytes of a decompressed unit to the caller.
    pub(super) fn scatter(&mut self, unit: WantedUnit, raw: &[u8]) {
        for mut piece in unit.pieces {
            let at = usize::try_from(piece.offset - unit.start).expect("within the unit");
            let mut memory = piece.memory.take().expect("the caller's");
            memory.as_mut_slice().copy_from_slice(&raw[at..at + piece.len]);
            self.arrive(&piece, memory, None);
        }
    }

    /// Makes the blocks of a failed request misses. Without the header, these are all blocks.
    pub(super) fn fail(&mut self, chunk: Chunk, cause: Cause) {
        for piece in chunk.pieces {
            if self.starts_with_header(&piece) {
                self.lose_all(if cause.is_damage() { Cause::Header } else { cause });
            } else {
                self.fail_piece(piece, cause);
            }
        }
        for unit in chunk.units {
            self.fail_unit(unit, cause);
        }
    }

    /// Makes the blocks of a unit misses.
    pub(super) fn fail_unit(&mut self, unit: WantedUnit, cause: Cause) {
        unit.pieces.into_iter().for_each(|piece| self.fail_piece(piece, cause));
    }

    fn fail_piece(&mut self, piece: Piece, cause: Cause) {
        let slice = piece.slice as usize;
        self.lose_slice(slice, cause);
        if let Some(memory) = piece.memory {
            self.slices[slice].give_back(piece.slice_offset, memory);
        }
    }

    /// Makes the block of a slice a miss. The first of several causes counts. But damage comes before all others, and
    /// damage of the header first, because they decide what the store does next.
    fn lose_slice(&mut self, slice: usize, cause: Cause) {
        let target = self.target_of(slice);
        let outcome = &mut self.blocks[target].outcome;
        let weight = |cause: Cause| (cause.is_of_header(), cause.is_damage());
        if outcome.err().is_none_or(|known| weight(known) < weight(cause)) {
            *outcome = Err(cause);
        }
        self.end_slice(slice, Err(cause));
    }

    /// Makes a block a miss with all of its slices.
    fn lose_block(&mut self, target: usize, cause: Cause) {
        for slice in (target..self.slices.len()).step_by(self.blocks.len()) {
            self.lose_slice(slice, cause);
        }
    }

    /// Makes the blocks misses that a record of so many blocks does not have.
    fn lose_beyond(&mut self, blocks: u32) {
        for target in 0..self.blocks.len() {
            if self.blocks[target].block >= blocks {
                self.lose_block(target, Cause::WrongPlace);
            }
        }
    }

    fn lose_all(&mut self, cause: Cause) {
        (0..self.slices.len()).for_each(|slice| self.lose_slice(slice, cause));
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
                Some((self.record.header_name(self.pinned().file), header))
            }
            Err(cause) => {
                self.lose_all(cause);
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

    /// Keeps the header, and verifies what has arrived. Blocks that it does not name are misses.
    fn use_header(&mut self, header: Arc<VerifiedHeader>) {
        for at in 0..self.blocks.len() {
            if !self.record.names(at, self.blocks[at].block, &header.extent) {
                self.lose_block(at, Cause::WrongPlace);
            }
        }
        self.header = Some(header);
        (0..self.slices.len()).for_each(|slice| self.verify(slice));
    }

    /// How the blocks ended. Slices that have not arrived are lost, because the read was `stopped` or a request failed.
    pub(super) fn verdict(mut self, stopped: Option<Stopped>) -> Vec<BlockRead> {
        let missing = if self.header.is_none() { Cause::Header } else { Cause::Device };
        let missing = stopped.map_or(missing, Cause::from);
        for slice in 0..self.slices.len() {
            if self.slices[slice].outcome.is_none() {
                let known = self.blocks[self.target_of(slice)].outcome.err();
                self.lose_slice(slice, known.unwrap_or(missing));
            }
        }
        let of_block = |block: &BlockReading| {
            let outcome = block.outcome;
            BlockRead { outcome, memory: Vec::new(), copy: Vec::new(), verified_slices: 0 }
        };
        let mut reads: Vec<_> = self.blocks.iter().map(of_block).collect();
        // Layer-major, so each block gets its layers lowest first.
        for (index, slice) in self.slices.into_iter().enumerate() {
            let read = &mut reads[index % self.blocks.len()];
            read.verified_slices += u32::from(slice.outcome == Some(Ok(())));
            let (memory, copy) = slice.into_memory();
            read.memory.extend(memory);
            read.copy.extend(copy);
        }
        reads
    }
}
