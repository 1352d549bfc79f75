//! Encodes and decodes the bytes of docs/formats/pack.md, and of `far-0.meta` in docs/formats/log.md, without I/O.

mod applied;
mod catalog;
mod removals;
mod writer;

pub use applied::{MAX_PENDING_BYTES, MAX_RECORD_BYTES, RemovalRecord};
pub(crate) use catalog::entry_bytes;
pub use catalog::{
    CATALOG_PACKS, Catalog, CatalogPack, MAX_APPLIED_WRITERS, MAX_CATALOG_BYTES, MAX_PACK_BYTES,
    PACK_FIELD_BYTES, catalog_of, extent_bytes, packs_of,
};
pub use removals::{FULL_LIST_BYTES, MAX_LIST_BYTES, MAX_LIST_HASHES, RemovalList};
