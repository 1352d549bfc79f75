//! The requests of one read: submits them, and hands their bytes to the extents.

use std::collections::BTreeMap;
use std::sync::Arc;

use dalsegno_core::Stopped;
use dalsegno_io::{Call, Completion, IoError, Memory, Operation, Purpose, Request};

use super::extent_reading::ExtentReading;
use super::header_cache::HeaderCache;
use super::units::decompress;
use super::wanted::{RecordRead, TrialFiles};
use crate::compress::CodecPool;
use crate::error::Cause;
use crate::stats::TransferStats;
use crate::transfer::{Chunk, PinnedFile, PlanRules, Pump, SourceIo};

/// What reading needs.
#[derive(Clone, Debug)]
pub(super) struct ReadParts {
    pub(super) io: Arc<SourceIo>,
    pub(super) headers: Arc<HeaderCache>,
    pub(super) codecs: Arc<CodecPool>,
    pub(super) trials: Option<Arc<dyn TrialFiles>>,
}

/// One read call: its pump, and the extents that it reads.
pub(super) struct ReadPump<'a> {
    pub(super) parts: &'a ReadParts,
    pub(super) pump: Pump<'a>,
    pub(super) readings: Vec<ExtentReading>,
    rules: PlanRules,
    /// Planned requests, in the order in which they are sent: by layer, if that is wanted, and as they were planned.
    waiting: BTreeMap<(u32, u64), Chunk>,
    planned: u64,
    is_by_layer: bool,
    /// By tag.
    in_flight: Vec<Option<Chunk>>,
    /// Requests that failed and may be sent again.
    failed: Vec<Chunk>,
}

impl<'a> ReadPump<'a> {
    pub(super) fn new(parts: &'a ReadParts, call: &'a Call, count: usize) -> Self {
        let (pump, rules) = (Pump::new(&parts.io, call), parts.io.rules(!call.must_stage()));
        Self {
            parts,
            pump,
            readings: Vec::with_capacity(count),
            rules,
            waiting: BTreeMap::new(),
            planned: 0,
            is_by_layer: false,
            in_flight: Vec::new(),
            failed: Vec::new(),
        }
    }

    /// Adds a record to be read.
    pub(super) fn add(&mut self, read: RecordRead) {
        let name = read.pinned.as_ref().map(|pinned| read.record.header_name(pinned.file));
        let cached = name.and_then(|name| self.parts.headers.get(name));
        let cached = cached.filter(|header| read.record.accepts(&header.extent));
        self.readings.push(ExtentReading::new(self.readings.len(), read, cached));
    }

    /// Plans the requests that can be sent without waiting for others.
    pub(super) fn plan(&mut self) {
        let (mut headers, mut payload) = (Vec::new(), Vec::new());
        for reading in &mut self.readings {
            let requests = reading.plan(self.rules);
            if reading.needs_header() {
                headers.extend(requests);
            } else {
                payload.extend(requests);
            }
        }
        self.enqueue(headers.into_iter().chain(payload));
    }

    /// Sends the requests for the first layer of all records first, and so on. Nothing was sent yet.
    pub(super) fn order_by_layer(&mut self) {
        self.is_by_layer = true;
        let waiting = std::mem::take(&mut self.waiting);
        self.enqueue(waiting.into_values());
    }

    fn enqueue(&mut self, requests: impl IntoIterator<Item = Chunk>) {
        for chunk in requests {
            self.waiting.insert((self.layer_of(&chunk), self.planned), chunk);
            self.planned += 1;
        }
    }

    /// The first layer of which a request has bytes, if layers are read one after the other.
    fn layer_of(&self, chunk: &Chunk) -> u32 {
        let reading = &self.readings[chunk.record];
        if self.is_by_layer { reading.first_layer_of(chunk) } else { 0 }
    }

    /// Sends what may be in flight, and takes what has arrived; returns whether everything that is planned was read or
    /// failed. Does not wait. Does nothing more for a call that was cancelled.
    pub(super) fn advance(&mut self) -> bool {
        // A source that completes requests as fast as they are sent keeps no other one waiting.
        for _ in 0..=self.parts.io.bounds.depth {
            if self.pump.check_cancelled().is_err() {
                break;
            }
            while let Some(len) = self.next_staging() {
                let staging = if len == 0 { None } else { self.pump.try_staging(len) };
                if len > 0 && staging.is_none() {
                    break;
                }
                self.send_next(staging);
            }
            let Some(completion) = self.pump.try_next() else { break };
            self.take(completion);
        }
        self.is_done()
    }

    /// Bytes of the staging buffer that the next request waits for while nothing is in flight; `None` if it waits for
    /// none.
    pub(super) fn awaited_staging(&self) -> Option<usize> {
        self.next_staging().filter(|len| *len > 0 && self.pump.is_idle())
    }

    /// The requests that failed and may be sent again, when all are done.
    pub(super) fn take_failed(&mut self) -> Vec<Chunk> {
        std::mem::take(&mut self.failed)
    }

    /// Ends the read before everything has arrived. Memory that no request uses returns to its slices.
    pub(super) fn give_up(&mut self, stopped: Stopped) {
        let failed = std::mem::take(&mut self.failed);
        let waiting = std::mem::take(&mut self.waiting);
        let in_flight = std::mem::take(&mut self.in_flight).into_iter().flatten();
        for chunk in failed.into_iter().chain(waiting.into_values()).chain(in_flight) {
            self.readings[chunk.record].fail(chunk, stopped.into());
        }
    }

    fn is_done(&self) -> bool {
        self.waiting.is_empty() && self.pump.is_idle()
    }

    /// Bytes of the staging buffer of the next request, 0 for none; `None` if no request may be sent now.
    fn next_staging(&self) -> Option<usize> {
        let (_, next) = self.waiting.first_key_value().filter(|_| self.pump.can_submit())?;
        let first = next.pieces.first();
        let header = first.filter(|piece| piece.memory.is_none()).map(|piece| piece.len);
        Some(if next.direct { header.unwrap_or(0) } else { next.bytes })
    }

    pub(super) fn send_next(&mut self, staging: Option<Memory>) {
        let (_, next) = self.waiting.pop_first().expect("the caller looked");
        let slot = self.in_flight.iter().position(Option::is_none);
        let slot = slot.unwrap_or(self.in_flight.len());
        if slot == self.in_flight.len() {
            self.in_flight.push(None);
        }
        self.in_flight[slot] = Some(self.submit(next, staging, slot as u64));
    }

    fn take(&mut self, completion: Completion) {
        let slot = usize::try_from(completion.tag).expect("a small number");
        let done = self.in_flight[slot].take().expect("each tag completes once");
        let number = done.record;
        if let Err(error) = completion.result {
            let failed = self.retryable(done, completion.memory, &error);
            self.failed.extend(failed);
            return;
        }
        self.arrive(done, completion);
        let payload = self.readings[number].plan_payload(self.rules);
        self.enqueue(payload);
    }

    pub(super) fn submit(&mut self, mut chunk: Chunk, staging: Option<Memory>, tag: u64) -> Chunk {
        let stats = &self.parts.io.stats;
        TransferStats::add(&stats.read_bytes, chunk.bytes as u64);
        TransferStats::add(&stats.read_requests, 1);
        let memory = if chunk.direct {
            let mut staging = staging;
            let pieces = chunk.pieces.iter_mut();
            pieces
                .map(|piece| {
                    piece.memory.take().unwrap_or_else(|| staging.take().expect("for the header"))
                })
                .collect()
        } else {
            TransferStats::add(&stats.staged_read_bytes, chunk.bytes as u64);
            vec![staging.expect("taken for the chunk")]
        };
        let PinnedFile { file, guard } = self.readings[chunk.record].pinned().clone();
        let request = self.pump.request(Operation::Read, file, chunk.offset, memory);
        let due = request.purpose.due.map(|due| due.from(self.layer_of(&chunk)));
        let purpose = Purpose { due, ..request.purpose };
        self.pump.submit(Request { tag, purpose, guard: Some(guard), ..request });
        chunk
    }

    /// Handles a completed request: sums its pieces and, if it was staged, copies them to the caller.
    pub(super) fn arrive(&mut self, chunk: Chunk, completion: Completion) {
        let Completion { memory, crcs, .. } = completion;
        let number = chunk.record;
        if !chunk.units.is_empty() {
            self.arrive_units(chunk, memory[0].as_slice());
            return;
        }
        if chunk.direct {
            let mut crcs = crcs.into_iter();
            for (piece, memory) in chunk.pieces.iter().zip(memory) {
                let crc = crcs.next();
                if self.readings[number].starts_with_header(piece) {
                    self.take_header(number, memory.as_slice());
                } else {
                    self.readings[number].arrive(piece, memory, crc);
                }
            }
            return;
        }
        let staged = memory[0].as_slice();
        for mut piece in chunk.pieces {
            let at = usize::try_from(piece.offset - chunk.offset).expect("within the chunk");
            let bytes = &staged[at..at + piece.len];
            let Some(mut memory) = piece.memory.take() else {
                self.take_header(number, bytes);
                continue;
            };
            memory.as_mut_slice().copy_from_slice(bytes);
            self.readings[number].arrive(&piece, memory, None);
        }
    }

    fn take_header(&mut self, number: usize, bytes: &[u8]) {
        if let Some((name, header)) = self.readings[number].take_header(bytes) {
            self.parts.headers.insert(name, header);
        }
    }

    /// Decompresses the units of a completed request, and copies their wanted bytes to the caller.
    fn arrive_units(&mut self, chunk: Chunk, staged: &[u8]) {
        let ReadParts { io, codecs, .. } = self.parts;
        let (reading, offset) = (&mut self.readings[chunk.record], chunk.offset);
        let started = io.clock.now();
        codecs.with(|codec| {
            for unit in chunk.units {
                let at = usize::try_from(unit.offset - offset).expect("within the request");
                match decompress(&unit, codec, &staged[at..at + unit.len]) {
                    Ok(raw) => {
                        TransferStats::add(&io.stats.decoded_bytes, raw.len() as u64);
                        reading.scatter(unit, &raw);
                        codec.raw = raw;
                    }
                    Err(cause) => reading.fail_unit(unit, cause),
                }
            }
        });
        TransferStats::add_time(&io.stats.decode_ns, io.clock.now().since(started));
    }

    /// A failed request in a form that can be sent again. `None` if its memory did not come back, or if the device
    /// never saw it: then its blocks are misses.
    fn retryable(
        &mut self,
        mut chunk: Chunk,
        memory: Vec<Memory>,
        error: &IoError,
    ) -> Option<Chunk> {
        tracing::debug!(%error, offset = chunk.offset, "read failed");
        let reading = &mut self.readings[chunk.record];
        let is_back = give_back(reading, &mut chunk, memory);
        if is_of_device(error) && is_back {
            return Some(chunk);
        }
        reading.fail(chunk, Cause::of_io(error));
        None
    }
}

/// Whether the device tried the request, and could try parts of it.
pub(super) fn is_of_device(error: &IoError) -> bool {
    matches!(error, IoError::Short { .. } | IoError::Os { .. }) && !error.is_not_found()
}

/// Puts the caller's memory, which a direct request gave away, back in its place; `false` if it did not come back.
fn give_back(reading: &ExtentReading, chunk: &mut Chunk, memory: Vec<Memory>) -> bool {
    if !chunk.direct {
        return true;
    }
    if memory.len() != chunk.pieces.len() {
        return false;
    }
    for (piece, memory) in chunk.pieces.iter_mut().zip(memory) {
        piece.memory = Some(memory).filter(|_| !reading.starts_with_header(piece));
    }
    chunk.direct = false;
    true
}
