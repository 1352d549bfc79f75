//! The requests in flight, and what they say about the device.
//!
//! 1. What the device does not answer for too long does not count: it is in no window, and its end changes nothing.
//! 2. Of those that started because their patience was over, one counts in each direction.

use std::time::Duration;

use dalsegno_core::Nanos;
use hashbrown::HashMap;

use super::ask::{Ask, Direction};
use super::window::{Departure, FlightWindow, MEASURED_BYTES, WindowRules};

/// Bytes per second before they were measured: a slow disk.
pub(super) const UNKNOWN_RATE: f64 = 100e6;
/// How much reads slow down beside writes before that was measured.
const UNKNOWN_INTERFERENCE: f64 = 0.5;
/// Weight of the newest sample of interference.
const NEWEST: f64 = 1.0 / 16.0;
/// Requests whose patience is over take one of so many parts of the time, as long as others are to go first.
const AGED_PART: u32 = 4;

/// A request in flight.
#[derive(Clone, Copy, Debug)]
struct Flight {
    departure: Departure,
    direction: Direction,
    /// Whether it started because its patience was over.
    is_aged: bool,
    /// Of a read: whether a write was in flight beside it when it started.
    is_mixed: bool,
    /// Whether it is in the window, not stalled.
    counts: bool,
}

/// See the module.
#[derive(Clone, Debug)]
pub(super) struct Flights {
    stall: Duration,
    of: HashMap<u64, Flight>,
    /// By direction.
    windows: [FlightWindow; 2],
    /// When the next request whose patience is over may start, by direction; `None` while one is in flight.
    aged: [Option<Nanos>; 2],
    /// Seconds per byte of reads alone and beside writes.
    read_costs: [Option<f64>; 2],
}

impl Flights {
    /// What is in flight for `stall` does not count.
    pub(super) fn new(rules: WindowRules, stall: Duration) -> Self {
        Self {
            stall,
            of: HashMap::new(),
            windows: [FlightWindow::new(rules), FlightWindow::new(rules)],
            aged: [Some(Nanos(0)); 2],
            read_costs: [None; 2],
        }
    }

    pub(super) fn window(&self, direction: Direction) -> &FlightWindow {
        &self.windows[direction as usize]
    }

    /// Bytes in flight.
    pub(super) fn bytes(&self, direction: Direction) -> u64 {
        self.window(direction).in_flight()
    }

    /// Whether a request may start as far as bytes in flight are concerned.
    pub(super) fn have_space(&self, ask: &Ask) -> bool {
        self.window(ask.direction).has_space(ask.bytes)
    }

    /// When the next request whose patience is over may start; `None` while one is in flight.
    pub(super) fn aged_from(&self, direction: Direction) -> Option<Nanos> {
        self.aged[direction as usize]
    }

    /// The rate of reads beside writes over that of reads alone, as it was measured.
    pub(super) fn interference(&self) -> f64 {
        match self.read_costs {
            [Some(alone), Some(mixed)] => (alone / mixed).clamp(0.05, 1.0),
            _ => UNKNOWN_INTERFERENCE,
        }
    }

    /// The bytes per second of a direction, or those of a slow disk before they were measured.
    pub(super) fn rate(&self, direction: Direction) -> f64 {
        self.window(direction).bytes_per_s().unwrap_or(UNKNOWN_RATE)
    }

    /// The rate of a direction is measured again: its requests are of another kind from now on.
    pub(super) fn forget_rate(&mut self, direction: Direction) {
        self.windows[direction as usize].forget_rate();
    }

    /// A request starts.
    pub(super) fn begin(&mut self, ask: &Ask, is_aged: bool, now: Nanos) {
        let Ask { id, direction, bytes, .. } = *ask;
        let is_mixed = direction == Direction::Read && self.bytes(Direction::Write) > 0;
        let departure = self.windows[direction as usize].begin(bytes, now);
        if is_aged {
            self.aged[direction as usize] = None;
        }
        let flight = Flight { departure, direction, is_aged, is_mixed, counts: true };
        let before = self.of.insert(id, flight);
        debug_assert!(before.is_none(), "request {id} is in flight already");
    }

    /// A request has ended, with success or without.
    pub(super) fn end(&mut self, id: u64, is_done: bool, now: Nanos) {
        let Some(flight) = self.of.remove(&id) else { return };
        let Flight { departure, direction, is_aged, is_mixed, counts } = flight;
        if is_aged {
            // One that hung, or a clock that jumped, keeps others back for no longer than that.
            let taken = departure.taken(now).min(self.stall);
            self.aged[direction as usize] = Some(now.after(taken * (AGED_PART - 1)));
        }
        if !counts {
            return;
        }
        let has_writes = self.bytes(Direction::Write) > 0;
        self.windows[direction as usize].end(departure, now, is_done);
        let says = departure.bytes() >= MEASURED_BYTES && is_done;
        if direction == Direction::Read && says && is_mixed == has_writes {
            // A read beside writes for a part of its time says nothing.
            self.note_read(departure, is_mixed, now);
        }
    }

    /// Leaves out what the device has not answered for too long. Returns whether there was any.
    pub(super) fn forget_stalled(&mut self, now: Nanos) -> bool {
        let mut any = false;
        for flight in self.of.values_mut() {
            if flight.counts && flight.departure.taken(now) >= self.stall {
                flight.counts = false;
                any = true;
                self.windows[flight.direction as usize].forget(flight.departure);
                if flight.is_aged {
                    // Its direction may start another one, as after any that ended.
                    flight.is_aged = false;
                    self.aged[flight.direction as usize] = Some(now);
                }
            }
        }
        any
    }

    /// When the first request in flight does not count any more.
    pub(super) fn next_stall(&self) -> Option<Nanos> {
        let counted = self.of.values().filter(|flight| flight.counts);
        counted.map(|flight| flight.departure.began().after(self.stall)).min()
    }

    fn note_read(&mut self, departure: Departure, is_mixed: bool, now: Nanos) {
        let Some(cost) = departure.seconds_per_byte(now) else { return };
        let known = &mut self.read_costs[usize::from(is_mixed)];
        *known = Some(known.map_or(cost, |before| before + (cost - before) * NEWEST));
    }
}
