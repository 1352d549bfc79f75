//! Names at a far location: docs/formats/pack.md.
//!
//! 1. A name is written once and never again: a writer draws 64 random bits at each open, and its numbers only grow.

use std::fmt;

use dalsegno_core::{COUNT_LIMIT, NamespaceId, StoreId};

/// A writer: a store while it is open. Names a folder at the location.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct WriterId {
    /// The store's random name.
    pub store: StoreId,
    /// Random, drawn when the store was opened. A directory that was copied therefore has another one.
    pub open: u64,
}

/// The folder of all lists of removals.
pub const REMOVALS_FOLDER: &str = "removals";
const REMOVALS_SUFFIX: &str = ".removals";

/// An object of a writer. All but lists of removals are in the writer's own folder.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Object {
    /// Records, one after the other.
    Pack(u64),
    /// What some packs hold. They are published when this appears.
    Catalog(u64),
    /// The description of a namespace.
    Namespace(NamespaceId),
    /// Shows that the writer runs. The newest one counts.
    Beat(u64),
    /// A list of removals, in the folder that all writers share for them.
    Removals(u64),
}

/// The full name of an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ObjectName {
    /// Whose it is.
    pub writer: WriterId,
    /// Its name among the objects of the writer.
    pub object: Object,
}

impl fmt::Display for WriterId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{:016x}", self.store, self.open)
    }
}

impl WriterId {
    /// Parses the name of a folder; `None` if it is not that of a writer.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let (store, open) = text.split_once('-')?;
        let id = Self { store: StoreId::from_hex(store).ok()?, open: parse_hex(open)? };
        (id.to_string() == text).then_some(id)
    }

    /// Whether this is another open of the same store.
    pub(crate) fn is_other_open_of(self, other: Self) -> bool {
        self.store == other.store && self != other
    }

    /// An object in the folder of this writer.
    #[must_use]
    pub fn object(self, object: Object) -> ObjectName {
        ObjectName { writer: self, object }
    }
}

impl fmt::Display for Object {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Pack(number) => write!(f, "{number:016x}.pack"),
            Self::Catalog(number) => write!(f, "{number:016x}.catalog"),
            Self::Namespace(id) => write!(f, "namespace-{id}.meta"),
            Self::Beat(number) => write!(f, "{number:016x}.beat"),
            Self::Removals(number) => write!(f, "{number:016x}{REMOVALS_SUFFIX}"),
        }
    }
}

impl Object {
    /// Comes after all packs, and before everything else: a listing from it on shows no pack.
    pub const LAST_PACK: Self = Self::Pack(COUNT_LIMIT);

    /// Whether it is a pack.
    #[must_use]
    pub fn is_pack(&self) -> bool {
        matches!(self, Self::Pack(_))
    }

    /// Parses a name in the folder of a writer; `None` if it is not that of an object.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let (stem, kind) = text.split_once('.')?;
        let number = || parse_hex(stem).filter(|number| *number < COUNT_LIMIT);
        let object = match kind {
            "pack" => Self::Pack(number()?),
            "catalog" => Self::Catalog(number()?),
            "beat" => Self::Beat(number()?),
            "meta" => {
                Self::Namespace(NamespaceId::from_hex(stem.strip_prefix("namespace-")?).ok()?)
            }
            _ => return None,
        };
        (object.to_string() == text).then_some(object)
    }
}

impl fmt::Display for ObjectName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.folder(), self.file())
    }
}

impl ObjectName {
    /// Parses a folder and a file in it; `None` if it is not the name of an object.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let (folder, file) = text.split_once('/')?;
        if folder == REMOVALS_FOLDER {
            return Self::parse_removals(file);
        }
        Some(WriterId::parse(folder)?.object(Object::parse(file)?))
    }

    /// Parses the name of a list in the folder of all lists; `None` if it is not that of a list.
    #[must_use]
    pub fn parse_removals(file: &str) -> Option<Self> {
        let (writer, number) = file.strip_suffix(REMOVALS_SUFFIX)?.rsplit_once('-')?;
        let number = parse_hex(number).filter(|number| *number < COUNT_LIMIT)?;
        let name = WriterId::parse(writer)?.object(Object::Removals(number));
        (name.file() == file).then_some(name)
    }

    /// Whether it is a list of removals.
    #[must_use]
    pub fn is_removals(&self) -> bool {
        matches!(self.object, Object::Removals(_))
    }

    /// The folder that the object is in.
    #[must_use]
    pub fn folder(&self) -> String {
        match self.object {
            Object::Removals(_) => REMOVALS_FOLDER.to_owned(),
            _ => self.writer.to_string(),
        }
    }

    /// The name of the file in its folder.
    #[must_use]
    pub fn file(&self) -> String {
        match self.object {
            Object::Removals(_) => format!("{}-{}", self.writer, self.object),
            object => object.to_string(),
        }
    }
}

fn parse_hex(text: &str) -> Option<u64> {
    if text.len() != 16 {
        return None;
    }
    u64::from_str_radix(text, 16).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_parse_to_what_they_were_made_of_and_nothing_else_parses() {
        let writer = WriterId { store: StoreId([0xab; 16]), open: 0x12 };
        assert_eq!(writer.to_string(), format!("{}-0000000000000012", "ab".repeat(16)));
        assert_eq!(WriterId::parse(&writer.to_string()), Some(writer));
        let namespace = Object::Namespace(NamespaceId([3; 16]));
        for object in
            [Object::Pack(1), Object::Catalog(COUNT_LIMIT - 1), Object::Beat(0), namespace]
        {
            assert_eq!(Object::parse(&object.to_string()), Some(object));
        }
        let upper = writer.to_string().to_uppercase();
        for text in ["", "-", "..", &upper, &"é".repeat(16)] {
            assert_eq!(WriterId::parse(text), None, "{text}");
        }
        assert_eq!(WriterId::parse(REMOVALS_FOLDER), None);
        let list = writer.object(Object::Removals(3));
        let text = format!("removals/{writer}-0000000000000003.removals");
        assert_eq!((list.to_string(), ObjectName::parse(&text)), (text.clone(), Some(list)));
        let pack = writer.object(Object::Pack(3));
        assert_eq!(ObjectName::parse(&pack.to_string()), Some(pack));
        let own_folder = text.replace("removals/", &format!("{writer}/"));
        for text in ["removals", "removals/", "removals/x.removals", &own_folder, &text[9..]] {
            assert_eq!(ObjectName::parse(text), None, "{text}");
        }
        let over = Object::Pack(COUNT_LIMIT).to_string();
        for text in ["", "1.pack", "+000000000000001.pack", "0000000000000001.tmp", &over] {
            assert_eq!(Object::parse(text), None, "{text}");
        }
    }
}
