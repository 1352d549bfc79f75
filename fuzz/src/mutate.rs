//! Changes inputs at random, for runs that coverage does not guide.

/// Xorshift: one seed, one run.
#[derive(Debug)]
pub struct Random(u64);

impl Random {
    /// Starts with a seed.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        Self(seed ^ 0x9e37_79b9_7f4a_7c15)
    }

    /// The next bits.
    pub fn bits(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    /// A number below `end`.
    pub fn below(&mut self, end: usize) -> usize {
        usize::try_from(self.bits() % end.max(1) as u64).expect("it is below a usize")
    }
}

/// Numbers at the edges of what decoders accept.
const EDGES: [u64; 12] =
    [0, 1, 2, 127, 128, 255, 4095, 4096, 65_536, u32::MAX as u64, 1 << 63, u64::MAX];

/// Makes a new input from two.
#[must_use]
pub fn mutate(input: &[u8], other: &[u8], random: &mut Random) -> Vec<u8> {
    let mut out = input.to_vec();
    for _ in 0..=random.below(6) {
        change(&mut out, other, random);
    }
    out
}

fn change(out: &mut Vec<u8>, other: &[u8], random: &mut Random) {
    let at = random.below(out.len() + 1);
    let count = random.below(9) + 1;
    let edge = EDGES[random.below(EDGES.len())].to_le_bytes();
    match random.below(7) {
        0 => out.truncate(at),
        1 => drop(out.drain(at..(at + count).min(out.len()))),
        2 => out.splice(at..at, (0..count).map(|_| random.bits().to_le_bytes()[0])).for_each(drop),
        3 => overwrite(out, at, &edge[..count.min(8)]),
        4 => {
            let from = random.below(other.len() + 1);
            let piece = &other[from..(from + 8 * count).min(other.len())];
            overwrite(out, at, piece);
        }
        5 => out.splice(at..at, edge).for_each(drop),
        _ => {
            if let Some(byte) = out.get_mut(at) {
                *byte ^= 1 << random.below(8);
            }
        }
    }
}

fn overwrite(out: &mut [u8], at: usize, with: &[u8]) {
    out[at..].iter_mut().zip(with).for_each(|(byte, with)| *byte = *with);
}
