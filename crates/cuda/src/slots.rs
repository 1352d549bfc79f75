//! A ring of slots in memory that the GPU reads: each is used again after the work that read it.

use std::collections::VecDeque;
use std::ptr::NonNull;
use std::sync::Arc;

use crossbeam_channel::Receiver;
use dalsegno_io::Memory;

use crate::driver::{CudaError, DevicePointer};
use crate::pinned::Pinned;
use crate::spans::{HostSide, Span};
use crate::stream::{Event, Stream};

/// Slots, the one that was used longest ago first. To fill one takes no help of another thread.
#[derive(Debug)]
pub(crate) struct Slots {
    memory: SlotMemory,
    slot_bytes: usize,
    /// Numbers of slots, each with its last use.
    order: VecDeque<(usize, SlotUse)>,
}

/// What must have happened before a slot is used again.
#[derive(Debug)]
pub(crate) enum SlotUse {
    /// Nothing.
    Unused,
    /// The GPU reads it until this event.
    Read(Arc<Event>),
    /// The GPU writes it, and then a thread that sends a message here takes the bytes.
    Emptied(Receiver<()>),
    /// The GPU failed: it may read or write it at any time.
    Unknown,
}

/// Where slots are.
#[derive(Debug)]
pub(crate) enum SlotMemory {
    Pinned(Pinned),
    /// For a GPU that was refused pinned memory: the driver copies such memory itself.
    Plain(Memory),
}

/// A slot that may be filled, until it is given back.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Slot {
    number: usize,
    pub(crate) start: NonNull<u8>,
    /// As the GPU has it, if it is pinned.
    pub(crate) address: Option<DevicePointer>,
}

impl Slot {
    /// The spans with their bytes in the slot, one behind the other. They fit.
    pub(crate) fn place(&self, spans: &[Span]) -> Vec<Span> {
        let mut host = HostSide { start: self.start, address: self.address };
        let place = |span: &Span| {
            let placed = Span { host, ..*span };
            host = host.skip(span.bytes);
            placed
        };
        spans.iter().map(place).collect()
    }
}

impl Slots {
    pub(crate) fn new(memory: SlotMemory, slot_bytes: usize, count: usize) -> Self {
        Self {
            memory,
            slot_bytes,
            order: (0..count).map(|number| (number, SlotUse::Unused)).collect(),
        }
    }

    /// Takes the slot that was used longest ago, and waits for the end of that use, by work of `stream`.
    pub(crate) fn take(&mut self, stream: &Stream) -> Result<Slot, CudaError> {
        let (number, last_use) =
            self.order.pop_front().expect("each slot that was taken is given back");
        let waited = match last_use {
            SlotUse::Unused => Ok(()),
            SlotUse::Read(event) => event.synchronize(),
            SlotUse::Emptied(is_emptied) => {
                // Without a message, the GPU may still write it.
                is_emptied.recv().or_else(|_| stream.synchronize())
            }
            SlotUse::Unknown => stream.synchronize(),
        };
        if let Err(error) = waited {
            self.order.push_back((number, SlotUse::Unknown));
            return Err(error);
        }
        let offset = number * self.slot_bytes;
        let (start, address) = match &self.memory {
            SlotMemory::Pinned(pinned) => {
                (pinned.part(offset, self.slot_bytes), Some(pinned.address(offset)))
            }
            SlotMemory::Plain(memory) => {
                let start = std::ptr::with_exposed_provenance_mut(memory.address() + offset);
                (NonNull::new(start).expect("memory is never at address zero"), None)
            }
        };
        Ok(Slot { number, start, address })
    }

    /// Gives a slot back.
    pub(crate) fn give(&mut self, slot: Slot, last_use: SlotUse) {
        self.order.push_back((slot.number, last_use));
    }
}
