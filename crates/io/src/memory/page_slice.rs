//! The bytes of one layer of one block in the KV cache of an engine.
//!
//! 1. As long as a slice exists, nobody else has access to bytes that it writes: [`PagedBlocks`](super::PagedBlocks).
//! 2. Only the copier of a device uses its addresses. They may be no memory of this process.

use std::any::Any;
use std::fmt;
use std::sync::Arc;

use super::handle::Memory;

/// One layer of one block, in the order of its bytes.
#[derive(Debug)]
pub enum PageSlice {
    /// In memory of this machine.
    Memory(Vec<Memory>),
    /// In memory of a device.
    Device(DeviceSlice),
}

/// Bytes in the memory of a device.
pub struct DeviceSlice {
    pieces: Vec<DevicePiece>,
    /// Never read. Keeps the pages.
    _owner: Arc<dyn Any + Send + Sync>,
}

/// A contiguous range of the memory of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DevicePiece {
    /// Where it starts, as the device has it.
    pub address: u64,
    /// Number of bytes.
    pub bytes: usize,
}

/// A point in the work of a device, which the copier of that device can wait for.
#[derive(Clone)]
pub struct StreamPoint(Arc<dyn Any + Send + Sync>);

impl PageSlice {
    /// Number of bytes.
    #[must_use]
    pub fn bytes(&self) -> usize {
        match self {
            Self::Memory(memory) => memory.iter().map(Memory::len).sum(),
            Self::Device(slice) => slice.bytes(),
        }
    }

    /// Slices of the same pages, one after the other.
    pub(super) fn join(slices: Vec<Self>) -> Self {
        let mut memory = Vec::new();
        let mut device: Option<DeviceSlice> = None;
        for slice in slices {
            match (slice, &mut device) {
                (Self::Memory(pieces), _) => memory.extend(pieces),
                (Self::Device(next), Some(all)) => all.pieces.extend(next.pieces),
                (Self::Device(first), all) => *all = Some(first),
            }
        }
        device.map_or(Self::Memory(memory), Self::Device)
    }

    /// Its memory.
    ///
    /// # Panics
    ///
    /// If it is in memory of a device.
    #[must_use]
    pub fn into_memory(self) -> Vec<Memory> {
        match self {
            Self::Memory(memory) => memory,
            Self::Device(_) => panic!("only its own copier reads the memory of a device"),
        }
    }
}

impl From<Memory> for PageSlice {
    fn from(memory: Memory) -> Self {
        Self::Memory(vec![memory])
    }
}

impl DeviceSlice {
    /// Pieces that `owner` keeps.
    pub(super) fn new(pieces: Vec<DevicePiece>, owner: Arc<dyn Any + Send + Sync>) -> Self {
        Self { pieces, _owner: owner }
    }

    /// Its pieces, in order.
    #[must_use]
    pub fn pieces(&self) -> &[DevicePiece] {
        &self.pieces
    }

    /// Number of bytes.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.pieces.iter().map(|piece| piece.bytes).sum()
    }
}

impl fmt::Debug for DeviceSlice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "DeviceSlice({} bytes)", self.bytes())
    }
}

impl StreamPoint {
    /// What a copier knows as such a point.
    #[must_use]
    pub fn new(point: impl Any + Send + Sync) -> Self {
        Self(Arc::new(point))
    }

    /// The point, for the copier that made it.
    #[must_use]
    pub fn get<T: 'static>(&self) -> Option<&T> {
        self.0.downcast_ref()
    }
}

impl fmt::Debug for StreamPoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("StreamPoint")
    }
}
