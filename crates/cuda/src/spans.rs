//! What a batch of slices means for a GPU: contiguous copies between its memory and ours.
//!
//! 1. The spans of a slice cover it once, in order. None crosses the end of a piece on either side, nor the border of
//!    two registrations.

use std::ptr::NonNull;
use std::sync::Arc;

use dalsegno_io::{CopySource, DevicePiece, DeviceSlice, Memory, PageSlice, RegionId, SliceCopy};

use crate::driver::DevicePointer;
use crate::registration::{Registered, Registry};

/// Which way bytes go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Direction {
    ToDevice,
    ToHost,
}

/// A contiguous copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Span {
    pub(crate) host: HostSide,
    pub(crate) device: DevicePointer,
    pub(crate) bytes: usize,
}

/// Where the bytes of a copy are in memory of this machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct HostSide {
    pub(crate) start: NonNull<u8>,
    /// As the GPU has it, if the memory is registered.
    pub(crate) address: Option<DevicePointer>,
}

impl Span {
    /// The first bytes of it, and the others.
    pub(crate) fn split_at(self, bytes: usize) -> (Self, Self) {
        let Self { host, device, bytes: all } = self;
        let rest =
            Self { host: host.skip(bytes), device: device + bytes as u64, bytes: all - bytes };
        (Self { bytes, ..self }, rest)
    }
}

impl HostSide {
    /// Where the bytes behind the first ones are.
    pub(crate) fn skip(self, bytes: usize) -> Self {
        // SAFETY: callers skip at most to the end of the range.
        let start = unsafe { self.start.add(bytes) };
        Self { start, address: self.address.map(|address| address + bytes as u64) }
    }
}

/// The spans of a batch, and the slices that keep the memory of both sides.
#[derive(Debug)]
pub(crate) struct Plan {
    pub(crate) direction: Direction,
    pub(crate) registered: Vec<Span>,
    pub(crate) plain: Vec<Span>,
    pub(crate) kept: Vec<(CopySource, PageSlice)>,
}

// SAFETY: the addresses are of memory that `kept` holds, with the access that slices have to it.
unsafe impl Send for Plan {}

/// A range of memory of this machine.
struct HostPart {
    start: NonNull<u8>,
    len: usize,
    place: Option<(RegionId, usize)>,
}

impl Plan {
    /// The plan of a batch; `None` if it is empty, or not all of its slices go the same way between a device and us.
    pub(crate) fn of(copies: Vec<SliceCopy>, registry: &Registry) -> Option<Self> {
        let kept: Vec<_> = copies.into_iter().map(SliceCopy::into_sides).collect();
        let direction = direction_of(kept.first()?)?;
        let mut plan = Self { direction, registered: Vec::new(), plain: Vec::new(), kept };
        let mut known = KnownRegion { registry, last: None };
        let kept = std::mem::take(&mut plan.kept);
        for sides in &kept {
            if direction_of(sides)? != direction {
                return None;
            }
            let (parts, pieces) = parts_of(sides)?;
            plan.add(parts, pieces, &mut known);
        }
        plan.kept = kept;
        Some(plan)
    }

    fn add(&mut self, parts: Vec<HostPart>, pieces: &[DevicePiece], known: &mut KnownRegion<'_>) {
        let mut parts = parts.into_iter().filter(|part| part.len > 0);
        let mut rest = parts.next();
        for DevicePiece { address, bytes } in pieces {
            let (mut device, mut left) = (*address, *bytes);
            while left > 0 {
                let part = rest.as_mut().expect("as many bytes on both sides");
                let (host, within) = known.side(part);
                let bytes = left.min(within);
                let span = Span { host, device, bytes };
                let is_registered = host.address.is_some();
                if is_registered { &mut self.registered } else { &mut self.plain }.push(span);
                device += bytes as u64;
                left -= bytes;
                part.skip(bytes);
                if part.len == 0 {
                    rest = parts.next();
                }
            }
        }
    }
}

fn direction_of(sides: &(CopySource, PageSlice)) -> Option<Direction> {
    match sides {
        (CopySource::Memory(_) | CopySource::Racing(..), PageSlice::Device(_)) => {
            Some(Direction::ToDevice)
        }
        (CopySource::Device(_), PageSlice::Memory(_)) => Some(Direction::ToHost),
        _ => None,
    }
}

fn parts_of(sides: &(CopySource, PageSlice)) -> Option<(Vec<HostPart>, &[DevicePiece])> {
    let of_memory = |memory: &[Memory]| memory.iter().map(HostPart::of).collect();
    Some(match sides {
        (CopySource::Memory(from), PageSlice::Device(to)) => (of_memory(from), to.pieces()),
        (CopySource::Device(from), PageSlice::Memory(to)) => (of_memory(to), from.pieces()),
        (CopySource::Racing(region, offset), PageSlice::Device(to)) => {
            let len = DeviceSlice::bytes(to);
            let start = region.address_of(*offset, len)?;
            let start = NonNull::new(std::ptr::with_exposed_provenance_mut(start))?;
            let place = Some((region.id(), *offset));
            (vec![HostPart { start, len, place }], to.pieces())
        }
        _ => return None,
    })
}

impl HostPart {
    fn of(memory: &Memory) -> Self {
        let place = memory.region_range().map(|range| (range.region, range.offset));
        let start = NonNull::new(std::ptr::with_exposed_provenance_mut(memory.address()));
        Self { start: start.expect("memory is never at address zero"), len: memory.len(), place }
    }

    /// Leaves out the first bytes.
    fn skip(&mut self, bytes: usize) {
        self.len -= bytes;
        // SAFETY: at most the end of the part.
        self.start = unsafe { self.start.add(bytes) };
        if let Some((_, offset)) = &mut self.place {
            *offset += bytes;
        }
    }
}

/// The region that was looked up last: most slices of a batch are in the same one.
struct KnownRegion<'a> {
    registry: &'a Registry,
    last: Option<(RegionId, Option<Arc<Registered>>)>,
}

impl KnownRegion<'_> {
    /// Where a part begins, and how many bytes of it are there without a border.
    fn side(&mut self, part: &HostPart) -> (HostSide, usize) {
        let plain = (HostSide { start: part.start, address: None }, part.len);
        let Some((region, offset)) = part.place else { return plain };
        if self.last.as_ref().is_none_or(|(last, _)| *last != region) {
            self.last = Some((region, self.registry.find(region)));
        }
        let Some((_, Some(registered))) = &self.last else { return plain };
        let (address, left) = registered.address(offset);
        (HostSide { start: part.start, address: Some(address) }, part.len.min(left))
    }
}
