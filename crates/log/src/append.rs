//! Writing: reserve room, write, sync if asked to.
//!
//! 1. The header's checksums are taken from the caller's bytes before anything is written; if the bytes change on
//!    their way, the extent is a miss later, never wrong.
//! 2. A failed append gives its room up; nothing of it is ever visible.

use std::collections::VecDeque;
use std::sync::Arc;

use dalsegno_core::{ChainHash, Durability, Extent, KvLayout, NamespaceId};
use dalsegno_io::{Completion, Memory, Operation};

use crate::call::Call;
use crate::error::LogError;
use crate::format::{RecordHeader, RecordKind, record_header_bytes};
use crate::log::{Core, Log};
use crate::plan::{Chunk, Piece, cut};
use crate::pump::{Pump, Stop, Work};
use crate::reserve::Reservation;
use crate::segment::Pin;
use crate::stats::LogStats;

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
    /// Set when the bytes were put before and are only moved.
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
    fn block_count(&self) -> u32 {
        u32::try_from(self.hashes.len()).expect("bounded by MAX_EXTENT_BLOCKS")
    }

    pub(crate) fn header_bytes(&self) -> u32 {
        record_header_bytes(self.block_count(), self.layout.layers())
    }

    /// Header and payload.
    #[must_use]
    pub fn total_bytes(&self) -> u64 {
        u64::from(self.header_bytes()) + self.layout.payload_bytes(self.block_count())
    }

    pub(crate) fn header(
        &self,
        core: &Core,
        place: &Reservation,
        slice_crcs: Vec<u32>,
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
            kind: RecordKind::Extent { layout: self.layout, slice_crcs },
        }
    }
}

impl Log {
    /// Writes one extent. `blocks[b]` holds the bytes of block `b`, layer 0 first, in as many pieces as the caller has.
    ///
    /// With a deadline the bytes are copied before they are written, so that the caller's memory is free when the call
    /// ends; without one, aligned memory is written from where it lies.
    ///
    /// # Errors
    ///
    /// [`LogError::Full`] if a segment must be recycled first (`relocating` may use the reserve). Whatever fails, the
    /// room is given up and nothing is visible.
    ///
    /// # Panics
    ///
    /// If a block's pieces do not sum to the layout's block size.
    pub fn append(
        &self,
        extent: &NewExtent,
        blocks: Vec<Vec<Memory>>,
        relocating: bool,
        call: &Call,
    ) -> Result<Appended, LogError> {
        assert_eq!(blocks.len(), extent.hashes.len(), "one memory per hash");
        let core = &self.core;
        let slices = into_slices(extent.layout, blocks);
        let crcs = slices.iter().map(|slice| crc_of(slice)).collect();
        let place = core.reserve(extent.total_bytes(), relocating)?;
        let header = extent.header(core, &place, crcs);
        let result = core.write_extent(&header, slices, &place, call);
        core.finish_append(&header, place, result)
    }
}

impl Core {
    /// Settles an extent's fate after its bytes were written, or not.
    pub(crate) fn finish_append(
        &self,
        header: &RecordHeader,
        place: Reservation,
        result: Result<(), LogError>,
    ) -> Result<Appended, LogError> {
        let result = result.and_then(|()| match self.options.durability {
            Durability::None => Ok(()),
            Durability::Batch => self.sync_segment(&place.pin.segment),
        });
        match result {
            Ok(()) => {
                let extent = header.extent().expect("an extent's header");
                if let RecordKind::Extent { slice_crcs, .. } = &header.kind {
                    self.headers.insert(extent.id, Arc::from(slice_crcs.as_slice()));
                }
                self.segments.lock().note_record(header.segment, header.sequence, header.born);
                Ok(Appended { extent, pin: place.pin })
            }
            Err(error) => {
                self.give_up(&place, u64::from(header.header_bytes()) + header.payload_bytes());
                Err(error)
            }
        }
    }

    /// Writes header and payload of an extent.
    fn write_extent(
        &self,
        header: &RecordHeader,
        slices: Vec<Vec<Memory>>,
        place: &Reservation,
        call: &Call,
    ) -> Result<(), LogError> {
        let extent = header.extent().expect("an extent's header");
        let mut header_bytes = vec![0; header.header_bytes() as usize];
        header.encode(&mut header_bytes);
        let first = Piece {
            offset: place.offset,
            len: header_bytes.len(),
            memory: None,
            slice: 0,
            slice_offset: 0,
        };
        let blocks = extent.block_count();
        let payload = slices.into_iter().enumerate().flat_map(|(index, memory)| {
            let index = u32::try_from(index).expect("slice count is bounded");
            pieces_of(extent.slice_offset(index / blocks, index % blocks), index, memory)
        });
        let chunks = cut(std::iter::once(first).chain(payload), self.rules(!call.must_stage()));
        self.write_chunks(chunks, &header_bytes, &place.pin, call)
    }

    /// Writes chunks; pieces without memory take their bytes from `header`.
    pub(crate) fn write_chunks(
        &self,
        chunks: Vec<Chunk>,
        header: &[u8],
        pin: &Arc<Pin>,
        call: &Call,
    ) -> Result<(), LogError> {
        let mut pump = Pump::new(self, call);
        let result = self.pump_writes(&mut pump, chunks.into(), header, pin);
        if result.is_err() && !call.must_stage() {
            pump.drain();
        }
        result
    }

    fn pump_writes(
        &self,
        pump: &mut Pump<'_>,
        mut chunks: VecDeque<Chunk>,
        header: &[u8],
        pin: &Arc<Pin>,
    ) -> Result<(), LogError> {
        while !chunks.is_empty() || !pump.is_idle() {
            if let Some(chunk) = chunks.front().filter(|_| pump.has_room()) {
                let staged_len = if chunk.direct { header_len(chunk) } else { chunk.bytes };
                let staging = if staged_len == 0 {
                    Ok(Some(None))
                } else {
                    pump.staging(staged_len).map(|m| m.map(Some))
                };
                if let Some(staging) = staging.map_err(LogError::from)? {
                    let chunk = chunks.pop_front().expect("looked at above");
                    self.submit_write(pump, chunk, staging, header, pin);
                    continue;
                }
            }
            let Completion { result, .. } = pump.next().map_err(LogError::from)?;
            result?;
        }
        Ok(())
    }

    fn submit_write(
        &self,
        pump: &mut Pump<'_>,
        chunk: Chunk,
        staging: Option<Memory>,
        header: &[u8],
        pin: &Arc<Pin>,
    ) {
        LogStats::add(&self.stats.written_bytes, chunk.bytes as u64);
        LogStats::add(&self.stats.write_requests, 1);
        let offset = chunk.offset;
        let memory = if chunk.direct {
            let mut staging = staging;
            let filled = chunk.pieces.into_iter().map(|piece| {
                piece.memory.unwrap_or_else(|| {
                    let mut buffer = staging.take().expect("taken for the header");
                    buffer
                        .as_mut_slice()
                        .copy_from_slice(&header[piece.slice_offset..][..piece.len]);
                    buffer
                })
            });
            filled.collect()
        } else {
            LogStats::add(&self.stats.staged_write_bytes, chunk.bytes as u64);
            let mut buffer = staging.expect("taken for the chunk");
            fill(buffer.as_mut_slice(), &chunk, header);
            vec![buffer]
        };
        let guard: Arc<dyn std::any::Any + Send + Sync> = Arc::<Pin>::clone(pin);
        let operation = Operation::Write;
        let file = pin.segment.file;
        pump.submit(Work { operation, file, offset, memory, tag: 0, guard: Some(guard) });
    }
}

impl From<Stop> for LogError {
    fn from(stop: Stop) -> Self {
        match stop {
            Stop::Deadline => Self::Deadline,
            Stop::Cancelled => Self::Cancelled,
        }
    }
}

/// Bytes of the header in a chunk.
fn header_len(chunk: &Chunk) -> usize {
    chunk.pieces.iter().filter(|piece| piece.memory.is_none()).map(|piece| piece.len).sum()
}

/// Copies a chunk's pieces to their places in `buffer`; what lies between them becomes zero.
fn fill(buffer: &mut [u8], chunk: &Chunk, header: &[u8]) {
    let mut end = 0;
    for piece in &chunk.pieces {
        let at = usize::try_from(piece.offset - chunk.offset).expect("within the chunk");
        let source = match &piece.memory {
            Some(memory) => memory.as_slice(),
            None => &header[piece.slice_offset..][..piece.len],
        };
        buffer[end..at].fill(0);
        buffer[at..at + piece.len].copy_from_slice(source);
        end = at + piece.len;
    }
    buffer[end..].fill(0);
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

/// crc32c of a slice in pieces.
pub(crate) fn crc_of(pieces: &[Memory]) -> u32 {
    pieces.iter().fold(0, |crc, piece| crc32c::crc32c_append(crc, piece.as_slice()))
}
