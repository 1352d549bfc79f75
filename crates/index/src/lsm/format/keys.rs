//! Keys and values of `docs/formats/index.md`, encoded and decoded; no I/O.
//!
//! 1. Decoders never panic and never trust a length before it was checked against what is there.
//! 2. The order of encoded keys is the order of (kind, namespace, lineage, first block, sequence).

use std::sync::Arc;

use dalsegno_core::{
    ChainHash, Extent, ExtentId, KvLayout, Location, MAX_EXTENT_BLOCKS, NamespaceId, SECTOR_BYTES,
};

use crate::lsm::format::varint;

/// Bytes of a hash in a record.
pub(crate) const HASH_BYTES: usize = 32;
/// Bytes of a hash in a key.
const SHORT: usize = 16;
/// A header has at most 64 sectors. The sectors of a compressed payload are stored in the bits above.
const PAYLOAD_UNIT: u64 = 128;
/// Bytes of an order key without its sequence: the place where an extent begins.
pub(crate) const PLACE_BYTES: usize = 37;
/// Bytes of an order key that all extents of a lineage share.
pub(crate) const LINEAGE_BYTES: usize = 33;
pub(crate) const KIND_FORK: u8 = b'f';
pub(crate) const KIND_ORDER: u8 = b'o';
pub(crate) const KIND_POINT: u8 = b'p';

/// The key of an extent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct OrderKey {
    pub(crate) namespace: NamespaceId,
    pub(crate) lineage: [u8; SHORT],
    pub(crate) first: u32,
    pub(crate) sequence: u64,
}

/// The key of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct PointKey {
    pub(crate) namespace: NamespaceId,
    pub(crate) hash: [u8; SHORT],
}

/// The key of a lineage that forks off another one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct ForkKey {
    pub(crate) namespace: NamespaceId,
    pub(crate) lineage: [u8; SHORT],
    pub(crate) block: u32,
    pub(crate) child: [u8; SHORT],
}

/// Where a block is stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Point {
    pub(crate) lineage: [u8; SHORT],
    pub(crate) first: u32,
    pub(crate) sequence: u64,
    pub(crate) block: u32,
    pub(crate) segment: u64,
    pub(crate) epoch: u64,
}

/// An extent, and which of its blocks point to it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Record {
    pub(crate) extent: Arc<Extent>,
    pub(crate) live: LiveBlocks,
}

/// One bit per block.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct LiveBlocks(Vec<u8>);

pub(crate) fn short(hash: &ChainHash) -> [u8; SHORT] {
    *hash.0.first_chunk().expect("a hash is longer")
}

/// The part of a key that filters know. Of an order key that is its place: a lookup often does not know the sequence.
pub(crate) fn filtered(key: &[u8]) -> &[u8] {
    match key {
        [KIND_ORDER, ..] => &key[..key.len().min(PLACE_BYTES)],
        _ => key,
    }
}

/// Filters also know the lineage of an order key, so that a walk along a lineage queries each filter once.
pub(crate) fn lineage_of(key: &[u8]) -> Option<&[u8]> {
    key.get(..LINEAGE_BYTES).filter(|lineage| lineage[0] == KIND_ORDER)
}

impl OrderKey {
    pub(crate) fn of(extent: &Extent) -> Self {
        Self {
            namespace: extent.namespace,
            lineage: short(&extent.lineage),
            first: extent.first_block_index,
            sequence: extent.id.0,
        }
    }

    pub(crate) fn encode(&self) -> [u8; 45] {
        let mut key = [KIND_ORDER; 45];
        key[1..17].copy_from_slice(&self.namespace.0);
        key[17..33].copy_from_slice(&self.lineage);
        key[33..37].copy_from_slice(&self.first.to_be_bytes());
        key[37..].copy_from_slice(&self.sequence.to_be_bytes());
        key
    }

    pub(crate) fn decode(key: &[u8]) -> Option<Self> {
        let mut reader = Reader(key);
        (reader.array::<1>()? == [KIND_ORDER]).then_some(())?;
        let key = Self {
            namespace: NamespaceId(reader.array()?),
            lineage: reader.array()?,
            first: u32::from_be_bytes(reader.array()?),
            sequence: u64::from_be_bytes(reader.array()?),
        };
        reader.0.is_empty().then_some(key)
    }
}

impl PointKey {
    pub(crate) fn of(namespace: NamespaceId, hash: &ChainHash) -> Self {
        Self { namespace, hash: short(hash) }
    }

    pub(crate) fn encode(&self) -> [u8; 33] {
        let mut key = [KIND_POINT; 33];
        key[1..17].copy_from_slice(&self.namespace.0);
        key[17..].copy_from_slice(&self.hash);
        key
    }
}

impl ForkKey {
    pub(crate) fn encode(&self) -> [u8; 53] {
        let mut key = [KIND_FORK; 53];
        key[1..17].copy_from_slice(&self.namespace.0);
        key[17..33].copy_from_slice(&self.lineage);
        key[33..37].copy_from_slice(&self.block.to_be_bytes());
        key[37..].copy_from_slice(&self.child);
        key
    }

    pub(crate) fn decode(key: &[u8]) -> Option<Self> {
        let mut reader = Reader(key);
        (reader.array::<1>()? == [KIND_FORK]).then_some(())?;
        let key = Self {
            namespace: NamespaceId(reader.array()?),
            lineage: reader.array()?,
            block: u32::from_be_bytes(reader.array()?),
            child: reader.array()?,
        };
        reader.0.is_empty().then_some(key)
    }
}

impl Point {
    pub(crate) fn order_key(&self, namespace: NamespaceId) -> OrderKey {
        OrderKey { namespace, lineage: self.lineage, first: self.first, sequence: self.sequence }
    }

    pub(crate) fn encode(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.lineage);
        let rest =
            [u64::from(self.first), self.sequence, u64::from(self.block), self.segment, self.epoch];
        for field in rest {
            varint::put(out, field);
        }
    }

    pub(crate) fn decode(value: &[u8]) -> Option<Self> {
        let mut reader = Reader(value);
        let point = Self {
            lineage: reader.array()?,
            first: reader.small()?,
            sequence: reader.varint()?,
            block: reader.small()?,
            segment: reader.varint()?,
            epoch: reader.varint()?,
        };
        reader.0.is_empty().then_some(point)
    }

    /// Segment and epoch in the value of a point: all that a compaction needs of it.
    pub(crate) fn place(value: &[u8]) -> Option<(u64, u64)> {
        let mut reader = Reader(value);
        reader.bytes(SHORT)?;
        for _ in ["first", "sequence", "block"] {
            reader.varint()?;
        }
        Some((reader.varint()?, reader.varint()?))
    }
}

impl LiveBlocks {
    pub(crate) fn none(count: u32) -> Self {
        Self(vec![0; count.div_ceil(8) as usize])
    }

    pub(crate) fn set(&mut self, block: u32, live: bool) {
        let (byte, bit) = (&mut self.0[(block / 8) as usize], 1 << (block % 8));
        *byte = if live { *byte | bit } else { *byte & !bit };
    }

    pub(crate) fn get(&self, block: u32) -> bool {
        self.0[(block / 8) as usize] >> (block % 8) & 1 == 1
    }

    pub(crate) fn count(&self) -> u32 {
        self.0.iter().map(|byte| byte.count_ones()).sum()
    }
}

impl Record {
    /// The first block number after the extent in its lineage.
    pub(crate) fn end(&self) -> u32 {
        self.extent.first_block_index.saturating_add(self.extent.block_count())
    }

    /// Appends the value of the extent's order entry.
    pub(crate) fn encode_to(&self, out: &mut Vec<u8>) {
        let extent = &self.extent;
        let Location { segment, epoch, offset, header_bytes, compressed_bytes } = extent.location;
        out.reserve(96 + 33 * extent.hashes.len());
        let fields = [
            extent.born,
            segment,
            epoch,
            offset / SECTOR_BYTES,
            u64::from(header_bytes) / SECTOR_BYTES + compressed_bytes / SECTOR_BYTES * PAYLOAD_UNIT,
            u64::from(extent.layout.layers()),
            u64::from(extent.layout.slice_bytes()),
        ];
        for field in fields {
            varint::put(out, field);
        }
        out.extend_from_slice(&extent.lineage.0[SHORT..]);
        out.extend_from_slice(&extent.parent.0);
        varint::put(out, u64::from(extent.block_count()));
        out.extend_from_slice(&self.live.0);
        extent.hashes.iter().for_each(|hash| out.extend_from_slice(&hash.0));
    }

    /// Reads the value of an order entry. An empty value marks a removed extent and is not decoded here.
    pub(crate) fn decode(key: &OrderKey, value: &[u8]) -> Option<Self> {
        let mut reader = Reader(value);
        let (born, segment, epoch) = (reader.varint()?, reader.varint()?, reader.varint()?);
        let offset = reader.varint()?.checked_mul(SECTOR_BYTES)?;
        let sectors = reader.varint()?;
        let header_bytes = sectors % PAYLOAD_UNIT * SECTOR_BYTES;
        let compressed_bytes = (sectors / PAYLOAD_UNIT).checked_mul(SECTOR_BYTES)?;
        let layout = KvLayout::new(reader.small()?, reader.small()?).ok()?;
        let mut lineage = [0; 32];
        lineage[..SHORT].copy_from_slice(&key.lineage);
        lineage[SHORT..].copy_from_slice(&reader.array::<SHORT>()?);
        let parent = ChainHash(reader.array()?);
        let count = reader.small().filter(|count| (1..=MAX_EXTENT_BLOCKS).contains(count))?;
        let live = LiveBlocks(reader.bytes(count.div_ceil(8) as usize)?.to_vec());
        let beyond = count % 8 != 0 && live.0.last()? >> (count % 8) != 0;
        let (hashes, rest) = reader.bytes(count as usize * 32)?.as_chunks::<32>();
        if beyond || !rest.is_empty() || !reader.0.is_empty() {
            return None;
        }
        let extent = Extent {
            id: ExtentId(key.sequence),
            born,
            namespace: key.namespace,
            lineage: ChainHash(lineage),
            first_block_index: key.first,
            parent,
            layout,
            location: Location {
                segment,
                epoch,
                offset,
                header_bytes: u32::try_from(header_bytes).ok()?,
                compressed_bytes,
            },
            hashes: hashes.iter().copied().map(ChainHash).collect(),
        };
        extent.is_sound().then(|| Self { extent: Arc::new(extent), live })
    }

    /// Segment and epoch in the value of an order entry: all that a compaction needs of it.
    pub(crate) fn place(value: &[u8]) -> Option<(u64, u64)> {
        let mut reader = Reader(value);
        reader.varint()?;
        Some((reader.varint()?, reader.varint()?))
    }
}

/// Reads fields one after the other; `None` when no bytes are left.
struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    fn bytes(&mut self, count: usize) -> Option<&'a [u8]> {
        let (head, tail) = self.0.split_at_checked(count)?;
        self.0 = tail;
        Some(head)
    }

    fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        self.bytes(N)?.try_into().ok()
    }

    fn varint(&mut self) -> Option<u64> {
        varint::take(&mut self.0)
    }

    fn small(&mut self) -> Option<u32> {
        u32::try_from(self.varint()?).ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn record(blocks: u32, seed: u64) -> Record {
        let hash = |number: u64| {
            let mut bytes = [7; 32];
            bytes[..8].copy_from_slice(&(seed ^ number << 32).to_le_bytes());
            bytes[24..].copy_from_slice(&number.to_le_bytes());
            ChainHash(bytes)
        };
        let mut live = LiveBlocks::none(blocks);
        (0..blocks).filter(|block| seed >> (block % 64) & 1 == 1).for_each(|b| live.set(b, true));
        let extent = Extent {
            id: ExtentId(seed),
            born: seed / 2,
            namespace: NamespaceId([3; 16]),
            lineage: hash(1000),
            first_block_index: blocks,
            parent: hash(2000),
            layout: KvLayout::new(3, 4096).unwrap(),
            location: Location {
                segment: seed >> 40,
                epoch: 5,
                offset: 4096 * (seed >> 50),
                header_bytes: 8192,
                compressed_bytes: seed % 3 * 4096,
            },
            hashes: (0..u64::from(blocks)).map(hash).collect(),
        };
        Record { extent: Arc::new(extent), live }
    }

    proptest! {
        #[test]
        fn records_round_trip_and_wrong_lengths_are_rejected(
            blocks in 1_u32..70, seed: u64, cut: prop::sample::Index,
        ) {
            let record = record(blocks, seed);
            let key = OrderKey::of(&record.extent);
            prop_assert_eq!(OrderKey::decode(&key.encode()), Some(key));
            let mut value = Vec::new();
            record.encode_to(&mut value);
            prop_assert_eq!(Record::decode(&key, &value), Some(record.clone()));
            let location = record.extent.location;
            prop_assert_eq!(Record::place(&value), Some((location.segment, location.epoch)));
            prop_assert_eq!(Record::decode(&key, &value[..cut.index(value.len())]), None);
            value.push(0);
            prop_assert_eq!(Record::decode(&key, &value), None);
            let OrderKey { lineage, first, sequence, .. } = key;
            let (segment, epoch) = (location.segment, location.epoch);
            let point = Point { lineage, first, sequence, block: blocks - 1, segment, epoch };
            let mut value = Vec::new();
            point.encode(&mut value);
            prop_assert_eq!(Point::decode(&value), Some(point));
            prop_assert_eq!(point.order_key(record.extent.namespace), key);
            prop_assert_eq!(Point::decode(&value[..cut.index(value.len())]), None);
        }

        #[test]
        fn decoding_garbage_never_panics(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            let key = OrderKey::of(&record(1, 1).extent);
            let _ = (Record::decode(&key, &bytes), Point::decode(&bytes), Record::place(&bytes));
            let _ = (OrderKey::decode(&bytes), ForkKey::decode(&bytes));
        }

        #[test]
        fn encoded_keys_sort_like_their_fields(
            one in (any::<[u8; 2]>(), any::<u32>(), any::<u64>()),
            two in (any::<[u8; 2]>(), any::<u32>(), any::<u64>()),
        ) {
            let key = |([namespace, lineage], first, sequence): ([u8; 2], u32, u64)| OrderKey {
                namespace: NamespaceId([namespace; 16]), lineage: [lineage; 16], first, sequence,
            };
            let (one, two) = (key(one), key(two));
            prop_assert_eq!(one.encode().cmp(&two.encode()), one.cmp(&two));
        }
    }
}
