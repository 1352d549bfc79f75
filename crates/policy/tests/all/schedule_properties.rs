//! Schedules of random requests at a device in virtual time.

use std::collections::HashMap;
use std::time::Duration;

use dalsegno_core::{Class, Nanos};
use dalsegno_policy::schedule::{
    Arrival, Ask, Direction, EngineId, Next, Phase, Schedule, ScheduleRules, WindowRules,
};
use proptest::prelude::*;

const MS: u64 = 1_000_000;
/// Bytes per second of the device in each direction.
const RATES: [f64; 2] = [2e9, 1e9];
/// What reads reach of that beside writes.
const BESIDE: f64 = 0.4;
const DELAY: u64 = MS / 10;

fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap()
}

/// How long a device works.
fn work(bytes: u64, bytes_per_s: f64) -> u64 {
    nanos(Duration::from_secs_f64(f64::from(u32::try_from(bytes).unwrap()) / bytes_per_s))
}

/// What happens at a moment.
#[derive(Clone, Debug)]
enum Event {
    Arrive { class: Class, direction: Direction, bytes: u64, due_ms: Option<u64> },
    Say { engine: u64, phase: Phase },
    Step { ratio: f64 },
}

fn phase() -> impl Strategy<Value = Phase> {
    prop_oneof![
        (0..20_u64).prop_map(|ms| Phase::Prefill { slack: Duration::from_millis(ms) }),
        Just(Phase::Prefill { slack: Duration::ZERO }),
        Just(Phase::Decode),
        Just(Phase::Idle),
    ]
}

fn arrival() -> impl Strategy<Value = Event> {
    let kind = prop_oneof![
        4 => Just((Class::Need, Direction::Read)),
        1 => Just((Class::Need, Direction::Write)),
        1 => Just((Class::Prefetch, Direction::Read)),
        3 => Just((Class::Save, Direction::Write)),
        1 => Just((Class::Upkeep, Direction::Read)),
        1 => Just((Class::Upkeep, Direction::Write)),
    ];
    (kind, 1_u64..4 << 20, proptest::option::of(0_u64..50)).prop_map(
        |((class, direction), bytes, due_ms)| Event::Arrive { class, direction, bytes, due_ms },
    )
}

fn events(has_phases: bool) -> impl Strategy<Value = Vec<(u64, Event)>> {
    let said = (0..3_u64, phase()).prop_map(|(engine, phase)| Event::Say { engine, phase });
    let step = (0.9..1.3_f64).prop_map(|ratio| Event::Step { ratio });
    let event = prop_oneof![
        8 => arrival(),
        u32::from(has_phases) => said,
        u32::from(has_phases) => step,
    ];
    proptest::collection::vec((0_u64..5 * MS, event), 1..200)
}

/// A request that was accepted.
#[derive(Clone, Copy, Debug)]
struct Known {
    ask: Ask,
    since: u64,
    begun: Option<u64>,
}

/// A device that works on the requests of each direction in turn, and a schedule before it.
struct Rig {
    schedule: Schedule,
    rules: ScheduleRules,
    now: u64,
    known: HashMap<u64, Known>,
    /// When a request in flight ends.
    flights: Vec<(u64, u64)>,
    /// Until when each direction works.
    busy: [u64; 2],
    phases: HashMap<u64, (Phase, u64)>,
    refused: usize,
    /// By class: requests that started because their class had waited for long enough.
    aged: [u64; 4],
    /// By class and direction: since when it waits for a turn, and when it waited last.
    hungry: [[Option<(u64, u64)>; 2]; 4],
}

impl Rig {
    fn new(rules: ScheduleRules) -> Self {
        Self {
            schedule: Schedule::new(rules),
            rules,
            now: 0,
            known: HashMap::new(),
            flights: Vec::new(),
            busy: [0; 2],
            phases: HashMap::new(),
            refused: 0,
            aged: [0; 4],
            hungry: [[None; 2]; 4],
        }
    }

    fn most_urgent(&self) -> Option<Phase> {
        let valid =
            self.phases.values().filter(|(_, until)| *until > self.now).map(|(one, _)| *one);
        valid.min_by_key(|phase| match phase {
            Phase::Prefill { slack } => (0, *slack),
            Phase::Decode => (1, Duration::ZERO),
            Phase::Idle => (2, Duration::ZERO),
        })
    }

    fn waiting(&self) -> impl Iterator<Item = &Known> {
        self.known.values().filter(|known| known.begun.is_none())
    }

    /// Starts what may start; returns until when nothing does.
    fn start(&mut self) -> Option<u64> {
        loop {
            match self.schedule.next(Nanos(self.now)) {
                Next::Go(id) => self.begin(id),
                Next::WaitUntil(until) => {
                    assert!(until.0 > self.now, "no moment that is over");
                    self.check_waits();
                    return Some(until.0);
                }
                Next::Wait => {
                    self.check_waits();
                    return None;
                }
            }
        }
    }

    /// How many requests of a class and direction wait, but for one.
    fn others(&self, ask: &Ask) -> usize {
        let same = |known: &&Known| {
            let other = known.ask;
            (other.class, other.direction) == (ask.class, ask.direction) && other.id != ask.id
        };
        self.waiting().filter(same).count()
    }

    /// A request has a turn: whether because its queue had waited for long enough, and it had.
    fn note_turn(&mut self, Known { ask, since, .. }: Known) -> bool {
        let at = ask.class as usize;
        let aged = self.schedule.view(Nanos(self.now)).classes[at].aged;
        let is_aged = aged > std::mem::replace(&mut self.aged[at], aged);
        let others = self.others(&ask);
        let hungry = &mut self.hungry[at][ask.direction as usize];
        if is_aged {
            let (of_queue, last) = hungry.as_mut().expect("it waited");
            *last = self.now;
            let patience = nanos(self.rules.patience[at]);
            assert!(self.now >= since.min(*of_queue) + patience, "{ask:?} comes too early");
        } else {
            *hungry = (others > 0).then_some((self.now, self.now));
        }
        is_aged
    }

    /// A request begins to wait.
    fn note_wait(&mut self, ask: &Ask) {
        let others = self.others(ask);
        let hungry = &mut self.hungry[ask.class as usize][ask.direction as usize];
        if !hungry.is_some_and(|(_, last)| others > 0 || self.now - last <= 250 * MS) {
            *hungry = Some((self.now, self.now));
        }
    }

    fn begin(&mut self, id: u64) {
        let known = self.known[&id];
        let Known { ask, begun, .. } = known;
        assert!(begun.is_none(), "a request starts once");
        let is_aged = self.note_turn(known);
        let is_calm = |slack: Duration| !slack.is_zero();
        if let Some(Phase::Prefill { slack }) = self.most_urgent()
            && !is_calm(slack)
            && matches!(ask.class, Class::Save | Class::Upkeep)
        {
            assert!(is_aged, "{ask:?} starts in prefill without slack");
        }
        if ask.class == Class::Need {
            let key = |known: &Known| known.ask.due.map_or(known.since, |due| due.0);
            let mine = key(&self.known[&id]);
            let same = |known: &&Known| {
                known.ask.class == Class::Need
                    && known.ask.direction == ask.direction
                    && known.ask.id != id
            };
            assert!(self.waiting().filter(same).all(|other| key(other) >= mine), "by due time");
        }
        if !is_aged && ask.class == Class::Prefetch {
            assert!(!self.waiting().any(|known| known.ask.class == Class::Need
                && known.ask.direction == Direction::Read
                && self.schedule.in_flight(Direction::Read) == ask.bytes));
        }
        let beside = self.schedule.in_flight(ask.direction) - ask.bytes;
        let most = self.rules.window.most + if is_aged { ask.bytes } else { 0 };
        assert!(beside == 0 || beside + ask.bytes <= most, "more in flight than the window");
        self.known.get_mut(&id).unwrap().begun = Some(self.now);
        let at = ask.direction as usize;
        let is_slow = ask.direction == Direction::Read && self.busy[1] > self.now;
        let rate = RATES[at] * if is_slow { BESIDE } else { 1.0 };
        let work = work(ask.bytes, rate);
        self.busy[at] = self.busy[at].max(self.now) + work;
        self.flights.push((self.busy[at] + DELAY, id));
    }

    fn check_waits(&self) {
        for class in Class::ALL {
            let (count, bytes) = self.schedule.waiting(class);
            let mine: Vec<_> = self.waiting().filter(|known| known.ask.class == class).collect();
            assert_eq!(count, mine.len());
            assert_eq!(bytes, mine.iter().map(|known| known.ask.bytes).sum::<u64>());
            assert!(count <= self.rules.most_waiting);
            assert!(bytes <= self.rules.most_bytes || count == 1);
        }
        let is_idle = self.flights.is_empty();
        if is_idle && self.most_urgent().is_none() {
            assert_eq!(self.waiting().count(), 0, "nothing starts although nothing is in flight");
        }
        let needs = |known: &Known| {
            known.ask.class == Class::Need && known.ask.direction == Direction::Read
        };
        if self.schedule.in_flight(Direction::Read) == 0 {
            assert!(!self.waiting().any(needs), "no read that an engine waits for is held back");
        }
    }

    /// Lets time pass up to a moment, and starts and ends what is due.
    fn run_to(&mut self, moment: u64) {
        loop {
            let wake = self.start();
            let end = self.flights.iter().map(|(end, _)| *end).min();
            let next = [wake, end].into_iter().flatten().min().filter(|next| *next <= moment);
            let Some(next) = next else { break };
            self.now = self.now.max(next);
            let now = self.now;
            let (ended, rest): (Vec<_>, Vec<_>) =
                self.flights.drain(..).partition(|(end, _)| *end <= now);
            self.flights = rest;
            for (_, id) in ended {
                self.schedule.done(id, id % 7 != 0, Nanos(now));
            }
        }
        self.now = self.now.max(moment);
    }

    fn apply(&mut self, number: u64, event: &Event) {
        let now = Nanos(self.now);
        match event {
            Event::Arrive { class, direction, bytes, due_ms } => {
                let due = due_ms.map(|ms| Nanos(self.now + ms * MS));
                let due = due.filter(|_| *class == Class::Need);
                let ask =
                    Ask { id: number, direction: *direction, class: *class, bytes: *bytes, due };
                let arrival = self.schedule.arrive(ask, now);
                if arrival == Arrival::Refused {
                    self.refused += 1;
                    return;
                }
                let known = Known { ask, since: self.now, begun: None };
                assert!(self.known.insert(number, known).is_none());
                match arrival {
                    Arrival::Go => self.begin(number),
                    _ => self.note_wait(&ask),
                }
            }
            Event::Say { engine, phase } => {
                self.schedule.set_phase(EngineId { process: *engine, number: 0 }, *phase, now);
                let until = self.now + nanos(self.rules.engines.1);
                self.phases.insert(*engine, (*phase, until));
            }
            Event::Step { ratio } => self.schedule.note_step(*ratio),
        }
    }
}

fn run(rules: ScheduleRules, events: &[(u64, Event)]) -> Rig {
    let mut rig = Rig::new(rules);
    for (number, (pause, event)) in events.iter().enumerate() {
        rig.run_to(rig.now + pause);
        rig.apply(number as u64, event);
    }
    rig.run_to(rig.now + 3_600_000 * MS);
    rig
}

fn small_rules() -> ScheduleRules {
    let window = WindowRules { least: 1 << 20, first: 1 << 20, most: 4 << 20, requests: 8 };
    ScheduleRules { window, most_waiting: 20, most_bytes: 16 << 20, ..ScheduleRules::default() }
}

proptest! {
    // A case is seconds of work of a device; smaller ones say little more.
    #![proptest_config(ProptestConfig { max_shrink_iters: 50, ..ProptestConfig::default() })]

    #[test]
    fn every_request_starts_once_in_the_order_that_its_phase_allows(events in events(true)) {
        let rig = run(ScheduleRules::default(), &events);
        prop_assert_eq!(rig.waiting().count(), 0);
        prop_assert_eq!(rig.refused, 0);
    }

    #[test]
    fn what_waits_is_bounded(events in events(true)) {
        let rig = run(small_rules(), &events);
        prop_assert_eq!(rig.waiting().count(), 0);
    }

    #[test]
    fn without_phases_a_device_is_never_idle_while_something_waits(events in events(false)) {
        let rig = run(ScheduleRules::default(), &events);
        // The device's own time for all of it, and no pause of the schedule.
        let all: u64 = rig.known.values().map(|known| known.ask.bytes).sum();
        let work = work(all, RATES[1] * BESIDE);
        for known in rig.known.values() {
            let most = work + 2 * DELAY * rig.known.len() as u64 + 1_100 * MS;
            prop_assert!(known.begun.unwrap() - known.since <= most);
        }
    }

    #[test]
    fn nothing_starves_in_a_prefill_that_never_ends(events in events(true)) {
        let rules = ScheduleRules::default();
        let mut rig = Rig::new(rules);
        for (number, (pause, event)) in events.iter().enumerate() {
            rig.run_to(rig.now + pause);
            rig.apply(number as u64, &Event::Say {
                engine: 9,
                phase: Phase::Prefill { slack: Duration::ZERO },
            });
            rig.apply(number as u64, event);
        }
        // It says so again and again, for longer than the longest patience.
        let engine = EngineId { process: 9, number: 0 };
        for _ in 0..30 {
            rig.run_to(rig.now + 1_000 * MS);
            let phase = Phase::Prefill { slack: Duration::ZERO };
            rig.schedule.set_phase(engine, phase, Nanos(rig.now));
            rig.phases.insert(9, (phase, rig.now + nanos(rules.engines.1)));
        }
        prop_assert_eq!(rig.waiting().count(), 0, "all had their turn");
        for known in rig.known.values() {
            let patience = nanos(rules.patience[known.ask.class as usize]);
            // Those before it, one at a time.
            let most = patience + 8 * 200 * (DELAY + 5 * MS);
            prop_assert!(known.begun.unwrap() - known.since <= most, "{known:?}");
        }
    }

    #[test]
    fn a_clock_that_jumps_stops_nothing(
        events in proptest::collection::vec((0_u64..4_000 * MS, arrival()), 1..100),
    ) {
        let mut schedule = Schedule::new(ScheduleRules::default());
        let mut accepted = 0;
        let mut begun = Vec::new();
        for (number, (now, event)) in events.iter().enumerate() {
            let Event::Arrive { class, direction, bytes, due_ms } = event else { unreachable!() };
            let due = due_ms.map(|ms| Nanos(ms * MS));
            let ask = Ask { id: number as u64, direction: *direction, class: *class, bytes: *bytes, due };
            match schedule.arrive(ask, Nanos(*now)) {
                Arrival::Go => begun.push(ask.id),
                Arrival::Waits => {}
                Arrival::Refused => continue,
            }
            accepted += 1;
            while let Next::Go(id) = schedule.next(Nanos(*now)) {
                begun.push(id);
            }
            if let Some(id) = begun.get(number / 2) {
                schedule.done(*id, true, Nanos(now / 2));
            }
        }
        for round in 0..10_000 {
            for id in &begun {
                schedule.done(*id, true, Nanos(round));
            }
            let Next::Go(id) = schedule.next(Nanos(round)) else { break };
            begun.push(id);
        }
        prop_assert_eq!(begun.len(), accepted);
    }
}

/// Reads that are always needed and writes that wait: what a device does for both.
#[test]
fn decoding_steps_set_the_pace_of_writes() {
    let mut rig = Rig::new(ScheduleRules::default());
    let begun = |rig: &Rig| -> u64 {
        let begun = rig.known.values().filter(|known| known.begun.is_some());
        begun.map(|known| known.ask.bytes).sum()
    };
    let mut written = [0_u64; 2];
    for (at, ratio) in [1.0, 2.0].into_iter().enumerate() {
        for number in 0..4_000_u64 {
            let id = at as u64 * 100_000 + number;
            rig.apply(id, &Event::Say { engine: 1, phase: Phase::Decode });
            let save = Event::Arrive {
                class: Class::Save,
                direction: Direction::Write,
                bytes: 1 << 20,
                due_ms: None,
            };
            rig.apply(id, &save);
            let before = begun(&rig);
            rig.run_to(rig.now + MS);
            // Only steps beside a write are longer.
            let ratio = if begun(&rig) > before { ratio } else { 1.0 };
            rig.apply(id, &Event::Step { ratio });
        }
        written[at] = begun(&rig);
    }
    let slowed = written[1] - written[0];
    assert!(written[0] > 2 * slowed, "{written:?}");
}

#[test]
fn a_write_waits_for_slack_and_reads_go_by_their_due_times() {
    let mut schedule = Schedule::new(ScheduleRules::default());
    let now = Nanos(MS);
    let ask = |id, class, direction, due| Ask { id, direction, class, bytes: 1 << 20, due };
    let prefill = |ms| Phase::Prefill { slack: Duration::from_millis(ms) };
    schedule.set_phase(EngineId { process: 1, number: 0 }, prefill(0), now);
    let save = ask(1, Class::Save, Direction::Write, None);
    assert_eq!(schedule.arrive(save, now), Arrival::Waits);
    assert!(matches!(schedule.next(now), Next::WaitUntil(_)));
    // The window has space for four reads of 1 MiB.
    for id in 10..14 {
        let read = ask(id, Class::Need, Direction::Read, None);
        assert_eq!(schedule.arrive(read, now), Arrival::Go);
    }
    for (id, due) in [(2, 9 * MS), (3, 3 * MS)] {
        let read = ask(id, Class::Need, Direction::Read, Some(Nanos(due)));
        assert_eq!(schedule.arrive(read, now), Arrival::Waits);
    }
    for id in 10..14 {
        schedule.done(id, true, now);
    }
    assert_eq!([schedule.next(now), schedule.next(now)], [Next::Go(3), Next::Go(2)]);
    schedule.done(3, true, Nanos(2 * MS));
    schedule.done(2, true, Nanos(3 * MS));
    // Unmeasured, a write of 1 MiB takes 10 ms.
    schedule.set_phase(EngineId { process: 1, number: 0 }, prefill(10), now);
    assert!(matches!(schedule.next(now), Next::WaitUntil(_)));
    schedule.set_phase(EngineId { process: 1, number: 0 }, prefill(12), now);
    assert_eq!(schedule.next(now), Next::Go(1));
}

#[test]
fn what_a_cache_took_before_engines_spoke_says_nothing_about_their_writes() {
    let mut schedule = Schedule::new(ScheduleRules::default());
    let engine = EngineId { process: 1, number: 0 };
    let save =
        |id| Ask { id, direction: Direction::Write, class: Class::Save, bytes: 1 << 20, due: None };
    let mut write = |id: u64, phase: Option<Phase>| {
        let now = Nanos(id * 10 * MS);
        if let Some(phase) = phase {
            schedule.set_phase(engine, phase, now);
        }
        let arrival = schedule.arrive(save(id), now);
        // A hundredth of the time that it takes later.
        schedule.done(id, true, now.after(Duration::from_micros(100)));
        arrival
    };
    assert!((0..40).all(|id| write(id, None) == Arrival::Go));
    let prefill = Some(Phase::Prefill { slack: Duration::from_millis(5) });
    assert_eq!(write(40, prefill), Arrival::Waits);
}

#[test]
fn a_write_within_the_slack_makes_no_waiting_read_late() {
    // Unmeasured, a request of 1 MiB takes 10 ms, and a write delays reads by half of that.
    for (due_ms, starts) in [(60, true), (57, false)] {
        let mut schedule = Schedule::new(ScheduleRules::default());
        let ask = |id, class, direction, due| Ask { id, direction, class, bytes: 1 << 20, due };
        let prefill = Phase::Prefill { slack: Duration::from_millis(100) };
        schedule.set_phase(EngineId { process: 1, number: 0 }, prefill, Nanos(0));
        // The window has space for four of these reads.
        for id in 0..5 {
            let read = ask(id, Class::Need, Direction::Read, Some(Nanos(due_ms * MS)));
            assert_eq!(schedule.arrive(read, Nanos(0)) == Arrival::Go, id < 4);
        }
        let save = ask(9, Class::Save, Direction::Write, None);
        assert_eq!(schedule.arrive(save, Nanos(0)) == Arrival::Go, starts, "{due_ms}");
    }
}

#[test]
fn a_request_that_the_device_does_not_answer_keeps_no_other_one_back() {
    let rules = ScheduleRules::default();
    let mut schedule = Schedule::new(rules);
    let read =
        |id| Ask { id, direction: Direction::Read, class: Class::Need, bytes: 8 << 20, due: None };
    assert_eq!(schedule.arrive(read(1), Nanos(MS)), Arrival::Go);
    assert_eq!(schedule.arrive(read(2), Nanos(2 * MS)), Arrival::Waits);
    let end = Nanos(MS).after(rules.stall);
    assert_eq!(schedule.next(Nanos(3 * MS)), Next::WaitUntil(end));
    assert_eq!(schedule.next(end), Next::Go(2));
    // Its late end changes nothing for others.
    assert_eq!(schedule.arrive(read(3), end), Arrival::Waits);
    schedule.done(1, true, end);
    assert_eq!(schedule.in_flight(Direction::Read), 8 << 20);
    schedule.done(2, true, end);
    assert_eq!(schedule.next(end), Next::Go(3));
}

#[test]
fn saves_that_follow_each_other_wait_once() {
    let mut rig = Rig::new(ScheduleRules::default());
    let prefill = Phase::Prefill { slack: Duration::ZERO };
    // Each is asked for when the one before is done.
    let mut saved = 0;
    for step in 0..13_000_u64 {
        rig.apply(step, &Event::Say { engine: 1, phase: prefill });
        if rig.waiting().count() == 0 && rig.flights.is_empty() {
            saved += 1;
            let save = Event::Arrive {
                class: Class::Save,
                direction: Direction::Write,
                bytes: 1 << 20,
                due_ms: None,
            };
            rig.apply(step, &save);
        }
        rig.run_to(rig.now + MS);
    }
    // Two seconds of patience, then a quarter of the time of a device that takes a millisecond for each.
    assert!((1_500..3_500).contains(&saved), "{saved}");
}

#[test]
fn upkeep_has_its_turn_although_saves_always_wait() {
    let mut rig = Rig::new(ScheduleRules::default());
    let write =
        |class| Event::Arrive { class, direction: Direction::Write, bytes: 1 << 20, due_ms: None };
    let prefill = Phase::Prefill { slack: Duration::ZERO };
    rig.apply(0, &Event::Say { engine: 1, phase: prefill });
    rig.apply(1, &write(Class::Upkeep));
    for id in 2..5_000 {
        rig.apply(id, &write(Class::Save));
    }
    for _ in 0..110 {
        rig.apply(0, &Event::Say { engine: 1, phase: prefill });
        rig.run_to(rig.now + 100 * MS);
    }
    assert!(rig.schedule.waiting(Class::Save).0 > 0, "saves wait all the time");
    assert_eq!(rig.schedule.waiting(Class::Upkeep).0, 0);
}

/// What starves in one direction although the other one has its turns.
#[test]
fn reads_of_upkeep_do_not_starve_its_writes() {
    let mut rig = Rig::new(ScheduleRules::default());
    let upkeep =
        |direction, bytes| Event::Arrive { class: Class::Upkeep, direction, bytes, due_ms: None };
    let prefill = Phase::Prefill { slack: Duration::from_millis(20) };
    rig.apply(0, &Event::Say { engine: 1, phase: prefill });
    rig.apply(1, &upkeep(Direction::Write, 64 << 20));
    for id in 2..150 {
        rig.apply(id, &Event::Say { engine: 1, phase: prefill });
        rig.apply(id, &upkeep(Direction::Read, 1 << 20));
        rig.run_to(rig.now + 100 * MS);
    }
    assert!(rig.known[&1].begun.is_some());
}

/// Steps that are always long beside writes: the pace is the lowest, and the bound on waiting holds.
#[test]
fn saves_land_within_the_bound_while_engines_decode() {
    let mut rig = Rig::new(ScheduleRules::default());
    let save = Event::Arrive {
        class: Class::Save,
        direction: Direction::Write,
        bytes: 1 << 20,
        due_ms: None,
    };
    for id in 0..512 {
        rig.apply(id, &Event::Say { engine: 1, phase: Phase::Decode });
        rig.apply(id, &save);
    }
    for _ in 0..12_000 {
        rig.apply(0, &Event::Say { engine: 1, phase: Phase::Decode });
        let before = rig.waiting().count();
        rig.run_to(rig.now + MS);
        let ratio = if rig.waiting().count() < before { 2.0 } else { 1.0 };
        rig.apply(0, &Event::Step { ratio });
    }
    assert_eq!(rig.waiting().count(), 0);
}

#[test]
fn what_is_less_urgent_makes_a_device_full_for_nobody_else() {
    let mut schedule = Schedule::new(ScheduleRules::default());
    let prefill = Phase::Prefill { slack: Duration::ZERO };
    schedule.set_phase(EngineId { process: 1, number: 0 }, prefill, Nanos(1));
    let read = Ask { id: 1, direction: Direction::Read, class: Class::Upkeep, bytes: 1, due: None };
    assert_eq!(schedule.arrive(read, Nanos(1)), Arrival::Waits);
    let from = schedule.full_from(Direction::Read).unwrap();
    let is_full = Class::ALL.map(|class| class >= from);
    assert_eq!(is_full, [false, false, false, true]);
    assert_eq!(schedule.full_from(Direction::Write), None);
}

#[test]
fn slack_is_that_of_all_writes_in_flight_and_passes_with_time() {
    let engine = EngineId { process: 1, number: 0 };
    let prefill = Phase::Prefill { slack: Duration::from_millis(40) };
    let save =
        |id| Ask { id, direction: Direction::Write, class: Class::Save, bytes: 1 << 20, due: None };
    // Unmeasured, each takes 10 ms.
    let mut schedule = Schedule::new(ScheduleRules {
        window: WindowRules { least: 1 << 30, first: 1 << 30, most: 1 << 30, requests: 64 },
        ..ScheduleRules::default()
    });
    schedule.set_phase(engine, prefill, Nanos(MS));
    let begun = (0..20).filter(|id| schedule.arrive(save(*id), Nanos(MS)) == Arrival::Go);
    assert_eq!(begun.count(), 3);
    let mut schedule = Schedule::new(ScheduleRules::default());
    schedule.set_phase(engine, prefill, Nanos(MS));
    assert_eq!(schedule.arrive(save(1), Nanos(39 * MS)), Arrival::Waits);
}
