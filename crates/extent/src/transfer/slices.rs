//! Blocks in the caller's memory, cut into slices, and slices into pieces at their places in a file.

use std::collections::VecDeque;

use dalsegno_core::{Extent, KvLayout};
use dalsegno_io::Memory;

use super::plan::Piece;

/// The pieces of a plain extent's payload, at their places in the file.
#[must_use]
pub fn payload_pieces(extent: &Extent, slices: Vec<Vec<Memory>>) -> Vec<Piece> {
    let blocks = extent.block_count();
    let indexed = (0_u32..).zip(slices);
    let pieces = indexed.flat_map(|(index, memory)| {
        pieces_of(extent.slice_offset(index / blocks, index % blocks), index, memory, false)
    });
    pieces.collect()
}

/// The pieces of one slice, at their places in the file. `outlives_call` says whether a request may use the memory
/// after its call has ended.
pub fn pieces_of(
    offset: u64,
    slice: u32,
    memory: Vec<Memory>,
    outlives_call: bool,
) -> impl Iterator<Item = Piece> {
    let mut at = 0;
    memory.into_iter().filter(|memory| !memory.is_empty()).map(move |memory| {
        let (len, slice_offset) = (memory.len(), at);
        at += len;
        Piece {
            offset: offset + slice_offset as u64,
            len,
            memory: Some(memory),
            slice,
            slice_offset,
            outlives_call,
        }
    })
}

/// Turns blocks (layers one after the other) into slices, layer-major.
///
/// # Panics
///
/// If a block has more or fewer bytes than its layout says.
#[must_use]
pub fn into_slices(layout: KvLayout, blocks: Vec<Vec<Memory>>) -> Vec<Vec<Memory>> {
    let count = blocks.len();
    let slice_bytes = layout.slice_bytes() as usize;
    let mut slices: Vec<Vec<Memory>> = Vec::new();
    slices.resize_with(count * layout.layers() as usize, Vec::new);
    for (block, pieces) in blocks.into_iter().enumerate() {
        let mut pieces = VecDeque::from(pieces);
        for layer in 0..layout.layers() as usize {
            slices[layer * count + block] = take_front(&mut pieces, slice_bytes);
        }
        assert!(pieces.iter().all(Memory::is_empty), "a block has more bytes than its layout says");
    }
    slices
}

/// Removes exactly `bytes` from the front of a list of pieces.
pub(crate) fn take_front(pieces: &mut VecDeque<Memory>, mut bytes: usize) -> Vec<Memory> {
    let mut taken = Vec::with_capacity(1);
    while bytes > 0 {
        let mut piece = pieces.pop_front().expect("a block has fewer bytes than its layout says");
        if piece.len() > bytes {
            taken.push(piece.split_to(bytes));
            pieces.push_front(piece);
            return taken;
        }
        bytes -= piece.len();
        taken.push(piece);
    }
    taken
}
