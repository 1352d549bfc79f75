//! Writing an extent that is made of others.
//!
//! 1. It is durable when it is handed out, whatever the durability of puts: what it replaces may be recycled.
//! 2. One is written at a time, and while it is, no segment's header claims that what was merged so far is durable. So
//!    opening need not read a merged extent to know that it, and not what it was made of, is to be used.
//! 3. A removal that is announced after its place was reserved hides it as it hides what it was made of: `born` is that
//!    of the newest. The caller leaves out what was removed before.
//! 4. It takes room that is there, and leaves the reserve.
//! 5. One that a crash or a failed write left, and that is not whole, is never told as durable by a later segment's
//!    header: opening makes its record void, or nothing is said of it and of those after it; nor of those after the
//!    last one told, as long as something cannot be read.

use std::sync::Arc;

use dalsegno_core::{Durability, Extent};
use dalsegno_io::{Memory, Operation};

use crate::append::{Append, Appended, NewExtent};
use crate::call::Call;
use crate::compressed::CompressedExtent;
use crate::error::LogError;
use crate::format::{RecordKind, record_header_bytes};
use crate::layerwise::LayerAppend;
use crate::log::{Core, Log};
use crate::reserve::Room;
use crate::segment::Doubt;

/// A merged extent that is being written one layer at a time.
#[derive(Debug)]
pub struct MergeAppend {
    append: LayerAppend,
    under_way: UnderWay,
}

/// A merged extent that was compressed, and is written in one go.
#[derive(Debug)]
pub struct CompressedMerge {
    append: Append,
    under_way: UnderWay,
}

/// The mark that a merged extent is not durable yet.
#[derive(Debug)]
struct UnderWay(Arc<Core>);

impl Drop for UnderWay {
    fn drop(&mut self) {
        self.0.segments.lock().merging = None;
    }
}

impl Log {
    /// Begins an extent that is made of others; `extent.born` is that of the newest of them. Only one may be under way.
    ///
    /// # Errors
    ///
    /// [`LogError::Full`] if a segment must be created or recycled first: see [`Log::prepare`].
    ///
    /// # Panics
    ///
    /// If another one is under way.
    pub fn begin_merge(&self, extent: NewExtent) -> Result<MergeAppend, LogError> {
        let born = extent.born.expect("what is merged was put before");
        let place = self.core.reserve(extent.total_bytes(), Room::Merging { born })?;
        let under_way = UnderWay(Arc::clone(&self.core));
        Ok(MergeAppend { append: self.begin_layers(extent, place), under_way })
    }

    /// The same for an extent that was compressed.
    ///
    /// # Errors
    ///
    /// As [`Log::begin_merge`].
    ///
    /// # Panics
    ///
    /// If another one is under way.
    pub fn begin_compressed_merge(
        &self,
        extent: NewExtent,
        compressed: CompressedExtent,
    ) -> Result<CompressedMerge, LogError> {
        let born = extent.born.expect("what is merged was put before");
        let place = self.core.reserve(compressed.total_bytes(&extent), Room::Merging { born })?;
        let under_way = UnderWay(Arc::clone(&self.core));
        Ok(CompressedMerge { append: Append::compressed(extent, compressed, place), under_way })
    }
}

impl CompressedMerge {
    /// Writes the extent and makes it durable.
    ///
    /// # Errors
    ///
    /// As [`MergeAppend::commit`].
    pub fn commit(self, call: &Call) -> Result<Appended, LogError> {
        let Self { append, under_way } = self;
        let log = Log { core: Arc::clone(&under_way.0) };
        let appended = log.append(vec![append], call).remove(0)?;
        under_way.0.make_durable(&appended, call)?;
        Ok(appended)
    }
}

impl Log {
    /// Makes an extent durable that was appended whole, whatever the durability of puts.
    ///
    /// # Errors
    ///
    /// [`LogError::Poisoned`] if the sync failed.
    pub fn make_durable(&self, appended: &Appended) -> Result<(), LogError> {
        self.core.make_durable(appended, &Call::background())
    }

    /// Sees to it that no later open takes an extent for durable that was made of others and was found not to be whole.
    /// If it `is_replaced` others hold all that is alive of it, and its record becomes void. To be called before
    /// anything is written.
    pub fn doubt(&self, extent: &Extent, is_replaced: bool) {
        let core = &self.core;
        if core.options.read_only {
            return;
        }
        if is_replaced {
            match core.make_void(extent) {
                Ok(()) => return,
                Err(error) => tracing::debug!("what is left of a merge stays: {error}"),
            }
        }
        core.doubt(extent);
    }
}

impl MergeAppend {
    /// As [`LayerAppend::store_layer`].
    ///
    /// # Errors
    ///
    /// Whatever the device says; the extent can then only be dropped.
    pub fn store_layer(
        &mut self,
        layer: u32,
        blocks: Vec<Vec<Memory>>,
        call: &Call,
    ) -> Result<(), LogError> {
        self.append.store_layer(layer, blocks, call)
    }

    /// Writes the header and makes the extent durable.
    ///
    /// # Errors
    ///
    /// Whatever the device says, [`LogError::Poisoned`] if the sync failed; the extent must not be used then.
    pub fn commit(self, call: &Call) -> Result<Appended, LogError> {
        let Self { append, under_way } = self;
        let appended = append.commit(call)?;
        under_way.0.make_durable(&appended, call)?;
        Ok(appended)
    }
}

impl Core {
    /// From now on nothing says of an extent that it is whole; see [`Doubt`].
    pub(crate) fn doubt(&self, extent: &Extent) {
        let doubt = Doubt { offset: extent.location.offset, sequence: extent.id.0 };
        self.segments.lock().doubt(extent.location.segment, doubt);
    }

    /// Writes a void in the place of an extent, and makes it durable.
    fn make_void(&self, extent: &Extent) -> Result<(), LogError> {
        self.check_writable()?;
        let Some(pin) = self.pin(extent.location) else { return Ok(()) };
        self.drop_list_with(&extent.location)?;
        let sequence = self.segments.lock().take_sequence();
        let payload_bytes = extent.total_bytes() - u64::from(record_header_bytes(0, 0));
        let location = extent.location;
        let at = (location.segment, location.epoch, location.offset);
        let header = self.bare_header(at, sequence, RecordKind::Void { payload_bytes });
        let mut bytes = vec![0; header.header_bytes() as usize];
        header.encode(&mut bytes);
        let (file, call) = (pin.segment.file, self.patient_call());
        self.transfer(Operation::Write, file, location.offset, &mut bytes, &call)?;
        self.segments.lock().uncount_extent(location.segment, extent.block_count().into());
        Ok(self.sync_segment(&pin.segment, &call)?)
    }

    /// Syncs what was appended, unless that was done already.
    fn make_durable(&self, appended: &Appended, call: &Call) -> Result<(), LogError> {
        match self.options.durability {
            Durability::Batch => Ok(()),
            Durability::None => self.sync_segment(&appended.pin.segment, call).map_err(|why| {
                self.doubt(&appended.extent);
                why.into()
            }),
        }
    }
}
