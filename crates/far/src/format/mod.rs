//! Encodes and decodes the bytes of docs/formats/pack.md, without I/O.

mod catalog;

pub use catalog::{Catalog, Entry, KnownWriter, MAX_CATALOG_BYTES, MAX_PACK_BYTES, Tombstone};
