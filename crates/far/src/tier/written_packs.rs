//! In which directory the packs were written whose catalogs follow.
//!
//! 1. A catalog is refused if its pack was written to another directory: nobody could read the pack.

use std::collections::VecDeque;
use std::io::{Error, ErrorKind};

use dalsegno_io::IoError;
use parking_lot::Mutex;

use crate::format::catalog_of;
use crate::names::{Object, ObjectName};

/// Packs that are remembered. A publisher has at most 13 catalogs in work, for at most eight packs each.
const MOST: usize = 128;

/// The packs that were written last, with the number of their directory.
#[derive(Debug, Default)]
pub(super) struct WrittenPacks(Mutex<VecDeque<(ObjectName, u64)>>);

impl WrittenPacks {
    /// Notes that an object was written.
    pub(super) fn note(&self, name: ObjectName, directory: u64) {
        if name.object.is_pack() {
            let mut packs = self.0.lock();
            if packs.len() == MOST {
                packs.pop_front();
            }
            packs.push_back((name, directory));
        }
    }

    /// Refuses a catalog whose pack is in another directory.
    ///
    /// # Errors
    ///
    /// [`IoError::Os`] with the name.
    pub(super) fn check(&self, name: ObjectName, directory: u64) -> Result<(), IoError> {
        let Object::Catalog(number) = name.object else { return Ok(()) };
        let is_elsewhere = |(written, of): &(ObjectName, u64)| {
            let is_of_it = |pack| name.writer == written.writer && catalog_of(pack) == number;
            matches!(written.object, Object::Pack(pack) if is_of_it(pack)) && *of != directory
        };
        if !self.0.lock().iter().any(is_elsewhere) {
            return Ok(());
        }
        let what = "its pack was written to the directory that was there before";
        let source = Error::new(ErrorKind::NotConnected, what);
        Err(IoError::Os { operation: "publish", file: name.to_string(), source })
    }
}

#[cfg(test)]
mod tests {
    use dalsegno_core::StoreId;

    use super::*;
    use crate::names::WriterId;

    #[test]
    fn a_catalog_follows_its_pack_into_the_same_directory_only() {
        let written = WrittenPacks::default();
        let writer = WriterId { store: StoreId([1; 16]), open: 1 };
        written.note(writer.object(Object::Pack(19)), 0);
        written.note(writer.object(Object::Catalog(2)), 0);
        let check = |object, directory| written.check(writer.object(object), directory).is_ok();
        assert!(check(Object::Catalog(1), 0) && !check(Object::Catalog(1), 1));
        assert!(check(Object::Catalog(2), 1) && check(Object::Pack(1), 1), "no pack before them");
        for number in 0..200 {
            written.note(writer.object(Object::Pack(number)), 0);
        }
        assert_eq!(written.0.lock().len(), MOST);
        assert!(!check(Object::Catalog(12), 1) && check(Object::Catalog(13), 1));
    }
}
