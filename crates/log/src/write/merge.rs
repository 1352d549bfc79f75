//! Writes an extent that is merged from others.
//!
//! 1. A merged extent is durable when it is returned, whatever the durability of puts, because the extents that it
//!    replaces may be reclaimed next.
//! 2. One merge is in progress at a time, and meanwhile no segment's header claims that the merges so far are durable.
//!    So opening need not read a merged extent to know whether it, or what it was made of, is to be used.
//! 3. A removal that is announced after the place was reserved hides the merged extent as it hides its sources, because
//!    `born` is that of the newest source. The caller leaves out blocks that were removed before.
//! 4. A merge takes space that is ready, and leaves the reserve.
//! 5. A crash or a failed write may leave a merged extent that is not whole. No later segment's header claims that it
//!    is durable: opening makes its record a void, or no header claims it and the merges after it. While some bytes
//!    cannot be read, no header claims more than the headers before.

use std::sync::Arc;

use dalsegno_extent::format::NewExtent;
use dalsegno_extent::{Call, CompressedExtent};
use dalsegno_io::Memory;

use super::layers::LayerAppend;
use super::writer::{Append, Appended, Writer};
use crate::error::LogError;
use crate::segment::{Reservation, SpaceUse};

/// A merged extent that is written one layer at a time.
#[derive(Debug)]
pub struct MergeAppend {
    append: LayerAppend,
    in_progress: MergeInProgress,
}

/// A compressed merged extent, which is written as a whole.
#[derive(Debug)]
pub struct CompressedMerge {
    append: Append,
    in_progress: MergeInProgress,
}

/// Marks that a merged extent is not durable yet.
#[derive(Debug)]
struct MergeInProgress(Arc<Writer>);

impl Drop for MergeInProgress {
    fn drop(&mut self) {
        self.0.segments.end_merge();
    }
}

impl MergeInProgress {
    fn begin(
        writer: &Arc<Writer>,
        extent: &NewExtent,
        bytes: u64,
    ) -> Result<(Self, Reservation), LogError> {
        let born = extent.born.expect("merged blocks were put before");
        let place = writer.segments.reserve(bytes, SpaceUse::Merge { born })?;
        Ok((Self(Arc::clone(writer)), place))
    }
}

impl MergeAppend {
    /// Begins an extent that is merged from others; `extent.born` is that of the newest source.
    ///
    /// # Errors
    ///
    /// [`LogError::Full`] if a segment must be created or reclaimed first: see [`Segments::prepare`].
    ///
    /// # Panics
    ///
    /// If another merge is in progress.
    ///
    /// [`Segments::prepare`]: crate::Segments::prepare
    pub fn begin(writer: &Arc<Writer>, extent: NewExtent) -> Result<Self, LogError> {
        let (in_progress, place) = MergeInProgress::begin(writer, &extent, extent.total_bytes())?;
        Ok(Self { append: LayerAppend::begin(writer, extent, place), in_progress })
    }

    /// As [`LayerAppend::store_layer`].
    ///
    /// # Errors
    ///
    /// The device's error; the extent can then only be dropped.
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
    /// The device's error, or [`LogError::Poisoned`] if the sync failed. The extent must not be used then.
    pub fn commit(self, call: &Call) -> Result<Appended, LogError> {
        let Self { append, in_progress } = self;
        let appended = append.commit(call)?;
        in_progress.0.make_durable_within(&appended, call)?;
        Ok(appended)
    }
}

impl CompressedMerge {
    /// Begins a merged extent that was compressed.
    ///
    /// # Errors
    ///
    /// As [`MergeAppend::begin`].
    ///
    /// # Panics
    ///
    /// If another merge is in progress.
    pub fn begin(
        writer: &Arc<Writer>,
        extent: NewExtent,
        compressed: CompressedExtent,
    ) -> Result<Self, LogError> {
        let bytes = compressed.total_bytes(&extent);
        let (in_progress, place) = MergeInProgress::begin(writer, &extent, bytes)?;
        Ok(Self { append: Append::compressed(extent, compressed, place), in_progress })
    }

    /// Writes the extent and makes it durable.
    ///
    /// # Errors
    ///
    /// As [`MergeAppend::commit`].
    pub fn commit(self, call: &Call) -> Result<Appended, LogError> {
        let Self { append, in_progress } = self;
        let writer = &in_progress.0;
        let appended = writer.append(vec![append], call).remove(0)?;
        writer.make_durable_within(&appended, call)?;
        Ok(appended)
    }
}
