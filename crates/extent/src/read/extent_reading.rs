//! One extent while it is read.
//!
//! A block is a hit only if the extent's header names this store, segment, epoch, offset, namespace and hash, and the
//! checksum of every wanted slice matches.

use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;
use std::sync::Arc;

use dalsegno_core::{Extent, Stopped, StoreId};
use dalsegno_io::Memory;

use super::header_cache::VerifiedHeader;
use super::units::{WantedUnit, gather, plan_units};
use crate::error::Cause;
use crate::format::RecordHeader;
use crate::transfer::{Chunk, Piece, PinnedFile, PlanRules, cut, pieces_of, take_front};

/// One wanted block of an extent.
#[derive(Debug)]
pub struct BlockTarget {
    /// The block's index in the extent.
    pub block: u32,
    /// Memory for the wanted layers, lowest layer first, in any number of pieces.
    pub memory: Vec<Memory>,
    /// Whether a request may use the memory after the call has ended. If so, a deadline needs no staging buffer.
    pub outlives_call: bool,
    /// Memory that gets a copy of the bytes as they arrive, in any number of pieces; empty for none. No request uses
    /// it. Of a block that is no hit its contents are undefined.
    pub copy: Vec<Memory>,
}

/// How the read of a block ended.
pub type BlockOutcome = Result<(), Cause>;

/// A wanted block after the read.
#[derive(Debug)]
pub struct BlockRead {
    /// Whether the bytes are there and verified.
    pub outcome: BlockOutcome,
    /// The target's memory, in order: all of it for a hit, otherwise what came back. Less came back if a request is in
    /// flight.
    pub memory: Vec<Memory>,
    /// The target's memory for a copy.
    pub copy: Vec<Memory>,
}

impl BlockRead {
    pub(super) fn lost(cause: Cause) -> Self {
        Self { outcome: Err(cause), memory: Vec::new(), copy: Vec::new() }
    }
}

/// A slice while its parts arrive, in any order. The parts are summed in the order of their offsets, because combining
/// the checksums of two parts costs as much as summing half a megabyte.
#[derive(Default)]
pub(super) struct SliceArrival {
    /// Bytes summed so far.
    summed: usize,
    crc: u32,
    /// The summed parts, in order.
    memory: Vec<Memory>,
    /// Parts that arrived before their predecessors, or that were not read, by offset.
    early: BTreeMap<usize, Memory>,
}

impl SliceArrival {
    pub(super) fn arrive(&mut self, offset: usize, memory: Memory) {
        if offset != self.summed {
            self.early.insert(offset, memory);
            return;
        }
        self.sum(memory);
        while let Some(memory) = self.early.remove(&self.summed) {
            self.sum(memory);
        }
    }

    /// Keeps the memory of a part that was not read. The caller makes the block a miss.
    fn give_back(&mut self, offset: usize, memory: Memory) {
        self.early.insert(offset, memory);
    }

    fn sum(&mut self, memory: Memory) {
        self.crc = crc32c::crc32c_append(self.crc, memory.as_slice());
        self.summed += memory.len();
        self.memory.push(memory);
    }
}

/// An extent while it is read.
pub(super) struct ExtentReading {
    pub(super) pinned: PinnedFile,
    extent: Arc<Extent>,
    first_layer: u32,
    blocks: Vec<u32>,
    header: Option<Arc<VerifiedHeader>>,
    /// For each slice the memory that gets a copy of it; nothing for slices without.
    copies: Vec<Vec<Memory>>,
    /// The slices of a compressed extent, until its header is known.
    unplanned: Vec<Vec<Memory>>,
    slices: Vec<SliceArrival>,
    outcomes: Vec<BlockOutcome>,
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
    /// Plans the read of some layers of some blocks. `known` is the extent's header, if it is cached.
    pub(super) fn plan(
        extent: Arc<Extent>,
        pinned: PinnedFile,
        layers: Range<u32>,
        targets: Vec<BlockTarget>,
        known: Option<Arc<VerifiedHeader>>,
        rules: PlanRules,
    ) -> (Self, Vec<Chunk>) {
        let layer_count = layers.end - layers.start;
        let blocks: Vec<u32> = targets.iter().map(|target| target.block).collect();
        let outlive: Vec<bool> = targets.iter().map(|target| target.outlives_call).collect();
        let WantedSlices { slices, copies } = wanted_slices(&extent, layer_count as usize, targets);
        let header = known.is_none().then(|| Piece {
            offset: extent.location.offset,
            len: extent.location.header_bytes as usize,
            memory: None,
            slice: 0,
            slice_offset: 0,
            outlives_call: false,
        });
        let (unplanned, slices) =
            if extent.is_compressed() { (slices, Vec::new()) } else { (Vec::new(), slices) };
        let payload = slices.into_iter().enumerate().flat_map(|(index, memory)| {
            let (layer, target) = (index / blocks.len(), index % blocks.len());
            let layer = layers.start + u32::try_from(layer).expect("layer count is bounded");
            let offset = extent.slice_offset(layer, blocks[target]);
            let index = u32::try_from(index).expect("slice count is bounded");
            pieces_of(offset, index, memory, outlive[target])
        });
        let chunks = cut(header.into_iter().chain(payload), rules);
        let mut slices = Vec::new();
        slices.resize_with(blocks.len() * layer_count as usize, SliceArrival::default);
        let (outcomes, first_layer) = (vec![Ok(()); blocks.len()], layers.start);
        let reading = Self {
            pinned,
            extent,
            first_layer,
            blocks,
            header: known,
            copies,
            unplanned,
            slices,
            outcomes,
        };
        (reading, chunks)
    }

    /// Plans the units of a compressed extent, as soon as its header is known.
    pub(super) fn plan_units(&mut self, limit: usize) -> Vec<(Chunk, Vec<WantedUnit>)> {
        if self.unplanned.is_empty() {
            return Vec::new();
        }
        let Some(units) = self.header.as_ref().and_then(|header| header.units.as_ref()) else {
            return Vec::new();
        };
        let slices = std::mem::take(&mut self.unplanned);
        gather(plan_units(&self.extent, units, self.first_layer, &self.blocks, slices), limit)
    }

    /// Whether a piece is the extent's header. A direct request gave its memory away, so the place decides.
    pub(super) fn starts_with_header(&self, piece: &Piece) -> bool {
        piece.offset == self.extent.location.offset
    }

    /// Handles a part of a slice that is in its memory now. It is copied while it is in the processor's cache.
    pub(super) fn arrive(&mut self, piece: &Piece, memory: Memory) {
        let copy = &mut self.copies[piece.slice as usize];
        copy_into(copy, piece.slice_offset, memory.as_slice());
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
        let slice = piece.slice as usize;
        self.lose(slice % self.blocks.len(), cause);
        if let Some(memory) = piece.memory {
            self.slices[slice].give_back(piece.slice_offset, memory);
        }
    }

    /// Makes a block a miss. The first of several causes counts, but damage comes before all others, because it decides
    /// what the store does next.
    fn lose(&mut self, target: usize, cause: Cause) {
        let outcome = &mut self.outcomes[target];
        let is_known = outcome.is_err_and(|known| known.is_damage() || !cause.is_damage());
        if !is_known {
            *outcome = Err(cause);
        }
    }

    /// Handles the extent's header, and returns it. Without a valid header, no block is a hit.
    pub(super) fn take_header(
        &mut self,
        bytes: &[u8],
        store: StoreId,
    ) -> Option<Arc<VerifiedHeader>> {
        match self.check_header(bytes, store) {
            Ok(header) => {
                let header = Arc::new(header);
                self.header = Some(Arc::clone(&header));
                Some(header)
            }
            Err(cause) => {
                self.outcomes.fill(Err(cause));
                None
            }
        }
    }

    /// Verifies that the bytes are the header of this very extent.
    fn check_header(&self, bytes: &[u8], store: StoreId) -> Result<VerifiedHeader, Cause> {
        let header = RecordHeader::decode(bytes).map_err(Cause::of_format)?;
        let is_ours = header.store == store;
        let found = VerifiedHeader::of(header).ok_or(Cause::WrongPlace)?;
        if !is_ours || *found.extent != *self.extent {
            return Err(Cause::WrongPlace);
        }
        // The index may share it.
        Ok(VerifiedHeader { extent: Arc::clone(&self.extent), ..found })
    }

    /// Compares the slices that arrived with the checksums of the header.
    pub(super) fn verdict(self, stopped: Option<Stopped>) -> Vec<BlockRead> {
        let stopped = stopped.map(Cause::from);
        let Self { extent, first_layer, blocks, header, slices, outcomes, .. } = self;
        let slice_bytes = extent.layout.slice_bytes() as usize;
        let of_outcome = |outcome| BlockRead { outcome, memory: Vec::new(), copy: Vec::new() };
        let mut reads: Vec<_> = outcomes.into_iter().map(of_outcome).collect();
        for (index, memory) in self.copies.into_iter().enumerate() {
            reads[index % blocks.len()].copy.extend(memory);
        }
        for (index, memory) in self.unplanned.into_iter().enumerate() {
            reads[index % blocks.len()].memory.extend(memory);
        }
        // Layer-major, so each block gets its layers lowest first.
        for (index, slice) in slices.into_iter().enumerate() {
            let (layer, target) = (index / blocks.len(), index % blocks.len());
            let row = (first_layer as usize + layer) * extent.hashes.len();
            let crc = header.as_ref().map(|header| header.crcs[row + blocks[target] as usize]);
            let verdict = match crc {
                None => Err(stopped.unwrap_or(Cause::Header)),
                Some(_) if slice.summed < slice_bytes => Err(stopped.unwrap_or(Cause::Device)),
                Some(crc) if slice.crc == crc => Ok(()),
                Some(_) => Err(Cause::SliceChecksum),
            };
            let read = &mut reads[target];
            read.outcome = read.outcome.and(verdict);
            read.memory.extend(slice.memory.into_iter().chain(slice.early.into_values()));
        }
        reads
    }
}

/// Memory for the wanted slices, layer-major: the order of the slices on the device.
struct WantedSlices {
    slices: Vec<Vec<Memory>>,
    /// The memory that gets copies of them.
    copies: Vec<Vec<Memory>>,
}

fn wanted_slices(extent: &Extent, layer_count: usize, targets: Vec<BlockTarget>) -> WantedSlices {
    let count = targets.len();
    let slice_bytes = extent.layout.slice_bytes() as usize;
    let none = || std::iter::repeat_with(Vec::new).take(count * layer_count).collect::<Vec<_>>();
    let mut wanted = WantedSlices { slices: none(), copies: none() };
    for (target, BlockTarget { memory, copy, .. }) in targets.into_iter().enumerate() {
        let (mut memory, mut copy) = (VecDeque::from(memory), VecDeque::from(copy));
        let has_copy = !copy.is_empty();
        for layer in 0..layer_count {
            let slice = layer * count + target;
            wanted.slices[slice] = take_front(&mut memory, slice_bytes);
            if has_copy {
                wanted.copies[slice] = take_front(&mut copy, slice_bytes);
            }
        }
    }
    wanted
}

/// Copies bytes into pieces of memory, from their byte `offset` on. Does nothing if there are no pieces.
fn copy_into(pieces: &mut [Memory], offset: usize, mut bytes: &[u8]) {
    let mut skip = offset;
    for piece in pieces {
        let to = piece.as_mut_slice();
        let passed = skip.min(to.len());
        skip -= passed;
        let to = &mut to[passed..];
        let (now, later) = bytes.split_at(bytes.len().min(to.len()));
        to[..now.len()].copy_from_slice(now);
        bytes = later;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn copies_reach_every_byte_of_any_pieces() {
        let bytes: Vec<u8> = (0..100).collect();
        for (offset, len) in [(0, 100), (0, 1), (37, 30), (99, 1), (40, 0), (10, 90)] {
            let mut out = vec![255; 100];
            dalsegno_io::lend(|lender| {
                let (head, rest) = out.split_at_mut(40);
                let (middle, tail) = rest.split_at_mut(0);
                let mut pieces = [head, middle, tail].map(|piece| lender.exclusive(piece));
                copy_into(&mut pieces, offset, &bytes[offset..offset + len]);
            });
            let expected = (0..100_u8)
                .map(|at| if (offset..offset + len).contains(&usize::from(at)) { at } else { 255 });
            assert_eq!(out, expected.collect::<Vec<_>>());
        }
        copy_into(&mut [], 5, &bytes);
    }
}
