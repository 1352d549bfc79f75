//! Reads record headers through a buffer.
//!
//! Reads that fail become smaller, down to what the caller needs. So bytes that the device cannot read cost only
//! themselves. Each may take long, so a walk ends after a bounded number of them. If the device fails as a whole, the
//! walk ends, and says so.

use dalsegno_core::{SECTOR_BYTES, sector_down};
use dalsegno_extent::format::{FormatError, RecordHeader};
use dalsegno_extent::{DeviceIo, check_reads, read_at};
use dalsegno_io::{FileId, IoError};

use crate::error::LogError;

/// Why there is no record at a place.
pub(super) enum Absent {
    /// The file ends there, or the walk does, because too many reads failed.
    End,
    /// The bytes are no valid header.
    Invalid(FormatError),
}

impl From<FormatError> for Absent {
    fn from(error: FormatError) -> Self {
        Self::Invalid(error)
    }
}

/// A part of a segment's file in memory.
pub(super) struct HeaderWindow<'a> {
    io: &'a DeviceIo,
    file: FileId,
    end: u64,
    start: u64,
    bytes: Vec<u8>,
    /// Reads of the smallest size that failed, and how many may.
    unreadable: usize,
    most_unreadable: usize,
    /// Where the first of them was.
    pub(super) first_gap: Option<u64>,
    /// Some bytes before this offset cannot be read.
    bad_before: u64,
    /// The device failed, which ended the walk.
    pub(super) failure: Option<LogError>,
}

impl<'a> HeaderWindow<'a> {
    pub(super) fn new(io: &'a DeviceIo, file: FileId, end: u64, most_unreadable: usize) -> Self {
        let (start, bytes, bad_before, failure) = (0, Vec::new(), 0, None);
        Self {
            io,
            file,
            end,
            start,
            bytes,
            unreadable: 0,
            most_unreadable,
            first_gap: None,
            bad_before,
            failure,
        }
    }

    /// Whether too many reads failed.
    pub(super) fn is_too_bad(&self) -> bool {
        self.unreadable > self.most_unreadable
    }

    /// `len` bytes at `offset`. If they are not in memory, reads at least `ahead` bytes.
    pub(super) fn get(&mut self, offset: u64, len: u64, ahead: u64) -> Result<&[u8], Absent> {
        if offset + len > self.end || self.is_too_bad() || self.failure.is_some() {
            return Err(Absent::End);
        }
        let held = self.start..self.start + self.bytes.len() as u64;
        if !(held.contains(&offset) && offset + len <= held.end) {
            self.load(offset, len, ahead)?;
        }
        let at = usize::try_from(offset - self.start).expect("within the window");
        let len = usize::try_from(len).expect("64-bit addresses");
        self.bytes.get(at..at + len).ok_or(Absent::End)
    }

    fn load(&mut self, offset: u64, len: u64, ahead: u64) -> Result<(), Absent> {
        let largest = self.io.pool.largest() as u64;
        let mut want = len.max(ahead).min(self.end - offset).min(largest);
        if offset < self.bad_before {
            want = len.max(sector_down((self.bad_before - offset) / 2).min(want));
        }
        loop {
            let Err(error) = self.fill(offset, want) else { return Ok(()) };
            if want > len {
                // A bad sector, or the end of a truncated file, further on hides nothing before it.
                self.bad_before = offset + want;
                want = len.max(sector_down(want / 2));
                continue;
            }
            tracing::warn!(offset, %error, "record headers cannot be read");
            return self.judge(offset, len, error);
        }
    }

    /// Decides what a failed read of the smallest size means.
    fn judge(&mut self, offset: u64, len: u64, error: IoError) -> Result<(), Absent> {
        let is_short = matches!(error, IoError::Short { .. });
        match error {
            IoError::Short { .. } | IoError::Os { .. } => match check_reads(self.io, self.file) {
                Ok(()) if self.fill(offset, len).is_ok() => return Ok(()),
                checked => self.failure = checked.err().map(LogError::from),
            },
            error => self.failure = Some(error.into()),
        }
        self.bytes.clear();
        self.unreadable += 1;
        self.first_gap.get_or_insert(offset);
        // The next sector may be bad, too.
        self.bad_before = offset + 2 * SECTOR_BYTES;
        let is_end = is_short || self.failure.is_some();
        Err(if is_end { Absent::End } else { FormatError::Unreadable.into() })
    }

    fn fill(&mut self, offset: u64, len: u64) -> Result<(), IoError> {
        let len = usize::try_from(len).expect("64-bit addresses");
        if self.bytes.len() < len {
            // The system zeroes new memory, while `resize` writes every byte.
            self.bytes = vec![0; len];
        }
        self.bytes.truncate(len);
        self.start = offset;
        // Each read has its own limit: a walk over many may take longer.
        let call = self.io.own_call();
        read_at(self.io, self.file, offset, &mut self.bytes, &call)
    }

    /// The record header at `offset`, whatever place it names.
    pub(super) fn record(&mut self, offset: u64, ahead: u64) -> Result<RecordHeader, Absent> {
        let sector = self.get(offset, SECTOR_BYTES, ahead)?;
        let header_bytes = u64::from(RecordHeader::peek_bytes(sector)?);
        let bytes = match self.get(offset, header_bytes, ahead) {
            Err(Absent::End) => return Err(FormatError::Truncated.into()),
            bytes => bytes?,
        };
        Ok(RecordHeader::decode(bytes)?)
    }
}
