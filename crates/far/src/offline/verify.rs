//! The check of a far location: reads every catalog, list of removals, description and every byte of every pack.
//!
//! 1. Nothing is written.
//! 2. An object that is removed while the check runs is no finding. It counts as checked only if it was read.
//! 3. Memory is bounded: [`PACKS_AT_A_TIME`] packs, and [`super::MOST_FINDINGS`] findings.

use std::collections::{BTreeMap, BTreeSet};

use dalsegno_core::NamespaceId;
use dalsegno_extent::format::SECTOR;
use dalsegno_io::{IoError, share_work};
use parking_lot::Mutex;

use super::location::Location;
use super::read::{read_catalog, read_list, read_namespace};
use super::report::{FarVerifyReport, Unpublished};
use super::verify_pack::check_pack;
use crate::format::{
    CatalogPack, MAX_CATALOG_BYTES, MAX_LIST_BYTES, MAX_PACK_BYTES, catalog_of, packs_of,
};
use crate::names::{Object, ObjectName, WriterId};
use crate::tier::Listed;

/// Packs in memory at a time, of at most 64 MiB each. Each has a thread that checks it.
const PACKS_AT_A_TIME: u32 = 4;
/// The objects of a writer.
struct Folder {
    writer: WriterId,
    packs: BTreeMap<u64, u64>,
    catalogs: BTreeMap<u64, u64>,
    namespaces: BTreeSet<NamespaceId>,
}

/// Something to check, with the bytes that are read for it.
enum Task<'a> {
    Namespace(ObjectName),
    List { name: ObjectName, bytes: u64 },
    Catalog { folder: &'a Folder, number: u64 },
}

/// Reads and checks every byte of a location. `progress` gets the bytes done so far and in all.
///
/// # Errors
///
/// [`IoError`] if the location cannot be listed. Damage is no error: it is in the report.
pub fn verify(
    location: &Location,
    progress: &(dyn Fn(u64, u64) + Sync),
) -> Result<FarVerifyReport, IoError> {
    let mut report = FarVerifyReport::default();
    let mut folders = Vec::new();
    for writer in location.writers()? {
        match location.list(writer) {
            Ok(objects) => folders.push(Folder::new(writer, &objects)),
            Err(error) if error.is_of_object() => report.note_folder(writer, &error),
            Err(error) => return Err(error),
        }
    }
    report.writers = folders.len() as u64;
    let lists = location.call(|tier, ask| tier.removals(ask))?;
    let list = |(name, bytes)| (bytes, Task::List { name, bytes });
    let mut tasks: Vec<_> = lists.into_iter().map(list).collect();
    let mut total = 0;
    for folder in &folders {
        for (number, bytes) in &folder.packs {
            if !folder.catalogs.contains_key(&catalog_of(*number)) {
                let name = folder.writer.object(Object::Pack(*number));
                report.unpublished.push(Unpublished { file: name.to_string(), bytes: *bytes });
            }
        }
        for id in &folder.namespaces {
            let name = folder.writer.object(Object::Namespace(*id));
            tasks.push((SECTOR as u64, Task::Namespace(name)));
        }
        for (number, bytes) in &folder.catalogs {
            let packs = folder.packs.range(packs_of(*number)).map(|(_, bytes)| bytes);
            let bytes = bytes + packs.sum::<u64>();
            tasks.push((bytes, Task::Catalog { folder, number: *number }));
        }
    }
    total += tasks.iter().map(|(bytes, _)| bytes).sum::<u64>();
    let shared = Mutex::new((tasks.into_iter(), report, 0_u64));
    progress(0, total);
    share_work("dalsegno-verify", PACKS_AT_A_TIME, || {
        loop {
            let Some((bytes, task)) = shared.lock().0.next() else { return };
            let mut part = FarVerifyReport::default();
            match task {
                Task::Namespace(name) => check_namespace(location, name, &mut part),
                Task::List { name, bytes } => check_list(location, name, bytes, &mut part),
                Task::Catalog { folder, number } => {
                    check_catalog(location, folder, number, &mut part);
                }
            }
            let mut guard = shared.lock();
            guard.1.merge(part);
            guard.2 += bytes;
            progress(guard.2, total);
        }
    });
    let (_, mut report, _) = shared.into_inner();
    report.findings.sort();
    Ok(report)
}

impl Folder {
    fn new(writer: WriterId, objects: &[Listed]) -> Self {
        let mut folder = Self {
            writer,
            packs: BTreeMap::new(),
            catalogs: BTreeMap::new(),
            namespaces: BTreeSet::new(),
        };
        for listed in objects {
            match listed.object {
                Object::Pack(number) => drop(folder.packs.insert(number, listed.bytes)),
                Object::Catalog(number) => drop(folder.catalogs.insert(number, listed.bytes)),
                Object::Namespace(id) => drop(folder.namespaces.insert(id)),
                Object::Beat(_) | Object::Removals(_) => {}
            }
        }
        folder
    }
}

fn check_namespace(location: &Location, name: ObjectName, report: &mut FarVerifyReport) {
    match read_namespace(name, location.fetch(name, SECTOR as u64)) {
        Ok(Some(_)) => report.bytes += SECTOR as u64,
        Ok(None) => {}
        Err(what) => report.note(name, 0, what),
    }
}

fn check_list(location: &Location, name: ObjectName, bytes: u64, report: &mut FarVerifyReport) {
    match read_list(name, location.fetch(name, MAX_LIST_BYTES)) {
        Ok(Some(_)) => {
            report.lists += 1;
            report.bytes += bytes;
        }
        Ok(None) => {}
        Err(what) => report.note(name, 0, what),
    }
}

fn check_catalog(location: &Location, folder: &Folder, number: u64, report: &mut FarVerifyReport) {
    let name = folder.writer.object(Object::Catalog(number));
    let catalog = match read_catalog(name, location.fetch(name, MAX_CATALOG_BYTES)) {
        Ok(Some(catalog)) => catalog,
        Ok(None) => return,
        Err(what) => return report.note(name, 0, what),
    };
    report.catalogs += 1;
    report.bytes += folder.catalogs[&number];
    let namespaces: BTreeSet<NamespaceId> = catalog.extents().map(|one| one.namespace).collect();
    for id in namespaces.difference(&folder.namespaces) {
        let missing = folder.writer.object(Object::Namespace(*id));
        // Listed before the catalog was: the writer may have described it since then.
        if location.has(missing).is_ok_and(|has| !has) && location.has(name).is_ok_and(|has| has) {
            report.note(missing, 0, "the description of a namespace is missing");
        }
    }
    for pack in catalog.packs.iter().filter(|pack| pack.bytes > 0) {
        read_and_check(location, folder, pack, report);
    }
    for (number, bytes) in folder.packs.range(packs_of(number)) {
        if catalog.packs.iter().all(|pack| pack.number != *number) {
            let file = folder.writer.object(Object::Pack(*number)).to_string();
            report.unpublished.push(Unpublished { file, bytes: *bytes });
        }
    }
}

fn read_and_check(
    location: &Location,
    folder: &Folder,
    of: &CatalogPack,
    report: &mut FarVerifyReport,
) {
    let name = folder.writer.object(Object::Pack(of.number));
    let listed = folder.packs.get(&of.number).copied();
    let expected = of.bytes;
    let bytes = listed.unwrap_or(expected).min(expected).min(MAX_PACK_BYTES);
    // Whole sectors: the rest of a truncated pack is missing, and said to be.
    let whole = bytes - bytes % SECTOR as u64;
    let pack = match location.read_pack(name, whole) {
        Ok(pack) => pack,
        Err(error) if error.is_not_found() => {
            note_missing(location, folder, of, report);
            return;
        }
        Err(error) => return report.note(name, 0, format!("it cannot be read: {error}")),
    };
    if let Some(listed) = listed.filter(|listed| *listed != expected) {
        let what = format!("the pack has {listed} bytes; its catalog says {expected}");
        report.note(name, listed.min(expected), what);
    }
    report.packs += 1;
    report.bytes += pack.len() as u64;
    check_pack(name, &pack, of, report);
}

/// Notes a pack that is gone. A writer removes packs before their catalog, the oldest first. So a catalog whose first
/// packs have left is in order.
fn note_missing(
    location: &Location,
    folder: &Folder,
    of: &CatalogPack,
    report: &mut FarVerifyReport,
) {
    let number = catalog_of(of.number);
    let has_later = folder.packs.range(of.number..packs_of(number).end).next();
    let catalog = folder.writer.object(Object::Catalog(number));
    if has_later.is_none() && location.has(catalog).is_ok_and(|has| has) {
        let name = folder.writer.object(Object::Pack(of.number));
        report.note(name, 0, format!("the pack is missing, with {} blocks", of.blocks()));
    }
}
