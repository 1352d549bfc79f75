//! The order of requests to one device: reads that an engine waits for first, writes in the gaps.
//!
//! | class | who waits | order | starts |
//! |---|---|---|---|
//! | need | an engine | by due time | if the window of its direction has space |
//! | prefetch | nobody yet | by arrival | if also no need waits |
//! | save | nobody | by arrival | if also the phase allows it |
//! | upkeep | nobody | by arrival | if also no save waits |
//!
//! | phase of the most urgent engine | saves and upkeep start |
//! |---|---|
//! | prefill | if they end within the slack, and delay no waiting read beyond its due time |
//! | decode | at the pace that steps allow |
//! | idle, or no engine says | saves always, upkeep if no need waits |
//!
//! 1. A class that has waited for its patience without a turn has one in any phase and before all others, one request
//!    at a time in each direction and for at most a quarter of the time. So every request starts: at the latest after
//!    the patience of its class and four times the time that the device needs for those before it.
//! 2. Bytes in flight are bounded in each direction by what keeps the device busy (`window.rs`), but for one request
//!    whose patience is over. One request always may be in flight.
//! 3. Requests that wait are bounded in number and bytes by class; the rest is refused, so that the caller drops what
//!    is worth least.
//! 4. In prefill without slack no save and no upkeep starts before its class has used up its patience.
//! 5. If nothing is in flight, no engine says what it does, and something waits, something starts.
//! 6. As long as engines say what they do, writes are durable when they end: a device keeps nothing in a cache of its
//!    own that a sync would have to write while reads wait.
//! 7. A request in flight that the device does not answer for [`ScheduleRules::stall`] keeps no other one back.

mod ask;
mod flights;
mod numbers;
mod pace;
mod phases;
mod queues;
mod view;
mod window;

use std::time::Duration;

use dalsegno_core::{Class, Nanos};

pub use self::ask::{Ask, Direction};
pub use self::phases::{EngineId, Phase};
pub use self::view::{ClassView, ScheduleView};
pub use self::window::WindowRules;

use self::flights::{Flights, UNKNOWN_RATE};
use self::numbers::{real, whole};
use self::pace::WritePace;
use self::phases::Phases;
use self::queues::Queues;

/// What to do now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// Start this request.
    Go(u64),
    /// Nothing, until this moment or until something else happens.
    WaitUntil(Nanos),
    /// Nothing, until something happens: a request arrives or ends, or an engine says what it does.
    Wait,
}

/// What became of a request that arrived.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Arrival {
    /// It is to be started now, and counts as started.
    Go,
    /// It waits for its turn.
    Waits,
    /// Too many of its class wait. The schedule does not know it.
    Refused,
}

/// The bounds of a schedule.
#[derive(Clone, Copy, Debug)]
pub struct ScheduleRules {
    /// What is in flight in each direction.
    pub window: WindowRules,
    /// How long each class waits at most for others to go first, in the order of [`Class::ALL`]. That of
    /// [`Class::Need`] is not used: what an engine waits for goes first by its due time.
    pub patience: [Duration; 4],
    /// Most requests of a class that wait.
    pub most_waiting: usize,
    /// Most bytes of a class that wait, unless it is one request.
    pub most_bytes: u64,
    /// Engines that are remembered, and for how long one is believed that says nothing more.
    pub engines: (usize, Duration),
    /// What a write may take less than the slack, for what is not predicted.
    pub guard: Duration,
    /// After this time in flight a request does not count any more.
    pub stall: Duration,
}

impl Default for ScheduleRules {
    fn default() -> Self {
        Self {
            window: WindowRules { least: 4 << 20, first: 4 << 20, most: 256 << 20, requests: 64 },
            patience: [
                Duration::from_millis(100),
                Duration::from_secs(1),
                Duration::from_secs(2),
                Duration::from_secs(10),
            ],
            most_waiting: 1 << 16,
            most_bytes: 4 << 30,
            engines: (64, Duration::from_secs(5)),
            guard: Duration::from_millis(1),
            stall: Duration::from_secs(5),
        }
    }
}

/// When a request has its turn that nobody waits for.
#[derive(Clone, Copy, Debug)]
enum Turn {
    Now,
    At(Nanos),
    /// When something else happens.
    Later,
}

/// See the module.
#[derive(Clone, Debug)]
pub struct Schedule {
    rules: ScheduleRules,
    queues: Queues,
    flights: Flights,
    phases: Phases,
    pace: WritePace,
    /// By class.
    counts: [ClassCounts; 4],
    /// Whether a write started since the last step.
    has_written: bool,
}

/// What became of the requests of a class so far.
#[derive(Clone, Copy, Debug, Default)]
struct ClassCounts {
    started: u64,
    aged: u64,
    refused: u64,
}

impl Schedule {
    /// Nothing waits, and no engine says what it does.
    #[must_use]
    pub fn new(rules: ScheduleRules) -> Self {
        Self {
            queues: Queues::new(rules.most_waiting, rules.most_bytes),
            flights: Flights::new(rules.window, rules.stall),
            phases: Phases::new(rules.engines.0, rules.engines.1),
            pace: WritePace::new(whole(UNKNOWN_RATE)),
            counts: Default::default(),
            has_written: false,
            rules,
        }
    }

    /// A request arrives. If it is its turn at once, it never waits in a queue.
    #[must_use]
    pub fn arrive(&mut self, ask: Ask, now: Nanos) -> Arrival {
        if self.has_turn(&ask, now) {
            self.start(ask, false, now);
            Arrival::Go
        } else if self.queues.push(ask, now) {
            Arrival::Waits
        } else {
            self.counts[ask.class as usize].refused += 1;
            Arrival::Refused
        }
    }

    /// A request starts that asks for no turn: it finds out whether the device works.
    pub fn begin(&mut self, ask: Ask, now: Nanos) {
        self.start(ask, false, now);
    }

    /// A request that waits is not wanted any more. `false` if it does not wait.
    pub fn withdraw(&mut self, id: u64) -> bool {
        self.queues.remove(id)
    }

    /// An engine says what it does from now on.
    pub fn set_phase(&mut self, engine: EngineId, phase: Phase, now: Nanos) {
        if !self.wants_durable_writes(now) {
            // From now on writes cost what they cost, and not what a cache takes.
            self.flights.forget_rate(Direction::Write);
        }
        self.phases.set(engine, phase, now);
    }

    /// All engines ended.
    pub fn forget_engines(&mut self) {
        self.phases.clear();
    }

    /// An engine measured a step: its time over that of the same step, as its model predicts it.
    pub fn note_step(&mut self, ratio: f64) {
        let is_beside =
            std::mem::take(&mut self.has_written) || self.in_flight(Direction::Write) > 0;
        self.pace.note_step(ratio, is_beside);
    }

    /// What to start now. A request counts as started when it is returned.
    pub fn next(&mut self, now: Nanos) -> Next {
        if let Some(ask) = self.take_aged(now) {
            return self.start(ask, true, now);
        }
        if let Some(ask) = self.take_wanted(now) {
            return self.start(ask, false, now);
        }
        match self.take_rest(now) {
            Ok(ask) => self.start(ask, false, now),
            // Others wait for the place of what the device does not answer.
            Err(_) if self.has_waiting() && self.flights.forget_stalled(now) => self.next(now),
            Err(turn) => self.wait(turn, now),
        }
    }

    /// A request that was started has ended, with success or without.
    pub fn done(&mut self, id: u64, is_done: bool, now: Nanos) {
        self.flights.end(id, is_done, now);
    }

    /// Whether writes that start now are to be durable when they end. Otherwise the next sync of any file would wait
    /// for all that the device keeps in its own cache, and reads would wait for the sync. Only engines mind.
    #[must_use]
    pub fn wants_durable_writes(&self, now: Nanos) -> bool {
        self.phases.now(now).is_some()
    }

    /// Requests and bytes of a class that wait.
    #[must_use]
    pub fn waiting(&self, class: Class) -> (usize, u64) {
        self.queues.waiting(class)
    }

    /// Whether any request waits.
    #[must_use]
    pub fn has_waiting(&self) -> bool {
        !self.queues.is_empty()
    }

    /// The most urgent class whose callers need not ask for more in this direction, because the device has what keeps
    /// it busy; the same holds for all less urgent ones. Less urgent requests that wait are in nobody's way.
    #[must_use]
    pub fn full_from(&self, direction: Direction) -> Option<Class> {
        if self.flights.window(direction).is_full() {
            return Some(Class::Need);
        }
        Class::ALL.into_iter().find(|class| self.queues.first(*class, direction).is_some())
    }

    /// Bytes in flight.
    #[must_use]
    pub fn in_flight(&self, direction: Direction) -> u64 {
        self.flights.bytes(direction)
    }

    fn start(&mut self, ask: Ask, is_aged: bool, now: Nanos) -> Next {
        self.flights.begin(&ask, is_aged, now);
        let counts = &mut self.counts[ask.class as usize];
        counts.started += 1;
        counts.aged += u64::from(is_aged);
        if !is_aged {
            self.queues.feed(ask.class, ask.direction, now);
        }
        self.has_written |= ask.direction == Direction::Write && ask.bytes > 0;
        // What has a turn whatever the pace is does not slow down what follows.
        let is_paced = matches!(ask.class, Class::Save | Class::Upkeep) && !is_aged;
        if is_paced && self.phases.now(now) == Some(Phase::Decode) {
            self.pace.spend(ask.bytes, now);
        }
        Next::Go(ask.id)
    }

    /// What it does now.
    #[must_use]
    pub fn view(&self, now: Nanos) -> ScheduleView {
        let classes = Class::ALL.map(|class| {
            let (waiting, waiting_bytes) = self.queues.waiting(class);
            let counts = &self.counts[class as usize];
            let (started, aged, refused) = (counts.started, counts.aged, counts.refused);
            ClassView { waiting, waiting_bytes, started, aged, refused }
        });
        let window = |direction: Direction| self.flights.window(direction).limit();
        ScheduleView {
            phase: self.phases.now(now),
            engines: self.phases.count(now),
            classes,
            window_bytes: [window(Direction::Read), window(Direction::Write)],
            pace: self.pace.rate(),
            interference: self.flights.interference(),
        }
    }

    /// Whether a request that arrives may start before all others.
    fn has_turn(&mut self, ask: &Ask, now: Nanos) -> bool {
        let waits = |class: Class| self.queues.waiting(class).0 > 0;
        let is_first = match ask.class {
            Class::Need => self.queues.first(Class::Need, ask.direction).is_none(),
            Class::Prefetch => !waits(Class::Need) && !waits(Class::Prefetch),
            Class::Save => !waits(Class::Save),
            Class::Upkeep => !waits(Class::Save) && !waits(Class::Upkeep),
        };
        if !is_first || !self.flights.have_space(ask) {
            return false;
        }
        match ask.class {
            Class::Need | Class::Prefetch => true,
            Class::Save | Class::Upkeep => matches!(self.turn(ask, now), Turn::Now),
        }
    }

    /// The request whose patience was over first, if none of its direction is in flight for that reason.
    fn take_aged(&mut self, now: Nanos) -> Option<Ask> {
        let is_its_turn =
            |direction| self.flights.aged_from(direction).is_some_and(|from| from <= now);
        let (class, direction) =
            self.queues.most_overdue(&self.rules.patience, now, is_its_turn)?;
        self.queues.take(class, direction, now)
    }

    /// The next request that an engine waits for, or soon will.
    fn take_wanted(&mut self, now: Nanos) -> Option<Ask> {
        for direction in [Direction::Read, Direction::Write] {
            if self
                .queues
                .first(Class::Need, direction)
                .is_some_and(|ask| self.flights.have_space(ask))
            {
                return self.queues.take(Class::Need, direction, now);
            }
        }
        if self.queues.waiting(Class::Need).0 > 0 {
            return None;
        }
        let fits = |direction: &Direction| {
            self.queues
                .first(Class::Prefetch, *direction)
                .is_some_and(|ask| self.flights.have_space(ask))
        };
        let direction = [Direction::Read, Direction::Write].into_iter().find(fits)?;
        self.queues.take(Class::Prefetch, direction, now)
    }

    /// The next request that nobody waits for, or when it has its turn; no turn if none waits or fits.
    fn take_rest(&mut self, now: Nanos) -> Result<Ask, Option<Turn>> {
        let class =
            if self.queues.waiting(Class::Save).0 > 0 { Class::Save } else { Class::Upkeep };
        // Reads of upkeep delay others less.
        for direction in [Direction::Read, Direction::Write] {
            let Some(ask) = self.queues.first(class, direction).copied() else { continue };
            if !self.flights.have_space(&ask) {
                continue;
            }
            return match self.turn(&ask, now) {
                Turn::Now => self.queues.take(class, direction, now).ok_or(None),
                later => Err(Some(later)),
            };
        }
        Err(None)
    }

    /// When the phase lets a request start that nobody waits for.
    fn turn(&mut self, ask: &Ask, now: Nanos) -> Turn {
        match self.phases.now(now) {
            Some(Phase::Prefill { slack }) => {
                let (taken, guard) = (self.seconds_beside(ask), self.rules.guard.as_secs_f64());
                let delay = taken * (1.0 - self.flights.interference()).max(0.05);
                let fits = taken + guard <= slack.as_secs_f64();
                if fits && delay + guard <= self.laxity_s(now) { Turn::Now } else { Turn::Later }
            }
            Some(Phase::Decode) => {
                self.pace.set_most(whole(self.flights.rate(Direction::Write)));
                let wait = self.pace.wait(now);
                if wait.is_zero() { Turn::Now } else { Turn::At(now.after(wait)) }
            }
            Some(Phase::Idle) | None => {
                let is_urged = ask.class == Class::Upkeep && self.queues.waiting(Class::Need).0 > 0;
                if is_urged { Turn::Later } else { Turn::Now }
            }
        }
    }

    /// The seconds of a request and of what is written beside it.
    fn seconds_beside(&self, ask: &Ask) -> f64 {
        let written = real(self.flights.bytes(Direction::Write));
        real(ask.bytes) / self.flights.rate(ask.direction)
            + written / self.flights.rate(Direction::Write)
    }

    /// By how many seconds the reads that wait may be delayed before the first of them is late.
    fn laxity_s(&self, now: Nanos) -> f64 {
        let in_flight = self.in_flight(Direction::Read);
        self.queues.laxity_s(self.flights.rate(Direction::Read), in_flight, now)
    }

    /// Nothing starts now: until when. A request that the phase holds back may start when that ends.
    fn wait(&self, held_back: Option<Turn>, now: Nanos) -> Next {
        let may_start_from = |direction| self.flights.aged_from(direction);
        let overdue = self.queues.next_overdue(&self.rules.patience, may_start_from);
        let overdue = overdue.map(|at| at.max(now.after(Duration::from_nanos(1))));
        let phase_end = self.phases.next_end(now).filter(|_| held_back.is_some());
        let turn = match held_back {
            Some(Turn::At(at)) => Some(at),
            _ => None,
        };
        let stall = if self.has_waiting() { self.flights.next_stall() } else { None };
        let next = [turn, overdue, phase_end, stall].into_iter().flatten().min();
        next.map_or(Next::Wait, Next::WaitUntil)
    }
}
