//! Bytes of keys, values and manifests; no I/O.

pub(crate) mod keys;
pub(crate) mod manifest;
pub(crate) mod varint;
