//! A store that nobody has open, for reading.

use std::sync::Arc;

use dalsegno_core::{Class, Clock, StoreId, sector_down, sector_up};
use dalsegno_extent::format::{FormatError, STORE_FILE};
use dalsegno_extent::{DeviceIo, offline_io, read_at};
use dalsegno_io::{BufferPool, Call, Device, FileId};

use super::report::VerifyReport;
use crate::error::LogError;
use crate::recovery::{SegmentIdentity, decode_store_header, header_of_segments};

/// A store that nobody has open.
pub(super) struct OfflineStore {
    pub(super) io: DeviceIo,
    pub(super) store: StoreId,
    pub(super) segment_bytes: u64,
}

impl OfflineStore {
    /// Opens a store for reading. Notes a damaged header in `report`, and takes the segments' word then.
    pub(super) fn open(
        device: Arc<dyn Device>,
        clock: Arc<dyn Clock>,
        pool: BufferPool,
        report: &mut VerifyReport,
    ) -> Result<Self, LogError> {
        let io = offline_io(device, clock, pool);
        let header = match decode_store_header(&io) {
            Ok(header) => header,
            Err(FormatError::Newer(version)) => {
                let source = FormatError::Newer(version);
                return Err(LogError::Format { file: STORE_FILE.to_owned(), source });
            }
            Err(damage) => {
                report.note(STORE_FILE, 0, damage);
                let found = header_of_segments(&io)?;
                found.ok_or(LogError::Format { file: STORE_FILE.to_owned(), source: damage })?
            }
        };
        Ok(Self { io, store: header.store, segment_bytes: header.segment_bytes })
    }

    /// What the header of a segment must name.
    pub(super) fn identity_of(&self, number: u64) -> SegmentIdentity {
        SegmentIdentity { store: self.store, number, segment_bytes: self.segment_bytes }
    }

    /// Reads bytes at any offset, in requests as large as the staging buffers.
    pub(super) fn read_bytes(
        &self,
        file: FileId,
        offset: u64,
        len: usize,
    ) -> Result<Vec<u8>, String> {
        let mut found = Vec::with_capacity(len);
        while found.len() < len {
            let from = offset + found.len() as u64;
            let at = usize::try_from(from - sector_down(from)).expect("less than a sector");
            let wanted = sector_up((at + len - found.len()) as u64);
            let sectors = wanted.min(self.io.pool.largest() as u64);
            let mut bytes = vec![0; usize::try_from(sectors).expect("no more than a buffer")];
            read_at(&self.io, file, from - at as u64, &mut bytes, &Call::of(Class::Need))
                .map_err(|error| error.to_string())?;
            found.extend(bytes[at..].iter().take(len - found.len()));
        }
        Ok(found)
    }
}
