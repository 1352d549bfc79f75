//! Copies: the checks of their ranges, and the work that runs them.
//!
//! 1. A range is checked when the call is made. Work holds places, so it never uses freed memory of the fake.
//! 2. Transfers of one work run in chunks of `CHUNK_BYTES`. The chunks of all of them are in one random order.
//! 3. A source is read when the stream gets to the chunk, unless the call read it.

use crate::abi::{CUDA_ERROR_ILLEGAL_ADDRESS, CUDA_ERROR_INVALID_VALUE, CUresult};
use crate::device_memory;
use crate::host_memory::{self, DEVICE_POINTER_OFFSET};
use crate::regions::{Lookup, Place};
use crate::streams::{Stream, Work};
use crate::violations::{self, Kind};
use std::ops::Range;

/// The bytes that a stream copies in one step.
pub(crate) const CHUNK_BYTES: usize = 16 << 10;

/// A range of at least one byte, as the device sees it.
#[derive(Debug)]
pub(crate) enum Site {
    /// In an allocation of device memory.
    Device(Place),
    /// In registered or allocated host memory.
    Pinned {
        /// The place, with host addresses.
        place: Place,
        /// The range was given by its host address.
        is_plain: bool,
    },
    /// In host memory that is in no registration.
    Pageable(Range<usize>),
    /// Partly in a registration, or in several.
    Border,
    /// In no memory that the device could use.
    Outside,
}

/// Classifies a range.
pub(crate) fn site(address: usize, bytes: usize) -> Site {
    let Some(end) = address.checked_add(bytes) else { return Site::Outside };
    if device_memory::contains(address) {
        return match device_memory::locate(address..end) {
            Lookup::Inside(place) => Site::Device(place),
            Lookup::Across | Lookup::Apart => Site::Outside,
        };
    }
    let is_plain = address < DEVICE_POINTER_OFFSET;
    let host = if is_plain { address } else { address - DEVICE_POINTER_OFFSET };
    let range = host..host + bytes;
    match host_memory::locate(range.clone()) {
        Lookup::Inside(place) => Site::Pinned { place, is_plain },
        Lookup::Across => Site::Border,
        Lookup::Apart if is_plain => Site::Pageable(range),
        Lookup::Apart => Site::Outside,
    }
}

/// A range that was refused, for the text of a violation.
#[derive(Clone, Copy)]
pub(crate) struct Refusal<'a> {
    /// The call.
    pub(crate) call: &'a str,
    /// The start of the range.
    pub(crate) address: usize,
    /// Its length.
    pub(crate) bytes: usize,
}

impl Refusal<'_> {
    /// Records a violation and returns the error of the call.
    pub(crate) fn record(self, kind: Kind, why: &str) -> CUresult {
        let Self { call, address, bytes } = self;
        let text = format_args!("{call}: {bytes} bytes at {address:#x} {why}");
        violations::record(kind, text);
        CUDA_ERROR_INVALID_VALUE
    }
}

/// Finds a range of device memory.
pub(crate) fn device_side(call: &str, address: usize, bytes: usize) -> Result<Place, CUresult> {
    match site(address, bytes) {
        Site::Device(place) => Ok(place),
        _ => Err(Refusal { call, address, bytes }
            .record(Kind::Outside, "are not inside an allocation of device memory")),
    }
}

/// The host side of a copy.
pub(crate) enum HostSide {
    /// Registered or allocated memory.
    Pinned(Place),
    /// Other memory.
    Pageable(Range<usize>),
}

/// Finds a range of host memory.
pub(crate) fn host_side(call: &str, address: usize, bytes: usize) -> Result<HostSide, CUresult> {
    let refusal = Refusal { call, address, bytes };
    match site(address, bytes) {
        Site::Pinned { place, .. } => Ok(HostSide::Pinned(place)),
        Site::Pageable(range) => Ok(HostSide::Pageable(range)),
        Site::Border => Err(refusal.record(Kind::Border, "are not inside one registration")),
        Site::Device(_) | Site::Outside => {
            Err(refusal.record(Kind::Outside, "are not host memory"))
        }
    }
}

/// Refuses a place that was registered as read-only.
pub(crate) fn writable(call: &str, place: Place) -> Result<Place, CUresult> {
    if place.is_read_only() {
        let range = place.range();
        return Err(Refusal { call, address: range.start, bytes: range.len() }
            .record(Kind::ReadOnly, "are registered as read-only"));
    }
    Ok(place)
}

/// The source of a transfer's bytes.
#[derive(Debug)]
pub(crate) enum Source {
    /// Memory that is read when the stream gets there.
    Place(Place),
    /// Bytes that the call read.
    Bytes(Vec<u8>),
    /// One byte, repeated.
    Fill(u8),
}

impl Source {
    /// Reads a place now instead of in stream order.
    pub(crate) fn read_now(call: &str, place: &Place) -> Result<Self, CUresult> {
        let range = place.range();
        let mut bytes = vec![0; range.len()];
        if place.read(0, &mut bytes).is_err() {
            let refusal = Refusal { call, address: range.start, bytes: range.len() };
            return Err(refusal.record(Kind::Unmapped, "cannot be read"));
        }
        Ok(Self::Bytes(bytes))
    }
}

/// A copy of one range to another of the same length.
#[derive(Debug)]
pub(crate) struct Transfer {
    /// The source.
    pub(crate) from: Source,
    /// The destination.
    pub(crate) to: Place,
}

impl Transfer {
    fn copy_chunk(&self, at: usize, buffer: &mut [u8]) -> Result<(), CUresult> {
        let bytes = buffer.len();
        let failed = |range: Range<usize>, why| {
            let address = range.start + at;
            Refusal { call: "running copy", address, bytes }.record(Kind::Unmapped, why);
            CUDA_ERROR_ILLEGAL_ADDRESS
        };
        match &self.from {
            Source::Place(place) => place
                .read(at, buffer)
                .map_err(|_| failed(place.range(), "can no longer be read"))?,
            Source::Bytes(bytes) => buffer.copy_from_slice(&bytes[at..at + buffer.len()]),
            Source::Fill(byte) => buffer.fill(*byte),
        }
        self.to.write(at, buffer).map_err(|_| failed(self.to.range(), "can no longer be written"))
    }
}

/// Runs transfers in chunks, in random order.
pub(crate) fn run_chunks(stream: &Stream, transfers: &[Transfer]) -> Result<(), CUresult> {
    let mut chunks = Vec::new();
    for transfer in transfers {
        let starts = (0..transfer.to.range().len()).step_by(CHUNK_BYTES);
        chunks.extend(starts.map(|at| (transfer, at)));
    }
    stream.random().shuffle(&mut chunks);
    let mut buffer = vec![0; CHUNK_BYTES];
    let mut result = Ok(());
    for (transfer, at) in chunks {
        let bytes = CHUNK_BYTES.min(transfer.to.range().len() - at);
        result = result.and(stream.step(|| transfer.copy_chunk(at, &mut buffer[..bytes])));
        std::thread::yield_now();
    }
    result
}

/// The work of a copy, a batch of copies or a memset.
pub(crate) struct CopyWork {
    /// The copies.
    pub(crate) transfers: Vec<Transfer>,
    /// The work fails with this result and copies nothing.
    pub(crate) failure: Option<CUresult>,
}

impl Work for CopyWork {
    fn run(self: Box<Self>, stream: &Stream) -> Result<(), CUresult> {
        match self.failure {
            Some(failure) => stream.step(|| Err(failure)),
            None => run_chunks(stream, &self.transfers),
        }
    }
}

/// Records a violation if destinations overlap each other or a source.
pub(crate) fn check_overlaps(call: &str, sources: &[Range<usize>], targets: &[Range<usize>]) {
    let mut targets = targets.to_vec();
    targets.sort_unstable_by_key(|range| range.start);
    for pair in targets.windows(2) {
        if pair[1].start < pair[0].end {
            let (first, second) = (&pair[0], &pair[1]);
            let text = format_args!("{call}: destinations {first:x?} and {second:x?} overlap");
            violations::record(Kind::Overlap, text);
            return;
        }
    }
    for source in sources {
        // Destinations do not overlap, so the last one that starts before the end also ends last.
        let before = targets.partition_point(|target| target.start < source.end);
        let Some(target) = before.checked_sub(1).map(|last| &targets[last]) else { continue };
        if target.end > source.start {
            let text = format_args!("{call}: source {source:x?} overlaps destination {target:x?}");
            violations::record(Kind::Overlap, text);
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::check_overlaps;
    use crate::violations::listed;

    #[test]
    fn overlaps_are_found_and_neighbors_are_not() {
        let count = |sources: &[_], targets: &[_]| {
            let before = listed().0;
            check_overlaps("test", sources, targets);
            listed().0 - before
        };
        assert_eq!(count(&[0..4, 12..16], &[8..12, 4..8]), 0);
        assert_eq!(count(&[], &[8..12, 4..9]), 1);
        assert_eq!(count(&[0..5, 0..4], &[8..12, 4..8]), 1);
        assert_eq!(count(&[0..1, 11..20], &[8..12, 4..8]), 1);
        assert_eq!(count(&[0..1, 0..20], &[8..12, 30..31]), 1);
    }
}
