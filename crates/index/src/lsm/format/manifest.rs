//! The manifest of `docs/formats/index.md`: one version of the tree, encoded and decoded without I/O.
//!
//! 1. Decoders never panic and never trust a length before it was checked against what is there.

use dalsegno_core::{COUNT_LIMIT, SECTOR_BYTES, Shape, StoreId};

use crate::lsm::format::varint;
use crate::usage::SegmentSum;

const SECTOR: usize = 4096;
const MAGIC: [u8; 8] = *b"DSGNMANI";
const VERSION: u32 = 1;
/// No tree has more levels; a manifest with more is damaged.
const MAX_LEVELS: u64 = 64;

/// Name of a manifest's file.
pub(crate) fn manifest_file(number: u64) -> String {
    format!("index-{number:016x}.manifest")
}

/// The contents of a manifest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Manifest {
    pub(crate) store: StoreId,
    pub(crate) number: u64,
    pub(crate) next_number: u64,
    pub(crate) shape: Shape,
    /// Numbers of tables by level and run, the newest runs first.
    pub(crate) levels: Vec<Vec<Vec<u64>>>,
    pub(crate) segments: Vec<SegmentSum>,
    /// What of the log the tables cover, in the log's own form.
    pub(crate) checkpoint: Vec<u8>,
    /// Whether tables of points were dropped.
    pub(crate) is_partial: bool,
}

impl Manifest {
    /// The whole file.
    pub(crate) fn encode(&self) -> Vec<u8> {
        let body = self.body();
        let file_bytes = (SECTOR + body.len()).next_multiple_of(SECTOR);
        let mut out = Vec::with_capacity(file_bytes);
        out.extend_from_slice(&MAGIC);
        out.extend_from_slice(&VERSION.to_le_bytes());
        out.extend_from_slice(&4096_u32.to_le_bytes());
        out.extend_from_slice(&self.store.0);
        for field in [self.number, file_bytes as u64, body.len() as u64, self.next_number] {
            out.extend_from_slice(&field.to_le_bytes());
        }
        let levels = u32::try_from(self.levels.len()).expect("a few levels");
        let shape = [self.shape.size_ratio(), self.shape.runs(), self.shape.last_runs()];
        for field in shape.into_iter().chain([levels]) {
            out.extend_from_slice(&field.to_le_bytes());
        }
        out.extend_from_slice(&(self.checkpoint.len() as u64).to_le_bytes());
        out.extend_from_slice(&u32::from(self.is_partial).to_le_bytes());
        out.resize(SECTOR - 8, 0);
        out.extend_from_slice(&dalsegno_core::crc32c(&body).to_le_bytes());
        out.extend_from_slice(&dalsegno_core::crc32c(&out).to_le_bytes());
        out.extend_from_slice(&body);
        out.resize(file_bytes, 0);
        out
    }

    fn body(&self) -> Vec<u8> {
        let mut body = Vec::new();
        for runs in &self.levels {
            varint::put(&mut body, runs.len() as u64);
            for tables in runs {
                varint::put(&mut body, tables.len() as u64);
                for table in tables {
                    varint::put(&mut body, *table);
                }
            }
        }
        varint::put(&mut body, self.segments.len() as u64);
        for sum in &self.segments {
            let [low, high] = halves(sum.weight);
            for field in
                [sum.segment, sum.epoch, sum.extents, sum.blocks, sum.live_bytes, low, high]
            {
                varint::put(&mut body, field);
            }
        }
        body.extend_from_slice(&self.checkpoint);
        body
    }

    /// Reads a whole file, or returns the reason why it cannot.
    pub(crate) fn decode(file: &[u8]) -> Result<Self, &'static str> {
        let header = file.first_chunk::<SECTOR>().ok_or("it is truncated")?;
        let u32_at = |at: usize| u32::from_le_bytes(*header[at..].first_chunk().expect("inside"));
        let u64_at = |at: usize| u64::from_le_bytes(*header[at..].first_chunk().expect("inside"));
        if header[..8] != MAGIC {
            return Err("the magic number is wrong");
        }
        if u32_at(4092) != dalsegno_core::crc32c(&header[..4092]) {
            return Err("the header's checksum does not match");
        }
        if u32_at(8) != VERSION
            || u32_at(12) != 4096
            || u32_at(88) > 1
            || header[92..4088].iter().any(|b| *b != 0)
        {
            return Err("the version is unknown");
        }
        let body_bytes = usize::try_from(u64_at(48)).map_err(|_| "a length is not allowed")?;
        let (body, rest) = file[SECTOR..].split_at_checked(body_bytes).ok_or("it is truncated")?;
        if u64_at(40) != file.len() as u64
            || !(file.len() as u64).is_multiple_of(SECTOR_BYTES)
            || rest.len() >= SECTOR
            || rest.iter().any(|byte| *byte != 0)
        {
            return Err("the file has the wrong length");
        }
        if u32_at(4088) != dalsegno_core::crc32c(body) {
            return Err("the body's checksum does not match");
        }
        let mut reader = body;
        let levels =
            read_levels(&mut reader, u64::from(u32_at(76))).ok_or("the levels are damaged")?;
        let segments = read_segments(&mut reader).ok_or("the segments are damaged")?;
        if u64_at(80) != reader.len() as u64 {
            return Err("a length is not allowed");
        }
        if u64_at(32).max(u64_at(56)) >= COUNT_LIMIT {
            return Err("a number is not allowed");
        }
        let shape = Shape::nearest(u32_at(64), u32_at(68), u32_at(72));
        Ok(Self {
            store: StoreId(*header[16..].first_chunk().expect("inside")),
            number: u64_at(32),
            next_number: u64_at(56),
            shape,
            levels,
            segments,
            checkpoint: reader.to_vec(),
            is_partial: u32_at(88) == 1,
        })
    }
}

fn halves(sum: u128) -> [u64; 2] {
    let half = |shift: u32| u64::try_from(sum >> shift & u128::from(u64::MAX)).expect("masked");
    [half(0), half(64)]
}

fn read_levels(reader: &mut &[u8], count: u64) -> Option<Vec<Vec<Vec<u64>>>> {
    (count <= MAX_LEVELS).then_some(())?;
    let mut levels = Vec::new();
    for _ in 0..count {
        let mut runs = Vec::new();
        for _ in 0..varint::take(reader)? {
            let mut tables = Vec::new();
            for _ in 0..varint::take(reader)? {
                tables.push(varint::take(reader)?);
            }
            runs.push(tables);
        }
        levels.push(runs);
    }
    Some(levels)
}

fn read_segments(reader: &mut &[u8]) -> Option<Vec<SegmentSum>> {
    let mut segments = Vec::new();
    for _ in 0..varint::take(reader)? {
        let mut field = || varint::take(reader);
        let mut count = || field().filter(|count| *count < COUNT_LIMIT);
        segments.push(SegmentSum {
            segment: count()?,
            epoch: count()?,
            extents: field()?,
            blocks: field()?,
            live_bytes: field()?,
            weight: u128::from(field()?) | u128::from(field()?) << 64,
        });
    }
    Some(segments)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn manifest() -> Manifest {
        let sum = SegmentSum {
            segment: 4,
            epoch: 2,
            extents: 10,
            blocks: 300,
            live_bytes: 1 << 33,
            weight: 7 << 70 | 5,
        };
        Manifest {
            store: StoreId([5; 16]),
            number: 9,
            next_number: 31,
            shape: Shape::new(6, 2, 1).unwrap(),
            levels: vec![vec![vec![30], vec![29]], vec![], vec![vec![7, 8, 300]]],
            segments: vec![sum, SegmentSum::default()],
            checkpoint: vec![1, 2, 3],
            is_partial: true,
        }
    }

    #[test]
    fn a_manifest_round_trips_and_every_flipped_bit_is_detected() {
        let file = manifest().encode();
        assert_eq!(Manifest::decode(&file), Ok(manifest()));
        for bit in 0..file.len() * 8 {
            let mut damaged = file.clone();
            damaged[bit / 8] ^= 1 << (bit % 8);
            assert!(Manifest::decode(&damaged).is_err(), "bit {bit}");
        }
        for length in 0..file.len() {
            assert!(Manifest::decode(&file[..length]).is_err(), "{length} bytes");
        }
    }

    #[test]
    fn segment_numbers_beyond_the_count_limit_are_rejected() {
        let with = |segment, epoch| {
            let sum = SegmentSum { segment, epoch, ..SegmentSum::default() };
            Manifest::decode(&Manifest { segments: vec![sum], ..manifest() }.encode())
        };
        assert!(with(COUNT_LIMIT - 1, COUNT_LIMIT - 1).is_ok());
        assert!(with(COUNT_LIMIT, 1).is_err() && with(1, u64::MAX).is_err());
        let next_number = u64::MAX;
        assert!(Manifest::decode(&Manifest { next_number, ..manifest() }.encode()).is_err());
    }
}
