//! The schedule of a device, and the requests that wait in it.

use std::collections::{BTreeSet, HashMap};

use dalsegno_core::{Deadline, Nanos};
use dalsegno_io::{Operation, Request};
use dalsegno_policy::schedule::{Arrival, Ask, Direction, Next, Schedule, ScheduleRules};

/// Names a request in the schedule.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Turn(u64);

/// What becomes of a request that arrives.
#[derive(Debug)]
pub(super) enum Arrived {
    /// It starts now.
    Starts(Turn, Request),
    Waits,
    /// Too many of its class wait.
    Refused(Request),
}

/// A schedule, and its requests as long as they wait.
#[derive(Debug)]
pub(super) struct WaitingRequests {
    pub(super) schedule: Schedule,
    waiting: HashMap<u64, Request>,
    /// Those with a deadline, by it.
    ends: BTreeSet<(Nanos, u64)>,
    next: u64,
}

/// Syncs go with the writes that they wait for.
pub(super) fn direction(operation: Operation) -> Direction {
    match operation {
        Operation::Read => Direction::Read,
        Operation::Write | Operation::Sync => Direction::Write,
    }
}

/// The deadline of a request, if it has one, with its name.
fn end_of(id: u64, request: &Request) -> Option<(Nanos, u64)> {
    match request.deadline {
        Deadline::At(end) => Some((end, id)),
        Deadline::Never => None,
    }
}

impl WaitingRequests {
    pub(super) fn new(rules: ScheduleRules) -> Self {
        Self {
            schedule: Schedule::new(rules),
            waiting: HashMap::new(),
            ends: BTreeSet::new(),
            next: 0,
        }
    }

    fn ask(&mut self, request: &Request) -> Ask {
        self.next += 1;
        Ask {
            id: self.next,
            direction: direction(request.operation),
            class: request.purpose.class,
            bytes: request.bytes(),
            due: request.purpose.due.map(|due| due.first),
        }
    }

    pub(super) fn arrive(&mut self, request: Request, now: Nanos) -> Arrived {
        let ask = self.ask(&request);
        match self.schedule.arrive(ask, now) {
            Arrival::Go => Arrived::Starts(Turn(ask.id), self.starts(request, now)),
            Arrival::Waits => {
                self.ends.extend(end_of(ask.id, &request));
                self.waiting.insert(ask.id, request);
                Arrived::Waits
            }
            Arrival::Refused if request.purpose.is_refusable => Arrived::Refused(request),
            Arrival::Refused => {
                // Work that must not be left half-way is bounded by its threads.
                self.schedule.begin(ask, now);
                Arrived::Starts(Turn(ask.id), self.starts(request, now))
            }
        }
    }

    /// A request that starts now.
    fn starts(&self, mut request: Request, now: Nanos) -> Request {
        request.purpose.is_durable |=
            request.operation == Operation::Write && self.schedule.wants_durable_writes(now);
        request
    }

    /// A request starts that asks for no turn.
    pub(super) fn begin(&mut self, request: Request, now: Nanos) -> (Turn, Request) {
        let ask = self.ask(&request);
        self.schedule.begin(ask, now);
        (Turn(ask.id), self.starts(request, now))
    }

    /// Takes the requests whose turn it is, and says when the next one may have its turn.
    pub(super) fn take(&mut self, now: Nanos, taken: &mut Vec<(Turn, Request)>) -> Option<Nanos> {
        loop {
            match self.schedule.next(now) {
                Next::Go(id) => {
                    let request = self.remove(id);
                    taken.extend(request.map(|request| (Turn(id), self.starts(request, now))));
                }
                Next::WaitUntil(at) => return Some(at),
                Next::Wait => return None,
            }
        }
    }

    fn remove(&mut self, id: u64) -> Option<Request> {
        let request = self.waiting.remove(&id)?;
        if let Some(end) = end_of(id, &request) {
            self.ends.remove(&end);
        }
        Some(request)
    }

    /// When the first deadline of those that wait passes.
    pub(super) fn next_late(&self) -> Option<Nanos> {
        self.ends.first().map(|(end, _)| *end)
    }

    /// Takes those whose deadline has passed.
    pub(super) fn take_late(&mut self, now: Nanos) -> Vec<Request> {
        let mut late = Vec::new();
        while let Some((end, id)) = self.ends.first().copied()
            && end <= now
        {
            self.schedule.withdraw(id);
            late.extend(self.remove(id));
        }
        late
    }

    /// A request that started has ended.
    pub(super) fn end(&mut self, turn: Turn, is_done: bool, now: Nanos) {
        self.schedule.done(turn.0, is_done, now);
    }

    /// Takes all that wait.
    pub(super) fn take_all(&mut self) -> Vec<Request> {
        for id in self.waiting.keys() {
            self.schedule.withdraw(*id);
        }
        self.ends.clear();
        std::mem::take(&mut self.waiting).into_values().collect()
    }
}
