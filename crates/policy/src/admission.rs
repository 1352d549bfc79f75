//! Which blocks are worth a write.
//!
//! 1. The filter's memory is fixed at construction. Two Bloom filters alternate: when the younger one is full, the
//!    older one is cleared. A name is remembered for one to two fillings.
//! 2. It never forgets within one filling: a false negative would keep a hot block out forever. A false positive writes
//!    a block one put too early, which only costs a write.
//! 3. A name is the namespace with the hash. Engines use one hash in several namespaces, so a put in one namespace does
//!    not count in the others.

use dalsegno_core::{Admission, ChainHash, NamespaceId};

/// Bits per name and probes per lookup, for about 1.2% false positives in a full filter.
const BITS_PER_NAME: u64 = 10;
const PROBES: usize = 4;
/// Smallest generation, in 64-bit words.
const MIN_WORDS: usize = 16;

/// Decides for each block of a put whether it is written.
#[derive(Debug)]
pub struct AdmissionFilter {
    memory: Option<Memory>,
}

#[derive(Debug)]
struct Memory {
    young: Vec<u64>,
    old: Vec<u64>,
    /// Number of names in the young filter.
    names: u64,
    /// Number of names at which the filters swap.
    full_names: u64,
}

impl AdmissionFilter {
    /// A filter that uses about `memory_bytes` for [`Admission::SecondPut`] and nothing for
    /// [`Admission::All`].
    #[must_use]
    pub fn new(admission: Admission, memory_bytes: usize) -> Self {
        let memory = match admission {
            Admission::All => None,
            Admission::SecondPut => Some(Memory::new(memory_bytes)),
        };
        Self { memory }
    }

    /// Decides whether the block is written, and remembers this put.
    ///
    /// Call it in prefix order and write only the leading admitted blocks. A chain hash commits to all blocks before
    /// it, so a caller that puts a block for the second time has put its prefix twice as well.
    pub fn admit(&mut self, namespace: NamespaceId, hash: &ChainHash) -> bool {
        self.memory.as_mut().is_none_or(|memory| memory.saw_again(namespace, hash))
    }

    /// Bytes of memory in use.
    #[must_use]
    pub fn memory_bytes(&self) -> usize {
        self.memory.as_ref().map_or(0, |memory| (memory.young.len() + memory.old.len()) * 8)
    }

    /// How many different blocks may be put between the two puts of a block before the first put may be forgotten.
    #[must_use]
    pub fn remembered_blocks(&self) -> u64 {
        self.memory.as_ref().map_or(u64::MAX, |memory| memory.full_names)
    }
}

impl Memory {
    fn new(memory_bytes: usize) -> Self {
        let words = (memory_bytes / 2 / 8).max(MIN_WORDS);
        let full_names = words as u64 * 64 / BITS_PER_NAME;
        Self { young: vec![0; words], old: vec![0; words], names: 0, full_names }
    }

    fn saw_again(&mut self, namespace: NamespaceId, hash: &ChainHash) -> bool {
        let bits = bits_of(namespace, hash, self.young.len());
        let has = |filter: &[u64]| bits.iter().all(|(word, mask)| filter[*word] & mask != 0);
        if has(&self.young) {
            return true;
        }
        let seen = has(&self.old);
        if self.names == self.full_names {
            std::mem::swap(&mut self.young, &mut self.old);
            self.young.fill(0);
            self.names = 0;
        }
        for (word, mask) in bits {
            self.young[word] |= mask;
        }
        self.names += 1;
        debug_assert!(self.names <= self.full_names, "the young filter overflows");
        seen
    }
}

/// The (word, mask) pairs of a name, by double hashing.
fn bits_of(namespace: NamespaceId, hash: &ChainHash, words: usize) -> [(usize, u64); PROBES] {
    let digest = |seed| digest(&hash.0, digest(&namespace.0, seed));
    let (first, step) = (digest(0x9e37_79b9_7f4a_7c15), digest(0xd1b5_4a32_d192_ed03) | 1);
    std::array::from_fn(|probe| {
        let mixed = first.wrapping_add(step.wrapping_mul(probe as u64));
        // The high half of a product spreads evenly over any number of words, not only over powers of two.
        let wide = u128::from(mixed) * words as u128;
        let word = usize::try_from(wide >> 64).expect("less than the number of words");
        (word, 1 << (mixed & 63))
    })
}

/// Folds part of a name into 64 bits. Hashes of engines are evenly distributed; names made by a test or a tool are not.
fn digest(bytes: &[u8], seed: u64) -> u64 {
    bytes.chunks_exact(8).fold(seed, |state, chunk| {
        let word = u64::from_le_bytes(chunk.try_into().expect("eight bytes"));
        mix(state ^ word)
    })
}

/// The finalizer of `SplitMix64`.
fn mix(word: u64) -> u64 {
    let word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    word ^ (word >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    const NAMESPACE: NamespaceId = NamespaceId([7; 16]);

    fn name(number: u64) -> ChainHash {
        let mut hash = ChainHash::default();
        hash.0[..8].copy_from_slice(&number.to_le_bytes());
        hash
    }

    #[test]
    fn without_a_filter_every_block_is_written_and_no_memory_is_used() {
        let mut filter = AdmissionFilter::new(Admission::All, 1 << 20);
        assert!(filter.admit(NAMESPACE, &name(1)));
        assert_eq!(filter.memory_bytes(), 0);
    }

    #[test]
    fn the_second_put_is_written_and_so_is_every_later_one() {
        let mut filter = AdmissionFilter::new(Admission::SecondPut, 1 << 16);
        assert!(!filter.admit(NAMESPACE, &name(7)));
        assert!(filter.admit(NAMESPACE, &name(7)));
        assert!(filter.admit(NAMESPACE, &name(7)));
        assert!(!filter.admit(NAMESPACE, &name(8)));
    }

    #[test]
    fn regression_a_put_in_one_namespace_does_not_count_in_another() {
        let mut filter = AdmissionFilter::new(Admission::SecondPut, 1 << 16);
        for namespace in (0..16).map(|number| NamespaceId([number; 16])) {
            assert!(!filter.admit(namespace, &name(7)), "first put in {namespace}");
        }
        for namespace in (0..16).map(|number| NamespaceId([number; 16])) {
            assert!(filter.admit(namespace, &name(7)), "second put in {namespace}");
        }
    }

    #[test]
    fn a_block_is_remembered_for_at_least_one_filling_and_forgotten_after_two() {
        let mut filter = AdmissionFilter::new(Admission::SecondPut, 1 << 16);
        let between = filter.remembered_blocks();
        filter.admit(NAMESPACE, &name(0));
        (1..between).for_each(|i| {
            filter.admit(NAMESPACE, &name(i));
        });
        assert!(filter.admit(NAMESPACE, &name(0)), "one filling is remembered");
        (0..3 * between).for_each(|i| {
            filter.admit(NAMESPACE, &name(1_000_000 + i));
        });
        assert!(!filter.admit(NAMESPACE, &name(0)), "two fillings are not");
    }

    #[test]
    fn a_first_filling_has_at_most_two_percent_false_admissions() {
        for memory in [1 << 14, 100_000, 1 << 20] {
            let mut filter = AdmissionFilter::new(Admission::SecondPut, memory);
            let names = filter.remembered_blocks();
            let early = (0..names).filter(|i| filter.admit(NAMESPACE, &name(*i))).count() as u64;
            assert!(early * 50 < names, "{early} of {names} in {memory} bytes");
        }
    }

    #[test]
    fn memory_is_within_the_requested_size_or_the_minimum() {
        for bytes in [0, 1, 255, 4096, 1 << 20] {
            let filter = AdmissionFilter::new(Admission::SecondPut, bytes);
            assert!(filter.memory_bytes() <= bytes.max(2 * MIN_WORDS * 8), "{bytes}");
            assert!(filter.remembered_blocks() >= 100, "{bytes}");
        }
    }

    #[test]
    fn the_same_puts_give_the_same_decisions() {
        let run = || {
            let mut filter = AdmissionFilter::new(Admission::SecondPut, 512);
            (0..5000_u64).map(|i| filter.admit(NAMESPACE, &name(i * i % 777))).collect::<Vec<_>>()
        };
        assert_eq!(run(), run());
    }
}
