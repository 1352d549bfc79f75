//! Lets requests to a device start in the order of a [`Schedule`](dalsegno_policy::schedule::Schedule).
//!
//! 1. Every request gets exactly one completion: a request that waits when this is dropped completes as closed, and one
//!    that finds too many of its class as busy.
//! 2. The schedule changes under one lock, and nothing is submitted or completed under it: completing a request may run
//!    any code, even a new submit.
//! 3. One thread at a time passes on what has its turn (`passing`). Others that change the schedule meanwhile leave
//!    that to it: it looks again before it stops. So completions that submit do not nest.
//! 4. A thread of its own waits for moments. With [`Executor::Inline`] there is none: where nothing but time stands
//!    before a request, it starts at once as if that time had passed.
//! 5. What is in flight does not keep the device open: it refers to the schedule weakly.
//! 6. A request whose deadline passes while it waits is completed then, so that what it holds is free again.
//! 7. A forked child leaves what waits as it is.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;

use dalsegno_core::{Class, Clock, Nanos, Stopped};
use dalsegno_io::{
    CallRing, Device, DirEntry, Duty, Executor, FileId, Geometry, IoError, NextStep, OpenMode,
    Opened, Operation, Periodic, Process, Request, Source, Space, StopSignal, Watch,
};
use dalsegno_policy::schedule::{Direction, EngineId, Phase, ScheduleRules, ScheduleView};
use parking_lot::{Mutex, MutexGuard};

use super::guarded::{Admission, Guarded};
use super::waiting::{Arrived, Turn, WaitingRequests, direction};
use super::watched::Watched;

/// How long dropping waits for the thread.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(1);

/// A device that starts requests in order. What is in flight refers to it weakly.
#[derive(Debug)]
pub(crate) struct Scheduled<G: Guarded> {
    order: Arc<Order<G>>,
}

/// What submitters, completions and the thread share.
#[derive(Debug)]
struct Order<G: Guarded> {
    device: Arc<G>,
    clock: Arc<dyn Clock>,
    executor: Executor,
    state: Mutex<OrderState>,
    /// Whether a thread passes on what has its turn. Changes under the lock, except after a panic.
    passing: AtomicBool,
    /// By direction: the most urgent class for which the device has what keeps it busy, as a number; that of no class
    /// if it has not.
    full_from: [AtomicUsize; 2],
    timer: OnceLock<Periodic<Timer<G>>>,
    process: Process,
}

#[derive(Debug)]
struct OrderState {
    requests: WaitingRequests,
    /// When the thread looks next; `None` if it sleeps until it is woken.
    wakes_at: Option<Nanos>,
    /// Whether engines are not listened to any more.
    is_ending: bool,
}

/// Ends the passing on in a panic.
struct Passing<'a>(&'a AtomicBool);

/// Looks when a moment comes at which a request may start.
#[derive(Debug)]
struct Timer<G: Guarded>(Weak<Order<G>>);

/// Ends the turn of a request.
struct TurnWatch<G: Guarded> {
    order: Weak<Order<G>>,
    turn: Turn,
}

impl<G: Guarded> Scheduled<G> {
    /// # Errors
    ///
    /// The system's own if it refuses the thread.
    pub(crate) fn start(
        device: Arc<G>,
        rules: ScheduleRules,
        clock: &Arc<dyn Clock>,
        executor: Executor,
    ) -> std::io::Result<Self> {
        let state =
            OrderState { requests: WaitingRequests::new(rules), wakes_at: None, is_ending: false };
        let order = Arc::new(Order {
            device,
            clock: Arc::clone(clock),
            executor,
            state: Mutex::new(state),
            passing: AtomicBool::new(false),
            full_from: [AtomicUsize::new(Class::ALL.len()), AtomicUsize::new(Class::ALL.len())],
            timer: OnceLock::new(),
            process: Process::this(),
        });
        if executor == Executor::Threads {
            let timer = Timer(Arc::downgrade(&order));
            let timer = Periodic::start("dalsegno-order", executor, timer, NextStep::OnWake)?;
            drop(order.timer.set(timer));
        }
        Ok(Self { order })
    }

    /// An engine says what it does from now on, and how long its last steps took: each over the same step without
    /// writes, as its model predicts it.
    pub(crate) fn set_phase(&self, engine: EngineId, phase: Phase, steps: &[f64]) {
        let mut state = self.order.state.lock();
        if state.is_ending {
            return;
        }
        let schedule = &mut state.requests.schedule;
        for ratio in steps {
            schedule.note_step(*ratio);
        }
        schedule.set_phase(engine, phase, self.order.clock.now());
        self.order.pass_on(state);
    }

    /// Everything is written as if no engine computed, whatever engines say from now on.
    pub(crate) fn end_phases(&self) {
        let mut state = self.order.state.lock();
        state.is_ending = true;
        state.requests.schedule.forget_engines();
        self.order.pass_on(state);
    }

    /// What the schedule does now.
    pub(crate) fn view(&self) -> ScheduleView {
        self.order.state.lock().requests.schedule.view(self.order.clock.now())
    }
}

impl<G: Guarded> Order<G> {
    /// Watches a request that starts now.
    fn begin(self: &Arc<Self>, turn: Turn, request: &mut Request, admission: Admission) {
        request.add_watch(Arc::new(TurnWatch { order: Arc::downgrade(self), turn }));
        if admission == Admission::Regular {
            self.device.begin(request);
        }
    }

    /// Notes an admitted request; returns it if it starts now.
    fn arrive(self: &Arc<Self>, request: Request, admission: Admission) -> Option<Request> {
        let now = self.clock.now();
        let mut state = self.state.lock();
        let arrived = match admission {
            Admission::Regular => state.requests.arrive(request, now),
            Admission::Trial => {
                let (turn, request) = state.requests.begin(request, now);
                Arrived::Starts(turn, request)
            }
        };
        match arrived {
            Arrived::Starts(turn, mut request) => {
                self.note_full(&state);
                drop(state);
                self.begin(turn, &mut request, admission);
                Some(request)
            }
            Arrived::Waits => {
                self.pass_on(state);
                None
            }
            Arrived::Refused(request) => {
                drop(state);
                request.complete(Err(IoError::Stopped(Stopped::Busy)));
                None
            }
        }
    }

    /// Passes on what has its turn, unless another thread does.
    fn pass_on<'a>(self: &'a Arc<Self>, mut state: MutexGuard<'a, OrderState>) {
        if self.passing.swap(true, Ordering::Acquire) {
            return;
        }
        let _passing = Passing(&self.passing);
        loop {
            let now = self.clock.now();
            let late = state.requests.take_late(now);
            let batch = self.take(&mut state, now);
            self.note_full(&state);
            if batch.is_empty() && late.is_empty() {
                // Under the same lock as finding nothing.
                self.passing.store(false, Ordering::Release);
                return;
            }
            drop(state);
            for request in late {
                request.complete(Err(IoError::Stopped(Stopped::Deadline)));
            }
            let begin = |(turn, mut request)| {
                self.begin(turn, &mut request, Admission::Regular);
                request
            };
            let batch: Vec<_> = batch.into_iter().map(begin).collect();
            if !batch.is_empty() {
                self.device.source().submit(batch);
            }
            state = self.state.lock();
        }
    }

    /// The requests whose turn it is. Plans when to look again.
    fn take(&self, state: &mut OrderState, mut now: Nanos) -> Vec<(Turn, Request)> {
        let mut taken = Vec::new();
        loop {
            let next = state.requests.take(now, &mut taken);
            match next {
                Some(at) if self.executor == Executor::Inline && taken.is_empty() => now = at,
                next => {
                    let late = state.requests.next_late();
                    self.plan(state, next.into_iter().chain(late).min());
                    return taken;
                }
            }
        }
    }

    /// Wakes the thread if it would look too late.
    fn plan(&self, state: &mut OrderState, next: Option<Nanos>) {
        let Some(at) = next else { return };
        if state.wakes_at.is_none_or(|planned| at < planned) {
            state.wakes_at = Some(at);
            if let Some(timer) = self.timer.get() {
                timer.wake();
            }
        }
    }

    fn note_full(&self, state: &OrderState) {
        for direction in [Direction::Read, Direction::Write] {
            let from = state.requests.schedule.full_from(direction);
            let from = from.map_or(Class::ALL.len(), |class| class as usize);
            self.full_from[direction as usize].store(from, Ordering::Relaxed);
        }
    }

    fn end(self: &Arc<Self>, turn: Turn, is_done: bool) {
        let now = self.clock.now();
        let mut state = self.state.lock();
        state.requests.end(turn, is_done, now);
        if state.requests.schedule.has_waiting() {
            self.pass_on(state);
        } else {
            self.note_full(&state);
        }
    }
}

impl Drop for Passing<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.store(false, Ordering::Release);
        }
    }
}

impl<G: Guarded> Duty for Timer<G> {
    fn step(&mut self, _: &StopSignal) -> NextStep {
        let Some(order) = self.0.upgrade() else { return NextStep::Never };
        let now = order.clock.now();
        let mut state = order.state.lock();
        match state.wakes_at {
            None => return NextStep::OnWake,
            Some(at) if at > now => return NextStep::After(at.since(now)),
            Some(_) => state.wakes_at = None,
        }
        order.pass_on(state);
        let planned = order.state.lock().wakes_at;
        planned.map_or(NextStep::OnWake, |at| NextStep::After(at.since(order.clock.now())))
    }
}

impl<G: Guarded> Watch for TurnWatch<G> {
    fn ended(&self, result: Result<(), &IoError>) {
        if let Some(order) = self.order.upgrade() {
            order.end(self.turn, result.is_ok());
        }
    }
}

impl<G: Guarded> Drop for Scheduled<G> {
    fn drop(&mut self) {
        if !self.order.process.is_this() {
            std::mem::forget(Arc::clone(&self.order));
            return;
        }
        // So its thread does not end the device after this.
        if let Some(timer) = self.order.timer.get() {
            timer.close();
            timer.join(CLOSE_TIMEOUT);
        }
        let waiting = self.order.state.lock().requests.take_all();
        for request in waiting {
            request.complete(Err(IoError::Closed));
        }
    }
}

impl<G: Guarded> Source for Scheduled<G> {
    fn submit(&self, requests: Vec<Request>) {
        let admitted = requests.into_iter().filter_map(|request| self.order.device.admit(request));
        let start: Vec<_> =
            admitted.filter_map(|(request, how)| self.order.arrive(request, how)).collect();
        if !start.is_empty() {
            self.order.device.source().submit(start);
        }
    }

    fn call_ring(&self) -> Option<CallRing> {
        self.order.device.source().call_ring()
    }

    fn submit_on(&self, ring: &mut CallRing, request: Request) {
        let Some((request, admission)) = self.order.device.admit(request) else { return };
        let Some(start) = self.order.arrive(request, admission) else { return };
        if start.purpose.is_durable {
            // A call's ring never waits in the kernel, and the file system may do so then.
            self.order.device.source().submit(vec![start]);
        } else {
            self.order.device.source().submit_on(ring, start);
        }
    }

    fn is_full(&self, operation: Operation, class: Class) -> bool {
        let from = self.order.full_from[direction(operation) as usize].load(Ordering::Relaxed);
        class as usize >= from
    }

    fn geometry(&self) -> Geometry {
        self.order.device.source().geometry()
    }
}

impl Device for Scheduled<Watched> {
    fn open(&self, name: &str, mode: OpenMode) -> Result<Opened, IoError> {
        self.order.device.open(name, mode)
    }

    fn open_cached(&self, name: &str, mode: OpenMode) -> Result<Opened, IoError> {
        self.order.device.open_cached(name, mode)
    }

    fn read_at(&self, file: FileId, offset: u64, buffer: &mut [u8]) -> Result<(), IoError> {
        self.order.device.read_at(file, offset, buffer)
    }

    fn try_read_at(&self, file: FileId, offset: u64, buffer: &mut [u8]) -> Result<bool, IoError> {
        self.order.device.try_read_at(file, offset, buffer)
    }

    fn close(&self, file: FileId) {
        self.order.device.close(file);
    }

    fn remove(&self, name: &str) -> Result<(), IoError> {
        self.order.device.remove(name)
    }

    fn sync_names(&self) -> Result<(), IoError> {
        self.order.device.sync_names()
    }

    fn list(&self) -> Result<Vec<DirEntry>, IoError> {
        self.order.device.list()
    }

    fn space(&self) -> Result<Space, IoError> {
        self.order.device.space()
    }
}

#[cfg(test)]
mod tests;
