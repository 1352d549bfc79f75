//! The header of an arena that several processes map, and where the parts of the arena are.
//! Format: docs/formats/arena.md.

use crate::places::UNIT_BYTES;

const MAGIC: [u8; 8] = *b"DALSPOOL";
const VERSION: u32 = 1;
const EPOCH_OFFSET: usize = 16;
const HEARTBEAT_OFFSET: usize = 64;
const HEADER_BYTES: usize = 4096;
const GENERATION_BYTES: usize = 8;
/// Units start at a multiple of this, so that huge pages can hold them.
const UNITS_ALIGN: usize = 2 << 20;

/// What the header of an arena says, and what follows from it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ArenaHeader {
    /// How many units it has.
    pub unit_count: u32,
    /// The random name of this life of the arena.
    pub epoch: u64,
}

impl ArenaHeader {
    /// Bytes of the header.
    pub const BYTES: usize = HEADER_BYTES;
    /// Where the heartbeat is, a `u64`.
    pub const HEARTBEAT_OFFSET: usize = HEARTBEAT_OFFSET;
    /// Where the generations start, a `u64` for each unit.
    pub const GENERATIONS_OFFSET: usize = HEADER_BYTES;

    /// Where the units start.
    #[must_use]
    pub fn units_offset(&self) -> usize {
        let generations = self.unit_count as usize * GENERATION_BYTES;
        (HEADER_BYTES + generations).next_multiple_of(UNITS_ALIGN)
    }

    /// Bytes of the whole arena.
    #[must_use]
    pub fn arena_bytes(&self) -> usize {
        let unit = usize::try_from(UNIT_BYTES).expect("64-bit addresses");
        self.units_offset() + self.unit_count as usize * unit
    }

    /// The header's bytes, with a heartbeat of zero.
    #[must_use]
    pub fn encode(&self) -> [u8; HEADER_BYTES] {
        let mut bytes = [0; HEADER_BYTES];
        bytes[..8].copy_from_slice(&MAGIC);
        bytes[8..12].copy_from_slice(&VERSION.to_le_bytes());
        bytes[12..16].copy_from_slice(&self.unit_count.to_le_bytes());
        bytes[EPOCH_OFFSET..EPOCH_OFFSET + 8].copy_from_slice(&self.epoch.to_le_bytes());
        bytes
    }

    /// Reads a header; `None` if it is not one of this version, or of an arena without units.
    #[must_use]
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        let fixed = bytes.first_chunk::<HEADER_BYTES>()?;
        let u32_at = |at: usize| fixed[at..].first_chunk::<4>().map(|one| u32::from_le_bytes(*one));
        let u64_at = |at: usize| fixed[at..].first_chunk::<8>().map(|one| u64::from_le_bytes(*one));
        let (unit_count, epoch) = (u32_at(12)?, u64_at(EPOCH_OFFSET)?);
        let is_ours = fixed[..8] == MAGIC && u32_at(8) == Some(VERSION) && unit_count > 0;
        is_ours.then_some(Self { unit_count, epoch })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const EXAMPLE: ArenaHeader = ArenaHeader { unit_count: 1024, epoch: 0x1122_3344_5566_7788 };

    #[test]
    fn the_example_of_the_document() {
        let bytes = EXAMPLE.encode();
        let (head, tail) = bytes.split_at(24);
        assert_eq!(head, b"DALSPOOL\x01\0\0\0\0\x04\0\0\x88\x77\x66\x55\x44\x33\x22\x11");
        assert!(tail.iter().all(|byte| *byte == 0));
        assert_eq!((EXAMPLE.units_offset(), EXAMPLE.arena_bytes()), (2_097_152, 69_206_016));
        assert_eq!(ArenaHeader::decode(&bytes), Some(EXAMPLE));
    }

    #[test]
    fn what_is_no_header_of_this_version_is_refused() {
        let whole = EXAMPLE.encode();
        assert_eq!(ArenaHeader::decode(&whole[..HEADER_BYTES - 1]), None);
        for at in [0, 7, 8, 11] {
            let mut bytes = whole;
            bytes[at] ^= 1;
            assert_eq!(ArenaHeader::decode(&bytes), None, "byte {at}");
        }
        let none = ArenaHeader { unit_count: 0, ..EXAMPLE };
        assert_eq!(ArenaHeader::decode(&none.encode()), None);
    }

    #[test]
    fn parts_never_overlap_whatever_the_size() {
        for unit_count in [1, 511, 261_631, 261_632, 261_633, 1 << 24, u32::MAX] {
            let header = ArenaHeader { unit_count, ..EXAMPLE };
            let end = HEADER_BYTES + unit_count as usize * GENERATION_BYTES;
            assert!((end..end + UNITS_ALIGN).contains(&header.units_offset()));
        }
    }
}
