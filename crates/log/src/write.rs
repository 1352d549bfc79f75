//! Writes records, several at a time, keeping the device busy from the first byte to the last.
//!
//! 1. A record's header is written when all its payload is: a crash in between leaves no record, not a torn one.
//! 2. Checksums are taken piece by piece just before a piece goes to the device, while earlier ones are on their way.
//! 3. A record that fails fails alone; the others of the call go on.

use std::any::Any;
use std::collections::VecDeque;
use std::sync::Arc;

use dalsegno_io::{Completion, IoError, Memory, Operation};

use crate::call::Call;
use crate::error::LogError;
use crate::format::{RecordHeader, RecordKind};
use crate::log::Core;
use crate::plan::{Chunk, MAX_DIRECT_PIECES, Piece, Rules, cut};
use crate::pump::{Pump, Stop, Work};
use crate::segment::Pin;
use crate::stats::LogStats;

/// One record, or part of one, while it is written.
pub(crate) struct Writing {
    pin: Arc<Pin>,
    waiting: VecDeque<Chunk>,
    in_flight: u32,
    /// crc32c of every slice, as far as its pieces have gone.
    pub(crate) crcs: Vec<u32>,
    /// Whether `crcs` were complete from the start.
    summed: bool,
    /// Written when everything else is.
    header: Option<RecordHeader>,
    header_bytes: Vec<u8>,
    pub(crate) result: Result<(), LogError>,
}

impl Writing {
    /// Payload without a header: `slices` slices in pieces at their places.
    pub(crate) fn payload(
        pin: Arc<Pin>,
        pieces: impl IntoIterator<Item = Piece>,
        slices: usize,
        rules: Rules,
    ) -> Self {
        Self {
            pin,
            waiting: cut(pieces, rules).into(),
            in_flight: 0,
            crcs: vec![0; slices],
            summed: false,
            header: None,
            header_bytes: Vec::new(),
            result: Ok(()),
        }
    }

    /// A header alone.
    pub(crate) fn header(pin: Arc<Pin>, header: &RecordHeader, rules: Rules) -> Self {
        let mut writing = Self::payload(pin, [], 0, rules);
        writing.queue_header(header, rules, Vec::new());
        writing
    }

    /// An extent: payload, then its header with the checksums; in one request if both fit.
    pub(crate) fn extent(
        pin: Arc<Pin>,
        header: RecordHeader,
        pieces: Vec<Piece>,
        rules: Rules,
    ) -> Self {
        let slices = pieces.iter().map(|piece| piece.slice as usize + 1).max().unwrap_or(0);
        let total = u64::from(header.header_bytes()) + header.payload_bytes();
        if total > rules.limit as u64 || pieces.len() >= MAX_DIRECT_PIECES {
            let mut writing = Self::payload(pin, pieces, slices, rules);
            writing.header = Some(header);
            return writing;
        }
        let mut writing = Self::payload(pin, [], slices, rules);
        for piece in &pieces {
            writing.sum(piece);
        }
        writing.summed = true;
        let header = with_crcs(header, std::mem::take(&mut writing.crcs));
        writing.queue_header(&header, rules, pieces);
        writing.crcs = crcs_of(header);
        writing
    }

    /// A compressed extent: payload, then its header, which is complete; in one request if both fit.
    pub(crate) fn compressed(
        pin: Arc<Pin>,
        header: &RecordHeader,
        payload: Memory,
        rules: Rules,
    ) -> Self {
        let (header_bytes, len) = (header.header_bytes(), payload.len());
        let offset = header.offset + u64::from(header_bytes);
        let piece = Piece { offset, len, memory: Some(payload), slice: 0, slice_offset: 0 };
        let mut writing = Self::payload(pin, [], 0, rules);
        writing.summed = true;
        if header_bytes as usize + len <= rules.limit {
            writing.queue_header(header, rules, vec![piece]);
        } else {
            writing.waiting = cut([piece], rules).into();
            writing.header = Some(header.clone());
        }
        writing.crcs = crcs_of(header.clone());
        writing
    }

    fn queue_header(&mut self, header: &RecordHeader, rules: Rules, behind: Vec<Piece>) {
        self.header_bytes = vec![0; header.header_bytes() as usize];
        header.encode(&mut self.header_bytes);
        let piece = Piece {
            offset: header.offset,
            len: self.header_bytes.len(),
            memory: None,
            slice: 0,
            slice_offset: 0,
        };
        self.waiting.extend(cut(std::iter::once(piece).chain(behind), rules));
    }

    fn sum(&mut self, piece: &Piece) {
        if let Some(memory) = piece.memory.as_ref().filter(|_| !self.summed) {
            let crc = &mut self.crcs[piece.slice as usize];
            *crc = crc32c::crc32c_append(*crc, memory.as_slice());
        }
    }

    fn is_ready(&self) -> bool {
        self.result.is_ok() && !self.waiting.is_empty()
    }

    /// Takes in an answer of the device; queues the header if it was the last one it waited for.
    fn arrive(&mut self, completion: Completion, rules: Rules) {
        self.in_flight -= 1;
        if let Err(error) = completion.result {
            self.waiting.clear();
            self.header = None;
            self.result = Err(error.into());
        }
        if self.in_flight == 0
            && self.waiting.is_empty()
            && let Some(header) = self.header.take()
        {
            let header = with_crcs(header, std::mem::take(&mut self.crcs));
            self.queue_header(&header, rules, Vec::new());
            self.crcs = crcs_of(header);
        }
    }

    fn stop(&mut self, stop: Stop) {
        let unfinished = self.in_flight > 0 || !self.waiting.is_empty() || self.header.is_some();
        if self.result.is_ok() && unfinished {
            self.result = Err(stop.into());
        }
    }
}

fn with_crcs(mut header: RecordHeader, crcs: Vec<u32>) -> RecordHeader {
    if let RecordKind::Extent { slice_crcs, .. } = &mut header.kind {
        *slice_crcs = crcs;
    }
    header
}

fn crcs_of(header: RecordHeader) -> Vec<u32> {
    match header.kind {
        RecordKind::Extent { slice_crcs, .. } => slice_crcs,
        _ => Vec::new(),
    }
}

impl Core {
    /// Writes everything; each part's `result` says how it went. When this returns, nothing touches the caller's
    /// memory.
    pub(crate) fn write(&self, writings: &mut [Writing], call: &Call) {
        let mut pump = Pump::for_writes(self, call);
        if let Err(stop) = self.pump_writes(&mut pump, writings, call) {
            if !call.must_stage() {
                pump.drain();
            }
            for writing in writings {
                writing.stop(stop);
            }
        }
    }

    /// Writes one part.
    pub(crate) fn write_one(
        &self,
        mut writing: Writing,
        call: &Call,
    ) -> Result<Vec<u32>, LogError> {
        self.write(std::slice::from_mut(&mut writing), call);
        writing.result.map(|()| writing.crcs)
    }

    fn pump_writes(
        &self,
        pump: &mut Pump<'_>,
        writings: &mut [Writing],
        call: &Call,
    ) -> Result<(), Stop> {
        let rules = self.rules(!call.must_stage());
        loop {
            let next = writings.iter().position(Writing::is_ready).filter(|_| pump.can_submit());
            if let Some(number) = next {
                let chunk = &writings[number].waiting[0];
                let len = if chunk.direct { header_len(chunk) } else { chunk.bytes };
                let staging = if len == 0 { Some(None) } else { pump.staging(len)?.map(Some) };
                if let Some(staging) = staging {
                    self.submit_write(pump, &mut writings[number], staging, number as u64);
                    continue;
                }
            }
            if pump.is_idle() {
                return Ok(());
            }
            // Of what is written only the end is of interest.
            let completion = pump.next_of(!writings.iter().any(Writing::is_ready))?;
            let number = usize::try_from(completion.tag).expect("a small number");
            writings[number].arrive(completion, rules);
        }
    }

    fn submit_write(
        &self,
        pump: &mut Pump<'_>,
        writing: &mut Writing,
        mut staging: Option<Memory>,
        tag: u64,
    ) {
        let chunk = writing.waiting.pop_front().expect("it was ready");
        LogStats::add(&self.stats.written_bytes, chunk.bytes as u64);
        LogStats::add(&self.stats.write_requests, 1);
        for piece in &chunk.pieces {
            writing.sum(piece);
        }
        writing.in_flight += 1;
        let offset = chunk.offset;
        let memory = if chunk.direct {
            let filled = chunk.pieces.into_iter().map(|piece| {
                piece.memory.unwrap_or_else(|| {
                    let mut buffer = staging.take().expect("taken for the header");
                    buffer.as_mut_slice().copy_from_slice(&writing.header_bytes);
                    buffer
                })
            });
            filled.collect()
        } else {
            LogStats::add(&self.stats.staged_write_bytes, chunk.bytes as u64);
            let mut buffer = staging.expect("taken for the chunk");
            fill(buffer.as_mut_slice(), &chunk, &writing.header_bytes);
            vec![buffer]
        };
        let guard: Arc<dyn Any + Send + Sync> = Arc::<Pin>::clone(&writing.pin);
        let (operation, file) = (Operation::Write, writing.pin.segment.file);
        pump.submit(Work { operation, file, offset, memory, tag, guard: Some(guard) });
    }
}

impl From<Stop> for LogError {
    fn from(stop: Stop) -> Self {
        match stop {
            Stop::Deadline => Self::Deadline,
            Stop::Cancelled => Self::Cancelled,
            Stop::Throttled => Self::Io(IoError::Busy),
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
        buffer[end..at].fill(0);
        buffer[at..at + piece.len]
            .copy_from_slice(piece.memory.as_ref().map_or(header, Memory::as_slice));
        end = at + piece.len;
    }
    buffer[end..].fill(0);
}
