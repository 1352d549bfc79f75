//! How long blocks of a tier take to arrive.
//!
//! 1. After a load was given up, for whatever reason, none is predicted to have more bytes per second, after the
//!    first byte, than the largest one that was measured since: a few small ones say little of a large one. Many do:
//!    each that is faster takes a twentieth from the size that counts.
//! 2. A load that was given up or late is believed for its size: until others were measured, each that is at least half
//!    as large is predicted to be as late. Each time in a row it takes four times as many of them, at most
//!    [`MOST_NEEDED`], so a tier that is fast for small loads only costs few late requests. If the tier has become
//!    faster since then, one is tried after at most [`MORE_NEEDED`] measurements, and soon if reads are late as well.
//! 3. That a read was early is confirmed by one that is at least half as large, and that a sample was by a read that
//!    is at least [`SAMPLES`] times as large: a few bytes may arrive immediately.

use super::learned::{Learned, Shown, Single};
use super::regression::is_time;

/// A prior may be wrong by this factor.
const SPREAD: f64 = 10.0;
/// A load is late if it takes so many times longer than most were predicted to.
const LATE: f64 = 1.5;
/// Measurements after which a late load is forgotten: the factor for each time in a row, and the most.
const MORE_NEEDED: u32 = 4;
const MOST_NEEDED: u32 = 1024;
/// A load that was in time says little of those that are so many times larger.
const LARGER: f64 = 2.1;
/// The part of the size that counts which is left after each smaller load that was faster.
const FADES: f64 = 0.95;
/// Loads that are larger than one that was late are late in proportion, up to so many times.
const MOST_TIMES: f64 = 16.0;
/// Times the size of a sample, a read that confirms that it was early for no other reason than its size.
const SAMPLES: f64 = 4.0;
/// Times the size of a read that was early, one that confirms it.
const CONFIRMS: f64 = 0.5;
/// Reads in a row that are late on a tier that is slow, and not only for large loads.
const LATE_READS: u32 = 2;
/// Seconds of a load that was given up: longer than any computing, but a number.
const NEVER_S: f64 = 1e9;

/// What is assumed of a tier until it was measured.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TransferPrior {
    /// Seconds before the first byte arrives.
    pub latency_s: f64,
    /// Bytes in a second.
    pub bytes_per_s: f64,
}

/// The largest load since one was given up.
#[derive(Clone, Copy, Debug)]
struct Proven {
    /// At least half as large ones take its place.
    bytes: f64,
    /// Seconds of a byte, on average, without those before the first one.
    byte_s: f64,
}

/// A load that was given up or late.
#[derive(Clone, Copy, Debug)]
struct Doubt {
    /// Of it, or less if a smaller one was late.
    bytes: f64,
    /// Bytes and seconds of the last one.
    last: (f64, f64),
    /// Measurements after which the next one was needed.
    needed: u32,
    /// Measurements until a load of the size may be tried again.
    left: u32,
    /// Reads in a row that were late since.
    late_reads: u32,
}

/// Large loads, which are slower than small ones let expect; in bytes, or in blocks of a run.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LargeLoads {
    /// The smallest of them.
    pub least: f64,
    /// The last one that was late.
    pub seen: f64,
    /// Seconds by which that took longer.
    pub late_s: f64,
    /// What is queued before a load, or in earlier runs of it: it arrives with it.
    pub before: f64,
    /// Seconds that count for the earlier runs already.
    pub counted_s: f64,
}

impl LargeLoads {
    /// The seconds by which a load of this size takes longer: larger ones in proportion, smaller ones by as much.
    pub(super) fn late_s(&self, size: f64) -> f64 {
        let size = self.before + size;
        let late_s = if size < self.least {
            0.0
        } else {
            self.late_s * (size / self.seen).clamp(1.0, MOST_TIMES)
        };
        late_s - self.counted_s
    }
}

/// The time of loads from one tier, as it was measured.
#[derive(Clone, Debug)]
pub struct TransferModel {
    learned: Learned<2>,
    /// None if no load was given up.
    proven: Option<Proven>,
    /// None if the last large load was neither given up nor late.
    doubt: Option<Doubt>,
    /// Bytes of the last sample, if it was early and nothing was measured since that is large enough to confirm that.
    hint: Option<f64>,
    /// Bytes of a measurement that can confirm that the last one was early, at least.
    confirms: f64,
}

impl TransferModel {
    /// Starts with what is assumed.
    #[must_use]
    pub fn new(prior: TransferPrior) -> Self {
        let prior = [prior.latency_s, 1.0 / prior.bytes_per_s.max(1.0)];
        let learned = Learned::new(prior, SPREAD, Single::Remembered);
        Self { learned, proven: None, doubt: None, hint: None, confirms: 0.0 }
    }

    /// Learns that a load took so many seconds.
    ///
    /// `bytes` are its own and those that were queued before it, as they take turns.
    pub fn note(&mut self, bytes: f64, seconds: f64) -> Shown {
        if is_time(seconds) && bytes > 0.0 {
            self.compare(bytes, seconds);
        }
        let is_short = self.learned.is_short(&[1.0, bytes]);
        self.learn(bytes, seconds, is_short)
    }

    fn learn(&mut self, bytes: f64, seconds: f64, is_short: bool) -> Shown {
        let terms = [1.0, bytes];
        if self.hint.take().is_some_and(|sample| bytes >= SAMPLES * sample) {
            self.learned.note_early_hint();
            self.confirms = 0.0;
        }
        let before_s = self.learned.time(&terms);
        // Some disks bring a few bytes immediately.
        let confirms = !self.learned.is_early() || !(is_short || bytes < self.confirms);
        if confirms {
            self.confirms = CONFIRMS * bytes;
        }
        let shown = self.learned.note(&terms, seconds, confirms);
        if shown == Shown::Change && seconds < before_s {
            self.note_faster(seconds / before_s);
        }
        if let Some(proven) = &mut self.proven
            && is_time(seconds)
            && bytes > 0.0
        {
            let latency_s = self.learned.coefficients()[0];
            let now = Proven { bytes, byte_s: (seconds - latency_s).max(0.0) / bytes };
            if bytes >= proven.bytes / 2.0 {
                *proven = now;
            } else if now.byte_s < proven.byte_s {
                proven.bytes *= FADES;
            }
        }
        shown
    }

    /// What was learned of large loads is of the tier as it was.
    fn note_faster(&mut self, ratio: f64) {
        if let Some(proven) = &mut self.proven {
            proven.byte_s *= ratio;
        }
        // What was late a moment ago is.
        if let Some(doubt) = &mut self.doubt {
            let since = doubt.needed.saturating_sub(doubt.left);
            doubt.left = doubt.left.min(MORE_NEEDED.saturating_sub(since));
        }
    }

    /// Learns that a read for which nobody waited took `seconds`, or at least that long if it was given up: then it may
    /// only show that the tier is slower. It may be faster than loads are, of which many may run together. So it makes
    /// no large load certain: it only lets one be tried again.
    pub fn note_read(&mut self, bytes: f64, seconds: f64, is_whole: bool) -> Shown {
        let expected = self.learned.time(&[1.0, bytes]);
        if !is_whole {
            // It was not early.
            self.forget_early();
            if seconds < expected {
                return Shown::Nothing;
            }
        }
        let is_late = is_time(seconds) && seconds > LATE * expected;
        if let Some(doubt) = &mut self.doubt {
            doubt.late_reads = if is_late { doubt.late_reads + 1 } else { 0 };
            if doubt.late_reads >= LATE_READS {
                // The tier is slow, and not only for large loads.
                doubt.needed = 1;
            }
            doubt.left = doubt.left.min(doubt.needed).saturating_sub(u32::from(is_whole));
        }
        let was_given_up = self.learned.was_given_up();
        let shown = self.learn(bytes, seconds, false);
        if !is_whole && was_given_up {
            // The tier has not answered yet.
            self.learned.note_given_up();
        }
        shown
    }

    fn forget_early(&mut self) {
        self.hint = None;
        self.learned.forget_early();
    }

    /// Learns that a sample of `bytes` was early; see [`Learned::note_early_hint`].
    pub fn note_early_sample(&mut self, bytes: f64) {
        self.hint = Some(bytes);
    }

    /// Learns that a step did not wait any longer for a load. That says little of how long requests would wait: until a
    /// load or a read is measured, no load is predicted to be worth it.
    pub fn note_late_in_step(&mut self) {
        self.hint = None;
        self.learned.note_given_up();
        self.proven = Some(Proven { bytes: 0.0, byte_s: 0.0 });
    }

    /// Learns that a load was given up for which a request waited. Until one is measured again, none is predicted to be
    /// worth it.
    pub fn note_given_up(&mut self, bytes: f64) {
        self.note_late_in_step();
        self.note_late(bytes.max(1.0), NEVER_S);
    }

    /// Compares a load with what was predicted for its size.
    fn compare(&mut self, bytes: f64, seconds: f64) {
        // The first measurements are no surprise.
        let was_late = self.learned.measured() > 2 && seconds > LATE * self.load_s(bytes);
        match &mut self.doubt {
            None if was_late => self.note_late(bytes, seconds),
            None => {}
            Some(doubt) => {
                let is_retry = doubt.left == 0;
                doubt.left = doubt.left.saturating_sub(1);
                // Reads that are late do not mean that all is.
                doubt.late_reads = 0;
                if was_late {
                    self.note_late(bytes, seconds);
                } else if is_retry && bytes >= doubt.bytes {
                    self.doubt = None;
                } else if bytes >= doubt.bytes / 2.0 {
                    // It says as little of larger ones.
                    doubt.bytes = doubt.bytes.max(LARGER * bytes);
                }
            }
        }
    }

    fn note_late(&mut self, size: f64, seconds: f64) {
        let needed = match self.doubt {
            None => 1,
            Some(doubt) if doubt.left == 0 => (doubt.needed * MORE_NEEDED).min(MOST_NEEDED),
            Some(doubt) => doubt.needed,
        };
        let least = self.doubt.map_or(size, |doubt| doubt.bytes.min(size));
        let this = (size, seconds);
        self.doubt = Some(Doubt { bytes: least, last: this, needed, left: needed, late_reads: 0 });
    }

    /// The seconds that most loads of so many bytes do not exceed.
    #[must_use]
    pub fn load_s(&self, bytes: f64) -> f64 {
        self.usual_s(bytes) + self.large().map_or(0.0, |large| large.late_s(bytes))
    }

    /// The same for loads of which none is large.
    #[must_use]
    pub fn usual_s(&self, bytes: f64) -> f64 {
        let high_s = self.learned.high(&[1.0, bytes]);
        let latency_s = self.learned.coefficients()[0];
        self.proven.map_or(high_s, |proven| high_s.max(latency_s + bytes * proven.byte_s))
    }

    /// The seconds in which so many bytes are expected to arrive, where it costs nothing that they are late.
    #[must_use]
    pub fn expected_s(&self, bytes: f64) -> f64 {
        if self.learned.was_given_up() {
            return self.usual_s(bytes);
        }
        self.learned.time(&[1.0, bytes])
    }

    /// The seconds that so many more bytes take, behind `before` others, if they are not large together.
    #[must_use]
    pub fn more_s(&self, before: f64, bytes: f64) -> f64 {
        let more_s = self.usual_s(before + bytes) - self.usual_s(before);
        more_s.max(bytes * self.proven_byte_s())
    }

    /// Which loads take longer than others say.
    #[must_use]
    pub fn large(&self) -> Option<LargeLoads> {
        let doubt = self.doubt.filter(|doubt| doubt.left > 0)?;
        let (bytes, seconds) = doubt.last;
        let late_s = (seconds - self.usual_s(bytes)).max(0.0);
        Some(LargeLoads {
            least: doubt.bytes / 2.0,
            seen: bytes,
            late_s,
            before: 0.0,
            counted_s: 0.0,
        })
    }

    fn proven_byte_s(&self) -> f64 {
        self.proven.map_or(0.0, |proven| proven.byte_s)
    }

    /// What was learned.
    #[must_use]
    pub fn learned(&self) -> &Learned<2> {
        &self.learned
    }
}
