//! Reads blocks, or layers of blocks, and verifies every slice before it returns them.
//!
//! 1. The requests of all records of one call share one pump, so many small extents are read as fast as one large one.
//! 2. Headers without which a payload cannot be found are requested first.
//! 3. Bytes that cannot be read cost only the blocks that they belong to: see `salvage.rs`.

use std::sync::Arc;

use dalsegno_io::{Call, FileId};

use super::header_cache::HeaderCache;
use super::read_pump::{ReadParts, ReadPump};
use super::salvage::salvage;
use super::wanted::{BlockRead, RecordRead};
use crate::compress::CodecPool;
use crate::error::Cause;
use crate::transfer::SourceIo;

/// Reads the records of a source.
#[derive(Debug)]
pub struct Reader {
    parts: ReadParts,
}

impl Reader {
    /// A reader of records.
    #[must_use]
    pub fn new(io: Arc<SourceIo>, headers: Arc<HeaderCache>, codecs: Arc<CodecPool>) -> Self {
        Self { parts: ReadParts { io, headers, codecs } }
    }

    /// Reads blocks of several records, and returns one outcome for each target, in the given order.
    ///
    /// Without a deadline, the device reads directly into aligned memory, and the memory of a block that is no hit has
    /// undefined contents. With a deadline, blocks are copied from staging buffers, and no request uses the caller's
    /// memory after the call.
    ///
    /// `other_file` names a file of another segment, to find out whether the device reads at all. `meanwhile` advances
    /// other reads of the call, and returns whether there are any: then it is called every few milliseconds.
    pub fn read(
        &self,
        reads: impl ExactSizeIterator<Item = RecordRead>,
        call: &Call,
        other_file: &dyn Fn(FileId) -> Option<FileId>,
        meanwhile: &mut dyn FnMut() -> bool,
    ) -> Vec<Vec<BlockRead>> {
        self.begin(reads, call).finish(other_file, meanwhile)
    }

    /// Plans to read blocks of several records, as [`Self::read`] does. Nothing is sent yet.
    pub fn begin<'a>(
        &'a self,
        reads: impl ExactSizeIterator<Item = RecordRead>,
        call: &'a Call,
    ) -> BlocksRead<'a> {
        let mut results: Vec<Vec<BlockRead>> = Vec::with_capacity(reads.len());
        let mut places = Vec::with_capacity(reads.len());
        let mut pump = ReadPump::new(&self.parts, call, reads.len());
        for (index, mut read) in reads.enumerate() {
            let Some(pinned) = read.pinned.take() else {
                let targets = read.targets.into_iter();
                results.push(targets.map(|target| target.lost(Cause::Recycled)).collect());
                continue;
            };
            results.push(Vec::new());
            places.push(index);
            pump.add(pinned, read);
        }
        pump.plan();
        BlocksRead { pump, places, results, must_drain: !call.must_stage() }
    }
}

/// Blocks that are being read.
pub struct BlocksRead<'a> {
    pump: ReadPump<'a>,
    /// The position among the results of each record that is read.
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
