//! Scans order entries, that is extents, in the order of their keys.

use std::sync::Arc;

use crate::error::TableError;
use crate::lsm::format::keys::{KIND_ORDER, OrderKey};
use crate::lsm::read::merge::MergedSources;
use crate::lsm::table::read_counts::ReadCounts;
use crate::lsm::table::source::Source;

/// A scan over the order entries that were not removed.
pub(crate) struct OrderScan {
    entries: MergedSources<Box<dyn Source>>,
    counts: Arc<ReadCounts>,
}

impl OrderScan {
    /// A scan of `entries`, which start at an order key.
    pub(crate) fn new(entries: MergedSources<Box<dyn Source>>, counts: Arc<ReadCounts>) -> Self {
        Self { entries, counts }
    }

    /// The next entry.
    pub(crate) fn next(&mut self) -> Result<Option<(OrderKey, Vec<u8>)>, TableError> {
        while let Some(key) = self.entries.key().filter(|key| key[0] == KIND_ORDER) {
            let key = OrderKey::decode(key).ok_or(TableError::Malformed("an order key"))?;
            let value = self.entries.value().to_vec();
            self.counts.count_scanned();
            self.entries.advance()?;
            if !value.is_empty() {
                return Ok(Some((key, value)));
            }
        }
        Ok(None)
    }
}
