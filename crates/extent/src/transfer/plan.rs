//! Plans few large requests of whole sectors for the wanted bytes of a file.
//!
//! 1. Pieces come sorted and disjoint; the bytes of the chunks cover exactly the pieces, widened to sectors.
//! 2. A chunk never exceeds the limit, and no two chunks of one plan share a sector.
//! 3. A direct chunk needs no copy: its pieces are contiguous whole sectors in memory that the device can reach.

use dalsegno_core::{SECTOR_BYTES, sector_down, sector_up};
use dalsegno_io::Memory;

/// Most pieces in one direct request; the kernel's limit is 1,024.
pub(crate) const MAX_DIRECT_PIECES: usize = 512;

/// Wanted bytes of a file, and the memory that they are read into or written from.
pub struct Piece {
    /// First byte in the file.
    pub(crate) offset: u64,
    /// Bytes.
    pub(crate) len: usize,
    /// The caller's memory; `None` for a header, which is always staged.
    pub(crate) memory: Option<Memory>,
    /// Which slice, in the caller's own numbering.
    pub(crate) slice: u32,
    /// Where in the slice these bytes start.
    pub(crate) slice_offset: usize,
    /// Whether a request may use the memory after the call has ended.
    pub(crate) outlives_call: bool,
}

impl Piece {
    fn end(&self) -> u64 {
        self.offset + self.len as u64
    }

    /// Splits off the first `len` bytes.
    pub(crate) fn split_to(&mut self, len: usize) -> Self {
        let head = Self {
            offset: self.offset,
            len,
            memory: self.memory.as_mut().map(|memory| memory.split_to(len)),
            slice: self.slice,
            slice_offset: self.slice_offset,
            outlives_call: self.outlives_call,
        };
        self.offset += len as u64;
        self.slice_offset += len;
        self.len -= len;
        head
    }
}

/// What one request to the device moves.
pub(crate) struct Chunk {
    /// Which record of the call, in the caller's own numbering.
    pub(crate) record: usize,
    pub(crate) offset: u64,
    pub(crate) bytes: usize,
    pub(crate) pieces: Vec<Piece>,
    /// Instead of pieces, if it is part of a compressed payload.
    pub(crate) units: Vec<WantedUnit>,
    pub(crate) direct: bool,
}

/// A compressed unit that holds wanted bytes.
pub(crate) struct WantedUnit {
    /// First stored byte in the file.
    pub(crate) offset: u64,
    /// Stored bytes.
    pub(crate) len: usize,
    pub(crate) crc: u32,
    /// Offset of its first raw byte in the row.
    pub(crate) start: u64,
    /// Raw bytes.
    pub(crate) raw_bytes: usize,
    pub(crate) element_bytes: usize,
    /// The wanted pieces; their offsets are in the row.
    pub(crate) pieces: Vec<Piece>,
}

/// The device's bounds on a request.
#[derive(Clone, Copy, Debug)]
pub struct PlanRules {
    /// Largest request, whole sectors.
    pub(crate) limit: usize,
    /// Alignment of memory that needs no copy.
    pub(crate) memory_align: usize,
    /// Which memory requests may use directly.
    pub(crate) direct: DirectUse,
}

/// Which memory requests may use, instead of a staging buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DirectUse {
    /// All, because the call waits for its requests.
    All,
    /// What outlives the call.
    Outliving,
    /// None.
    Never,
}

/// Cuts `pieces` into chunks, in order.
pub(crate) fn cut(pieces: impl IntoIterator<Item = Piece>, rules: PlanRules) -> Vec<Chunk> {
    let mut chunks = Vec::new();
    let mut current: Vec<Piece> = Vec::new();
    let mut start = 0;
    let mut end = 0;
    for mut piece in pieces {
        debug_assert!(
            piece.len > 0 && (current.is_empty() || piece.offset >= end),
            "order of pieces"
        );
        loop {
            let apart = !current.is_empty() && piece.offset > sector_up(end);
            let full = !current.is_empty()
                && (piece.offset >= start + rules.limit as u64
                    || (current.len() >= MAX_DIRECT_PIECES && end.is_multiple_of(SECTOR_BYTES)));
            if apart || full {
                chunks.push(finish(std::mem::take(&mut current), rules));
            }
            if current.is_empty() {
                start = sector_down(piece.offset);
            }
            let space =
                usize::try_from(start + rules.limit as u64 - piece.offset).expect("within a chunk");
            if piece.len <= space {
                end = piece.end();
                current.push(piece);
                break;
            }
            current.push(piece.split_to(space));
            chunks.push(finish(std::mem::take(&mut current), rules));
        }
    }
    if !current.is_empty() {
        chunks.push(finish(current, rules));
    }
    chunks
}

/// Makes one request of sorted pieces that fit into one.
pub(crate) fn finish(pieces: Vec<Piece>, rules: PlanRules) -> Chunk {
    let first = pieces.first().expect("a chunk has pieces").offset;
    let last = pieces.last().expect("a chunk has pieces").end();
    let offset = sector_down(first);
    let bytes = usize::try_from(sector_up(last) - offset).expect("within the limit");
    let contiguous = pieces.windows(2).all(|pair| pair[0].end() == pair[1].offset);
    let reachable = |piece: &Piece| {
        piece.memory.as_ref().is_none_or(|memory| memory.is_aligned(rules.memory_align))
    };
    let outlives = |piece: &Piece| piece.memory.is_none() || piece.outlives_call;
    let is_allowed = match rules.direct {
        DirectUse::All => true,
        DirectUse::Outliving => pieces.iter().all(outlives),
        DirectUse::Never => false,
    };
    let direct = is_allowed
        && contiguous
        && first == offset
        && last == sector_up(last)
        && pieces.len() <= MAX_DIRECT_PIECES
        && pieces.iter().all(reachable)
        // A header alone is staged anyway.
        && pieces.iter().any(|piece| piece.memory.is_some());
    assert!(bytes <= rules.limit, "a chunk of {bytes} bytes outgrows the limit");
    Chunk { record: 0, offset, bytes, pieces, units: Vec::new(), direct }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const RULES: PlanRules =
        PlanRules { limit: 64 << 10, memory_align: 512, direct: DirectUse::All };

    fn piece(offset: u64, len: usize) -> Piece {
        Piece { offset, len, memory: None, slice: 0, slice_offset: 0, outlives_call: false }
    }

    proptest! {
        #[test]
        fn chunks_cover_exactly_the_pieces_and_share_no_sector(
            spec in prop::collection::vec((0_u64..20_000, 1_usize..200_000), 1..60)
        ) {
            let mut at = 0;
            let pieces: Vec<_> = spec.iter().map(|(gap, len)| {
                let piece = piece(at + gap, *len);
                at = piece.end();
                piece
            }).collect();
            let wanted: Vec<_> = pieces.iter().map(|p| (p.offset, p.end())).collect();
            let chunks = cut(pieces, RULES);
            let mut covered = Vec::new();
            let mut last_end = 0;
            for chunk in &chunks {
                prop_assert!(chunk.bytes <= RULES.limit && chunk.offset % 4096 == 0);
                // Two pieces with less than a sector between them may share a sector; then they are in one chunk.
                prop_assert!(chunk.offset >= last_end, "chunks overlap");
                last_end = chunk.offset + chunk.bytes as u64;
                for piece in &chunk.pieces {
                    prop_assert!(piece.offset >= chunk.offset && piece.end() <= last_end);
                    covered.push((piece.offset, piece.end()));
                }
            }
            let total: u64 = covered.iter().map(|(a, b)| b - a).sum();
            prop_assert_eq!(total, wanted.iter().map(|(a, b)| b - a).sum::<u64>());
            prop_assert!(covered.windows(2).all(|w| w[0].1 <= w[1].0));
        }
    }

    #[test]
    fn aligned_neighbours_become_one_direct_request() {
        let mut bytes = vec![0_u8; 3 * 8192 + 4096];
        let skew = bytes.as_ptr().align_offset(4096);
        dalsegno_io::lend(|lender| {
            let mut memory = lender.exclusive(&mut bytes[skew..skew + 3 * 8192]);
            let pieces = (0..3_u32).map(|i| Piece {
                offset: 4096 + u64::from(i) * 8192,
                len: 8192,
                memory: Some(memory.split_to(8192)),
                slice: i,
                slice_offset: 0,
                outlives_call: false,
            });
            let chunks = cut(pieces.collect::<Vec<_>>(), RULES);
            assert_eq!(chunks.len(), 1);
            assert!(chunks[0].direct && chunks[0].pieces.len() == 3);
        });
    }
}
