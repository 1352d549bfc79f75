//! Removes blocks for good.
//!
//! 1. A removal is announced before the index is changed, so extents that appear meanwhile are hidden, too.
//! 2. Its tombstone is durable before the removal returns.

use std::collections::HashSet;
use std::sync::Arc;

use dalsegno_core::{ChainHash, Class, MAX_EXTENT_BLOCKS, NamespaceId};
use dalsegno_extent::format::{RecordHeader, RecordKind};
use dalsegno_extent::{RecordWrite, write_one};
use dalsegno_io::Call;

use super::reservation::SpaceUse;
use super::segments::Segments;
use super::tombstones::{Tombstone, removal_bytes};
use crate::device::LogDevice;
use crate::error::LogError;

/// The removals of one log.
#[derive(Debug)]
pub struct Removals {
    device: LogDevice,
    segments: Arc<Segments>,
}

impl Removals {
    pub(crate) fn new(device: LogDevice, segments: Arc<Segments>) -> Self {
        Self { device, segments }
    }

    /// Bytes that a removal of `blocks` blocks takes in the log.
    #[must_use]
    pub fn bytes_for(blocks: usize) -> u64 {
        removal_bytes(blocks)
    }

    /// Announces a removal of blocks of a namespace, or of the whole namespace if `hashes` is empty.
    /// [`Self::removed_since`] returns them from now on. Returns the number with which to finish it.
    ///
    /// # Panics
    ///
    /// If there are more than [`MAX_EXTENT_BLOCKS`] hashes.
    #[must_use]
    pub fn begin(&self, namespace: NamespaceId, hashes: &[ChainHash]) -> u64 {
        assert!(hashes.len() <= MAX_EXTENT_BLOCKS as usize, "one removal fits one record");
        let mut table = self.segments.table();
        let kills_before = table.take_sequence();
        let hashes = hashes.to_vec();
        let (segment, offset) = (0, 0);
        table.tombstones.announce(Tombstone { segment, offset, namespace, hashes, kills_before });
        kills_before
    }

    /// Writes the tombstone of an announced removal, so that the blocks do not come back at the next open. The removal
    /// is durable when this returns.
    ///
    /// # Errors
    ///
    /// As [`Writer::reserve`](crate::Writer::reserve); then the announcement ends without a tombstone.
    pub fn finish(&self, kills_before: u64) -> Result<(), LogError> {
        let found = self.segments.table().tombstones.announced(kills_before).cloned();
        let Some(Tombstone { namespace, hashes, .. }) = found else { return Ok(()) };
        let written = self.write_tombstone(namespace, hashes, kills_before);
        self.abandon(kills_before);
        written
    }

    /// Ends the announcement of a removal without a tombstone: the blocks may come back at the next open.
    pub fn abandon(&self, kills_before: u64) {
        self.segments.table().tombstones.withdraw(kills_before);
    }

    /// Which of these blocks of a namespace were removed after the log gave out sequence number `born`.
    #[must_use]
    pub fn removed_since(
        &self,
        namespace: NamespaceId,
        born: u64,
        hashes: &[ChainHash],
    ) -> HashSet<ChainHash> {
        self.segments.table().tombstones.removed_since(namespace, born, hashes)
    }

    pub(super) fn write_tombstone(
        &self,
        namespace: NamespaceId,
        hashes: Vec<ChainHash>,
        kills_before: u64,
    ) -> Result<(), LogError> {
        let reserved = self.segments.reserve(removal_bytes(hashes.len()), SpaceUse::Reserve)?;
        let place = reserved.place();
        let kind = RecordKind::Tombstone { kills_before };
        let bare = place.bare_header(self.segments.store(), reserved.sequence(), kind);
        let header = RecordHeader { namespace, hashes: hashes.clone(), ..bare };
        let rules = self.device.io.rules(false);
        let record = RecordWrite::header(reserved.pinned_file(), &header, rules);
        write_one(&self.device.io, record, &self.device.io.own_call())?;
        reserved.pin().sync(&self.device.syncer, &Call::of(Class::Need))?;
        let (segment, offset) = (place.segment, place.offset);
        let mut table = self.segments.table();
        table.count_record(segment, 0);
        table.tombstones.push(Tombstone { segment, offset, namespace, hashes, kills_before });
        Ok(())
    }
}
