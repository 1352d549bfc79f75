//! Encodes and decodes the bytes of docs/formats/pack.md, and of `far.meta` in docs/formats/log.md, without I/O.

mod applied;
mod catalog;
mod removals;
mod writer;

pub use applied::{AppliedCatalogs, MAX_APPLIED_BYTES};
pub use catalog::{Catalog, MAX_APPLIED_WRITERS, MAX_CATALOG_BYTES, MAX_PACK_BYTES, extent_bytes};
pub use removals::{FULL_LIST_BYTES, MAX_LIST_BYTES, MAX_LIST_HASHES, RemovalList};
