//! Names of the log's files.

use dalsegno_core::{COUNT_LIMIT, NamespaceId};

/// Name of the store's header file.
pub const STORE_FILE: &str = "store.meta";

/// Name of a segment's file.
#[must_use]
pub fn segment_file(number: u64) -> String {
    format!("segment-{number:016x}.log")
}

/// The number in a segment file's name.
#[must_use]
pub fn segment_number(name: &str) -> Option<u64> {
    let digits = name.strip_prefix("segment-")?.strip_suffix(".log")?;
    let number = u64::from_str_radix(digits, 16).ok()?;
    (segment_file(number) == name && number < COUNT_LIMIT).then_some(number)
}

/// Name of a namespace descriptor's file.
#[must_use]
pub fn namespace_file(id: NamespaceId) -> String {
    format!("namespace-{id}.meta")
}

/// The id in a namespace descriptor's name.
#[must_use]
pub fn namespace_of_file(name: &str) -> Option<NamespaceId> {
    let digits = name.strip_prefix("namespace-")?.strip_suffix(".meta")?;
    NamespaceId::from_hex(digits).ok().filter(|id| namespace_file(*id) == name)
}
