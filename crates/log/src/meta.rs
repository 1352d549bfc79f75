//! The store's own header and the namespace descriptors.

use std::collections::BTreeMap;
use std::sync::Arc;

use dalsegno_core::{Clock, Compression, Namespace, StoreId};
use dalsegno_io::{BufferPool, Device, DirEntry, FileId, IoError, OpenMode, Operation};

use crate::call::Call;
use crate::error::LogError;
use crate::format::{
    FormatError, NamespaceSector, SECTOR, STORE_FILE, SegmentHeader, StoreHeader, namespace_file,
    namespace_of_file, segment_number,
};
use crate::log::{Core, Log};

const ONE_SECTOR: u64 = SECTOR as u64;

/// Finds the store's header: its own, else what its segments tell, else that of a new store named `new_store`.
///
/// A header that the device does not give may be sound: it is asked for again when segments were read, and a store
/// whose segments cannot be read either is not taken for a new one, to which nothing of it would belong.
pub(crate) fn open_store(core: &Core, new_store: StoreId) -> Result<StoreHeader, LogError> {
    let mut own = read_store_header(core)?;
    let mut found = None;
    if !matches!(own, Some(Ok(Ok(_) | Err(FormatError::Newer(_))))) {
        found = header_of_segments(core)?;
        if let Some(Err(error)) = own {
            tracing::warn!("{STORE_FILE} could not be read, and is asked for again: {error}");
            own = read_store_header(core)?;
        }
    }
    let is_there = own.is_some();
    match own {
        Some(Ok(Ok(header))) => return Ok(header),
        Some(Ok(Err(source @ FormatError::Newer(_)))) => {
            return Err(LogError::Format { file: STORE_FILE.to_owned(), source });
        }
        Some(Err(error)) if found.is_none() => return Err(error),
        Some(Ok(Err(error))) => tracing::warn!("{STORE_FILE} is damaged: {error}"),
        Some(Err(error)) => tracing::warn!("{STORE_FILE} cannot be read: {error}"),
        None => {}
    }
    let segment_bytes = core.options.segment_bytes;
    let new = StoreHeader { store: new_store, segment_bytes, is_compressed: false };
    let header = found.map_or(new, |found| StoreHeader { segment_bytes, ..found });
    if core.options.read_only {
        return Ok(header);
    }
    if is_there {
        tracing::warn!("{STORE_FILE} is rebuilt from the segments");
        core.device.remove(STORE_FILE)?;
    }
    let mut sector = [0; SECTOR];
    header.encode(&mut sector);
    create_sector_file(core, STORE_FILE, &mut sector)?;
    Ok(header)
}

/// `None` if there is no such file; an error inside if the device does not give it.
fn read_store_header(core: &Core) -> Result<Option<ReadHeader>, LogError> {
    let entries = core.device.list()?;
    let Some(entry) = entries.iter().find(|entry| entry.name == STORE_FILE) else {
        return Ok(None);
    };
    Ok(Some(match read_sector(core, STORE_FILE) {
        Err(error) if is_cut(entry, &error) => Ok(Err(FormatError::Truncated)),
        read => read.map(|sector| StoreHeader::decode(&sector)),
    }))
}

/// Whether a first sector cannot be read since the file ends before; else a short read says nothing of the file.
fn is_cut(entry: &DirEntry, error: &LogError) -> bool {
    entry.bytes < SECTOR as u64 && matches!(error, LogError::Io(IoError::Short { .. }))
}

type ReadHeader = Result<Result<StoreHeader, FormatError>, LogError>;

/// The store's header as most segment headers tell it; `None` if there is no segment.
///
/// # Errors
///
/// If none tells it, and one of them cannot be read.
pub(crate) fn header_of_segments(core: &Core) -> Result<Option<StoreHeader>, LogError> {
    let mut votes: BTreeMap<(StoreId, u64), u32> = BTreeMap::new();
    let mut unread = None;
    for entry in core.device.list()? {
        if segment_number(&entry.name).is_none() {
            continue;
        }
        match read_sector(core, &entry.name).map(|sector| SegmentHeader::decode(&sector)) {
            Ok(Ok(header)) => {
                *votes.entry((header.store, header.segment_bytes)).or_default() += 1;
            }
            Ok(Err(source @ FormatError::Newer(_))) => {
                return Err(LogError::Format { file: entry.name, source });
            }
            Ok(Err(_)) => {}
            Err(error) if is_cut(&entry, &error) => {}
            Err(error) => unread = Some(error),
        }
    }
    let winner = votes.into_iter().max_by_key(|(_, count)| *count);
    if let Some(error) = unread.filter(|_| winner.is_none()) {
        return Err(error);
    }
    // Segments do not tell whether there are compressed extents, so there may be.
    let header = |(store, segment_bytes)| StoreHeader { store, segment_bytes, is_compressed: true };
    Ok(winner.map(|(found, _)| header(found)))
}

/// The store's own header, of a store that may be open elsewhere.
///
/// # Errors
///
/// What is wrong with it; [`FormatError::Truncated`] if it cannot be read.
pub fn store_header(
    device: Arc<dyn Device>,
    clock: Arc<dyn Clock>,
    pool: BufferPool,
) -> Result<StoreHeader, FormatError> {
    decode_store_header(&Core::offline(device, clock, pool))
}

pub(crate) fn decode_store_header(core: &Core) -> Result<StoreHeader, FormatError> {
    let sector = read_sector(core, STORE_FILE).map_err(|_| FormatError::Truncated)?;
    StoreHeader::decode(&sector)
}

/// Reads the first sector of a file.
pub(crate) fn read_sector(core: &Core, name: &str) -> Result<[u8; SECTOR], LogError> {
    let opened = core.device.open(name, OpenMode::Read)?;
    let mut sector = [0; SECTOR];
    let result = core.transfer(Operation::Read, opened.file, 0, &mut sector, &Call::background());
    core.device.close(opened.file);
    result?;
    Ok(sector)
}

impl Core {
    /// Makes sure that the device reads the first sector of a file, or else of the store's own: then what it cannot
    /// read elsewhere is bad, and it is not the device that fails.
    ///
    /// # Errors
    ///
    /// How reading the latter failed.
    pub(crate) fn check_reads(&self, file: FileId) -> Result<(), LogError> {
        let mut sector = [0; SECTOR];
        let call = self.patient_call();
        if self.transfer(Operation::Read, file, 0, &mut sector, &call).is_ok() {
            return Ok(());
        }
        read_sector(self, STORE_FILE).map(drop)
    }
}

fn create_sector_file(core: &Core, name: &str, sector: &mut [u8]) -> Result<(), LogError> {
    let opened = core.device.open(name, OpenMode::Create { bytes: ONE_SECTOR })?;
    let result = core
        .transfer(Operation::Write, opened.file, 0, sector, &Call::background())
        .and_then(|()| core.sync_file(opened.file))
        .and_then(|()| core.sync_names());
    core.device.close(opened.file);
    Ok(result?)
}

/// Lets the store hold compressed extents: from then on a Dalsegno that cannot read them refuses to open it. To be
/// called by one thread at a time.
///
/// # Errors
///
/// Whatever the device says; extents are stored plain then.
pub fn allow_compression(log: &Log) -> Result<(), LogError> {
    let core = &log.core;
    if core.is_compressed() {
        return Ok(());
    }
    core.check_writable()?;
    let segment_bytes = core.options.segment_bytes;
    let mut sector = [0; SECTOR];
    StoreHeader { store: core.store, segment_bytes, is_compressed: true }.encode(&mut sector);
    let opened = core.device.open(STORE_FILE, OpenMode::ReadWrite)?;
    let call = core.patient_call();
    let written = core
        .transfer(Operation::Write, opened.file, 0, &mut sector, &call)
        .and_then(|()| core.sync_file(opened.file));
    core.device.close(opened.file);
    written?;
    core.set_compressed(true);
    Ok(())
}

/// Stores what a namespace stands for and how its new extents are stored, unless that is stored already. `false` if the
/// description is too long to store.
///
/// # Errors
///
/// Whatever the device says. Blocks of the namespace can be stored and read all the same.
pub fn write_namespace(
    log: &Log,
    namespace: &Namespace,
    compression: Compression,
) -> Result<bool, LogError> {
    let core = &log.core;
    core.check_writable()?;
    let name = namespace_file(namespace.id());
    if core.device.list()?.iter().any(|entry| entry.name == name) {
        let stored = read_sector(core, &name).map(|sector| NamespaceSector::decode(&sector));
        let told = NamespaceSector(namespace.clone(), compression);
        if matches!(stored, Ok(Ok(found)) if found == told) {
            return Ok(true);
        }
        core.device.remove(&name)?;
    }
    let mut sector = [0; SECTOR];
    if !NamespaceSector(namespace.clone(), compression).encode(&mut sector) {
        return Ok(false);
    }
    create_sector_file(core, &name, &mut sector)?;
    Ok(true)
}

/// Reads the namespace descriptors, with how new extents are stored; damaged ones are left out.
///
/// # Errors
///
/// If the directory cannot be listed.
pub fn read_namespaces(log: &Log) -> Result<Vec<(Namespace, Compression)>, LogError> {
    let core = &log.core;
    let mut namespaces = Vec::new();
    for entry in core.device.list()? {
        let Some(id) = namespace_of_file(&entry.name) else { continue };
        match read_sector(core, &entry.name).map(|sector| NamespaceSector::decode(&sector)) {
            Ok(Ok(NamespaceSector(namespace, compression))) if namespace.id() == id => {
                namespaces.push((namespace, compression));
            }
            _ => tracing::warn!(
                "{} is damaged; it is written again when the namespace is used",
                entry.name
            ),
        }
    }
    Ok(namespaces)
}
