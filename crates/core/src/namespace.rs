//! Namespaces: the identities under which blocks are shared.
//!
//! 1. Two namespaces with any differing field have different ids. Every tag and value enters the digest with its
//!    length, so that no two fields run together.
//! 2. The canonical encoding is both hashed and stored, so a stored descriptor proves its own id.

use std::collections::BTreeMap;

use sha2::{Digest, Sha256};

use crate::hash::NamespaceId;
use crate::layout::KvLayout;
use crate::{Error, Result};

/// First bytes of the canonical encoding. The number increases when its rules change.
const ENCODING_TAG: &[u8] = b"dalsegno namespace 1\n";
/// Most fields of a namespace.
const MAX_FIELDS: u32 = 64;
/// Longest tag or value, in bytes.
const MAX_FIELD_BYTES: usize = 1024;

/// An identity under which blocks are shared, and the shape of these blocks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Namespace {
    id: NamespaceId,
    layout: KvLayout,
    fields: BTreeMap<String, String>,
}

/// Collects the fields of a [`Namespace`].
#[derive(Clone, Debug)]
pub struct NamespaceBuilder {
    layout: KvLayout,
    fields: Vec<(String, String)>,
}

impl NamespaceBuilder {
    /// Adds one field, such as `("weights", "sha256:…")`. The order of fields does not matter.
    #[must_use]
    pub fn field(mut self, tag: impl Into<String>, value: impl Into<String>) -> Self {
        self.fields.push((tag.into(), value.into()));
        self
    }

    /// Checks the fields and derives the id.
    ///
    /// # Errors
    ///
    /// `Invalid` if a tag is given twice or is empty, or if a tag or value is too long.
    pub fn build(self) -> Result<Namespace> {
        if self.fields.len() > MAX_FIELDS as usize {
            return Err(Error::invalid(format!(
                "a namespace has at most {MAX_FIELDS} fields, got {}",
                self.fields.len()
            )));
        }
        let mut fields = BTreeMap::new();
        for (tag, value) in self.fields {
            if tag.is_empty() || tag.len() > MAX_FIELD_BYTES || value.len() > MAX_FIELD_BYTES {
                let shown: String = tag.chars().take(64).collect();
                return Err(Error::invalid(format!(
                    "namespace field {shown:?} has a tag of {} bytes and a value of {} bytes; both may have at most \
                     {MAX_FIELD_BYTES}, and the tag must not be empty",
                    tag.len(),
                    value.len()
                )));
            }
            if fields.insert(tag.clone(), value).is_some() {
                return Err(Error::invalid(format!("namespace field {tag:?} is given twice")));
            }
        }
        Ok(Namespace { id: id_of(&encode(self.layout, &fields)), layout: self.layout, fields })
    }
}

impl Namespace {
    /// Starts a namespace whose blocks have this shape.
    #[must_use]
    pub fn builder(layout: KvLayout) -> NamespaceBuilder {
        NamespaceBuilder { layout, fields: Vec::new() }
    }

    /// The id under which blocks are stored.
    #[must_use]
    pub fn id(&self) -> NamespaceId {
        self.id
    }

    /// Shape of the blocks.
    #[must_use]
    pub fn layout(&self) -> KvLayout {
        self.layout
    }

    /// The fields, by tag.
    #[must_use]
    pub fn fields(&self) -> &BTreeMap<String, String> {
        &self.fields
    }

    /// The canonical encoding, whose hash is the id (docs/formats/log.md, "Namespace descriptors").
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        encode(self.layout, &self.fields)
    }

    /// Parses a canonical encoding.
    ///
    /// # Errors
    ///
    /// `Corrupt` if the bytes are not a canonical encoding.
    pub fn decode(bytes: &[u8]) -> Result<Self> {
        let wrong =
            || Error::new(crate::ErrorKind::Corrupt, "these bytes are not a namespace descriptor");
        let mut rest = bytes.strip_prefix(ENCODING_TAG).ok_or_else(wrong)?;
        let mut number = || {
            let (head, tail) = rest.split_first_chunk::<4>()?;
            rest = tail;
            Some(u32::from_le_bytes(*head))
        };
        let (layers, slice_bytes, count) =
            (number().ok_or_else(wrong)?, number().ok_or_else(wrong)?, number().ok_or_else(wrong)?);
        let mut builder = Self::builder(KvLayout::new(layers, slice_bytes).map_err(|_| wrong())?);
        for _ in 0..count.min(MAX_FIELDS + 1) {
            let tag = take_text(&mut rest).ok_or_else(wrong)?;
            let value = take_text(&mut rest).ok_or_else(wrong)?;
            builder = builder.field(tag, value);
        }
        let namespace = builder.build().map_err(|_| wrong())?;
        // Only the canonical form is accepted: same fields, same order, no trailing bytes.
        if namespace.encode() == bytes { Ok(namespace) } else { Err(wrong()) }
    }
}

fn encode(layout: KvLayout, fields: &BTreeMap<String, String>) -> Vec<u8> {
    let mut bytes = ENCODING_TAG.to_vec();
    bytes.extend(layout.layers().to_le_bytes());
    bytes.extend(layout.slice_bytes().to_le_bytes());
    bytes.extend(u32::try_from(fields.len()).expect("at most 64").to_le_bytes());
    for text in fields.iter().flat_map(|(tag, value)| [tag, value]) {
        bytes.extend(u32::try_from(text.len()).expect("at most 1024").to_le_bytes());
        bytes.extend(text.as_bytes());
    }
    bytes
}

fn id_of(encoding: &[u8]) -> NamespaceId {
    let digest = Sha256::digest(encoding);
    let mut id = [0; NamespaceId::BYTES];
    id.copy_from_slice(&digest[..NamespaceId::BYTES]);
    NamespaceId(id)
}

fn take_text(rest: &mut &[u8]) -> Option<String> {
    let (head, tail) = rest.split_first_chunk::<4>()?;
    let length = usize::try_from(u32::from_le_bytes(*head)).ok()?;
    if length > MAX_FIELD_BYTES || length > tail.len() {
        return None;
    }
    let (text, tail) = tail.split_at(length);
    *rest = tail;
    String::from_utf8(text.to_vec()).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn layout() -> KvLayout {
        KvLayout::new(2, 4096).unwrap()
    }

    #[test]
    fn fields_never_run_together() {
        let one = Namespace::builder(layout()).field("a", "bc").field("d", "").build().unwrap();
        let two = Namespace::builder(layout()).field("a", "b").field("cd", "").build().unwrap();
        assert_ne!(one.id(), two.id());
    }

    #[test]
    fn order_of_fields_does_not_matter_but_layout_does() {
        let one = Namespace::builder(layout()).field("a", "1").field("b", "2").build().unwrap();
        let two = Namespace::builder(layout()).field("b", "2").field("a", "1").build().unwrap();
        assert_eq!(one.id(), two.id());
        let other = KvLayout::new(1, 8192).unwrap();
        let three = Namespace::builder(other).field("a", "1").field("b", "2").build().unwrap();
        assert_ne!(one.id(), three.id());
    }

    #[test]
    fn a_descriptor_round_trips_and_every_truncation_is_refused() {
        let namespace =
            Namespace::builder(layout()).field("model", "m").field("salt", "é").build().unwrap();
        let bytes = namespace.encode();
        assert_eq!(Namespace::decode(&bytes).unwrap(), namespace);
        for length in 0..bytes.len() {
            assert!(Namespace::decode(&bytes[..length]).is_err(), "length {length}");
        }
        assert!(Namespace::decode(&[bytes, vec![0]].concat()).is_err());
    }

    #[test]
    fn a_field_given_twice_is_refused() {
        let twice = Namespace::builder(layout()).field("a", "1").field("a", "1").build();
        assert!(twice.unwrap_err().message().contains("twice"));
    }

    #[test]
    fn the_id_never_changes_between_releases() {
        let namespace = Namespace::builder(layout()).field("model", "golden").build().unwrap();
        // printf 'dalsegno namespace 1\n\x02\0\0\0\0\x10\0\0\x01\0\0\0\x05\0\0\0model\x06\0\0\0golden' | sha256sum
        assert_eq!(namespace.id().to_hex(), "0c2bedbe707128e93593f79c9116b65b");
    }
}
