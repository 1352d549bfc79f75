//! Keeps a bounded number of a call's requests in flight.
//!
//! 1. At most `depth` requests of one read are in flight; a call may have several reads. With two or more of them, the
//!    pump adds none while the source is full.
//! 2. A read that waits for a staging buffer has nothing in flight and holds no other buffer, so reads cannot starve
//!    each other. The wait is bounded whatever the call's deadline, because a device that hangs may hold all buffers.

use std::time::Duration;

use crossbeam_channel::{Receiver, Select, Sender, unbounded};
use dalsegno_core::{Class, Deadline, Stopped};
use dalsegno_io::{
    BufferPool, CANCEL_POLL, Call, CallRing, Completion, FileId, Memory, Operation, Request,
};

use super::device_io::SourceIo;

/// How long a call waits for a staging buffer before it is throttled.
const STAGING_TIMEOUT: Duration = Duration::from_secs(5);

/// How often a call looks after reads that it cannot wait for while it waits for others.
pub(crate) const LOOK: Duration = Duration::from_millis(2);

pub(crate) struct Pump<'a> {
    io: &'a SourceIo,
    call: &'a Call,
    /// Staging buffers.
    pool: BufferPool,
    /// What most of its requests do.
    operation: Operation,
    in_flight: u32,
    /// None for upkeep, which gains nothing from a ring of its own.
    ring: Option<CallRing>,
    /// Whether to add requests to a full source, too.
    is_eager: bool,
    sender: Sender<Completion>,
    // The type is unbounded; `depth` bounds its contents.
    receiver: Receiver<Completion>,
}

impl<'a> Pump<'a> {
    pub(crate) fn new(io: &'a SourceIo, call: &'a Call) -> Self {
        let (sender, receiver) = unbounded();
        let ring = if call.purpose.class == Class::Upkeep { None } else { io.source.call_ring() };
        let is_patient = matches!(call.purpose.class, Class::Save | Class::Upkeep);
        let pool = if is_patient { io.pool.for_patient_work() } else { io.pool.clone() };
        Self {
            io,
            call,
            pool,
            operation: Operation::Read,
            in_flight: 0,
            ring,
            is_eager: false,
            sender,
            receiver,
        }
    }

    /// For writes. A call that writes from its own memory has no other bound than the depth.
    pub(crate) fn for_writes(io: &'a SourceIo, call: &'a Call) -> Self {
        Self { is_eager: !call.must_stage(), operation: Operation::Write, ..Self::new(io, call) }
    }

    pub(crate) fn can_submit(&self) -> bool {
        let is_full = || self.io.source.is_full(self.operation, self.call.purpose.class);
        let waits = self.in_flight >= 2 && !self.is_eager && is_full();
        self.in_flight < self.io.bounds.depth && !waits
    }

    pub(crate) fn is_idle(&self) -> bool {
        self.in_flight == 0
    }

    /// A request of this call, whose completion arrives here with the tag 0.
    pub(crate) fn request(
        &self,
        operation: Operation,
        file: FileId,
        offset: u64,
        memory: Vec<Memory>,
    ) -> Request {
        Request {
            operation,
            purpose: self.call.purpose,
            file,
            offset,
            memory,
            tag: 0,
            deadline: self.call.deadline,
            guard: None,
            watch: None,
            reply: self.sender.clone(),
        }
    }

    pub(crate) fn submit(&mut self, request: Request) {
        assert!(self.in_flight < self.io.bounds.depth, "more requests than the depth");
        request.check();
        self.in_flight += 1;
        match &mut self.ring {
            Some(ring) => self.io.source.submit_on(ring, request),
            None => self.io.source.submit(vec![request]),
        }
    }

    /// Waits at most `limit` until something arrives here or at one of `others`, or until `all` on the call's ring have
    /// completed. The ring comes first, because only waiting on it delivers its completions.
    fn block(&mut self, all: bool, others: &[&Pump<'_>], limit: Option<Duration>) {
        if !self.receiver.is_empty() {
            return;
        }
        if let Some(ring) = self.ring.as_mut().filter(|ring| ring.in_flight() > 0) {
            ring.wait(all, limit);
            return;
        }
        let mut select = Select::new();
        select.recv(&self.receiver);
        for other in others {
            select.recv(&other.receiver);
        }
        match limit {
            None => {
                select.ready();
            }
            Some(limit) => {
                select.ready_timeout(limit).ok();
            }
        }
    }

    /// Waits until a completion can be taken here or from one of `others`. Waits at most [`LOOK`] if one of them needs
    /// something else, such as a staging buffer, or if a ring hides its completions. Fails if the call is over and
    /// nothing has arrived here.
    pub(crate) fn wait(&mut self, others: &[&Pump<'_>]) -> Result<(), Stopped> {
        let is_blind = self.is_on_ring() && !others.is_empty()
            || others.iter().any(|other| other.is_idle() || other.is_on_ring());
        self.wait_within(false, others, is_blind.then_some(LOOK))
    }

    fn wait_within(
        &mut self,
        all: bool,
        others: &[&Pump<'_>],
        limit: Option<Duration>,
    ) -> Result<(), Stopped> {
        assert!(self.in_flight > 0, "nothing to wait for");
        let left = self.call.deadline.remaining(self.io.clock.now());
        let poll = self.call.cancel.as_ref().map(|_| CANCEL_POLL);
        self.block(all, others, left.into_iter().chain(poll).chain(limit).min());
        let is_over = || self.call.deadline.expired(self.io.clock.now());
        if self.receiver.is_empty() && is_over() { Err(Stopped::Deadline) } else { Ok(()) }
    }

    fn is_on_ring(&self) -> bool {
        self.ring.as_ref().is_some_and(|ring| ring.in_flight() > 0)
    }

    /// Waits for the next completion.
    pub(crate) fn next(&mut self) -> Result<Completion, Stopped> {
        self.next_of(false)
    }

    /// Waits for the next completion. With `all`, a ring waits once for everything in flight.
    pub(crate) fn next_of(&mut self, all: bool) -> Result<Completion, Stopped> {
        loop {
            self.check_cancelled()?;
            if let Some(completion) = self.try_next() {
                return Ok(completion);
            }
            self.wait_within(all, &[], None)?;
        }
    }

    /// Fails if the call was cancelled.
    pub(crate) fn check_cancelled(&self) -> Result<(), Stopped> {
        if self.call.is_cancelled() { Err(Stopped::Cancelled) } else { Ok(()) }
    }

    /// A completion that has arrived. Does not wait. A ring delivers none here.
    pub(crate) fn try_next(&mut self) -> Option<Completion> {
        let completion = self.receiver.try_recv().ok()?;
        Some(self.completed(completion))
    }

    fn completed(&mut self, completion: Completion) -> Completion {
        self.in_flight -= 1;
        completion
    }

    /// A staging buffer if one is free.
    pub(crate) fn try_staging(&self, len: usize) -> Option<Memory> {
        self.pool.try_take(len)
    }

    /// A staging buffer, or `None` if the caller should wait for a completion first. Fails with [`Stopped::Busy`] if
    /// none becomes free in time.
    pub(crate) fn staging(&self, len: usize) -> Result<Option<Memory>, Stopped> {
        if let Some(memory) = self.pool.try_take(len) {
            return Ok(Some(memory));
        }
        if !self.is_idle() {
            return Ok(None);
        }
        let until = self.staging_limit();
        loop {
            if let Some(memory) = self.staging_within(len, until, CANCEL_POLL)? {
                return Ok(Some(memory));
            }
        }
    }

    /// When a call that begins to wait for a staging buffer now is throttled.
    pub(crate) fn staging_limit(&self) -> Deadline {
        Deadline::At(self.io.clock.now().after(STAGING_TIMEOUT))
    }

    /// Waits for a staging buffer while nothing is in flight, at most `limit` and [`CANCEL_POLL`]. Returns `None` if
    /// none became free, and fails with [`Stopped::Busy`] at `until`.
    pub(crate) fn staging_within(
        &self,
        len: usize,
        until: Deadline,
        limit: Duration,
    ) -> Result<Option<Memory>, Stopped> {
        let clock = self.io.clock.as_ref();
        self.call.check(clock)?;
        let Some(left) = until.remaining(clock.now()).filter(|left| !left.is_zero()) else {
            return Err(Stopped::Busy);
        };
        let until = self.call.at_most(left.min(limit).min(CANCEL_POLL), clock);
        Ok(self.pool.take(len, until, clock).ok())
    }

    /// Waits until nothing is in flight, so that lent memory can return to its owner.
    pub(crate) fn drain(&mut self) {
        while self.in_flight > 0 {
            if self.try_next().is_none() {
                self.block(true, &[], None);
            }
        }
    }
}
