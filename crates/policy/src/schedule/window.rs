//! How many bytes of one direction are in flight: what the device needs to be busy, and no more.
//!
//! A device that has more requests than it can work on answers all of them late, also those that are urgent. So the
//! window is the smallest one that brings the highest rate, found by trying: it doubles while that brings clearly more,
//! and is halved when half of it brings nearly as much. A rate counts only if the window was what bounded it. Requests
//! are bounded in number too: a device does not work on more of them.

use std::time::Duration;

use dalsegno_core::Nanos;

use super::numbers::real;

/// A smaller request says nothing about a rate: its delay takes most of its time.
pub(super) const MEASURED_BYTES: u64 = 64 << 10;
/// Completed requests that are remembered.
const SAMPLES: usize = 32;
/// Requests after which the rate of a window is known, if they have the bytes of that window.
const ROUND: u32 = 32;
/// A larger window brings clearly more from here on.
const GAIN: f64 = 1.1;
/// Rounds after which another window is tried again.
const RETRY: u32 = 64;

/// A request in flight, as its window saw it when it started.
#[derive(Clone, Copy, Debug)]
pub(super) struct Departure {
    at: Nanos,
    bytes: u64,
    /// Bytes that had been delivered, and when the last of them was.
    delivered: u64,
    delivered_at: Nanos,
}

impl Departure {
    /// Its bytes.
    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// When it started.
    pub(super) fn began(&self) -> Nanos {
        self.at
    }

    /// How long it has been in flight.
    pub(super) fn taken(&self, now: Nanos) -> Duration {
        now.since(self.at)
    }

    /// How long the device took for each byte until now; `None` if the clock stood still.
    pub(super) fn seconds_per_byte(&self, now: Nanos) -> Option<f64> {
        let taken = self.taken(now).as_secs_f64();
        (taken > 0.0 && self.bytes > 0).then(|| taken / real(self.bytes))
    }
}

/// What was measured with one window.
#[derive(Clone, Copy, Debug, Default)]
struct Round {
    /// When it began; `None` before its first request.
    since: Option<Nanos>,
    bytes: u64,
    ended: u32,
    begun: u32,
    /// Of those begun, how many left no space for another one of their size.
    filled: u32,
}

/// Whether this round tries another window, and what the one before brought.
#[derive(Clone, Copy, Debug)]
enum Trial {
    None,
    Twice(f64),
    Half(f64),
}

/// What bounds a window.
#[derive(Clone, Copy, Debug)]
pub struct WindowRules {
    /// Least bytes in flight, if there are more.
    pub least: u64,
    /// Bytes in flight before anything was measured.
    pub first: u64,
    /// Most bytes in flight.
    pub most: u64,
    /// Most requests in flight.
    pub requests: usize,
}

/// The limit, and what is tried.
#[derive(Clone, Copy, Debug)]
struct Climb {
    least: u64,
    most: u64,
    limit: u64,
    trial: Trial,
    /// Whether the next trial is of a larger window.
    is_larger_next: bool,
    /// Rounds until the next trial.
    pause: u32,
}

/// See the module.
#[derive(Clone, Debug)]
pub(super) struct FlightWindow {
    climb: Climb,
    round: Round,
    /// Bytes in flight that started with another window.
    earlier: u64,
    most_requests: usize,
    requests: usize,
    in_flight: u64,
    delivered: u64,
    delivered_at: Nanos,
    /// Bytes per second of recent requests.
    rates: Vec<f64>,
    next: usize,
}

impl FlightWindow {
    pub(super) fn new(rules: WindowRules) -> Self {
        let WindowRules { least, first, most, requests } = rules;
        let most = most.max(least);
        let (limit, trial, is_larger_next) = (first.clamp(least, most), Trial::None, true);
        Self {
            climb: Climb { least, most, limit, trial, is_larger_next, pause: 0 },
            most_requests: requests.max(1),
            requests: 0,
            round: Round::default(),
            earlier: 0,
            in_flight: 0,
            delivered: 0,
            delivered_at: Nanos(0),
            rates: Vec::with_capacity(SAMPLES),
            next: 0,
        }
    }

    /// Bytes in flight.
    pub(super) fn in_flight(&self) -> u64 {
        self.in_flight
    }

    /// The bytes per second of a busy device; `None` before the first request was completed.
    pub(super) fn bytes_per_s(&self) -> Option<f64> {
        self.rates.iter().copied().reduce(f64::max)
    }

    /// Measures the rate again.
    pub(super) fn forget_rate(&mut self) {
        self.rates.clear();
        self.next = 0;
    }

    /// Bytes in flight that keep the device busy, as far as is known now.
    pub(super) fn limit(&self) -> u64 {
        self.climb.limit
    }

    /// Whether a request of so many bytes may start. One always may.
    pub(super) fn has_space(&self, bytes: u64) -> bool {
        let fits = self.in_flight.saturating_add(bytes) <= self.climb.limit;
        self.requests == 0 || self.requests < self.most_requests && fits
    }

    /// Whether what is in flight keeps the device busy.
    pub(super) fn is_full(&self) -> bool {
        self.requests >= self.most_requests || self.in_flight >= self.climb.limit
    }

    /// A request starts.
    pub(super) fn begin(&mut self, bytes: u64, now: Nanos) -> Departure {
        if self.in_flight == 0 {
            // An idle device has not been slow.
            self.delivered_at = now;
            (self.round, self.earlier) = (Round::default(), 0);
        }
        self.requests += 1;
        self.in_flight += bytes;
        self.round.since.get_or_insert(now);
        self.round.begun += 1;
        self.round.filled += u32::from(!self.has_space(bytes));
        Departure { at: now, bytes, delivered: self.delivered, delivered_at: self.delivered_at }
    }

    /// A request does not count any more, although it has not ended.
    pub(super) fn forget(&mut self, departure: Departure) {
        self.requests = self.requests.saturating_sub(1);
        self.in_flight = self.in_flight.saturating_sub(departure.bytes);
    }

    /// A request has ended. What failed says nothing about the rate.
    pub(super) fn end(&mut self, departure: Departure, now: Nanos, is_done: bool) {
        self.forget(departure);
        if !is_done || departure.bytes == 0 {
            return;
        }
        self.delivered += departure.bytes;
        self.delivered_at = self.delivered_at.max(now);
        let busy = now.since(departure.delivered_at);
        if busy.is_zero() {
            // The clock stood still, or jumped back.
            return;
        }
        if departure.bytes >= MEASURED_BYTES {
            self.note_rate(real(self.delivered - departure.delivered) / busy.as_secs_f64());
        }
        if self.earlier > 0 {
            self.earlier = self.earlier.saturating_sub(departure.bytes);
            self.round = Round { since: Some(now), ..Round::default() };
            return;
        }
        self.round.bytes += departure.bytes;
        self.round.ended += 1;
        if self.round.ended >= ROUND && self.round.bytes >= self.climb.limit {
            self.end_round(now);
        }
    }

    fn note_rate(&mut self, rate: f64) {
        if self.rates.len() < SAMPLES {
            self.rates.push(rate);
        } else {
            self.rates[self.next] = rate;
        }
        self.next = (self.next + 1) % SAMPLES;
    }

    /// Chooses the window of the next round.
    fn end_round(&mut self, now: Nanos) {
        let Round { since, bytes, begun, filled, .. } = std::mem::take(&mut self.round);
        self.round.since = Some(now);
        let seconds = since.map_or(0.0, |since| now.since(since).as_secs_f64());
        if seconds > 0.0 && 2 * filled >= begun {
            let before = self.climb.limit;
            self.climb.choose(real(bytes) / seconds);
            if self.climb.limit != before {
                self.earlier = self.in_flight;
            }
        }
    }
}

impl Climb {
    /// Chooses the limit after one that brought this rate.
    fn choose(&mut self, rate: f64) {
        match self.trial {
            Trial::Twice(before) if rate < before * GAIN => self.give_up(self.limit / 2),
            Trial::Half(before) if rate * GAIN < before => self.give_up(self.limit * 2),
            // It goes on the same way.
            Trial::Twice(_) => self.try_another(true, rate),
            Trial::Half(_) => self.try_another(false, rate),
            Trial::None => {
                self.pause = self.pause.saturating_sub(1);
                if self.pause == 0 {
                    self.try_another(self.is_larger_next, rate);
                }
            }
        }
    }

    fn try_another(&mut self, is_larger: bool, rate: f64) {
        let limit = if is_larger { self.limit * 2 } else { self.limit / 2 };
        if limit.clamp(self.least, self.most) != limit {
            return self.give_up(self.limit);
        }
        self.limit = limit;
        self.trial = if is_larger { Trial::Twice(rate) } else { Trial::Half(rate) };
    }

    /// Ends trials for a while. The next one goes the other way.
    fn give_up(&mut self, limit: u64) {
        self.limit = limit.clamp(self.least, self.most);
        (self.trial, self.pause) = (Trial::None, RETRY);
        self.is_larger_next = !self.is_larger_next;
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use super::*;

    const MIB: u64 = 1 << 20;

    fn rules(least: u64, most: u64) -> WindowRules {
        WindowRules { least, first: least, most, requests: usize::MAX }
    }

    /// Keeps a window full of requests of `bytes` each, at a device that moves `rate` bytes per second and adds `delay`
    /// to each request. Returns the window and the bytes per second of its
    /// second half.
    fn run(bytes: u64, rate: f64, delay: Duration, count: usize) -> (FlightWindow, f64) {
        let mut window = FlightWindow::new(rules(MIB, 1 << 30));
        let (mut now, mut device_free) = (Nanos(0), Nanos(0));
        let mut flying: VecDeque<(Departure, Nanos)> = VecDeque::new();
        let (mut moved, mut half) = (0, Nanos(0));
        for at in 0..count {
            while window.has_space(bytes) {
                let departure = window.begin(bytes, now);
                let work = Duration::from_secs_f64(real(bytes) / rate);
                device_free = device_free.max(now).after(work);
                flying.push_back((departure, device_free.after(delay)));
            }
            let (departure, end) = flying.pop_front().unwrap();
            now = now.max(end);
            window.end(departure, now, true);
            if at < count / 2 {
                half = now;
            } else {
                moved += bytes;
            }
        }
        (window, real(moved) / now.since(half).as_secs_f64())
    }

    #[test]
    fn a_device_is_kept_busy_whatever_its_delay_is() {
        for (rate, delay_us) in [(1e9, 100), (7e9, 80), (2e8, 5_000), (5e9, 20_000)] {
            let (window, reached) = run(256 << 10, rate, Duration::from_micros(delay_us), 20_000);
            assert!(reached > 0.9 * rate, "{reached} of {rate} with {delay_us} us");
            let product = rate * (real(delay_us) / 1e6);
            assert!(
                real(window.climb.limit) < 4.0 * product + 4e6,
                "{} {product}",
                window.climb.limit
            );
        }
    }

    #[test]
    fn requests_are_bounded_in_number_too() {
        let mut window = FlightWindow::new(WindowRules { requests: 2, ..rules(MIB, MIB) });
        let syncs: Vec<_> = (0..2).map(|at| window.begin(0, Nanos(at))).collect();
        assert!(!window.has_space(0) && window.is_full());
        window.end(syncs[0], Nanos(5), true);
        assert!(window.has_space(MIB) && !window.has_space(2 * MIB) && !window.is_full());
        window.forget(syncs[1]);
        assert!(window.has_space(2 * MIB), "one always may start");
    }

    #[test]
    fn a_request_that_is_larger_than_the_window_starts_alone() {
        let mut window = FlightWindow::new(rules(MIB, 2 * MIB));
        assert!(window.has_space(64 * MIB));
        let large = window.begin(64 * MIB, Nanos(0));
        assert!(!window.has_space(1));
        window.end(large, Nanos(1_000_000), true);
        assert!(window.has_space(64 * MIB) && window.in_flight() == 0);
    }

    #[test]
    fn clocks_that_jump_and_failures_leave_the_rate_alone() {
        let mut window = FlightWindow::new(rules(MIB, 2 * MIB));
        let failed = window.begin(MIB, Nanos(5_000));
        window.end(failed, Nanos(9_000), false);
        let back = window.begin(MIB, Nanos(5_000));
        window.end(back, Nanos(1_000), true);
        assert_eq!((window.bytes_per_s(), window.in_flight()), (None, 0));
        let done = window.begin(MIB, Nanos(10_000));
        window.end(done, Nanos(1_010_000), true);
        let rate = window.bytes_per_s().unwrap();
        assert!((rate / (real(MIB) / 1e-3) - 1.0).abs() < 1e-9, "{rate}");
    }
}
