//! Writes records, several at a time, with the device busy from the first byte to the last.
//!
//! 1. A record's header is written after all of its payload. A crash in between leaves no record, instead of a torn
//!    one.
//! 2. A piece is summed just before its request is submitted, while earlier requests are in flight.
//! 3. A record that fails does not fail the other records of the call.

use std::collections::VecDeque;

use dalsegno_core::Stopped;
use dalsegno_io::{Call, Completion, IoError, Memory, Operation, Request};

use super::device_io::{DeviceIo, PinnedFile};
use super::plan::{Chunk, MAX_DIRECT_PIECES, Piece, PlanRules, cut};
use super::pump::Pump;
use crate::format::{RecordHeader, RecordKind};
use crate::stats::TransferStats;

/// One record, or part of one, while it is written.
pub struct RecordWrite {
    pinned: PinnedFile,
    waiting: VecDeque<Chunk>,
    in_flight: u32,
    /// crc32c of every slice, as far as its pieces were submitted.
    pub crcs: Vec<u32>,
    /// Whether `crcs` are complete before the first request.
    summed: bool,
    /// Written after everything else.
    header: Option<RecordHeader>,
    header_bytes: Vec<u8>,
    /// How it ended, so far.
    pub result: Result<(), IoError>,
}

impl RecordWrite {
    /// The payload of `slices` slices, in pieces at their places, without a header.
    fn payload(
        pinned: PinnedFile,
        pieces: impl IntoIterator<Item = Piece>,
        slices: usize,
        rules: PlanRules,
    ) -> Self {
        Self {
            pinned,
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
    pub fn header(pinned: PinnedFile, header: &RecordHeader, rules: PlanRules) -> Self {
        let mut record = Self::payload(pinned, [], 0, rules);
        record.queue_header(header, rules, Vec::new());
        record
    }

    /// A plain extent: its payload, then its header with the checksums. One request writes both if they fit.
    pub fn extent(
        pinned: PinnedFile,
        header: RecordHeader,
        pieces: Vec<Piece>,
        rules: PlanRules,
    ) -> Self {
        let slices = pieces.iter().map(|piece| piece.slice as usize + 1).max().unwrap_or(0);
        let total = u64::from(header.header_bytes()) + header.payload_bytes();
        if total > rules.limit as u64 || pieces.len() >= MAX_DIRECT_PIECES {
            let mut record = Self::payload(pinned, pieces, slices, rules);
            record.header = Some(header);
            return record;
        }
        let mut record = Self::payload(pinned, [], slices, rules);
        for piece in &pieces {
            record.sum(piece);
        }
        record.summed = true;
        let header = with_crcs(header, std::mem::take(&mut record.crcs));
        record.queue_header(&header, rules, pieces);
        record.crcs = crcs_of(header);
        record
    }

    /// A compressed extent: its payload, then its complete header. One request writes both if they fit.
    pub fn compressed(
        pinned: PinnedFile,
        header: &RecordHeader,
        payload: Memory,
        rules: PlanRules,
    ) -> Self {
        let (header_bytes, len) = (header.header_bytes(), payload.len());
        let offset = header.offset + u64::from(header_bytes);
        let memory = Some(payload);
        let piece = Piece { offset, len, memory, slice: 0, slice_offset: 0, outlives_call: false };
        let mut record = Self::payload(pinned, [], 0, rules);
        record.summed = true;
        if header_bytes as usize + len <= rules.limit {
            record.queue_header(header, rules, vec![piece]);
        } else {
            record.waiting = cut([piece], rules).into();
            record.header = Some(header.clone());
        }
        record.crcs = crcs_of(header.clone());
        record
    }

    fn queue_header(&mut self, header: &RecordHeader, rules: PlanRules, behind: Vec<Piece>) {
        self.header_bytes = vec![0; header.header_bytes() as usize];
        header.encode(&mut self.header_bytes);
        let piece = Piece {
            offset: header.offset,
            len: self.header_bytes.len(),
            memory: None,
            slice: 0,
            slice_offset: 0,
            outlives_call: false,
        };
        self.waiting.extend(cut(std::iter::once(piece).chain(behind), rules));
    }

    fn sum(&mut self, piece: &Piece) {
        if let Some(memory) = piece.memory.as_ref().filter(|_| !self.summed) {
            let crc = &mut self.crcs[piece.slice as usize];
            *crc = dalsegno_core::crc32c_append(*crc, memory.as_slice());
        }
    }

    fn is_ready(&self) -> bool {
        self.result.is_ok() && !self.waiting.is_empty()
    }

    /// Handles a completion, and queues the header after the last one of the payload.
    fn arrive(&mut self, completion: Completion, rules: PlanRules) {
        self.in_flight -= 1;
        if let Err(error) = completion.result {
            self.waiting.clear();
            self.header = None;
            self.result = Err(error);
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

    fn stop(&mut self, stopped: Stopped) {
        let unfinished = self.in_flight > 0 || !self.waiting.is_empty() || self.header.is_some();
        if self.result.is_ok() && unfinished {
            self.result = Err(stopped.into());
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

/// Writes all records; the `result` of each says how it ended. When this returns, no request uses the caller's memory.
pub fn write_all(io: &DeviceIo, records: &mut [RecordWrite], call: &Call) {
    let mut pump = Pump::for_writes(io, call);
    if let Err(stopped) = run(io, &mut pump, records, call) {
        if !call.must_stage() {
            pump.drain();
        }
        for record in records {
            record.stop(stopped);
        }
    }
}

/// Writes one record.
pub fn write_one(io: &DeviceIo, mut record: RecordWrite, call: &Call) -> Result<(), IoError> {
    write_all(io, std::slice::from_mut(&mut record), call);
    record.result
}

fn run(
    io: &DeviceIo,
    pump: &mut Pump<'_>,
    records: &mut [RecordWrite],
    call: &Call,
) -> Result<(), Stopped> {
    let rules = io.rules(!call.must_stage());
    loop {
        let next = records.iter().position(RecordWrite::is_ready).filter(|_| pump.can_submit());
        if let Some(number) = next {
            let chunk = &records[number].waiting[0];
            let len = if chunk.direct { header_len(chunk) } else { chunk.bytes };
            let staging = if len == 0 { Some(None) } else { pump.staging(len)?.map(Some) };
            if let Some(staging) = staging {
                submit(io, pump, &mut records[number], staging, number as u64);
                continue;
            }
        }
        if pump.is_idle() {
            return Ok(());
        }
        // Once no record has a chunk to submit, only the last completion matters.
        let completion = pump.next_of(!records.iter().any(RecordWrite::is_ready))?;
        let number = usize::try_from(completion.tag).expect("a small number");
        records[number].arrive(completion, rules);
    }
}

fn submit(
    io: &DeviceIo,
    pump: &mut Pump<'_>,
    record: &mut RecordWrite,
    mut staging: Option<Memory>,
    tag: u64,
) {
    let chunk = record.waiting.pop_front().expect("the record is ready");
    TransferStats::add(&io.stats.written_bytes, chunk.bytes as u64);
    TransferStats::add(&io.stats.write_requests, 1);
    for piece in &chunk.pieces {
        record.sum(piece);
    }
    record.in_flight += 1;
    let offset = chunk.offset;
    let memory = if chunk.direct {
        let filled = chunk.pieces.into_iter().map(|piece| {
            piece.memory.unwrap_or_else(|| {
                let mut buffer = staging.take().expect("taken for the header");
                buffer.as_mut_slice().copy_from_slice(&record.header_bytes);
                buffer
            })
        });
        filled.collect()
    } else {
        TransferStats::add(&io.stats.staged_write_bytes, chunk.bytes as u64);
        let mut buffer = staging.expect("taken for the chunk");
        fill(buffer.as_mut_slice(), &chunk, &record.header_bytes);
        vec![buffer]
    };
    let PinnedFile { file, guard } = record.pinned.clone();
    let request = pump.request(Operation::Write, file, offset, memory);
    pump.submit(Request { tag, guard: Some(guard), ..request });
}

/// Bytes of the header in a chunk.
fn header_len(chunk: &Chunk) -> usize {
    chunk.pieces.iter().filter(|piece| piece.memory.is_none()).map(|piece| piece.len).sum()
}

/// Copies a chunk's pieces to their places in `buffer`, and zeroes the bytes between them.
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
