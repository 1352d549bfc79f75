//! The store's own header and the namespace descriptors.

use std::collections::BTreeMap;
use std::sync::Arc;

use dalsegno_core::{Clock, Namespace, StoreId};
use dalsegno_io::{BufferPool, Device, OpenMode, Operation};

use crate::call::Call;
use crate::error::LogError;
use crate::format::{
    FormatError, NamespaceSector, SECTOR, STORE_FILE, SegmentHeader, StoreHeader, namespace_file,
    namespace_of_file, segment_number,
};
use crate::log::{Core, Log};

const ONE_SECTOR: u64 = SECTOR as u64;

/// Finds the store's id: from its header, else from its segments, else `new_store` for a new store.
pub(crate) fn open_store(core: &Core, new_store: StoreId) -> Result<StoreId, LogError> {
    match read_store_header(core)? {
        Some(Ok(header)) => return Ok(header.store),
        Some(Err(FormatError::Newer(version))) => {
            let source = FormatError::Newer(version);
            return Err(LogError::Format { file: STORE_FILE.to_owned(), source });
        }
        Some(Err(damage)) if core.options.read_only => {
            tracing::warn!("{STORE_FILE} is damaged ({damage})");
        }
        Some(Err(damage)) => {
            tracing::warn!("{STORE_FILE} is damaged ({damage}); it is rebuilt from the segments");
            core.device.remove(STORE_FILE)?;
        }
        None => {}
    }
    let store = header_of_segments(core)?.map_or(new_store, |header| header.store);
    if core.options.read_only {
        return Ok(store);
    }
    let mut sector = [0; SECTOR];
    StoreHeader { store, segment_bytes: core.options.segment_bytes }.encode(&mut sector);
    create_sector_file(core, STORE_FILE, &mut sector)?;
    Ok(store)
}

fn read_store_header(core: &Core) -> Result<Option<Result<StoreHeader, FormatError>>, LogError> {
    if !core.device.list()?.iter().any(|entry| entry.name == STORE_FILE) {
        return Ok(None);
    }
    Ok(Some(decode_store_header(core)))
}

/// The store's header as most segment headers tell it.
pub(crate) fn header_of_segments(core: &Core) -> Result<Option<StoreHeader>, LogError> {
    let mut votes: BTreeMap<(StoreId, u64), u32> = BTreeMap::new();
    for entry in core.device.list()? {
        if segment_number(&entry.name).is_none() {
            continue;
        }
        if let Ok(Ok(header)) = read_sector(core, &entry.name).map(|s| SegmentHeader::decode(&s)) {
            *votes.entry((header.store, header.segment_bytes)).or_default() += 1;
        }
    }
    let winner = votes.into_iter().max_by_key(|(_, count)| *count);
    Ok(winner.map(|((store, segment_bytes), _)| StoreHeader { store, segment_bytes }))
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

fn create_sector_file(core: &Core, name: &str, sector: &mut [u8]) -> Result<(), LogError> {
    let opened = core.device.open(name, OpenMode::Create { bytes: ONE_SECTOR })?;
    let result = core
        .transfer(Operation::Write, opened.file, 0, sector, &Call::background())
        .and_then(|()| core.sync_file(opened.file, &Call::background()))
        .and_then(|()| core.device.sync_names());
    core.device.close(opened.file);
    Ok(result?)
}

/// Stores what a namespace stands for, unless that is stored already. `false` if the description is too long to store.
///
/// # Errors
///
/// Whatever the device says. Blocks of the namespace can be stored and read all the same.
pub fn write_namespace(log: &Log, namespace: &Namespace) -> Result<bool, LogError> {
    let core = &log.core;
    let name = namespace_file(namespace.id());
    if core.device.list()?.iter().any(|entry| entry.name == name) {
        let stored = read_sector(core, &name).map(|sector| NamespaceSector::decode(&sector));
        if matches!(stored, Ok(Ok(NamespaceSector(found))) if found == *namespace) {
            return Ok(true);
        }
        core.device.remove(&name)?;
    }
    let mut sector = [0; SECTOR];
    if !NamespaceSector(namespace.clone()).encode(&mut sector) {
        return Ok(false);
    }
    create_sector_file(core, &name, &mut sector)?;
    Ok(true)
}

/// Reads the namespace descriptors; damaged ones are left out.
///
/// # Errors
///
/// If the directory cannot be listed.
pub fn read_namespaces(log: &Log) -> Result<Vec<Namespace>, LogError> {
    let core = &log.core;
    let mut namespaces = Vec::new();
    for entry in core.device.list()? {
        let Some(id) = namespace_of_file(&entry.name) else { continue };
        match read_sector(core, &entry.name).map(|sector| NamespaceSector::decode(&sector)) {
            Ok(Ok(NamespaceSector(namespace))) if namespace.id() == id => {
                namespaces.push(namespace);
            }
            _ => tracing::warn!(
                "{} is damaged; it is written again when the namespace is used",
                entry.name
            ),
        }
    }
    Ok(namespaces)
}
