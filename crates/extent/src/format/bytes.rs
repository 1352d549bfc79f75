//! Reads and writes fields.

use dalsegno_core::COUNT_LIMIT;

use super::error::FormatError;

/// The version of everything that is not about compressed extents.
pub const PLAIN_VERSION: u32 = 1;
/// The newest version that this build reads: of compressed extents, and of a store that may hold them.
pub const COMPRESSED_VERSION: u32 = 2;

/// Largest record header, in bytes.
pub const MAX_RECORD_HEADER_BYTES: u32 = 262_144;

/// Bytes of a sector, and of a header of one sector.
pub const SECTOR: usize = 4096;

/// Refuses counts so large that an addition could overflow.
pub fn check_counts(counts: &[(&'static str, u64)]) -> Result<(), FormatError> {
    match counts.iter().find(|(_, count)| *count >= COUNT_LIMIT) {
        Some((field, _)) => Err(FormatError::Field(field)),
        None => Ok(()),
    }
}

/// Reads fields one after the other. Running out of bytes is an error, never a panic.
pub struct FieldReader<'a>(
    /// The bytes that are left.
    pub &'a [u8],
);

impl FieldReader<'_> {
    /// The next `N` bytes.
    ///
    /// # Errors
    ///
    /// [`FormatError::Truncated`] if fewer are left. So do the other readers here.
    pub fn array<const N: usize>(&mut self) -> Result<[u8; N], FormatError> {
        let (head, tail) = self.0.split_first_chunk::<N>().ok_or(FormatError::Truncated)?;
        self.0 = tail;
        Ok(*head)
    }

    /// The next number of four bytes.
    pub fn u32(&mut self) -> Result<u32, FormatError> {
        self.array().map(u32::from_le_bytes)
    }

    /// The next number of eight bytes.
    pub fn u64(&mut self) -> Result<u64, FormatError> {
        self.array().map(u64::from_le_bytes)
    }
}

/// Writes fields one after the other into a buffer that is large enough.
pub struct FieldWriter<'a> {
    bytes: &'a mut [u8],
    at: usize,
}

impl<'a> FieldWriter<'a> {
    /// Zeroes the buffer, so that reserved bytes and padding are zero.
    #[must_use]
    pub fn new(bytes: &'a mut [u8]) -> Self {
        bytes.fill(0);
        Self { bytes, at: 0 }
    }

    /// Writes the next bytes.
    pub fn put(&mut self, field: &[u8]) {
        self.bytes[self.at..self.at + field.len()].copy_from_slice(field);
        self.at += field.len();
    }

    /// Leaves zeros up to an offset.
    pub fn skip_to(&mut self, offset: usize) {
        assert!(self.at <= offset, "fields overlap at {offset}");
        self.at = offset;
    }
}

/// Whether all bytes are zero.
#[must_use]
pub fn all_zero(bytes: &[u8]) -> bool {
    bytes.iter().all(|byte| *byte == 0)
}
