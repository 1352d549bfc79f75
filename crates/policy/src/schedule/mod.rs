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
//! | prefill | if they take no longer than the slack, all due times of waiting reads included |
//! | decode | at the pace that steps allow |
//! | idle, or no engine says | saves always, upkeep if no need waits |
//!
//! 1. A request that has waited for the patience of its class starts in any phase and before all others, one at a time
//!    in each direction and for at most a quarter of the time. So every request starts: at the latest after its
//!    patience and four times the time that the device needs for those before it.
//! 2. Bytes in flight are bounded in each direction by what keeps the device busy (`window.rs`), but for one request
//!    whose patience is over. One request always may be in flight.
//! 3. Requests that wait are bounded in number and bytes by class; the rest is refused, so that the caller drops what
//!    is worth least.
//! 4. In prefill without slack no write starts that has not used up its patience.
//! 5. If nothing is in flight, no engine says what it does, and something waits, something starts.

mod ask;
mod numbers;
mod pace;
mod phases;
mod queues;
mod window;

use std::time::Duration;

use dalsegno_core::Nanos;
use hashbrown::HashMap;

pub use self::ask::{Ask, Class, Direction};
pub use self::phases::{EngineId, Phase};

use self::numbers::{real, whole};
use self::pace::WritePace;
use self::phases::Phases;
use self::queues::Queues;
use self::window::{Departure, FlightWindow};

/// Bytes per second before they were measured: a slow disk.
const UNKNOWN_RATE: f64 = 100e6;
/// How much reads slow down beside writes before that was measured.
const UNKNOWN_INTERFERENCE: f64 = 0.5;
/// Requests whose patience is over take one of so many parts of the time, as long as others are to go first.
const AGED_PART: u32 = 4;
/// Weight of the newest sample of interference.
const NEWEST: f64 = 1.0 / 16.0;

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

/// The bounds of a schedule.
#[derive(Clone, Copy, Debug)]
pub struct ScheduleRules {
    /// Least and most bytes in flight in each direction.
    pub window: (u64, u64),
    /// How long a request of each class waits at most for others to go first, in the order of [`Class::ALL`]. That of
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
}

impl Default for ScheduleRules {
    fn default() -> Self {
        Self {
            window: (4 << 20, 256 << 20),
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

/// A request in flight.
#[derive(Clone, Copy, Debug)]
struct Flight {
    departure: Departure,
    direction: Direction,
    /// Whether it started because its patience was over.
    is_aged: bool,
    /// Of a read: whether a write was in flight beside it when it started.
    is_mixed: bool,
}

/// See the module.
#[derive(Clone, Debug)]
pub struct Schedule {
    rules: ScheduleRules,
    queues: Queues,
    flights: HashMap<u64, Flight>,
    /// By direction.
    windows: [FlightWindow; 2],
    /// When the next request whose patience is over may start, by direction; `None` while one is in flight.
    aged: [Option<Nanos>; 2],
    phases: Phases,
    pace: WritePace,
    /// Seconds per byte of reads alone and beside writes.
    read_costs: [Option<f64>; 2],
}

impl Schedule {
    /// Nothing waits, and no engine says what it does.
    #[must_use]
    pub fn new(rules: ScheduleRules) -> Self {
        let (least, most) = rules.window;
        Self {
            queues: Queues::new(rules.most_waiting, rules.most_bytes),
            flights: HashMap::new(),
            windows: [FlightWindow::new(least, most), FlightWindow::new(least, most)],
            aged: [Some(Nanos(0)); 2],
            phases: Phases::new(rules.engines.0, rules.engines.1),
            pace: WritePace::new(whole(UNKNOWN_RATE)),
            read_costs: [None; 2],
            rules,
        }
    }

    /// A request arrives. `false` if too many of its class wait: it is not in the schedule.
    #[must_use]
    pub fn arrive(&mut self, ask: Ask, now: Nanos) -> bool {
        self.queues.push(ask, now)
    }

    /// A request that waits is not wanted any more. `false` if it does not wait.
    pub fn withdraw(&mut self, id: u64) -> bool {
        self.queues.remove(id)
    }

    /// An engine says what it does from now on.
    pub fn set_phase(&mut self, engine: EngineId, phase: Phase, now: Nanos) {
        self.phases.set(engine, phase, now);
    }

    /// An engine ended.
    pub fn forget_engine(&mut self, engine: EngineId) {
        self.phases.forget(engine);
    }

    /// An engine measured a step: its time over that of the same step without writes, as its model predicts it.
    pub fn note_step(&mut self, ratio: f64) {
        if self.in_flight(Direction::Write) > 0 {
            self.pace.note_step(ratio);
        }
    }

    /// What to start now. A request counts as started when it is returned.
    pub fn next(&mut self, now: Nanos) -> Next {
        if let Some(ask) = self.take_aged(now) {
            return self.start(ask, true, now);
        }
        if let Some(ask) = self.take_read() {
            return self.start(ask, false, now);
        }
        match self.take_rest(now) {
            Ok(ask) => self.start(ask, false, now),
            Err(turn) => self.wait(turn, now),
        }
    }

    /// A request that was started has ended, with success or without.
    pub fn done(&mut self, id: u64, is_done: bool, now: Nanos) {
        let Some(flight) = self.flights.remove(&id) else { return };
        if flight.is_aged {
            let taken = flight.departure.taken(now);
            self.aged[flight.direction as usize] = Some(now.after(taken * (AGED_PART - 1)));
        }
        let has_writes = self.in_flight(Direction::Write) > 0;
        let Flight { departure, direction, is_mixed, .. } = flight;
        self.windows[direction as usize].end(departure, now, is_done);
        if direction == Direction::Read && is_done && is_mixed == has_writes {
            // A read beside writes for a part of its time says nothing.
            self.note_read(departure, is_mixed, now);
        }
    }

    /// Requests and bytes of a class that wait.
    #[must_use]
    pub fn waiting(&self, class: Class) -> (usize, u64) {
        self.queues.waiting(class)
    }

    /// Bytes in flight.
    #[must_use]
    pub fn in_flight(&self, direction: Direction) -> u64 {
        self.window(direction).in_flight()
    }

    /// The rate of reads beside writes over that of reads alone, as it was measured.
    #[must_use]
    pub fn interference(&self) -> f64 {
        match self.read_costs {
            [Some(alone), Some(mixed)] => (alone / mixed).clamp(0.05, 1.0),
            _ => UNKNOWN_INTERFERENCE,
        }
    }

    fn window(&self, direction: Direction) -> &FlightWindow {
        &self.windows[direction as usize]
    }

    fn has_space(&self, ask: &Ask) -> bool {
        self.window(ask.direction).has_space(ask.bytes)
    }

    /// The bytes per second of a direction, or those of a slow disk before they were measured.
    fn rate(&self, direction: Direction) -> f64 {
        self.window(direction).bytes_per_s().unwrap_or(UNKNOWN_RATE)
    }

    fn start(&mut self, ask: Ask, is_aged: bool, now: Nanos) -> Next {
        let is_mixed = ask.direction == Direction::Read && self.in_flight(Direction::Write) > 0;
        let departure = self.windows[ask.direction as usize].begin(ask.bytes, now);
        if is_aged {
            self.aged[ask.direction as usize] = None;
        }
        if matches!(ask.class, Class::Save | Class::Upkeep)
            && self.phases.now(now) == Some(Phase::Decode)
        {
            self.pace.spend(ask.bytes, now);
        }
        let flight = Flight { departure, direction: ask.direction, is_aged, is_mixed };
        let before = self.flights.insert(ask.id, flight);
        debug_assert!(before.is_none(), "request {} is in flight already", ask.id);
        Next::Go(ask.id)
    }

    /// The request whose patience was over first, if none of its direction is in flight for that reason.
    fn take_aged(&mut self, now: Nanos) -> Option<Ask> {
        let is_its_turn =
            |direction: Direction| self.aged[direction as usize].is_some_and(|from| from <= now);
        let (class, direction) =
            self.queues.most_overdue(&self.rules.patience, now, is_its_turn)?;
        self.queues.take(class, direction)
    }

    /// The next read that an engine waits for, or soon will.
    fn take_read(&mut self) -> Option<Ask> {
        for direction in [Direction::Read, Direction::Write] {
            if self.queues.first(Class::Need, direction).is_some_and(|ask| self.has_space(ask)) {
                return self.queues.take(Class::Need, direction);
            }
        }
        let is_next = self.queues.waiting(Class::Need).0 == 0;
        let first = self.queues.first(Class::Prefetch, Direction::Read);
        (is_next && first.is_some_and(|ask| self.has_space(ask)))
            .then(|| self.queues.take(Class::Prefetch, Direction::Read))?
    }

    /// The next request that nobody waits for, or when it has its turn; no turn if none waits or fits.
    fn take_rest(&mut self, now: Nanos) -> Result<Ask, Option<Turn>> {
        let class =
            if self.queues.waiting(Class::Save).0 > 0 { Class::Save } else { Class::Upkeep };
        // Reads of upkeep delay others less.
        for direction in [Direction::Read, Direction::Write] {
            let Some(ask) = self.queues.first(class, direction).copied() else { continue };
            if !self.has_space(&ask) {
                continue;
            }
            return match self.turn(&ask, now) {
                Turn::Now => self.queues.take(class, direction).ok_or(None),
                later => Err(Some(later)),
            };
        }
        Err(None)
    }

    /// When the phase lets a request start that nobody waits for.
    fn turn(&mut self, ask: &Ask, now: Nanos) -> Turn {
        match self.phases.now(now) {
            Some(Phase::Prefill { slack }) => {
                let taken = self.seconds_beside(ask) + self.rules.guard.as_secs_f64();
                if taken > self.slack_s(slack, now) { Turn::Later } else { Turn::Now }
            }
            Some(Phase::Decode) => {
                self.pace.set_most(whole(self.rate(Direction::Write)));
                let wait = self.pace.wait(now);
                if wait.is_zero() { Turn::Now } else { Turn::At(now.after(wait)) }
            }
            Some(Phase::Idle) | None => {
                let is_urged = ask.class == Class::Upkeep && self.queues.waiting(Class::Need).0 > 0;
                if is_urged { Turn::Later } else { Turn::Now }
            }
        }
    }

    /// By how many seconds a request delays reads that run beside it, at most.
    fn seconds_beside(&self, ask: &Ask) -> f64 {
        real(ask.bytes) / self.rate(ask.direction) * (1.0 - self.interference()).max(0.05)
    }

    /// How many seconds all reads that engines wait for may be delayed: what the engine says, or less if one that waits
    /// is due earlier.
    fn slack_s(&self, slack: Duration, now: Nanos) -> f64 {
        let (rate, in_flight) = (self.rate(Direction::Read), self.in_flight(Direction::Read));
        self.queues.laxity_s(rate, in_flight, now).min(slack.as_secs_f64())
    }

    fn note_read(&mut self, departure: Departure, is_mixed: bool, now: Nanos) {
        let Some(cost) = departure.seconds_per_byte(now) else { return };
        let known = &mut self.read_costs[usize::from(is_mixed)];
        *known = Some(known.map_or(cost, |before| before + (cost - before) * NEWEST));
    }

    /// Nothing starts now: until when. A request that the phase holds back may start when that ends.
    fn wait(&self, held_back: Option<Turn>, now: Nanos) -> Next {
        let may_start_from = |direction: Direction| self.aged[direction as usize];
        let overdue = self.queues.next_overdue(&self.rules.patience, may_start_from);
        let overdue = overdue.map(|at| at.max(now.after(Duration::from_nanos(1))));
        let phase_end = self.phases.next_end(now).filter(|_| held_back.is_some());
        let turn = match held_back {
            Some(Turn::At(at)) => Some(at),
            _ => None,
        };
        let next = [turn, overdue, phase_end].into_iter().flatten().min();
        next.map_or(Next::Wait, Next::WaitUntil)
    }
}
