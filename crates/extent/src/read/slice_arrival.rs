//! One slice while it is read.

use std::collections::{BTreeMap, VecDeque};

use dalsegno_core::KvLayout;
use dalsegno_io::Memory;

use super::wanted::{BlockOutcome, BlockTarget};
use crate::transfer::take_front;

/// A slice while its parts arrive, in any order. The parts are summed in the order of their offsets.
#[derive(Default)]
pub(super) struct SliceArrival {
    /// The memory for it, until its requests are planned.
    unplanned: Vec<Memory>,
    /// Memory that gets a copy.
    copy: Vec<Memory>,
    /// Bytes summed so far.
    summed: usize,
    crc: u32,
    /// The summed parts, in order.
    memory: Vec<Memory>,
    /// Parts that arrived before their predecessors, or that were not read, by offset.
    early: BTreeMap<usize, Part>,
    /// Whether it was verified, or why it is lost; `None` before that is known.
    pub(super) outcome: Option<BlockOutcome>,
}

/// A part of a slice in its memory, and its checksum, if its source summed it.
struct Part {
    memory: Memory,
    crc: Option<u32>,
}

impl SliceArrival {
    /// The wanted slices of some blocks, layer-major: the order of the slices on the device.
    pub(super) fn of_targets(
        layout: KvLayout,
        layers: usize,
        targets: Vec<BlockTarget>,
    ) -> Vec<Self> {
        let count = targets.len();
        let slice_bytes = layout.slice_bytes() as usize;
        let mut slices: Vec<Self> = Vec::new();
        slices.resize_with(count * layers, Self::default);
        for (target, BlockTarget { memory, copy, .. }) in targets.into_iter().enumerate() {
            let (mut memory, mut copy) = (VecDeque::from(memory), VecDeque::from(copy));
            let has_copy = !copy.is_empty();
            for layer in 0..layers {
                let slice = &mut slices[layer * count + target];
                slice.unplanned = take_front(&mut memory, slice_bytes);
                if has_copy {
                    slice.copy = take_front(&mut copy, slice_bytes);
                }
            }
        }
        slices
    }

    /// The memory for its requests.
    pub(super) fn plan(&mut self) -> Vec<Memory> {
        std::mem::take(&mut self.unplanned)
    }

    /// Sums a part that is in its memory now, unless its checksum is known, and copies it while it is in the
    /// processor's cache.
    pub(super) fn arrive(&mut self, offset: usize, memory: Memory, crc: Option<u32>) {
        copy_into(&mut self.copy, offset, memory.as_slice());
        let part = Part { memory, crc };
        if offset != self.summed {
            self.early.insert(offset, part);
            return;
        }
        self.sum(part);
        while let Some(part) = self.early.remove(&self.summed) {
            self.sum(part);
        }
    }

    /// Keeps the memory of a part that was not read. The caller makes the block a miss.
    pub(super) fn give_back(&mut self, offset: usize, memory: Memory) {
        self.early.insert(offset, Part { memory, crc: None });
    }

    fn sum(&mut self, Part { memory, crc }: Part) {
        self.crc = match crc {
            Some(crc) if self.summed == 0 => crc,
            Some(crc) => dalsegno_core::crc32c_combine(self.crc, crc, memory.len() as u64),
            None => dalsegno_core::crc32c_append(self.crc, memory.as_slice()),
        };
        self.summed += memory.len();
        self.memory.push(memory);
    }

    /// The checksum of all `bytes` of the slice, if all have arrived.
    pub(super) fn crc(&self, bytes: usize) -> Option<u32> {
        (self.summed == bytes).then_some(self.crc)
    }

    /// The memory of a slice that was verified, in the order of its bytes.
    pub(super) fn verified_memory(&mut self) -> &mut Vec<Memory> {
        &mut self.memory
    }

    /// Its memory and the memory of its copy, each in order.
    pub(super) fn into_memory(self) -> (impl Iterator<Item = Memory>, Vec<Memory>) {
        let early = self.early.into_values().map(|part| part.memory);
        let read = self.memory.into_iter().chain(early);
        (self.unplanned.into_iter().chain(read), self.copy)
    }
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
