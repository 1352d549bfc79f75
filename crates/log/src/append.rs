//! Writing: reserve room, write, sync if asked to.
//!
//! 1. The header's checksums are taken from the caller's bytes before they go to the device; if the bytes change on
//!    their way, the extent is a miss later, never wrong.
//! 2. A failed append gives its room up; nothing of it is ever visible.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use dalsegno_core::{ChainHash, Durability, Extent, KvLayout, NamespaceId};
use dalsegno_io::Memory;

use crate::call::Call;
use crate::compressed::CompressedExtent;
use crate::error::LogError;
use crate::format::{RecordHeader, RecordKind, Units, record_header_bytes};
use crate::headers::Tables;
use crate::log::{Core, Log};
use crate::plan::Piece;
use crate::reserve::{Reservation, Room};
use crate::segment::Pin;
use crate::sync::Unsynced;
use crate::write::Writing;

/// An extent to be written.
#[derive(Clone, Debug)]
pub struct NewExtent {
    /// Who may read it.
    pub namespace: NamespaceId,
    /// See [`Extent::lineage`].
    pub lineage: ChainHash,
    /// See [`Extent::first_block_index`].
    pub first_block_index: u32,
    /// See [`Extent::parent`].
    pub parent: ChainHash,
    /// Shape of the blocks.
    pub layout: KvLayout,
    /// Names of the blocks.
    pub hashes: Vec<ChainHash>,
    /// Set when the bytes were put before and are only moved: see [`Extent::born`].
    pub born: Option<u64>,
}

/// An extent that is in the log. The pin keeps it there until the index knows it.
#[derive(Debug)]
pub struct Appended {
    /// The extent.
    pub extent: Extent,
    /// Drop it after the extent was inserted into the index.
    pub pin: Arc<Pin>,
}

impl NewExtent {
    pub(crate) fn block_count(&self) -> u32 {
        u32::try_from(self.hashes.len()).expect("bounded by MAX_EXTENT_BLOCKS")
    }

    pub(crate) fn header_bytes(&self) -> u32 {
        record_header_bytes(self.block_count(), self.layout.layers())
    }

    /// Header and payload, plain.
    #[must_use]
    pub fn total_bytes(&self) -> u64 {
        u64::from(self.header_bytes()) + self.layout.payload_bytes(self.block_count())
    }

    pub(crate) fn header(
        &self,
        core: &Core,
        place: &Reservation,
        slice_crcs: Vec<u32>,
        units: Option<Units>,
    ) -> RecordHeader {
        RecordHeader {
            store: core.store,
            segment: place.pin.segment.number,
            epoch: place.epoch,
            offset: place.offset,
            sequence: place.sequence,
            born: self.born.unwrap_or(place.sequence),
            namespace: self.namespace,
            lineage: self.lineage,
            parent: self.parent,
            first_block_index: self.first_block_index,
            hashes: self.hashes.clone(),
            kind: RecordKind::Extent { layout: self.layout, slice_crcs, units },
        }
    }
}

/// An extent with its bytes and its place in the log.
#[derive(Debug)]
pub struct Append {
    extent: NewExtent,
    body: Body,
    place: Reservation,
}

#[derive(Debug)]
enum Body {
    Plain(Vec<Vec<Memory>>),
    CompressedExtent(CompressedExtent),
}

impl Append {
    /// An extent that goes to a place reserved for it; see [`Log::reserve`].
    ///
    /// # Panics
    ///
    /// If there is not one memory per hash, or the place is of another size.
    #[must_use]
    pub fn new(extent: NewExtent, blocks: Vec<Vec<Memory>>, place: Reservation) -> Self {
        assert_eq!(blocks.len(), extent.hashes.len(), "one memory per hash");
        assert_eq!(place.bytes, extent.total_bytes(), "room for another extent");
        Self { extent, body: Body::Plain(blocks), place }
    }

    /// An extent that was compressed and goes to a place of [`CompressedExtent::total_bytes`].
    ///
    /// # Panics
    ///
    /// If the place is of another size.
    #[must_use]
    pub fn compressed(extent: NewExtent, compressed: CompressedExtent, place: Reservation) -> Self {
        assert_eq!(place.bytes, compressed.total_bytes(&extent), "room for another extent");
        Self { extent, body: Body::CompressedExtent(compressed), place }
    }
}

impl Log {
    /// Reserves room for a compressed extent.
    ///
    /// # Errors
    ///
    /// As [`Log::reserve`].
    pub fn reserve_compressed(
        &self,
        extent: NewExtent,
        compressed: CompressedExtent,
        relocating: bool,
    ) -> Result<Append, LogError> {
        let room = if relocating { Room::Reserve } else { Room::Creatable };
        let place = self.core.reserve(compressed.total_bytes(&extent), room)?;
        Ok(Append::compressed(extent, compressed, place))
    }

    /// Reserves room for an extent. `blocks[b]` holds the bytes of block `b`, layer 0 first, in as many pieces as the
    /// caller has. Nothing is written before [`Log::append`].
    ///
    /// # Errors
    ///
    /// [`LogError::Full`] if a segment must be recycled first (`relocating` may use the reserve).
    ///
    /// # Panics
    ///
    /// If there is not one memory per hash.
    pub fn reserve(
        &self,
        extent: NewExtent,
        blocks: Vec<Vec<Memory>>,
        relocating: bool,
    ) -> Result<Append, LogError> {
        let room = if relocating { Room::Reserve } else { Room::Creatable };
        let place = self.core.reserve(extent.total_bytes(), room)?;
        Ok(Append::new(extent, blocks, place))
    }

    /// Reserves room that is there now: waits neither for the device nor for another call.
    ///
    /// # Errors
    ///
    /// [`LogError::Full`] if a segment must be created or recycled first: see [`Log::prepare`].
    pub fn reserve_now(&self, bytes: u64) -> Result<Reservation, LogError> {
        self.core.reserve(bytes, Room::Ready)
    }

    /// Writes extents, several at a time; one result each, in order. With durability `batch` they share a sync.
    ///
    /// With a deadline the bytes are copied before they are written, so that the caller's memory is free when the call
    /// ends; without one, aligned memory is written from where it lies. The room of an extent that fails is given up,
    /// and nothing of it is ever visible.
    ///
    /// # Panics
    ///
    /// If a block's pieces do not sum to the layout's block size.
    #[must_use]
    pub fn append(&self, appends: Vec<Append>, call: &Call) -> Vec<Result<Appended, LogError>> {
        let core = &self.core;
        let rules = core.rules(!call.must_stage());
        let mut headers = Vec::with_capacity(appends.len());
        let mut writings = Vec::with_capacity(appends.len());
        for Append { extent, body, place } in appends {
            let pin = Arc::clone(&place.pin);
            let header = match body {
                Body::Plain(blocks) => {
                    let header = extent.header(core, &place, Vec::new(), None);
                    let pieces = payload_pieces(&header, into_slices(extent.layout, blocks));
                    writings.push(Writing::extent(pin, header.clone(), pieces, rules));
                    header
                }
                Body::CompressedExtent(CompressedExtent { slice_crcs, units, payload }) => {
                    let header = extent.header(core, &place, slice_crcs, Some(units));
                    // Its memory is ours: the device may take it from there although the call may end before.
                    writings.push(Writing::compressed(pin, &header, payload, core.rules(true)));
                    header
                }
            };
            headers.push((header, place));
        }
        core.write(&mut writings, call);
        core.sync_written(&mut writings, &headers, call);
        let settled = headers.into_iter().zip(writings);
        settled
            .map(|((header, place), writing)| {
                core.settle(&header, place, writing.result.map(|()| writing.crcs))
            })
            .collect()
    }
}

impl Core {
    /// With durability `batch`, makes what was written durable: one sync per segment.
    fn sync_written(
        &self,
        writings: &mut [Writing],
        headers: &[(RecordHeader, Reservation)],
        call: &Call,
    ) {
        if self.options.durability == Durability::None {
            return;
        }
        let mut synced: BTreeMap<u64, Result<(), Unsynced>> = BTreeMap::new();
        for (writing, (header, place)) in writings.iter_mut().zip(headers) {
            if writing.result.is_err() {
                continue;
            }
            let durable = *synced
                .entry(header.segment)
                .or_insert_with(|| self.sync_segment(&place.pin.segment, call));
            writing.result = durable.map_err(LogError::from);
        }
    }

    /// Settles an extent's fate after its bytes were written, or not.
    pub(crate) fn settle(
        &self,
        header: &RecordHeader,
        place: Reservation,
        written: Result<Vec<u32>, LogError>,
    ) -> Result<Appended, LogError> {
        match written {
            Ok(crcs) => {
                let extent = header.extent().expect("an extent's header");
                let units = header.units().cloned();
                self.headers.insert(extent.id, Arc::new(Tables { crcs, units }));
                let mut segments = self.segments.lock();
                segments.note_record(header.segment, header.sequence, header.born);
                segments.count_record(header.segment, header.hashes.len() as u64);
                drop(segments);
                Ok(Appended { extent, pin: place.pin })
            }
            Err(error) => {
                if let Some(extent) = header.extent().filter(Extent::is_moved) {
                    // Its header may be there all the same, and the mark that it was given up may not.
                    self.doubt(&extent);
                }
                self.give_up(place);
                Err(error)
            }
        }
    }
}

/// The pieces of an extent's payload, at their places in the segment.
fn payload_pieces(header: &RecordHeader, slices: Vec<Vec<Memory>>) -> Vec<Piece> {
    let extent = header.extent().expect("an extent's header");
    let blocks = extent.block_count();
    let indexed = (0_u32..).zip(slices);
    let pieces = indexed.flat_map(|(index, memory)| {
        pieces_of(extent.slice_offset(index / blocks, index % blocks), index, memory)
    });
    pieces.collect()
}

/// The pieces of one slice, at their places in the segment.
pub(crate) fn pieces_of(
    offset: u64,
    slice: u32,
    memory: Vec<Memory>,
) -> impl Iterator<Item = Piece> {
    let mut at = 0;
    memory.into_iter().filter(|memory| !memory.is_empty()).map(move |memory| {
        let (len, slice_offset) = (memory.len(), at);
        at += len;
        Piece {
            offset: offset + slice_offset as u64,
            len,
            memory: Some(memory),
            slice,
            slice_offset,
        }
    })
}

/// Turns blocks (layers one after the other) into slices, layer-major.
pub(crate) fn into_slices(layout: KvLayout, blocks: Vec<Vec<Memory>>) -> Vec<Vec<Memory>> {
    let count = blocks.len();
    let slice_bytes = layout.slice_bytes() as usize;
    let mut slices: Vec<Vec<Memory>> = Vec::new();
    slices.resize_with(count * layout.layers() as usize, Vec::new);
    for (block, pieces) in blocks.into_iter().enumerate() {
        let mut pieces = VecDeque::from(pieces);
        for layer in 0..layout.layers() as usize {
            slices[layer * count + block] = take_front(&mut pieces, slice_bytes);
        }
        assert!(pieces.iter().all(Memory::is_empty), "a block has more bytes than its layout says");
    }
    slices
}

/// Takes exactly `bytes` off the front of a list of pieces.
pub(crate) fn take_front(pieces: &mut VecDeque<Memory>, mut bytes: usize) -> Vec<Memory> {
    let mut taken = Vec::with_capacity(1);
    while bytes > 0 {
        let mut piece = pieces.pop_front().expect("a block has fewer bytes than its layout says");
        if piece.len() > bytes {
            taken.push(piece.split_to(bytes));
            pieces.push_front(piece);
            return taken;
        }
        bytes -= piece.len();
        taken.push(piece);
    }
    taken
}
