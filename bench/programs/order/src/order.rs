//! The orders that are compared.

use std::collections::VecDeque;
use std::time::Duration;

use dalsegno_core::{Class, Nanos};
use dalsegno_policy::schedule::{
    Arrival, Ask, Direction, EngineId, Next, Phase, Schedule, ScheduleRules,
};
use serde::Serialize;

use crate::Cell;

/// Bytes in flight of the orders that have no schedule.
const WINDOW: u64 = 8 << 20;

/// Who goes first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Order {
    /// No saves at all.
    Alone,
    /// As requests come.
    Fifo,
    /// Saves start only while no read waits or is in flight.
    ReadsFirst,
    /// The schedule, without an engine that says what it does.
    Silent,
    /// The schedule; an offline table predicts how long a step takes.
    Table,
    /// The same, with a table that does not fit the GPU.
    StaleTable,
    /// The schedule; the engine's model predicts how long a step takes.
    Ours,
}

impl Order {
    pub const ALL: [Self; 7] = [
        Self::Alone,
        Self::Fifo,
        Self::ReadsFirst,
        Self::Silent,
        Self::Table,
        Self::StaleTable,
        Self::Ours,
    ];

    /// What the engine says of the time that it computes, as a part of what it is.
    pub fn predicted(self, cell: &Cell) -> f64 {
        match self {
            Self::Table => cell.table,
            Self::StaleTable => cell.stale_table,
            _ => cell.model,
        }
    }
}

/// What starts next.
pub enum Queue {
    Fifo { waiting: VecDeque<Ask>, in_flight: u64 },
    ReadsFirst { reads: VecDeque<Ask>, writes: VecDeque<Ask>, in_flight: [u64; 2] },
    Scheduled { schedule: Box<Schedule>, speaks: bool },
}

const ENGINE: EngineId = EngineId { process: 0, number: 1 };

impl Queue {
    pub fn new(order: Order) -> Self {
        match order {
            Order::Fifo => Self::Fifo { waiting: VecDeque::new(), in_flight: 0 },
            Order::ReadsFirst => Self::ReadsFirst {
                reads: VecDeque::new(),
                writes: VecDeque::new(),
                in_flight: [0; 2],
            },
            Order::Alone | Order::Silent | Order::Table | Order::StaleTable | Order::Ours => {
                // Calls ask for a few requests at a time; here one asks for all.
                let (most_waiting, most_bytes) = (usize::MAX, u64::MAX);
                let rules = ScheduleRules { most_waiting, most_bytes, ..ScheduleRules::default() };
                let schedule = Box::new(Schedule::new(rules));
                Self::Scheduled { schedule, speaks: order != Order::Silent }
            }
        }
    }

    /// A request arrives; returns it if it starts at once.
    pub fn arrive(&mut self, ask: Ask, now: Nanos) -> Option<u64> {
        match self {
            Self::Fifo { waiting, .. } => waiting.push_back(ask),
            Self::ReadsFirst { reads, writes, .. } => match ask.direction {
                Direction::Read => reads.push_back(ask),
                Direction::Write => writes.push_back(ask),
            },
            Self::Scheduled { schedule, .. } => match schedule.arrive(ask, now) {
                Arrival::Go => return Some(ask.id),
                Arrival::Waits => {}
                Arrival::Refused => panic!("more than a schedule takes"),
            },
        }
        None
    }

    /// The next request to start, or when to look again.
    pub fn next(&mut self, now: Nanos) -> Next {
        match self {
            Self::Fifo { waiting, in_flight } => {
                let fits = |ask: &Ask| *in_flight == 0 || *in_flight + ask.bytes <= WINDOW;
                let Some(ask) = waiting.front().copied().filter(fits) else { return Next::Wait };
                waiting.pop_front();
                *in_flight += ask.bytes;
                Next::Go(ask.id)
            }
            Self::ReadsFirst { reads, writes, in_flight } => {
                let at = usize::from(reads.is_empty() && in_flight[0] == 0);
                let queue = if at == 0 { reads } else { writes };
                let fits = |ask: &Ask| in_flight[at] == 0 || in_flight[at] + ask.bytes <= WINDOW;
                let Some(ask) = queue.front().copied().filter(fits) else { return Next::Wait };
                queue.pop_front();
                in_flight[at] += ask.bytes;
                Next::Go(ask.id)
            }
            Self::Scheduled { schedule, .. } => schedule.next(now),
        }
    }

    pub fn done(&mut self, ask: &Ask, now: Nanos) {
        match self {
            Self::Fifo { in_flight, .. } => *in_flight -= ask.bytes,
            Self::ReadsFirst { in_flight, .. } => in_flight[ask.direction as usize] -= ask.bytes,
            Self::Scheduled { schedule, .. } => schedule.done(ask.id, true, now),
        }
    }

    /// The engine computes prompts for so long.
    pub fn say_prefill(&mut self, step: Duration, now: Nanos) {
        if let Self::Scheduled { schedule, speaks: true } = self {
            schedule.set_phase(ENGINE, Phase::Prefill { slack: step }, now);
        }
    }

    /// The engine has computed all.
    pub fn say_idle(&mut self, now: Nanos) {
        if let Self::Scheduled { schedule, speaks: true } = self {
            schedule.set_phase(ENGINE, Phase::Idle, now);
        }
    }
}

/// A read that an engine waits for, or a save.
pub fn ask(id: u64, class: Class, bytes: u64, due: Option<Nanos>) -> Ask {
    let direction = if class == Class::Need { Direction::Read } else { Direction::Write };
    Ask { id, direction, class, bytes, due }
}
