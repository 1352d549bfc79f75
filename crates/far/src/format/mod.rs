//! Encodes and decodes the bytes of docs/formats/pack.md, and of `far.meta` in docs/formats/log.md, without I/O.

mod applied;
mod catalog;

pub use applied::{AppliedCatalogs, MAX_APPLIED_BYTES};
pub use catalog::{Catalog, Entry, KnownWriter, MAX_CATALOG_BYTES, MAX_PACK_BYTES, Tombstone};
