//! Reads a compressed extent in its stored form, so that it can be written elsewhere.
//!
//! Every unit is compared with its checksum; nothing is decompressed. The checksums of slices are copied along, so a
//! reader of the copy verifies the bytes that were put.

use dalsegno_core::{Class, Extent, StoreId};
use dalsegno_io::{Call, IoError, Memory};

use super::compressor::CompressedExtent;
use crate::format::{RecordHeader, RecordKind, Units};
use crate::transfer::{DeviceIo, PinnedFile, read_at};

/// Alignment of memory for direct I/O.
const ALIGN: usize = 4096;

/// Reads `extent` from its file; `None` if any part of it is unreadable or does not match its checksum.
pub fn read_stored(
    io: &DeviceIo,
    pinned: &PinnedFile,
    store: StoreId,
    extent: &Extent,
) -> Option<CompressedExtent> {
    let mut header = vec![0; extent.location.header_bytes as usize];
    read_range(io, pinned, extent.location.offset, &mut header).ok()?;
    let header = RecordHeader::decode(&header).ok()?;
    if header.store != store || header.extent().as_ref() != Some(extent) {
        return None;
    }
    let RecordKind::Extent { slice_crcs, units: Some(units), .. } = header.kind else {
        return None;
    };
    let bytes = usize::try_from(units.payload_bytes()).expect("64-bit addresses");
    let mut stored = vec![0; bytes + ALIGN];
    let skew = stored.as_ptr().align_offset(ALIGN).min(ALIGN);
    let offset = extent.location.offset + u64::from(extent.location.header_bytes);
    read_range(io, pinned, offset, &mut stored[skew..skew + bytes]).ok()?;
    if !is_whole(&units, &stored[skew..]) {
        return None;
    }
    stored.truncate(skew + bytes);
    let mut payload = Memory::owned(stored, ());
    drop(payload.split_to(skew));
    Some(CompressedExtent { slice_crcs, units, payload })
}

/// Whether every unit of a compressed payload matches its checksum.
pub(crate) fn is_whole(units: &Units, stored: &[u8]) -> bool {
    let mut rest = stored;
    units.table.iter().all(|unit| {
        let (bytes, behind) = rest.split_at(unit.bytes as usize);
        rest = behind;
        dalsegno_core::crc32c(bytes) == unit.crc
    })
}

/// Fills `bytes` from a file, in as few requests as the staging buffers allow.
fn read_range(
    io: &DeviceIo,
    pinned: &PinnedFile,
    mut offset: u64,
    bytes: &mut [u8],
) -> Result<(), IoError> {
    for part in bytes.chunks_mut(io.pool.largest()) {
        read_at(io, pinned.file, offset, part, &Call::of(Class::Save))?;
        offset += part.len() as u64;
    }
    Ok(())
}
