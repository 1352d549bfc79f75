//! Appends extents: reserves space, writes, and syncs if durability asks for it.
//!
//! 1. The header's checksums are those of the caller's bytes before the write. If the bytes change on their way to the
//!    device, the extent is a miss later, never wrong.
//! 2. A failed append frees its space for a void, and no reader ever sees the extent.
//! 3. With durability `batch`, an extent is durable before an append returns it. A merged extent always is, because the
//!    extents that it replaces may be recycled next.
//! 4. A crash or a failed write may leave a merged extent that is not whole. No later segment's header claims that it
//!    is durable: opening makes its record a void, or no header claims it and the merges after it. While some bytes
//!    cannot be read, no header claims more than the headers before.

use std::collections::BTreeMap;
use std::sync::Arc;

use dalsegno_core::{Class, Durability, Extent, StoreId};
use dalsegno_extent::format::{NewExtent, RecordHeader};
use dalsegno_extent::{
    CompressedExtent, HeaderCache, HeaderName, RecordWrite, VerifiedHeader, into_slices,
    payload_pieces, write_all,
};
use dalsegno_io::{Call, Memory};

use crate::device::LogDevice;
use crate::error::LogError;
use crate::segment::{Pin, Reservation, Segments, SpaceUse};
use crate::sync::Unsynced;

/// An extent that is in the log.
#[derive(Debug)]
pub struct Appended {
    /// The extent.
    pub extent: Extent,
    /// Keeps the extent in the log. Drop it after the extent was inserted into the index.
    pub pin: Arc<Pin>,
}

/// The bytes of an extent, as they are written.
#[derive(Debug)]
pub enum Payload {
    /// One entry per block: its bytes, layer 0 first, in any number of pieces.
    Plain(Vec<Vec<Memory>>),
    /// Compressed slices.
    Compressed(CompressedExtent),
}

impl Payload {
    /// Bytes of the log that `extent` takes with this payload.
    #[must_use]
    pub fn total_bytes(&self, extent: &NewExtent) -> u64 {
        match self {
            Self::Plain(_) => extent.total_bytes(),
            Self::Compressed(compressed) => compressed.total_bytes(extent),
        }
    }
}

/// An extent with its bytes and its place in the log.
#[derive(Debug)]
pub struct Append {
    extent: NewExtent,
    payload: Payload,
    place: Reservation,
}

impl Append {
    /// An extent for a place that was reserved for it: see [`Payload::total_bytes`].
    ///
    /// # Panics
    ///
    /// If there is not one memory per hash, or the place has another size.
    #[must_use]
    pub fn new(extent: NewExtent, payload: Payload, place: Reservation) -> Self {
        if let Payload::Plain(blocks) = &payload {
            assert_eq!(blocks.len(), extent.hashes.len(), "one memory per hash");
        }
        assert_eq!(place.bytes(), payload.total_bytes(&extent), "a place for another extent");
        Self { extent, payload, place }
    }
}

/// Appends extents to one log.
#[derive(Debug)]
pub struct Writer {
    device: LogDevice,
    segments: Arc<Segments>,
    store: StoreId,
    durability: Durability,
    headers: Arc<HeaderCache>,
}

impl Writer {
    pub(crate) fn new(
        device: LogDevice,
        segments: Arc<Segments>,
        headers: Arc<HeaderCache>,
        durability: Durability,
    ) -> Self {
        let store = segments.store();
        Self { device, segments, store, durability, headers }
    }

    /// Reserves space. Nothing is written before [`Writer::append`].
    ///
    /// # Errors
    ///
    /// [`LogError::Full`] if a segment must be recycled first, or created if `space_use` allows none: see
    /// [`Segments::prepare`]. [`LogError::TooLarge`], and the device's error.
    ///
    /// # Panics
    ///
    /// If another merge is in progress.
    pub fn reserve(&self, bytes: u64, space_use: SpaceUse) -> Result<Reservation, LogError> {
        self.segments.reserve(bytes, space_use)
    }

    /// Gives up space in which nothing was written. A void marks it, so that the next open need not search it.
    pub fn give_up(&self, place: &Reservation) {
        self.segments.give_up(place);
    }

    /// Writes extents, several at a time, and returns one result for each, in order. With durability `batch`, the
    /// extents of one segment share a sync.
    ///
    /// With a deadline, the bytes are copied before they are written, so the caller's memory is free when the call
    /// ends. Without one, aligned memory is written directly. An extent that fails becomes a void.
    ///
    /// # Panics
    ///
    /// If a block's pieces do not sum to the layout's block size.
    #[must_use]
    pub fn append(&self, appends: Vec<Append>, call: &Call) -> Vec<Result<Appended, LogError>> {
        let rules = self.device.io.rules(!call.must_stage());
        let mut headers = Vec::with_capacity(appends.len());
        let mut records = Vec::with_capacity(appends.len());
        for Append { extent, payload, place } in appends {
            let pinned = place.pinned_file();
            let at = |crcs, units| {
                extent.header(self.store, place.place(), place.sequence(), crcs, units)
            };
            let header = match payload {
                Payload::Plain(blocks) => {
                    let header = at(Vec::new(), None);
                    let described = header.extent().expect("an extent's header");
                    let pieces = payload_pieces(&described, into_slices(extent.layout, blocks));
                    records.push(RecordWrite::extent(pinned, header.clone(), pieces, rules));
                    header
                }
                Payload::Compressed(CompressedExtent { slice_crcs, units, payload }) => {
                    let header = at(slice_crcs, Some(units));
                    // The log owns the payload's memory, so the device may read it after the call ended.
                    let rules = self.device.io.rules(true);
                    records.push(RecordWrite::compressed(pinned, &header, payload, rules));
                    header
                }
            };
            headers.push((header, place));
        }
        write_all(&self.device.io, &mut records, call);
        let written = records
            .into_iter()
            .map(|record| record.result.map(|()| record.crcs).map_err(LogError::from));
        let mut written: Vec<_> = written.collect();
        self.sync_written(&mut written, &headers, call);
        let settled = headers.into_iter().zip(written);
        settled.map(|((header, place), written)| self.settle(&header, place, written)).collect()
    }

    /// Makes an appended extent durable, whatever the durability of puts.
    ///
    /// # Errors
    ///
    /// [`LogError::Poisoned`] if the sync failed.
    pub fn make_durable(&self, appended: &Appended) -> Result<(), LogError> {
        match self.durability {
            Durability::Batch => Ok(()),
            Durability::None => {
                appended.pin.sync(&self.device.syncer, &Call::of(Class::Save)).map_err(|why| {
                    self.segments.doubt(&appended.extent);
                    why.into()
                })
            }
        }
    }

    /// Makes the written records durable, as far as they must be: one sync per segment.
    fn sync_written(
        &self,
        written: &mut [Result<Vec<u32>, LogError>],
        headers: &[(RecordHeader, Reservation)],
        call: &Call,
    ) {
        let mut synced: BTreeMap<u64, Result<(), Unsynced>> = BTreeMap::new();
        for (written, (header, place)) in written.iter_mut().zip(headers) {
            let is_needed = self.durability == Durability::Batch || place.is_of_merge();
            if written.is_err() || !is_needed {
                continue;
            }
            let durable = *synced
                .entry(header.segment)
                .or_insert_with(|| place.pin().sync(&self.device.syncer, call));
            if let Err(why) = durable {
                *written = Err(why.into());
            }
        }
    }

    /// Counts an extent that was written, or frees the place of one that failed.
    fn settle(
        &self,
        header: &RecordHeader,
        place: Reservation,
        written: Result<Vec<u32>, LogError>,
    ) -> Result<Appended, LogError> {
        match written {
            Ok(crcs) => {
                let extent = header.extent().expect("an extent's header");
                let units = header.units().cloned();
                let written = VerifiedHeader { extent: Arc::new(extent.clone()), crcs, units };
                self.headers.insert(HeaderName::Extent(extent.id), Arc::new(written));
                self.segments.count_written(header);
                Ok(Appended { extent, pin: place.into_pin() })
            }
            Err(error) => {
                if let Some(extent) = header.extent().filter(Extent::is_moved) {
                    // The header may be on disk all the same, and the void over it may not.
                    self.segments.doubt(&extent);
                }
                self.segments.give_up(&place);
                Err(error)
            }
        }
    }
}
