//! Reads and checks the header of a segment.

use dalsegno_core::{Class, StoreId};
use dalsegno_extent::format::{FormatError, SECTOR, SECTOR_CRC_AT, SegmentHeader, all_zero};
use dalsegno_extent::{DeviceIo, read_at};
use dalsegno_io::{Call, FileId, IoError};

/// What a segment's header must name.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SegmentIdentity {
    pub(crate) store: StoreId,
    pub(crate) number: u64,
    pub(crate) segment_bytes: u64,
}

/// Reads and checks a segment's header.
pub(crate) fn read_segment_header(
    io: &DeviceIo,
    identity: SegmentIdentity,
    file: FileId,
    file_bytes: u64,
) -> Result<SegmentHeader, FormatError> {
    if file_bytes == 0 {
        return Err(FormatError::Unfinished);
    }
    // The first record's sector comes along: a header that was wiped later has records behind it.
    let mut sectors = [0; 2 * SECTOR];
    let read = |bytes: &mut [u8]| read_at(io, file, 0, bytes, &Call::of(Class::Need));
    match read(&mut sectors) {
        Ok(()) => {}
        Err(IoError::Short { .. }) if file_bytes < sectors.len() as u64 => {
            return Err(FormatError::Truncated);
        }
        Err(_) => {
            // If only the record's sector is bad, the segment is sound.
            read(&mut sectors[..SECTOR]).map_err(|_| FormatError::Unreadable)?;
            sectors[SECTOR..].fill(0xff);
        }
    }
    // On a device that tears sectors, a crash may leave only the checksum at the end of a file's first header.
    if all_zero(&sectors[..SECTOR_CRC_AT]) && all_zero(&sectors[SECTOR..]) {
        return Err(FormatError::Unfinished);
    }
    let sector = &sectors[..SECTOR];
    let header = SegmentHeader::decode(sector).map_err(|error| match error {
        // The rest names this store, so only the magic number is damaged.
        FormatError::Magic if sector[16..32] == identity.store.0 => FormatError::Checksum,
        other => other,
    })?;
    let differs = [
        ("store", header.store != identity.store),
        ("segment", header.segment != identity.number),
        ("segment_bytes", header.segment_bytes != identity.segment_bytes),
    ];
    match differs.into_iter().find(|(_, differs)| *differs) {
        Some((field, _)) => Err(FormatError::Place(field)),
        None => Ok(header),
    }
}
