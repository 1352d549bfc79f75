//! Segment files: creates them, and writes their headers.

use std::sync::Arc;

use dalsegno_core::StoreId;
use dalsegno_extent::format::{SECTOR, SegmentHeader, segment_file};
use dalsegno_extent::{DeviceIo, write_at};
use dalsegno_io::{IoError, OpenMode};

use super::pin::Segment;
use crate::sync::Syncer;

/// Creates and renews segment files of one store.
#[derive(Debug)]
pub(super) struct SegmentFiles {
    pub(super) io: Arc<DeviceIo>,
    pub(super) syncer: Arc<Syncer>,
    pub(super) store: StoreId,
    pub(super) segment_bytes: u64,
}

/// The life of a segment that a header begins.
#[derive(Clone, Copy)]
pub(super) struct SegmentLife {
    pub(super) epoch: u64,
    pub(super) first_sequence: u64,
    /// Whether the tombstones of the epoch before are still being copied.
    pub(super) carrying: bool,
}

impl SegmentFiles {
    /// Creates a segment file. The file, its header and its name are durable afterwards.
    pub(super) fn create(&self, number: u64, first_sequence: u64) -> Result<Arc<Segment>, IoError> {
        let name = segment_file(number);
        let mode = OpenMode::Create { bytes: self.segment_bytes };
        let created = self.io.device.open(&name, mode).and_then(|opened| {
            let segment = Segment::new(number, opened.file, 1);
            let life = SegmentLife { epoch: 1, first_sequence, carrying: false };
            let ready = self.write_header(&segment, life).and_then(|()| self.syncer.sync_names());
            if ready.is_err() {
                self.io.device.close(opened.file);
            }
            ready.map(|()| segment)
        });
        if created.is_err() {
            // If the file cannot be removed either, opening finds it damaged.
            drop(self.io.device.remove(&name));
        }
        created
    }

    /// Writes and syncs a segment's header. From now on only records of its epoch count; while the life is `carrying`,
    /// only tombstones count, of any epoch.
    pub(super) fn write_header(&self, segment: &Segment, life: SegmentLife) -> Result<(), IoError> {
        let SegmentLife { epoch, first_sequence, carrying } = life;
        let header = SegmentHeader {
            store: self.store,
            segment: segment.number,
            epoch,
            segment_bytes: self.segment_bytes,
            first_sequence,
            carrying,
        };
        let mut sector = [0; SECTOR];
        header.encode(&mut sector);
        write_at(&self.io, segment.file, 0, &sector, &self.io.own_call())?;
        self.syncer.sync_file(segment.file)
    }
}
