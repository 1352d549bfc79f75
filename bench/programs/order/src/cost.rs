//! What one request costs the schedule: its arrival, its start and its end.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use dalsegno_core::{Class, Nanos};
use dalsegno_policy::schedule::{Arrival, EngineId, Next, Phase, Schedule, ScheduleRules};
use serde::Serialize;

use crate::order::ask;

const REQUESTS: u64 = 400_000;

/// Nanoseconds of a request.
#[derive(Serialize)]
pub struct Costs {
    /// Reads that start at once, beside nothing.
    pub at_once_ns: f64,
    /// The same while 1,000 saves wait and eight engines say what they do.
    pub beside_saves_ns: f64,
    /// Reads that wait behind 1,000 others.
    pub queued_ns: f64,
}

/// Measures each, the best of five times.
pub fn measure() -> Costs {
    let best = |work: fn() -> f64| (0..5).map(|_| work()).fold(f64::INFINITY, f64::min);
    Costs {
        at_once_ns: best(at_once),
        beside_saves_ns: best(beside_saves),
        queued_ns: best(queued),
    }
}

#[expect(clippy::cast_precision_loss, reason = "far below 2^52")]
fn each(began: Instant) -> f64 {
    began.elapsed().as_nanos() as f64 / REQUESTS as f64
}

fn at_once() -> f64 {
    reads(Schedule::new(ScheduleRules::default()))
}

fn beside_saves() -> f64 {
    let mut schedule = Schedule::new(ScheduleRules::default());
    for number in 0..8 {
        let phase = Phase::Prefill { slack: Duration::ZERO };
        schedule.set_phase(EngineId { process: 0, number }, phase, Nanos(1));
    }
    for id in 0..1_000 {
        let save = ask(1 << 40 | id, Class::Save, 1 << 20, None);
        assert_eq!(schedule.arrive(save, Nanos(1)), Arrival::Waits);
    }
    reads(schedule)
}

fn reads(mut schedule: Schedule) -> f64 {
    let began = Instant::now();
    for id in 0..REQUESTS {
        let now = Nanos(2 + id);
        assert_eq!(schedule.arrive(ask(id, Class::Need, 1 << 20, None), now), Arrival::Go);
        schedule.done(id, true, Nanos(now.0 + 1));
        if schedule.has_waiting() {
            std::hint::black_box(schedule.next(now));
        }
    }
    each(began)
}

fn queued() -> f64 {
    let mut schedule = Schedule::new(ScheduleRules::default());
    let mut in_flight = VecDeque::new();
    let began = Instant::now();
    for id in 0..REQUESTS {
        let now = Nanos(2 + id);
        if schedule.arrive(ask(id, Class::Need, 1 << 20, None), now) == Arrival::Go {
            in_flight.push_back(id);
        }
        if id > 1_000 {
            schedule.done(in_flight.pop_front().expect("some are in flight"), true, now);
            while let Next::Go(next) = schedule.next(now) {
                in_flight.push_back(next);
            }
        }
    }
    each(began)
}
