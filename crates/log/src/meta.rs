//! The store's own header and the namespace descriptors.

use std::collections::BTreeMap;

use dalsegno_core::{Clock, Deadline, Namespace, StoreId};
use dalsegno_io::{BufferPool, Class, Device, FileId, OpenMode, Operation, Request};

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
    let header = match read_sector(core, STORE_FILE) {
        Ok(sector) => StoreHeader::decode(&sector),
        Err(_) => Err(FormatError::Truncated),
    };
    Ok(Some(header))
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

/// Reads the first sector of an open file without a log; `None` if that fails.
#[must_use]
pub fn read_first_sector(
    device: &dyn Device,
    file: FileId,
    pool: &BufferPool,
    clock: &dyn Clock,
) -> Option<[u8; SECTOR]> {
    let memory = pool.take(SECTOR, Deadline::Never, clock).ok()?;
    let (reply, answer) = crossbeam_channel::bounded(1);
    device.submit(vec![Request {
        operation: Operation::Read,
        class: Class::Foreground,
        file,
        offset: 0,
        memory: vec![memory],
        tag: 0,
        deadline: Deadline::Never,
        guard: None,
        reply,
    }]);
    let completion = answer.recv().ok()?;
    completion.result.ok()?;
    completion.memory[0].as_slice().try_into().ok()
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
