//! What every engine is asked: chains of blocks, put in extents, found again.

use dalsegno_core::{ChainHash, Extent, ExtentId, KvLayout, Location, NamespaceId};

/// Blocks of a chain.
pub const CHAIN_BLOCKS: u64 = 512;
/// Blocks that are put at a time.
pub const EXTENT_BLOCKS: u64 = 64;
/// Who owns them.
pub const NAMESPACE: NamespaceId = NamespaceId([7; 16]);
/// Bytes of a baseline's key and value: what it takes to name a block in its order, and to find it.
pub const KEY_BYTES: usize = 80;
/// See [`KEY_BYTES`].
pub const VALUE_BYTES: usize = 32;

/// Spreads a number's bits.
pub fn mix(mut bits: u64) -> u64 {
    bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    bits ^ (bits >> 31)
}

/// The hash of a block: spread like a cryptographic one.
pub fn hash(block: u64) -> ChainHash {
    let mut bytes = [0; 32];
    for (word, part) in (1_u64..).zip(bytes.chunks_exact_mut(8)) {
        part.copy_from_slice(
            &mix(block.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ mix(word)).to_le_bytes(),
        );
    }
    ChainHash(bytes)
}

/// A number of a sequence of random ones.
pub fn random(seed: u64) -> u64 {
    mix(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ 0xd1b5_4a32_d192_ed03)
}

/// The hashes of blocks.
pub fn hashes(blocks: std::ops::Range<u64>) -> Vec<ChainHash> {
    blocks.map(hash).collect()
}

/// The extent that begins with a block, a multiple of [`EXTENT_BLOCKS`].
pub fn extent(first: u64) -> Extent {
    let chain = first / CHAIN_BLOCKS * CHAIN_BLOCKS;
    let number = first / EXTENT_BLOCKS + 1;
    let parent = if first == chain { ChainHash::default() } else { hash(first - 1) };
    Extent {
        id: ExtentId(number),
        born: number,
        namespace: NAMESPACE,
        lineage: hash(chain),
        first_block_index: u32::try_from(first - chain).expect("within a chain"),
        parent,
        layout: KvLayout::new(32, 4096).expect("a valid layout"),
        location: Location {
            segment: number / 32,
            epoch: 1,
            offset: 4096 * number,
            header_bytes: 12_288,
            compressed_bytes: 0,
        },
        hashes: hashes(first..first + EXTENT_BLOCKS),
    }
}

/// A baseline's key of a block: namespace, lineage, place in it, and half of the hash.
pub fn key(block: u64) -> [u8; KEY_BYTES] {
    let chain = block / CHAIN_BLOCKS * CHAIN_BLOCKS;
    let mut key = [0; KEY_BYTES];
    key[..16].copy_from_slice(&NAMESPACE.0);
    key[16..48].copy_from_slice(&hash(chain).0);
    key[48..56].copy_from_slice(&(block - chain).to_be_bytes());
    key[56..80].copy_from_slice(&hash(block).0[..24]);
    key
}

/// A baseline's value of a block.
pub fn value(block: u64) -> [u8; VALUE_BYTES] {
    hash(block ^ 1 << 63).0
}

/// The value below which this share of all lies.
pub fn percentile(mut values: Vec<f64>, share: f64) -> f64 {
    values.sort_by(f64::total_cmp);
    values[((values.len() as f64 * share) as usize).min(values.len() - 1)]
}

/// The machine's load.
pub fn load() -> f64 {
    let text = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
    text.split(' ').next().and_then(|first| first.parse().ok()).unwrap_or(f64::NAN)
}
