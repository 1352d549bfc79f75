//! The filter of a table: rules out keys at the cost of one cache line of the processor.
//!
//! 1. A key that was added is never ruled out. Filters know the part of a key that [`filtered`] returns, and also the
//!    [`lineage_of`] an order key.
//! 2. All tables use the same hash, so a lookup in many tables hashes its key once.

use dalsegno_io::{PageAllocator, PageBuffer, PageVec};

use crate::error::TableError;
use crate::lsm::files::table_files::SECTOR;
use crate::lsm::format::keys::{filtered, lineage_of};
use crate::lsm::table::block::BlockPlace;

const MAGIC: [u8; 8] = *b"DSGNFILT";
const HEADER_BYTES: usize = 64;
/// Bytes of magic number, lines, probes and keys. The checksum follows.
const CHECKED_BYTES: usize = 24;
const LINE_BYTES: usize = 64;
const LINE_BITS: f64 = 512.0;
const MOST_PROBES: u32 = 12;

/// The hash by which filters know a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct KeyHash(u64);

impl KeyHash {
    pub(crate) fn of(key: &[u8]) -> Self {
        Self(xxhash_rust::xxh3::xxh3_64(filtered(key)))
    }

    /// Which of `lines` lines holds the key.
    fn line(self, lines: usize) -> usize {
        let lines = u64::try_from(lines).expect("lines fit into 32 bits");
        usize::try_from(((self.0 >> 32) * lines) >> 32).expect("less than lines")
    }

    /// The bits of the line: word and bit in the word, `probes` times.
    ///
    /// These are the nine highest bits of `h`, `h * c`, `h * c * c` and so on, with c the golden ratio. Double hashing,
    /// as other Bloom filters use it, has so few different patterns in 512 bits that more of them collide.
    #[inline]
    fn bits(self, probes: u32) -> impl Iterator<Item = (usize, u32)> {
        let low = u32::try_from(self.0 & u64::from(u32::MAX)).expect("masked");
        let hashes = std::iter::successors(Some(low), |h| Some(h.wrapping_mul(0x9e37_79b9)));
        hashes.take(probes as usize).map(|h| ((h >> 29) as usize, h >> 23 & 63))
    }
}

/// 512 bits in one cache line.
#[repr(align(64))]
#[derive(Clone, Copy, Debug, Default)]
struct Line([u64; 8]);

/// Collects the keys of a table.
#[derive(Debug)]
pub(crate) struct FilterBuilder {
    bits_per_key: f64,
    hashes: PageVec<KeyHash>,
    /// The lineage of the last order key.
    lineage: Option<KeyHash>,
}

impl FilterBuilder {
    /// Without bits there is no filter.
    pub(crate) fn new(bits_per_key: f64) -> Self {
        Self { bits_per_key, hashes: PageVec::new_in(PageAllocator), lineage: None }
    }

    /// Adds a key. Keys of one place follow each other and count as one; so do keys of one lineage, which is added as a
    /// key of its own.
    pub(crate) fn add(&mut self, key: &[u8]) {
        if self.bits_per_key <= 0.0 {
            return;
        }
        if let Some(lineage) = lineage_of(key).map(KeyHash::of)
            && self.lineage.replace(lineage) != Some(lineage)
        {
            self.hashes.push(lineage);
        }
        let hash = KeyHash::of(key);
        if self.hashes.last() != Some(&hash) {
            self.hashes.push(hash);
        }
    }

    fn line_count(&self) -> usize {
        #[expect(clippy::cast_precision_loss, reason = "a share of bits need not be exact")]
        let lines = (self.hashes.len() as f64 * self.bits_per_key / LINE_BITS).ceil();
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "bounded by the line before, and never negative"
        )]
        let lines = lines.min(f64::from(u32::MAX)) as usize;
        lines
    }

    /// How many bits each key sets: 0.9 ln 2 of its bits, because lines are not filled evenly.
    fn probes(&self) -> u32 {
        let probes = self.bits_per_key * std::f64::consts::LN_2 * 0.9;
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "between 1 and MOST_PROBES"
        )]
        let probes = probes.round().clamp(1.0, f64::from(MOST_PROBES)) as u32;
        probes
    }

    /// Bytes that [`Self::finish`] appends.
    pub(crate) fn bytes(&self) -> usize {
        (HEADER_BYTES + LINE_BYTES * self.line_count()).next_multiple_of(SECTOR)
    }

    /// Appends the filter to `out` as whole sectors.
    pub(crate) fn finish(&self, place: BlockPlace, out: &mut PageBuffer) {
        let (from, probes) = (out.len(), self.probes());
        let mut lines = PageVec::new_in(PageAllocator);
        lines.resize(self.line_count(), Line::default());
        for hash in &self.hashes {
            let at = hash.line(lines.len());
            let line = &mut lines[at].0;
            hash.bits(probes).for_each(|(word, bit)| line[word] |= 1 << bit);
        }
        out.extend_from_slice(&MAGIC);
        let count = u32::try_from(lines.len()).expect("bounded in line_count");
        out.extend_from_slice(&count.to_le_bytes());
        out.extend_from_slice(&probes.to_le_bytes());
        out.extend_from_slice(&(self.hashes.len() as u64).to_le_bytes());
        out.resize(from + HEADER_BYTES);
        for word in lines.iter().flat_map(|line| line.0) {
            out.extend_from_slice(&word.to_le_bytes());
        }
        let crc = place.crc(&[&out[from..from + CHECKED_BYTES], &out[from + HEADER_BYTES..]]);
        out[from + CHECKED_BYTES..][..4].copy_from_slice(&crc.to_le_bytes());
        out.resize(from + self.bytes());
    }
}

/// A filter in memory.
#[derive(Debug)]
pub(crate) struct Filter {
    lines: PageVec<Line>,
    probes: u32,
}

impl Filter {
    /// Reads whole sectors that [`FilterBuilder::finish`] wrote.
    pub(crate) fn decode(bytes: &[u8], place: BlockPlace) -> Result<Self, TableError> {
        let (lines, probes, crc) =
            Self::parts(bytes).ok_or(TableError::Malformed("the header of a filter"))?;
        if place.crc(&[&bytes[..CHECKED_BYTES], lines.as_flattened()]) != crc {
            return Err(TableError::Checksum);
        }
        if !(1..=MOST_PROBES).contains(&probes) {
            return Err(TableError::Malformed("the probes of a filter"));
        }
        let decode_line = |line: &[u8; LINE_BYTES]| {
            let mut words = [0; 8];
            let (chunks, _) = line.as_chunks::<8>();
            words.iter_mut().zip(chunks).for_each(|(word, b)| *word = u64::from_le_bytes(*b));
            Line(words)
        };
        let mut decoded = PageVec::with_capacity_in(lines.len(), PageAllocator);
        decoded.extend(lines.iter().map(decode_line));
        Ok(Self { lines: decoded, probes })
    }

    /// The lines, the number of probes and the checksum, if the lengths agree and the padding is zero.
    fn parts(bytes: &[u8]) -> Option<(&[[u8; LINE_BYTES]], u32, u32)> {
        let (header, rest) = bytes.split_first_chunk::<HEADER_BYTES>()?;
        let u32_at = |at: usize| Some(u32::from_le_bytes(*header[at..].first_chunk()?));
        let line_bytes = usize::try_from(u32_at(8)?).ok()?.checked_mul(LINE_BYTES)?;
        let (lines, padding) = rest.split_at_checked(line_bytes)?;
        let is_zero = |bytes: &[u8]| bytes.iter().all(|byte| *byte == 0);
        let is_sound = header[..8] == MAGIC
            && padding.len() < SECTOR
            && is_zero(padding)
            && is_zero(&header[CHECKED_BYTES + 4..]);
        is_sound.then_some((lines.as_chunks().0, u32_at(12)?, u32_at(CHECKED_BYTES)?))
    }

    /// Whether a key may have been added; `false` is certain.
    #[inline]
    pub(crate) fn may_contain(&self, hash: KeyHash) -> bool {
        if self.lines.is_empty() {
            return true;
        }
        let line = &self.lines[hash.line(self.lines.len())].0;
        hash.bits(self.probes).all(|(word, bit)| line[word] >> bit & 1 == 1)
    }

    /// Bytes of memory.
    pub(crate) fn memory_bytes(&self) -> usize {
        self.lines.len() * LINE_BYTES
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PLACE: BlockPlace = BlockPlace { table: 3, sector: 5 };

    fn built(bits_per_key: f64, keys: u64) -> Vec<u8> {
        let mut builder = FilterBuilder::new(bits_per_key);
        (0..keys).for_each(|key| builder.add(&key.to_le_bytes()));
        let mut out = PageBuffer::default();
        builder.finish(PLACE, &mut out);
        assert_eq!(out.len(), builder.bytes());
        out.to_vec()
    }

    /// Of a million keys that were not added, how many the filter does not rule out, in percent.
    fn false_positives(filter: &Filter) -> f64 {
        let is_positive = |key: &u64| filter.may_contain(KeyHash::of(&key.to_le_bytes()));
        let positives = (1 << 40..(1 << 40) + 1_000_000_u64).filter(is_positive).count();
        f64::from(u32::try_from(positives).unwrap()) / 1e4
    }

    #[test]
    fn more_bits_rule_out_more_keys_but_never_an_added_one() {
        for (bits_per_key, most_percent) in [(4.0, 16.0), (8.0, 2.6), (10.0, 1.2), (16.0, 0.13)] {
            let filter = Filter::decode(&built(bits_per_key, 300_000), PLACE).unwrap();
            let may_contain = |key: u64| filter.may_contain(KeyHash::of(&key.to_le_bytes()));
            assert!((0..300_000).all(may_contain));
            let percent = false_positives(&filter);
            assert!(percent < most_percent, "{bits_per_key} bits: {percent} %");
        }
    }

    #[test]
    fn sequences_of_a_place_count_as_one_key() {
        let key = |first: u8, sequence: u8| {
            let mut key = [b'o'; 45];
            (key[36], key[44]) = (first, sequence);
            key
        };
        let mut builder = FilterBuilder::new(16.0);
        (0..100).for_each(|sequence| builder.add(&key(1, sequence)));
        assert_eq!(builder.hashes.len(), 2, "the lineage and the place");
        let mut out = PageBuffer::default();
        builder.finish(PLACE, &mut out);
        let filter = Filter::decode(&out, PLACE).unwrap();
        assert!(filter.may_contain(KeyHash::of(&key(1, 200))), "a sequence that was not added");
        assert!(filter.may_contain(KeyHash::of(&key(1, 0)[..37])), "the place alone");
        assert!(filter.may_contain(KeyHash::of(&key(1, 0)[..33])), "the lineage alone");
        let others = (2..=255).filter(|first| filter.may_contain(KeyHash::of(&key(*first, 0))));
        assert!(others.count() < 5, "other places");
    }

    #[test]
    fn without_bits_or_keys_nothing_is_ruled_out() {
        for bytes in [built(0.0, 100), built(10.0, 0)] {
            let filter = Filter::decode(&bytes, PLACE).unwrap();
            assert!(filter.may_contain(KeyHash(7)));
            assert_eq!(filter.memory_bytes(), 0);
        }
    }

    #[test]
    fn every_flipped_bit_and_every_wrong_length_is_detected() {
        let bytes = built(10.0, 50);
        for bit in 0..bytes.len() * 8 {
            let mut damaged = bytes.clone();
            damaged[bit / 8] ^= 1 << (bit % 8);
            assert!(Filter::decode(&damaged, PLACE).is_err(), "bit {bit}");
        }
        for length in 0..bytes.len() {
            let is_harmless = length >= HEADER_BYTES + LINE_BYTES;
            assert_eq!(Filter::decode(&bytes[..length], PLACE).is_ok(), is_harmless, "{length}");
        }
        assert!(Filter::decode(&bytes, BlockPlace { table: 4, ..PLACE }).is_err());
    }
}
