//! The files of one index: where they are, and which number the next one gets.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use dalsegno_core::StoreId;

use crate::lsm::files::table_files::TableFiles;

/// The directory of an index.
#[derive(Debug)]
pub(crate) struct IndexDirectory {
    pub(crate) files: Arc<dyn TableFiles>,
    pub(crate) store: StoreId,
    /// Bytes of one write.
    pub(crate) request_bytes: usize,
    next_number: AtomicU64,
}

impl IndexDirectory {
    pub(crate) fn new(
        files: Arc<dyn TableFiles>,
        store: StoreId,
        request_bytes: usize,
        next_number: u64,
    ) -> Self {
        Self { files, store, request_bytes, next_number: AtomicU64::new(next_number) }
    }

    /// A number that no file had before.
    pub(crate) fn take_number(&self) -> u64 {
        self.next_number.fetch_add(1, Ordering::Relaxed)
    }

    /// The number that [`Self::take_number`] returns next.
    pub(crate) fn next_number(&self) -> u64 {
        self.next_number.load(Ordering::Relaxed)
    }
}
