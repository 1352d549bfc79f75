//! Objects at a location that cannot be read: which, why, and what to do. Stores skip them and follow everything else.
//!
//! 1. Nothing is written, and no pack is read.
//! 2. The search ends when its time is over, and says so.
//! 3. An object that is gone when it is read is no finding: its writer removed it.

use std::collections::BTreeSet;
use std::time::Duration;

use dalsegno_io::IoError;

use super::objects::Subject;
use super::report::{DoctorError, Unreadable, UnreadableObjects};
use crate::format::{MAX_CATALOG_BYTES, catalog_of};
use crate::names::{Object, ObjectName, WriterId};
use crate::offline::read::{read_catalog, read_namespace};
use crate::tier::Listed;

/// Objects in a report. Further ones are counted.
const MOST: usize = 1000;
/// Objects that are fetched between two looks at the time.
const AT_A_TIME: usize = 64;
/// Numbers behind the newest catalog that are tried: a listing does not show what is no file.
const AHEAD: u64 = 2;

/// A search under way.
#[derive(Default)]
struct Search(UnreadableObjects);

/// Tries to read what stores read, except the bytes of packs, until `time` is over.
pub(super) fn find(
    subject: &Subject<'_>,
    time: Duration,
) -> Result<UnreadableObjects, DoctorError> {
    let (location, end) = (&subject.near, subject.until(time));
    let mut search =
        Search(UnreadableObjects { is_complete: true, ..UnreadableObjects::default() });
    let mut names = Vec::new();
    for writer in location.writers()? {
        if end.expired(subject.now()) {
            search.0.is_complete = false;
            break;
        }
        subject.check_stop()?;
        match location.list(writer) {
            Ok(listed) if writer != subject.writer => names.extend(to_try(writer, &listed)),
            Ok(_) => {}
            Err(error) => search.add(writer.to_string(), &error),
        }
    }
    for some in names.chunks(AT_A_TIME) {
        if end.expired(subject.now()) {
            search.0.is_complete = false;
            break;
        }
        subject.check_stop()?;
        location.fetch_each(some, MAX_CATALOG_BYTES, |name, fetched| search.note(name, fetched));
    }
    search.0.objects.sort();
    Ok(search.0)
}

/// The objects that stores ask for.
fn to_try(writer: WriterId, listed: &[Listed]) -> Vec<ObjectName> {
    let mut objects: BTreeSet<Object> = BTreeSet::new();
    let mut newest = 0;
    for one in listed {
        // A listing does not show what is no file, so the catalog of each pack is asked for.
        let catalog = match one.object {
            Object::Catalog(catalog) => catalog,
            Object::Pack(pack) => catalog_of(pack),
            Object::Namespace(_) => {
                objects.insert(one.object);
                continue;
            }
            _ => continue,
        };
        objects.insert(Object::Catalog(catalog));
        newest = newest.max(catalog);
    }
    objects.extend((newest + 1..=newest + AHEAD).map(Object::Catalog));
    objects.into_iter().map(|object| writer.object(object)).collect()
}

impl Search {
    /// Notes an object if it could not be fetched, or something is wrong with its bytes.
    fn note(&mut self, name: ObjectName, fetched: Result<Vec<u8>, IoError>) {
        let bytes = match fetched {
            Err(error) if error.is_not_found() => return,
            Err(error) => return self.add(name.to_string(), &error),
            Ok(bytes) => bytes,
        };
        let checked = match name.object {
            Object::Namespace(_) => read_namespace(name, Ok(bytes)).map(drop),
            _ => read_catalog(name, Ok(bytes)).map(drop),
        };
        if let Err(why) = checked {
            let action = if why.contains("newer") { UPGRADE } else { PRUNE };
            self.push(Unreadable { file: name.to_string(), why, action });
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
        if self.0.objects.len() < MOST {
            self.0.objects.push(one);
        } else {
            self.0.more += 1;
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
