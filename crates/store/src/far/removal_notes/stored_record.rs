//! The record of removals in the files of a store: docs/formats/log.md.

use dalsegno_core::StoreId;
use dalsegno_far::{MAX_RECORD_BYTES, RemovalRecord};
use dalsegno_log::StoreFiles;

/// What the files of a store say.
pub(super) struct StoredRecord {
    /// The newest record that can be used.
    pub(super) record: Option<RemovalRecord>,
    /// Whether there is any file.
    pub(super) exists: bool,
}

pub(super) fn read_record(files: &StoreFiles, store: StoreId) -> StoredRecord {
    let mut found = StoredRecord { record: None, exists: false };
    for bytes in files.read_removals(MAX_RECORD_BYTES).into_iter().flatten() {
        found.exists = true;
        let decoded = bytes
            .map_err(|error| error.to_string())
            .and_then(|bytes| RemovalRecord::decode(&bytes).map_err(|error| error.to_string()));
        match decoded {
            Ok(record) if record.store == store => {
                let is_newer =
                    found.record.as_ref().is_none_or(|one| one.generation < record.generation);
                if is_newer {
                    found.record = Some(record);
                }
            }
            Ok(_) => tracing::warn!("a record of removals is of another store; it is not used"),
            // A crash leaves one that is not whole; the other one counts.
            Err(error) => tracing::debug!(%error, "a record of removals is not whole"),
        }
    }
    if found.exists && found.record.is_none() {
        tracing::warn!(
            "no record of removals can be used; removals of other stores are applied again"
        );
    }
    found
}

/// How many removals of a store wait to be published.
pub(crate) fn pending_in(files: &StoreFiles, store: StoreId) -> u64 {
    read_record(files, store).record.map_or(0, |record| record.pending.len() as u64)
}
