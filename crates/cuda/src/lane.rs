//! One direction of copies: its queue, and a buffer for memory that is not registered.
//!
//! 1. Registered memory is copied by the GPU alone.
//! 2. Other memory goes through slots of a buffer. A slot to the GPU is filled before its copy is queued. A slot from
//!    the GPU is emptied by the thread of the queue.
//! 3. The slots bound what waits. A caller that finds none waits for the oldest one, never for the thread of the queue
//!    on that thread: what it calls starts no copy from the GPU.
//! 4. The memory of both sides is held until the last copy of a batch has ended, and released before its end is called.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use crossbeam_channel::bounded;
use dalsegno_io::{CopyDone, CopyMark, CopySource, Memory, PageSlice};
use parking_lot::Mutex;

use crate::device::Device;
use crate::kernel::Kernel;
use crate::pinned::Pinned;
use crate::queue::{Marks, Queue, QueueError, Submitted, WorkOutcome};
use crate::slots::{Slot, SlotMemory, SlotUse, Slots};
use crate::span_copier::{CopyWays, SpanCopier};
use crate::spans::{Direction, Plan, Span};
use crate::stream::Event;

const SLOT_BYTES: usize = 4 << 20;
const SLOTS: usize = 4;

/// One direction.
#[derive(Debug)]
pub(crate) struct Lane {
    direction: Direction,
    marks: Marks,
    submit: Mutex<LaneSubmit>,
    /// Bytes that went through the buffer.
    buffered: AtomicU64,
}

#[derive(Debug)]
struct LaneSubmit {
    queue: Queue,
    spans: SpanCopier,
    slots: Slots,
}

/// A batch. It ends when this is dropped.
struct BatchEnd {
    has_failed: AtomicBool,
    /// Whether the GPU may still use what is kept.
    is_unknown: AtomicBool,
    kept: Vec<(CopySource, PageSlice)>,
    done: Mutex<Option<CopyDone>>,
}

impl BatchEnd {
    fn fail(&self) {
        self.has_failed.store(true, Ordering::Relaxed);
    }

    fn note(&self, outcome: WorkOutcome) {
        if outcome != WorkOutcome::Succeeded {
            self.fail();
        }
        if outcome == WorkOutcome::Unknown {
            self.is_unknown.store(true, Ordering::Relaxed);
        }
    }
}

impl Drop for BatchEnd {
    fn drop(&mut self) {
        let kept = std::mem::take(&mut self.kept);
        if self.is_unknown.load(Ordering::Relaxed) {
            // Lost, but written by nobody else.
            std::mem::forget(kept);
        } else {
            drop(kept);
        }
        if let Some(done) = self.done.get_mut().take() {
            done(!self.has_failed.load(Ordering::Relaxed));
        }
    }
}

impl Lane {
    /// Starts the queue. A GPU that gives no memory for the buffer copies through memory that is not pinned.
    pub(crate) fn start(
        device: &Arc<Device>,
        direction: Direction,
        ways: &Arc<Mutex<CopyWays>>,
        kernel: Option<&Arc<Kernel>>,
    ) -> Result<Self, QueueError> {
        let name = match direction {
            Direction::ToDevice => "dalsegno-gpu-in",
            Direction::ToHost => "dalsegno-gpu-out",
        };
        let queue = Queue::start(device, name)?;
        let memory = match Pinned::allocate(device, SLOTS * SLOT_BYTES) {
            Ok(pinned) => SlotMemory::Pinned(pinned),
            Err(error) => {
                tracing::warn!(%error, "the GPU gives no pinned memory: copies of other memory are slow");
                SlotMemory::Plain(Memory::zeroed(SLOTS * SLOT_BYTES))
            }
        };
        let marks = queue.marks();
        let submit = LaneSubmit {
            queue,
            spans: SpanCopier::new(direction, ways, kernel),
            slots: Slots::new(memory, SLOT_BYTES, SLOTS),
        };
        let (submit, buffered) = (Mutex::new(submit), AtomicU64::new(0));
        Ok(Self { direction, marks, submit, buffered })
    }

    pub(crate) fn marks(&self) -> &Marks {
        &self.marks
    }

    /// Bytes that the processor copied to or from the buffer.
    pub(crate) fn buffered_bytes(&self) -> u64 {
        self.buffered.load(Ordering::Relaxed)
    }

    fn note_buffered(&self, part: &[Span]) {
        let bytes: usize = part.iter().map(|span| span.bytes).sum();
        self.buffered.fetch_add(bytes as u64, Ordering::Relaxed);
    }

    /// Queues a batch behind an event. Returns its mark if the GPU has all of it.
    pub(crate) fn copy(
        &self,
        plan: Plan,
        after: Option<&Event>,
        done: CopyDone,
    ) -> Option<CopyMark> {
        let Plan { registered, plain, kept, .. } = plan;
        let (has_failed, is_unknown) = (AtomicBool::new(false), AtomicBool::new(false));
        let end = BatchEnd { has_failed, is_unknown, kept, done: Mutex::new(Some(done)) };
        let batch = Batch { lane: self, after, end: Arc::new(end) };
        let submit = &mut *self.submit.lock();
        let mut last = None;
        if !registered.is_empty() {
            last = Some(batch.queue(submit, &registered, Box::new(|_| {})).mark?);
        }
        if !plain.is_empty() {
            last = Some(match self.direction {
                Direction::ToDevice => batch.fill_slots(submit, plain)?,
                Direction::ToHost => batch.empty_slots(submit, plain)?,
            });
        }
        last
    }
}

/// A batch that is being queued.
struct Batch<'a> {
    lane: &'a Lane,
    after: Option<&'a Event>,
    end: Arc<BatchEnd>,
}

impl Batch<'_> {
    /// Queues spans. `then` is called when they were copied, with whether that succeeded.
    fn queue(
        &self,
        submit: &mut LaneSubmit,
        spans: &[Span],
        then: Box<dyn FnOnce(WorkOutcome) + Send>,
    ) -> Submitted {
        let end = Arc::clone(&self.end);
        let LaneSubmit { queue, spans: copier, .. } = submit;
        // SAFETY: `end` keeps both sides, with the access that a slice gives, until the copies have ended. Slots are
        // given back later.
        let copy = |stream: &_| unsafe { copier.copy(spans, stream) };
        let ended = move |outcome| {
            then(outcome);
            end.note(outcome);
        };
        let queued = queue.submit(self.after, copy, Box::new(ended));
        if queued.mark.is_none() {
            self.end.fail();
        }
        queued
    }

    /// Copies plain memory to the GPU through slots.
    fn fill_slots(&self, submit: &mut LaneSubmit, spans: Vec<Span>) -> Option<CopyMark> {
        let mut last = None;
        for part in slot_parts(spans) {
            let slot = self.take(submit)?;
            let in_slot = slot.place(&part);
            for (outside, inside) in part.iter().zip(&in_slot) {
                let (from, to) = (outside.host.start.as_ptr(), inside.host.start.as_ptr());
                // SAFETY: the slice keeps the source mapped. A process that writes it meanwhile leaves arbitrary bytes,
                // which the caller finds out. Nobody reads the slot, which has as many bytes.
                unsafe { std::ptr::copy_nonoverlapping(from, to, outside.bytes) };
            }
            self.lane.note_buffered(&part);
            let queued = self.queue(submit, &in_slot, Box::new(|_| {}));
            submit.slots.give(slot, queued.event.map_or(SlotUse::Unknown, SlotUse::Read));
            last = Some(queued.mark?);
        }
        last
    }

    /// Copies from the GPU to plain memory through slots.
    fn empty_slots(&self, submit: &mut LaneSubmit, spans: Vec<Span>) -> Option<CopyMark> {
        let mut last = None;
        for part in slot_parts(spans) {
            let slot = self.take(submit)?;
            let in_slot = slot.place(&part);
            self.lane.note_buffered(&part);
            let (emptied, is_emptied) = bounded(1);
            let moves = Moves(part.into_iter().zip(in_slot.clone()).collect());
            let empty = move |outcome| {
                if outcome == WorkOutcome::Succeeded {
                    moves.run();
                }
                if outcome != WorkOutcome::Unknown {
                    // Nobody waits for a slot of a lane that has ended.
                    let _ = emptied.send(());
                }
            };
            let queued = self.queue(submit, &in_slot, Box::new(empty));
            submit.slots.give(slot, SlotUse::Emptied(is_emptied));
            last = Some(queued.mark?);
        }
        last
    }

    /// A slot that may be filled; `None`, and the batch fails, if the GPU does not work any more.
    fn take(&self, submit: &mut LaneSubmit) -> Option<Slot> {
        let slot = submit.slots.take(submit.queue.stream());
        if let Err(error) = &slot {
            tracing::warn!(%error, "a copy between memory and the GPU failed");
            self.end.fail();
        }
        slot.ok()
    }
}

/// Copies out of a slot, to memory that the batch keeps.
struct Moves(Vec<(Span, Span)>);

// SAFETY: the addresses are of memory that the batch and the lane keep until they have run.
unsafe impl Send for Moves {}

impl Moves {
    fn run(self) {
        for (outside, inside) in self.0 {
            let (to, from) = (outside.host.start.as_ptr(), inside.host.start.as_ptr());
            // SAFETY: the slice keeps the destination, to which nobody else has access. The slot has as many bytes, and
            // the GPU has written them.
            unsafe { std::ptr::copy_nonoverlapping(from, to, outside.bytes) };
        }
    }
}

/// The same spans in parts that fit into a slot.
fn slot_parts(spans: Vec<Span>) -> Vec<Vec<Span>> {
    let mut parts = vec![Vec::new()];
    let mut left = SLOT_BYTES;
    for mut span in spans {
        while span.bytes > 0 {
            if left == 0 {
                parts.push(Vec::new());
                left = SLOT_BYTES;
            }
            let (now, later) = span.split_at(span.bytes.min(left));
            left -= now.bytes;
            parts.last_mut().expect("one was begun").push(now);
            span = later;
        }
    }
    parts
}
