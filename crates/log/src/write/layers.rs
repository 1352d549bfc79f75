//! Writes an extent layer by layer, as the layers of a forward pass finish.
//!
//! 1. Space for the whole extent is reserved first. Each layer is one contiguous range of it.
//! 2. The header is written last: until then no reader and no recovery sees the extent.
//! 3. An extent that is not committed becomes a void.
//! 4. The extent is plain. The place of a compressed layer depends on those before it, and layers come in any order.
//!    Merging or moving the extent compresses it later.
//! 5. A [`LayerAppend`] keeps nothing of a released log: neither its files nor their directory.

use std::sync::{Arc, Weak};

use dalsegno_core::Durability;
use dalsegno_extent::format::NewExtent;
use dalsegno_extent::{Call, RecordWrite, pieces_of, write_one};
use dalsegno_io::{IoError, Memory};

use super::writer::{Appended, Writer};
use crate::error::LogError;
use crate::segment::Reservation;

/// An extent that is written one layer at a time.
#[derive(Debug)]
pub struct LayerAppend {
    writer: Weak<Writer>,
    extent: NewExtent,
    place: Option<Reservation>,
    crcs: Vec<Vec<u32>>,
}

impl LayerAppend {
    /// Begins an extent at its place. Its layers follow with [`LayerAppend::store_layer`].
    ///
    /// # Panics
    ///
    /// If the place has another size.
    #[must_use]
    pub fn begin(writer: &Arc<Writer>, extent: NewExtent, place: Reservation) -> Self {
        assert_eq!(place.bytes(), extent.total_bytes(), "a place for another extent");
        let crcs = vec![Vec::new(); extent.layout.layers() as usize];
        Self { writer: Arc::downgrade(writer), extent, place: Some(place), crcs }
    }

    /// Writes one layer: `blocks[b]` holds the layer's slice of block `b`. Layers may come in any order, each once.
    ///
    /// # Errors
    ///
    /// The device's error, or [`IoError::Closed`] if the log was released. The extent can then only be dropped.
    ///
    /// # Panics
    ///
    /// If the layer is out of range, comes twice, or a slice has the wrong size; the store checks before it calls.
    pub fn store_layer(
        &mut self,
        layer: u32,
        blocks: Vec<Vec<Memory>>,
        call: &Call,
    ) -> Result<(), LogError> {
        assert_eq!(blocks.len(), self.extent.hashes.len(), "one slice per block");
        assert!(self.crcs[layer as usize].is_empty(), "a layer is stored once");
        let writer = self.writer()?;
        writer.syncer.check_writable()?;
        let place = self.place.as_ref().expect("not committed");
        let slice_bytes = u64::from(self.extent.layout.slice_bytes());
        let row = self.row_offset(place, layer);
        let slices = blocks.len();
        let pieces = blocks.into_iter().enumerate().flat_map(|(block, memory)| {
            let index = u32::try_from(block).expect("block count is bounded");
            pieces_of(row + block as u64 * slice_bytes, index, memory, false)
        });
        let rules = writer.io.rules(!call.must_stage());
        let record = RecordWrite::payload(place.pinned_file(), pieces, slices, rules);
        self.crcs[layer as usize] = write_one(&writer.io, record, call)?;
        Ok(())
    }

    /// Layers that are still missing.
    #[must_use]
    pub fn missing_layers(&self) -> Vec<u32> {
        (0_u32..)
            .zip(&self.crcs)
            .filter(|(_, crcs)| crcs.is_empty())
            .map(|(layer, _)| layer)
            .collect()
    }

    /// Writes the header: from now on the extent exists.
    ///
    /// # Errors
    ///
    /// The device's error; no reader sees the extent then.
    ///
    /// # Panics
    ///
    /// If a layer is missing.
    pub fn commit(mut self, call: &Call) -> Result<Appended, LogError> {
        assert!(self.missing_layers().is_empty(), "all layers are stored before commit");
        let writer = self.writer()?;
        let place = self.place.take().expect("not committed");
        let crcs = std::mem::take(&mut self.crcs).concat();
        let sequence = place.sequence();
        let header = self.extent.header(writer.store, place.place(), sequence, crcs.clone(), None);
        let record = RecordWrite::header(place.pinned_file(), &header, writer.io.rules(false));
        let written = write_one(&writer.io, record, call).map_err(LogError::from);
        let written = written.and_then(|_| match writer.durability {
            Durability::None => Ok(crcs),
            Durability::Batch => {
                place.pin().sync(&writer.syncer, call)?;
                Ok(crcs)
            }
        });
        writer.settle(&header, place, written)
    }

    /// Drops the extent without a void, because the log is closed. The next open finds no record there.
    pub fn leave(mut self) {
        self.place = None;
    }

    fn writer(&self) -> Result<Arc<Writer>, LogError> {
        self.writer.upgrade().ok_or(LogError::Io(IoError::Closed))
    }

    fn row_offset(&self, place: &Reservation, layer: u32) -> u64 {
        let layers = u64::from(self.extent.layout.layers());
        let header_bytes = u64::from(self.extent.header_bytes());
        let stride = (self.extent.total_bytes() - header_bytes) / layers;
        place.place().offset + header_bytes + u64::from(layer) * stride
    }
}

impl Drop for LayerAppend {
    fn drop(&mut self) {
        if let Some((place, writer)) = self.place.take().zip(self.writer.upgrade()) {
            writer.segments.give_up(&place);
        }
    }
}
