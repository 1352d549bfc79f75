//! Writing an extent layer by layer, as the layers of a forward pass finish.
//!
//! 1. Room for the whole extent is reserved first; each layer is one contiguous range of it.
//! 2. The header goes in last: until then no reader and no recovery can see the extent.
//! 3. An extent that is not committed becomes a void.
//! 4. It is always plain: where a compressed layer lies depends on those before it, and layers come in any order. What
//!    is merged or moved later is compressed then.
//! 5. It keeps nothing of a log that was let go: who holds it longer holds neither files nor their directory.

use std::sync::{Arc, Weak};

use dalsegno_core::Durability;
use dalsegno_io::{IoError, Memory};

use crate::append::{Appended, NewExtent, pieces_of};
use crate::call::Call;
use crate::error::LogError;
use crate::log::{Core, Log};
use crate::reserve::Reservation;
use crate::write::Writing;

/// An extent that is being written one layer at a time.
#[derive(Debug)]
pub struct LayerAppend {
    core: Weak<Core>,
    extent: NewExtent,
    place: Option<Reservation>,
    crcs: Vec<Vec<u32>>,
}

impl Log {
    /// Begins an extent at its place; its layers follow with [`LayerAppend::store_layer`].
    ///
    /// # Panics
    ///
    /// If the place is of another size.
    #[must_use]
    pub fn begin_layers(&self, extent: NewExtent, place: Reservation) -> LayerAppend {
        assert_eq!(place.bytes, extent.total_bytes(), "room for another extent");
        let crcs = vec![Vec::new(); extent.layout.layers() as usize];
        LayerAppend { core: Arc::downgrade(&self.core), extent, place: Some(place), crcs }
    }
}

impl LayerAppend {
    /// Writes one layer: `blocks[b]` holds the layer's slice of block `b`. Layers may come in any order, each once.
    ///
    /// # Errors
    ///
    /// Whatever the device says, or [`IoError::Closed`] when the log was let go; the extent can then only be dropped.
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
        let core = self.core()?;
        core.check_writable()?;
        let place = self.place.as_ref().expect("not committed");
        let slice_bytes = u64::from(self.extent.layout.slice_bytes());
        let row = self.row_offset(place, layer);
        let slices = blocks.len();
        let pieces = blocks.into_iter().enumerate().flat_map(|(block, memory)| {
            let index = u32::try_from(block).expect("block count is bounded");
            pieces_of(row + block as u64 * slice_bytes, index, memory)
        });
        let rules = core.rules(!call.must_stage());
        let writing = Writing::payload(Arc::clone(&place.pin), pieces, slices, rules);
        let crcs = core.write_one(writing, call)?;
        self.crcs[layer as usize] = crcs;
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

    /// Writes the header: the extent exists.
    ///
    /// # Errors
    ///
    /// Whatever the device says; nothing is visible then.
    ///
    /// # Panics
    ///
    /// If a layer is missing.
    pub fn commit(mut self, call: &Call) -> Result<Appended, LogError> {
        assert!(self.missing_layers().is_empty(), "all layers are stored before commit");
        let core = self.core()?;
        let place = self.place.take().expect("not committed");
        let crcs = std::mem::take(&mut self.crcs).concat();
        let header = self.extent.header(&core, &place, crcs.clone(), None);
        let writing = Writing::header(Arc::clone(&place.pin), &header, core.rules(false));
        let written = core.write_one(writing, call).and_then(|_| match core.options.durability {
            Durability::None => Ok(crcs),
            Durability::Batch => {
                core.sync_segment(&place.pin.segment, call)?;
                Ok(crcs)
            }
        });
        core.settle(&header, place, written)
    }

    fn core(&self) -> Result<Arc<Core>, LogError> {
        self.core.upgrade().ok_or(LogError::Io(IoError::Closed))
    }

    /// Drops it without a void, for a log that is closed: the next open finds that nothing is there.
    pub fn leave(mut self) {
        self.place = None;
    }

    fn row_offset(&self, place: &Reservation, layer: u32) -> u64 {
        let layers = u64::from(self.extent.layout.layers());
        let stride = (self.extent.total_bytes() - u64::from(self.extent.header_bytes())) / layers;
        place.offset + u64::from(self.extent.header_bytes()) + u64::from(layer) * stride
    }
}

impl Drop for LayerAppend {
    fn drop(&mut self) {
        if let Some((place, core)) = self.place.take().zip(self.core.upgrade()) {
            core.give_up(place);
        }
    }
}
