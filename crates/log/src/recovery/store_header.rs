//! The store's own header.

use std::collections::BTreeMap;
use std::sync::Arc;

use dalsegno_core::{Class, Clock, StoreId};
use dalsegno_extent::format::{
    FormatError, SECTOR, STORE_FILE, SegmentHeader, StoreHeader, segment_number,
};
use dalsegno_extent::{DeviceIo, offline_io, read_first_sector, write_at};
use dalsegno_io::{BufferPool, Call, Device, DirEntry, IoError, OpenMode};

use crate::error::LogError;
use crate::sync::Syncer;

/// Finds the store's header: its file, else what the segments say, else `new`, the header of a new store.
///
/// A header that cannot be read may be sound, so it is read again after the segments. If no segment can be read either,
/// this fails: a new store would own none of the existing files.
pub(crate) fn open_store(
    io: &DeviceIo,
    syncer: &Syncer,
    new: StoreHeader,
) -> Result<StoreHeader, LogError> {
    let mut own = read_store_header(io)?;
    let mut found = None;
    if !matches!(own, Some(Ok(Ok(_) | Err(FormatError::Newer(_))))) {
        found = header_of_segments(io)?;
        if let Some(Err(error)) = own {
            tracing::warn!(file = STORE_FILE, %error, "store header cannot be read; reading it again");
            own = read_store_header(io)?;
        }
    }
    let is_there = own.is_some();
    match own {
        Some(Ok(Ok(header))) => return Ok(header),
        Some(Ok(Err(source @ FormatError::Newer(_)))) => {
            return Err(LogError::Format { file: STORE_FILE.to_owned(), source });
        }
        Some(Err(error)) if found.is_none() => return Err(error),
        Some(Ok(Err(error))) => {
            tracing::warn!(file = STORE_FILE, %error, "store header is damaged");
        }
        Some(Err(error)) => {
            tracing::warn!(file = STORE_FILE, %error, "store header cannot be read");
        }
        None => {}
    }
    let segment_bytes = new.segment_bytes;
    let header = found.map_or(new, |found| StoreHeader { segment_bytes, ..found });
    if syncer.is_read_only() {
        return Ok(header);
    }
    if is_there {
        tracing::warn!(file = STORE_FILE, "rebuilding the store header from the segments");
        io.device.remove(STORE_FILE)?;
    }
    let mut sector = [0; SECTOR];
    header.encode(&mut sector);
    create_sector_file(io, syncer, STORE_FILE, &sector)?;
    Ok(header)
}

/// `None` if there is no such file. The inner error says why the device cannot read it.
fn read_store_header(io: &DeviceIo) -> Result<Option<ReadHeader>, LogError> {
    let entries = io.device.list()?;
    let Some(entry) = entries.iter().find(|entry| entry.name == STORE_FILE) else {
        return Ok(None);
    };
    Ok(Some(match read_first_sector(io, STORE_FILE) {
        Err(error) if is_truncated(entry, &error) => Ok(Err(FormatError::Truncated)),
        read => read.map(|sector| StoreHeader::decode(&sector)).map_err(LogError::from),
    }))
}

/// Whether a first sector cannot be read because the file is shorter. Otherwise a short read says nothing about the
/// file.
fn is_truncated(entry: &DirEntry, error: &IoError) -> bool {
    entry.bytes < SECTOR as u64 && matches!(error, IoError::Short { .. })
}

type ReadHeader = Result<Result<StoreHeader, FormatError>, LogError>;

/// The store's header according to most segment headers; `None` if there is no segment.
///
/// # Errors
///
/// If no segment has a valid header, and one of them cannot be read.
pub(crate) fn header_of_segments(io: &DeviceIo) -> Result<Option<StoreHeader>, LogError> {
    let mut votes: BTreeMap<(StoreId, u64), u32> = BTreeMap::new();
    let mut unread = None;
    for entry in io.device.list()? {
        if segment_number(&entry.name).is_none() {
            continue;
        }
        match read_first_sector(io, &entry.name).map(|sector| SegmentHeader::decode(&sector)) {
            Ok(Ok(header)) => {
                *votes.entry((header.store, header.segment_bytes)).or_default() += 1;
            }
            Ok(Err(source @ FormatError::Newer(_))) => {
                return Err(LogError::Format { file: entry.name, source });
            }
            Ok(Err(_)) => {}
            Err(error) if is_truncated(&entry, &error) => {}
            Err(error) => unread = Some(error),
        }
    }
    let winner = votes.into_iter().max_by_key(|(_, count)| *count);
    if let Some(error) = unread.filter(|_| winner.is_none()) {
        return Err(error.into());
    }
    // Segments do not say whether the store may hold compressed extents, so it may.
    let header = |(store, segment_bytes)| StoreHeader { store, segment_bytes, is_compressed: true };
    Ok(winner.map(|(found, _)| header(found)))
}

/// Reads the header of a store, which may be open elsewhere.
///
/// # Errors
///
/// What is wrong with it; [`FormatError::Truncated`] if it cannot be read.
pub fn store_header(
    device: Arc<dyn Device>,
    clock: Arc<dyn Clock>,
    pool: BufferPool,
) -> Result<StoreHeader, FormatError> {
    decode_store_header(&offline_io(device, clock, pool))
}

pub(crate) fn decode_store_header(io: &DeviceIo) -> Result<StoreHeader, FormatError> {
    let sector = read_first_sector(io, STORE_FILE).map_err(|_| FormatError::Truncated)?;
    StoreHeader::decode(&sector)
}

/// Creates a file of one sector, durable with its name.
pub(super) fn create_sector_file(
    io: &DeviceIo,
    syncer: &Syncer,
    name: &str,
    sector: &[u8; SECTOR],
) -> Result<(), LogError> {
    let opened = io.device.open(name, OpenMode::Create { bytes: SECTOR as u64 })?;
    let result = write_at(io, opened.file, 0, sector, &Call::of(Class::Need))
        .and_then(|()| syncer.sync_file(opened.file))
        .and_then(|()| syncer.sync_names());
    io.device.close(opened.file);
    Ok(result?)
}
