//! Keeps a bounded number of a call's requests with the device.
//!
//! 1. At most `depth` requests of one call are in flight. From [`BUSY_BYTES`] on, two at least and no more are added:
//!    that keeps a device as busy as it gets, and the buffers of more would only push each other out of the caches.
//! 2. A call that waits for a staging buffer has nothing in flight and holds no other buffer, so calls cannot
//!    starve each other. It does not wait for ever, whatever its deadline: a device that hangs may have them all.

use std::any::Any;
use std::sync::Arc;
use std::time::Duration;

use crossbeam_channel::{Receiver, Sender, bounded, unbounded};
use dalsegno_core::Deadline;
use dalsegno_io::{CallRing, Class, Completion, FileId, IoError, Memory, Operation, Request};

use crate::call::{CANCEL_POLL, Call};
use crate::log::Core;
use crate::segment::Pin;

/// Bytes of one call in flight that keep a device busy: what one of 7 GB/s moves in half a millisecond.
const BUSY_BYTES: usize = 4 << 20;

/// How long a call waits for a staging buffer. Whoever holds them all waits for the device, or there are too many.
const STAGING_PATIENCE: Duration = Duration::from_secs(5);

/// Why a call stops before its work is done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stop {
    Deadline,
    Cancelled,
    /// No staging buffer came back in time.
    Throttled,
}

pub(crate) struct Pump<'a> {
    core: &'a Core,
    call: &'a Call,
    in_flight: u32,
    in_flight_bytes: usize,
    /// Only for foreground calls: what is done in the background gains nothing by it.
    ring: Option<CallRing>,
    /// Bytes in flight from which no more are added.
    busy_bytes: usize,
    sender: Sender<Completion>,
    // Unbounded as a type, bounded by `depth` in fact.
    receiver: Receiver<Completion>,
}

fn bytes_of(memory: &[Memory]) -> usize {
    memory.iter().map(Memory::len).sum()
}

/// A request without what the pump adds.
pub(crate) struct Work {
    pub(crate) operation: Operation,
    pub(crate) file: FileId,
    pub(crate) offset: u64,
    pub(crate) memory: Vec<Memory>,
    pub(crate) tag: u64,
    pub(crate) guard: Option<Arc<dyn Any + Send + Sync>>,
}

impl<'a> Pump<'a> {
    pub(crate) fn new(core: &'a Core, call: &'a Call) -> Self {
        let (sender, receiver) = unbounded();
        let ring = if call.class == Class::Foreground { core.device.call_ring() } else { None };
        Self {
            core,
            call,
            in_flight: 0,
            in_flight_bytes: 0,
            ring,
            busy_bytes: BUSY_BYTES,
            sender,
            receiver,
        }
    }

    /// For writes: those that need no buffers have no other bound than the depth.
    pub(crate) fn for_writes(core: &'a Core, call: &'a Call) -> Self {
        let busy_bytes = if call.must_stage() { BUSY_BYTES } else { usize::MAX };
        Self { busy_bytes, ..Self::new(core, call) }
    }

    pub(crate) fn can_submit(&self) -> bool {
        let is_busy = self.in_flight >= 2 && self.in_flight_bytes >= self.busy_bytes;
        self.in_flight < self.core.options.io_depth && !is_busy
    }

    pub(crate) fn is_idle(&self) -> bool {
        self.in_flight == 0
    }

    pub(crate) fn submit(&mut self, work: Work) {
        self.submit_as(self.call.class, work);
    }

    /// As [`Self::submit`], with another claim to the device than the call has.
    pub(crate) fn submit_as(&mut self, class: Class, work: Work) {
        assert!(self.can_submit(), "more requests than the depth");
        let request = Request {
            operation: work.operation,
            class,
            file: work.file,
            offset: work.offset,
            memory: work.memory,
            tag: work.tag,
            deadline: self.call.deadline,
            guard: work.guard,
            watch: None,
            reply: self.sender.clone(),
        };
        request.check();
        self.in_flight += 1;
        self.in_flight_bytes += bytes_of(&request.memory);
        match &mut self.ring {
            Some(ring) if class == Class::Foreground => self.core.device.submit_on(ring, request),
            _ => self.core.device.submit(vec![request]),
        }
    }

    /// Waits for a completion, or for `all` on the call's ring, at most `limit`. The call's ring comes first: nothing
    /// else announces its completions.
    fn receive(&mut self, all: bool, limit: Option<Duration>) -> Option<Completion> {
        if let Ok(completion) = self.receiver.try_recv() {
            return Some(completion);
        }
        if let Some(ring) = self.ring.as_mut().filter(|ring| ring.in_flight() > 0) {
            ring.wait(all, limit);
            return self.receiver.try_recv().ok();
        }
        match limit {
            None => self.receiver.recv().ok(),
            Some(limit) => self.receiver.recv_timeout(limit).ok(),
        }
    }

    /// Waits for the next completion.
    pub(crate) fn next(&mut self) -> Result<Completion, Stop> {
        self.next_of(false)
    }

    /// Waits for the next completion; with `all` until nothing is in flight, where that spares waiting once for each.
    pub(crate) fn next_of(&mut self, all: bool) -> Result<Completion, Stop> {
        assert!(self.in_flight > 0, "nothing to wait for");
        loop {
            if self.call.is_cancelled() {
                return Err(Stop::Cancelled);
            }
            let left = self.call.deadline.remaining(self.core.clock.now());
            let wait = match (left, &self.call.cancel) {
                (None, None) => None,
                (left, Some(_)) => Some(left.unwrap_or(CANCEL_POLL).min(CANCEL_POLL)),
                (left, None) => left,
            };
            if let Some(completion) = self.receive(all, wait) {
                self.in_flight -= 1;
                self.in_flight_bytes -= bytes_of(&completion.memory);
                return Ok(completion);
            }
            if self.call.deadline.expired(self.core.clock.now()) {
                return Err(Stop::Deadline);
            }
        }
    }

    /// A staging buffer, or `None` if the caller should wait for a completion first.
    pub(crate) fn staging(&self, len: usize) -> Result<Option<Memory>, Stop> {
        if let Some(memory) = self.core.pool.try_take(len) {
            return Ok(Some(memory));
        }
        if !self.is_idle() {
            return Ok(None);
        }
        let clock = self.core.clock.as_ref();
        let patience = Deadline::At(clock.now().after(STAGING_PATIENCE));
        loop {
            if self.call.is_cancelled() {
                return Err(Stop::Cancelled);
            }
            if self.call.deadline.expired(clock.now()) {
                return Err(Stop::Deadline);
            }
            let Some(left) = patience.remaining(clock.now()).filter(|left| !left.is_zero()) else {
                return Err(Stop::Throttled);
            };
            let until = self.call.at_most(left.min(CANCEL_POLL), clock);
            if let Ok(memory) = self.core.pool.take(len, until, clock) {
                return Ok(Some(memory));
            }
        }
    }

    /// Waits until the device has given back everything, whatever it is: before lent memory returns to its owner.
    pub(crate) fn drain(&mut self) {
        while self.in_flight > 0 {
            if self.receive(true, None).is_some() {
                self.in_flight -= 1;
            }
        }
    }
}

impl Core {
    /// Sends one request through a staging buffer and waits for it. `bytes` are written, or filled by a read.
    pub(crate) fn transfer(
        &self,
        operation: Operation,
        file: FileId,
        offset: u64,
        bytes: &mut [u8],
        call: &Call,
    ) -> Result<(), IoError> {
        let mut memory = self.pool.take(bytes.len(), call.deadline, self.clock.as_ref())?;
        if operation == Operation::Write {
            memory.as_mut_slice().copy_from_slice(bytes);
        }
        let work = Work { operation, file, offset, memory: vec![memory], tag: 0, guard: None };
        let completion = self.one(work, call)?;
        if operation == Operation::Read {
            bytes.copy_from_slice(completion.memory[0].as_slice());
        }
        Ok(())
    }

    /// Makes completed writes of a file durable. If that fails all writing stops: see [`Self::poison_unless_kept`].
    pub(crate) fn sync_file(&self, file: FileId) -> Result<(), IoError> {
        crate::stats::LogStats::add(&self.stats.syncs, 1);
        let operation = Operation::Sync;
        let work = Work { operation, file, offset: 0, memory: Vec::new(), tag: 0, guard: None };
        // Behind everybody's gets it might not be begun within its minute.
        let call = Call { class: Class::Foreground, ..self.patient_call() };
        self.poison_unless_kept(self.one(work, &call).map(drop))
    }

    /// Makes names that were created or removed durable. If that fails all writing stops.
    pub(crate) fn sync_names(&self) -> Result<(), IoError> {
        self.poison_unless_kept(self.device.sync_names())
    }

    /// What a failed sync dropped, no later one would write, and it would not say so. So nothing is synced again unless
    /// this one was never begun; or there was no room, which only new files meet, and these are removed.
    fn poison_unless_kept(&self, synced: Result<(), IoError>) -> Result<(), IoError> {
        match &synced {
            Ok(()) | Err(IoError::Busy | IoError::Suspended | IoError::Closed) => {}
            Err(error) if error.is_no_space() => {}
            Err(error) => self.poison(error),
        }
        synced
    }

    /// Hands a sync of a file over; its answer comes through the channel, whoever waits for it.
    pub(crate) fn start_sync(&self, file: FileId) -> Receiver<Completion> {
        crate::stats::LogStats::add(&self.stats.syncs, 1);
        let (sender, receiver) = bounded(1);
        let request = Request {
            operation: Operation::Sync,
            class: Class::Foreground,
            file,
            offset: 0,
            memory: Vec::new(),
            tag: 0,
            // Others than the one who began it may come to need it.
            deadline: Deadline::Never,
            guard: None,
            watch: None,
            reply: sender,
        };
        request.check();
        self.device.submit(vec![request]);
        receiver
    }

    /// Hands a write over whose end nobody waits for. Dropped if no staging buffer is free.
    pub(crate) fn write_unwatched(
        &self,
        pin: Arc<Pin>,
        offset: u64,
        bytes: &[u8],
        until: Deadline,
    ) {
        let Some(mut memory) = self.pool.try_take(bytes.len()) else {
            tracing::debug!("a marker was not written: no staging buffer is free");
            return;
        };
        memory.as_mut_slice().copy_from_slice(bytes);
        let request = Request {
            operation: Operation::Write,
            class: Class::Background,
            file: pin.segment.file,
            offset,
            memory: vec![memory],
            tag: 0,
            deadline: until,
            guard: Some(pin),
            watch: None,
            reply: bounded(1).0,
        };
        request.check();
        self.device.submit(vec![request]);
    }

    fn one(&self, work: Work, call: &Call) -> Result<Completion, IoError> {
        // Cancelling in the middle of a header's write would leave its segment in doubt.
        let call = Call { cancel: None, ..call.clone() };
        let mut pump = Pump::new(self, &call);
        pump.submit(work);
        let completion = pump.next().map_err(|_| IoError::Deadline)?;
        match completion.result {
            Ok(()) => Ok(completion),
            Err(error) => Err(error),
        }
    }
}
