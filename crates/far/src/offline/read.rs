//! Fetched catalogs and descriptions, checked.

use dalsegno_extent::format::{FormatError, NamespaceSector, SECTOR};
use dalsegno_io::IoError;

use crate::format::{Catalog, RemovalList};
use crate::names::{Object, ObjectName, WriterId};
use crate::tier::Listed;

/// The catalogs of a writer.
pub(super) fn catalogs_of(writer: WriterId, objects: &[Listed]) -> Vec<ObjectName> {
    let catalogs = objects.iter().filter(|listed| matches!(listed.object, Object::Catalog(_)));
    catalogs.map(|listed| writer.object(listed.object)).collect()
}

/// The number of a catalog.
pub(super) fn number_of(name: ObjectName) -> Option<u64> {
    match name.object {
        Object::Catalog(number) => Some(number),
        _ => None,
    }
}

/// A fetched catalog; `None` if it was removed since it was listed, or what is wrong with it.
pub(super) fn read_catalog(
    name: ObjectName,
    fetched: Result<Vec<u8>, IoError>,
) -> Result<Option<Catalog>, String> {
    let Some(bytes) = present(fetched)? else { return Ok(None) };
    let catalog = Catalog::decode(&bytes).map_err(|error| describe_error(&error))?;
    if catalog.writer != name.writer || Some(catalog.number) != number_of(name) {
        return Err("it belongs to another writer or number than its name says".to_owned());
    }
    Ok(Some(catalog))
}

/// A fetched list of removals; as [`read_catalog`].
pub(super) fn read_list(
    name: ObjectName,
    fetched: Result<Vec<u8>, IoError>,
) -> Result<Option<RemovalList>, String> {
    let Some(bytes) = present(fetched)? else { return Ok(None) };
    let list = RemovalList::decode(&bytes).map_err(|error| describe_error(&error))?;
    if list.writer.object(Object::Removals(list.number)) != name {
        return Err("it belongs to another writer or number than its name says".to_owned());
    }
    Ok(Some(list))
}

/// A fetched description; as [`read_catalog`].
pub(super) fn read_namespace(
    name: ObjectName,
    fetched: Result<Vec<u8>, IoError>,
) -> Result<Option<NamespaceSector>, String> {
    let Some(bytes) = present(fetched)? else { return Ok(None) };
    let found = NamespaceSector::decode(&bytes).map_err(|error| describe_error(&error))?;
    if bytes.len() == SECTOR && name.object == Object::Namespace(found.0.id()) {
        Ok(Some(found))
    } else {
        Err("the description does not match the file's name".to_owned())
    }
}

/// What is wrong with an object, and what to do if a newer version wrote it.
pub(super) fn describe_error(error: &FormatError) -> String {
    match error {
        FormatError::Newer(_) => format!("{error}; upgrade Dalsegno here to use it"),
        FormatError::Older(_) => {
            format!("{error}; `dalsegno prune` removes it when its writer is dead")
        }
        error => error.to_string(),
    }
}

/// The bytes of an object that was listed; `None` if it was removed since then.
fn present(fetched: Result<Vec<u8>, IoError>) -> Result<Option<Vec<u8>>, String> {
    match fetched {
        Ok(bytes) => Ok(Some(bytes)),
        Err(error) if error.is_not_found() => Ok(None),
        Err(error) => Err(format!("it cannot be read: {error}")),
    }
}
