//! Objects at a location that cannot be read: which, why, and what to do. Stores skip them and follow everything else.
//!
//! 1. Nothing is written. Of the packs of a writer only the newest are tried, and none is read.
//! 2. An object that is gone when it is read is no finding: its writer removed it.

use std::collections::BTreeSet;

use dalsegno_extent::format::SECTOR;
use dalsegno_io::IoError;
use serde::Serialize;

use super::report::DoctorError;
use crate::format::MAX_CATALOG_BYTES;
use crate::names::{Object, ObjectName, WriterId};
use crate::offline::location::Location;
use crate::offline::read::{read_catalog, read_namespace};
use crate::tier::Listed;

/// Objects in a report. Further ones are counted.
const MOST: usize = 1000;
/// Packs of a writer that are tried.
const PACKS: usize = 16;
/// Numbers behind the newest catalog that are tried: a listing does not show what is no file.
const AHEAD: u64 = 2;

/// An object, or the folder of a writer, that cannot be read.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct Unreadable {
    /// Folder and file, or the folder.
    pub file: String,
    /// Why it cannot be read.
    pub why: String,
    /// What to do.
    pub action: &'static str,
}

/// What cannot be read.
#[derive(Clone, Debug, Default, Serialize)]
pub struct UnreadableObjects {
    /// The objects, sorted, at most 1,000.
    pub objects: Vec<Unreadable>,
    /// Further ones.
    pub more: u64,
}

/// Tries to read what stores read, except the bytes of packs.
pub(super) fn find(
    location: &Location,
    own: WriterId,
    is_stopped: &dyn Fn() -> bool,
) -> Result<UnreadableObjects, DoctorError> {
    let mut found = UnreadableObjects::default();
    for writer in location.writers()? {
        if is_stopped() {
            return Err(DoctorError::Stopped);
        }
        if writer == own {
            continue;
        }
        match location.list(writer) {
            Ok(listed) => found.look_at(location, writer, &listed),
            Err(error) => found.add(writer.to_string(), &error),
        }
    }
    found.objects.sort();
    Ok(found)
}

impl UnreadableObjects {
    fn look_at(&mut self, location: &Location, writer: WriterId, listed: &[Listed]) {
        location.fetch_each(
            &catalogs_to_try(writer, listed),
            MAX_CATALOG_BYTES,
            |name, fetched| {
                self.note(name, fetched, |name, bytes| read_catalog(name, Ok(bytes)).map(drop));
            },
        );
        location.fetch_each(
            &names_of(writer, listed, is_description),
            SECTOR as u64,
            |name, got| {
                self.note(name, got, |name, bytes| read_namespace(name, Ok(bytes)).map(drop));
            },
        );
        let packs = names_of(writer, listed, |object| matches!(object, Object::Pack(_)));
        let newest = &packs[packs.len().saturating_sub(PACKS)..];
        location.fetch_each(newest, 0, |name, fetched| match fetched {
            // It has bytes, so it could be opened.
            Err(error) if error.is_too_large() => {}
            fetched => self.note(name, fetched, |_, _| Ok(())),
        });
    }

    /// Notes an object if it could not be fetched, or `check` finds something wrong with its bytes.
    fn note(
        &mut self,
        name: ObjectName,
        fetched: Result<Vec<u8>, IoError>,
        check: impl FnOnce(ObjectName, Vec<u8>) -> Result<(), String>,
    ) {
        match fetched {
            Err(error) if error.is_not_found() => {}
            Err(error) => self.add(name.to_string(), &error),
            Ok(bytes) => {
                if let Err(why) = check(name, bytes) {
                    let action = if why.contains("newer") { UPGRADE } else { PRUNE };
                    self.push(Unreadable { file: name.to_string(), why, action });
                }
            }
        }
    }

    fn add(&mut self, file: String, error: &IoError) {
        let (why, action) = match error {
            error if error.is_too_large() => ("it is larger than any Dalsegno writes", REMOVE),
            error if error.is_denied() => ("this user may not read it", SAME_USER),
            error if error.is_not_regular() => ("it is a directory or no regular file", REMOVE),
            _ => return self.push(Unreadable { file, why: error.to_string(), action: CHECK }),
        };
        self.push(Unreadable { file, why: format!("{why}: {error}"), action });
    }

    fn push(&mut self, one: Unreadable) {
        if self.objects.len() < MOST {
            self.objects.push(one);
        } else {
            self.more += 1;
        }
    }
}

const REMOVE: &str = "no store needs it: remove it";
const SAME_USER: &str =
    "run the stores of all hosts as one user, or remove the folder as its owner";
const UPGRADE: &str = "upgrade Dalsegno on this host";
const PRUNE: &str =
    "its blocks are misses; `dalsegno prune DIR WRITER --remove` removes what its writer left";
const CHECK: &str = "check the file system; its blocks are misses until it can be read";

/// The catalogs that stores ask for: those that are listed, those of listed packs, and the next ones.
fn catalogs_to_try(writer: WriterId, listed: &[Listed]) -> Vec<ObjectName> {
    let numbers = listed.iter().filter_map(|one| match one.object {
        Object::Catalog(number) | Object::Pack(number) => Some(number),
        _ => None,
    });
    let mut numbers: BTreeSet<u64> = numbers.collect();
    let newest = numbers.last().copied().unwrap_or(0);
    numbers.extend(newest + 1..=newest + AHEAD);
    numbers.into_iter().map(|number| writer.object(Object::Catalog(number))).collect()
}

fn is_description(object: &Object) -> bool {
    matches!(object, Object::Namespace(_))
}

fn names_of(
    writer: WriterId,
    listed: &[Listed],
    wanted: impl Fn(&Object) -> bool,
) -> Vec<ObjectName> {
    let objects = listed.iter().map(|one| one.object).filter(wanted);
    objects.map(|object| writer.object(object)).collect()
}
