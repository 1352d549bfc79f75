//! Compression of a unit: up to 128 KiB of one layer's row.
//!
//! The codec splits the bytes into planes by their place in an element, and stores each plane as a zstd frame if that
//! is shorter. In a bf16, the upper byte holds sign and exponent, which repeat; the lower one holds mantissa, which
//! does not. The format is "Compressed extent" in docs/formats/log.md.
//!
//! 1. Compression is lossless for all bytes and all widths of an element.
//! 2. A stored unit is shorter than its raw bytes, or equal to them: its length says which.
//! 3. The decoder never panics, and never writes or allocates more than the unit's raw length, whatever its input.

use zstd::bulk::{Compressor, Decompressor};
use zstd::zstd_safe::CParameter;

use crate::format::FormatError;

/// The fastest level with entropy coding, which is all that exponents need.
const LEVEL: i32 = 1;
/// Short repeats among exponents are chance, and encoding them costs more than it saves. A search for long repeats
/// only, in a table of 256 entries, is twice as fast both ways as the level's defaults and shrinks 1.5 percent more.
const REPEATS: [CParameter; 2] = [CParameter::MinMatch(7), CParameter::HashLog(8)];
/// Bytes of a plane that the codec samples to decide whether it tries to compress.
const SAMPLE_BYTES: usize = 4096;
/// A plane with more bits of information per byte than this stays raw.
const MOST_BITS: f32 = 7.6;
const DAMAGED: FormatError = FormatError::Field("unit");

/// Compresses and decompresses units. It keeps its working memory, about 1 MiB.
pub struct UnitCodec {
    compressor: Compressor<'static>,
    decompressor: Decompressor<'static>,
    planes: Vec<u8>,
    packed: Vec<u8>,
    /// A buffer for callers that copy parts of a decompressed unit.
    pub(crate) raw: Vec<u8>,
}

impl Default for UnitCodec {
    fn default() -> Self {
        Self::new()
    }
}

impl UnitCodec {
    /// A codec that has not worked yet.
    #[must_use]
    pub fn new() -> Self {
        // Both fail only for lack of memory.
        let mut compressor = Compressor::new(LEVEL).expect("a level that exists");
        for parameter in REPEATS {
            compressor.set_parameter(parameter).expect("within its bounds");
        }
        let decompressor = Decompressor::new().expect("no dictionary is loaded");
        Self { compressor, decompressor, planes: Vec::new(), packed: Vec::new(), raw: Vec::new() }
    }

    /// Appends the unit to `out`, in its stored form.
    pub fn encode(&mut self, raw: &[u8], width: usize, out: &mut Vec<u8>) {
        let start = out.len();
        self.planes.resize(raw.len(), 0);
        split(raw, width, &mut self.planes);
        out.resize(start + 4 * width, 0);
        let mut rest = &self.planes[..];
        for number in 0..width {
            let (plane, tail) = rest.split_at(plane_bytes(raw.len(), width, number));
            rest = tail;
            // The buffer is shorter than the plane: a frame that does not fit did not shrink it.
            self.packed.resize(plane.len().saturating_sub(1), 0);
            let packed = if is_hopeless(plane, width) {
                None
            } else {
                self.compressor.compress_to_buffer(plane, &mut self.packed[..]).ok()
            };
            out.extend_from_slice(packed.map_or(plane, |bytes| &self.packed[..bytes]));
            let stored = u32::try_from(packed.unwrap_or(plane.len())).expect("units are small");
            out[start + 4 * number..][..4].copy_from_slice(&stored.to_le_bytes());
        }
        if out.len() - start >= raw.len() {
            out.truncate(start);
            out.extend_from_slice(raw);
        }
    }

    /// Decompresses a stored unit into `raw`, whose length is the unit's raw length.
    ///
    /// # Errors
    ///
    /// [`FormatError::Field`] if the bytes are no such unit. The contents of `raw` are undefined then.
    pub fn decode(
        &mut self,
        stored: &[u8],
        width: usize,
        raw: &mut [u8],
    ) -> Result<(), FormatError> {
        if stored.len() == raw.len() {
            raw.copy_from_slice(stored);
            return Ok(());
        }
        let (head, mut rest) = stored.split_at_checked(4 * width).ok_or(DAMAGED)?;
        self.planes.resize(raw.len(), 0);
        let mut free = &mut self.planes[..];
        for (number, length) in head.as_chunks::<4>().0.iter().enumerate() {
            let (plane, tail) = free.split_at_mut(plane_bytes(raw.len(), width, number));
            free = tail;
            let length = usize::try_from(u32::from_le_bytes(*length)).map_err(|_| DAMAGED)?;
            let (packed, behind) = rest.split_at_checked(length).ok_or(DAMAGED)?;
            rest = behind;
            if length == plane.len() {
                plane.copy_from_slice(packed);
            } else if length > plane.len()
                || self.decompressor.decompress_to_buffer(packed, plane).ok() != Some(plane.len())
            {
                return Err(DAMAGED);
            }
        }
        if !rest.is_empty() {
            return Err(DAMAGED);
        }
        join(&self.planes, width, raw);
        Ok(())
    }
}

/// How many of `bytes` bytes belong to plane `number` of `width`.
fn plane_bytes(bytes: usize, width: usize, number: usize) -> usize {
    (bytes + width - 1).saturating_sub(number) / width
}

/// Sorts bytes by their place in an element: all first bytes, then all second bytes, and so on.
fn split(raw: &[u8], width: usize, planes: &mut [u8]) {
    if width == 1 {
        planes.copy_from_slice(raw);
        return;
    }
    if width == 2 {
        // Unrolled, so that the compiler vectorizes it: 16 elements at a time.
        let (low, high) = planes.split_at_mut(plane_bytes(raw.len(), 2, 0));
        let pairs = raw.as_chunks::<2>();
        for ((pair, low), high) in pairs.0.iter().zip(low.iter_mut()).zip(high) {
            (*low, *high) = (pair[0], pair[1]);
        }
        if let ([odd], Some(last)) = (pairs.1, low.last_mut()) {
            *last = *odd;
        }
        return;
    }
    let mut rest = planes;
    for number in 0..width {
        let (plane, tail) = rest.split_at_mut(plane_bytes(raw.len(), width, number));
        rest = tail;
        for (byte, from) in plane.iter_mut().zip(raw.iter().skip(number).step_by(width)) {
            *byte = *from;
        }
    }
}

/// Undoes [`split`].
fn join(planes: &[u8], width: usize, raw: &mut [u8]) {
    if width == 1 {
        raw.copy_from_slice(planes);
        return;
    }
    if width == 2 {
        let (low, high) = planes.split_at(plane_bytes(raw.len(), 2, 0));
        let pairs = raw.as_chunks_mut::<2>();
        for ((pair, low), high) in pairs.0.iter_mut().zip(low).zip(high) {
            *pair = [*low, *high];
        }
        if let ([odd], Some(last)) = (pairs.1, low.last()) {
            *odd = *last;
        }
        return;
    }
    let mut rest = planes;
    for number in 0..width {
        let (plane, tail) = rest.split_at(plane_bytes(raw.len(), width, number));
        rest = tail;
        for (byte, to) in plane.iter().zip(raw.iter_mut().skip(number).step_by(width)) {
            *to = *byte;
        }
    }
}

/// Whether a plane looks like noise. Trying to compress the planes of mantissas takes a third of the total time and
/// saves nothing.
fn is_hopeless(plane: &[u8], width: usize) -> bool {
    if width == 1 || plane.len() < 2 * SAMPLE_BYTES {
        return false;
    }
    let mut counts = [0_u16; 256];
    let step = plane.len() / SAMPLE_BYTES;
    for byte in plane.iter().step_by(step).take(SAMPLE_BYTES) {
        counts[usize::from(*byte)] += 1;
    }
    let total = f32::from(u16::try_from(SAMPLE_BYTES).expect("a small number"));
    let shares = counts.iter().filter(|count| **count > 0).map(|count| f32::from(*count) / total);
    -shares.map(|share| share * share.log2()).sum::<f32>() > MOST_BITS
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn raw() -> impl Strategy<Value = Vec<u8>> {
        let noise = prop::collection::vec(any::<u8>(), 1..3000);
        let narrow = prop::collection::vec(60_u8..68, 1..20_000);
        let numbers = prop::collection::vec(-1.0_f32..1.0, 1..9000).prop_map(|all| {
            all.into_iter().flat_map(|x| [x.to_le_bytes()[2], x.to_le_bytes()[3]]).collect()
        });
        prop_oneof![noise, narrow, numbers]
    }

    fn width() -> impl Strategy<Value = usize> {
        prop::sample::select(vec![1_usize, 2, 4])
    }

    proptest! {
        #[test]
        fn every_unit_decompresses_to_its_bytes_and_never_grows(
            raw in raw(), width in width(), before in 0_usize..3,
        ) {
            let mut codec = UnitCodec::new();
            let mut out = vec![7; before];
            codec.encode(&raw, width, &mut out);
            let stored = &out[before..];
            prop_assert!(stored.len() <= raw.len());
            let mut back = vec![0xee; raw.len()];
            prop_assert_eq!(codec.decode(stored, width, &mut back), Ok(()));
            prop_assert_eq!(back, raw);
        }

        #[test]
        fn damaged_units_never_panic_and_fill_at_most_their_raw_length(
            raw in raw(), width in width(), other in width(), cut: prop::sample::Index,
            flips in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..6),
            length in 1_usize..4000,
        ) {
            let mut codec = UnitCodec::new();
            let mut stored = Vec::new();
            codec.encode(&raw, width, &mut stored);
            for (at, value) in flips {
                let at = at.index(stored.len());
                stored[at] = value;
            }
            stored.truncate(1 + cut.index(stored.len()));
            let mut back = vec![0; length];
            let _ = codec.decode(&stored, other, &mut back);
        }
    }

    #[test]
    fn bf16_shrinks_by_its_upper_bytes_and_noise_does_not_shrink() {
        let mut codec = UnitCodec::new();
        let numbers = (0_u32..32_768).map(|i| {
            let noise = i.wrapping_mul(2_654_435_761) >> 16;
            [noise.to_le_bytes()[0], 0x3c + (noise >> 8 & 3).to_le_bytes()[0]]
        });
        let raw: Vec<u8> = numbers.flatten().collect();
        let mut stored = Vec::new();
        codec.encode(&raw, 2, &mut stored);
        assert!(stored.len() * 13 < raw.len() * 10, "{} of {}", stored.len(), raw.len());
        assert!(is_hopeless(&raw.iter().step_by(2).copied().collect::<Vec<_>>(), 2));
        // Sums of squares modulo a prime: all bytes are equally likely, and no plane repeats.
        let noise: Vec<u8> =
            (0_u64..65_536).map(|i| ((i * i % 65_521 * 40_503) >> 9).to_le_bytes()[0]).collect();
        stored.clear();
        codec.encode(&noise, 2, &mut stored);
        assert!(stored.len() <= noise.len());
    }
}
