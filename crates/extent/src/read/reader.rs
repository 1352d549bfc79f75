//! Reads blocks, or layers of blocks, and verifies every slice before it returns them.
//!
//! 1. The requests of all extents of one call share one pump, so many small extents are read as fast as one large one.
//! 2. Bytes that cannot be read cost only the blocks that they belong to: see `salvage.rs`.

use std::ops::Range;
use std::sync::Arc;

use dalsegno_core::{Extent, StoreId};
use dalsegno_io::{Call, FileId};

use super::extent_reading::{BlockRead, BlockTarget, ExtentReading, ReadRequest};
use super::header_cache::{HeaderCache, HeaderName, VerifiedHeader};
use super::read_pump::{ReadParts, ReadPump};
use super::salvage::salvage;
use crate::compress::CodecPool;
use crate::error::Cause;
use crate::transfer::{PinnedFile, SourceIo};

/// The part of one extent to read.
#[derive(Debug)]
pub struct ExtentRead {
    /// The extent.
    pub extent: Arc<Extent>,
    /// The wanted layers.
    pub layers: Range<u32>,
    /// The wanted blocks, in ascending order.
    pub targets: Vec<BlockTarget>,
}

/// The read of an extent that stays in its place.
pub struct PinnedRead {
    /// What to read.
    pub read: ExtentRead,
    /// Where the extent is; `None` if its file was recycled, and the blocks are lost.
    pub pinned: Option<PinnedFile>,
    /// Its header, if the caller has verified that. Otherwise the header is read, unless it is cached.
    pub header: Option<Arc<VerifiedHeader>>,
}

/// Reads the extents of one store.
#[derive(Debug)]
pub struct Reader {
    parts: ReadParts,
}

impl Reader {
    /// A reader of extents. The headers that it reads itself must name `store`.
    #[must_use]
    pub fn new(
        io: Arc<SourceIo>,
        store: StoreId,
        headers: Arc<HeaderCache>,
        codecs: Arc<CodecPool>,
    ) -> Self {
        Self { parts: ReadParts { io, store, headers, codecs } }
    }

    /// Reads blocks of several extents, and returns one outcome for each target, in the given order.
    ///
    /// Without a deadline, the device reads directly into aligned memory, and the memory of a block that is no hit has
    /// undefined contents. With a deadline, blocks are copied from staging buffers, and no request uses the caller's
    /// memory after the call.
    ///
    /// `other_file` names a file of another segment, to find out whether the device reads at all. `meanwhile` advances
    /// other reads of the call, and returns whether there are any: then it is called every few milliseconds.
    pub fn read(
        &self,
        reads: impl ExactSizeIterator<Item = PinnedRead>,
        call: &Call,
        other_file: &dyn Fn(FileId) -> Option<FileId>,
        meanwhile: &mut dyn FnMut() -> bool,
    ) -> Vec<Vec<BlockRead>> {
        self.begin(reads, call).finish(other_file, meanwhile)
    }

    /// Plans to read blocks of several extents, as [`Self::read`] does. Nothing is sent yet.
    pub fn begin<'a>(
        &'a self,
        reads: impl ExactSizeIterator<Item = PinnedRead>,
        call: &'a Call,
    ) -> BlocksRead<'a> {
        let rules = self.parts.io.rules(!call.must_stage());
        let mut results: Vec<Vec<BlockRead>> = Vec::with_capacity(reads.len());
        let mut places = Vec::with_capacity(reads.len());
        let mut pump = ReadPump::new(&self.parts, call, reads.len());
        for (index, PinnedRead { read, pinned, header }) in reads.enumerate() {
            results.push(read.targets.iter().map(|_| BlockRead::lost(Cause::Recycled)).collect());
            let Some(pinned) = pinned else { continue };
            let ExtentRead { extent, layers, targets } = read;
            let header = header.or_else(|| {
                let cached = self.parts.headers.get(HeaderName::Extent(extent.id));
                cached.filter(|header| *header.extent == *extent)
            });
            let (reading, chunks) =
                ExtentReading::plan(extent, pinned, layers, targets, header, rules);
            let number = pump.readings.len();
            pump.readings.push(reading);
            let plain = |chunk| ReadRequest { reading: number, chunk, units: Vec::new() };
            pump.plan(chunks.into_iter().map(plain));
            let units = pump.units_of(number);
            pump.plan(units);
            places.push(index);
        }
        BlocksRead { pump, places, results, must_drain: !call.must_stage() }
    }
}

/// Blocks that are being read.
pub struct BlocksRead<'a> {
    pump: ReadPump<'a>,
    /// The position among the results of each extent that is read.
    places: Vec<usize>,
    results: Vec<Vec<BlockRead>>,
    /// Whether requests use memory that the call lent.
    must_drain: bool,
}

impl BlocksRead<'_> {
    /// Sends what may be in flight, and takes what has arrived; returns whether all is done. Does not wait.
    pub fn advance(&mut self) -> bool {
        self.pump.advance()
    }

    /// Waits for all blocks: see [`Reader::read`].
    pub fn finish(
        self,
        other_file: &dyn Fn(FileId) -> Option<FileId>,
        meanwhile: &mut dyn FnMut() -> bool,
    ) -> Vec<Vec<BlockRead>> {
        let Self { mut pump, places, mut results, must_drain } = self;
        let read = pump.run(meanwhile);
        let stop = read.and_then(|failed| salvage(&mut pump, failed, other_file));
        if stop.is_err() && must_drain {
            pump.pump.drain();
        }
        let stats = &pump.parts.io.stats;
        for (index, reading) in places.into_iter().zip(pump.readings) {
            results[index] = reading.verdict(stop.err());
        }
        for cause in results.iter().flatten().filter_map(|read| read.outcome.err()) {
            stats.count_miss(cause, 1);
        }
        results
    }
}
