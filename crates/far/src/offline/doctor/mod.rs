//! Measures a far location through the tier that stores use, and finds out which of its promises hold.
//!
//! 1. Everything that it writes is in the folder of a writer of its own, which it removes at the end.
//! 2. Its catalogs are valid and name no block, so stores that use the location are not disturbed.
//! 3. Time, bytes and every wait are bounded.

mod advice;
mod measure;
mod objects;
mod promises;
mod report;
mod unreadable;

use std::cell::Cell;
use std::sync::Arc;
use std::time::Duration;

use dalsegno_core::Clock;
use dalsegno_io::Space;

pub use self::objects::OpenTier;
use self::objects::Subject;
pub use self::report::{
    Advice, BandwidthRow, DoctorError, DoctorReport, LatencyRow, PromiseRow, Severity, Traces,
    Unreadable, UnreadableObjects, Verdict,
};
use super::location::Location;
use super::prune::remove_all;
use crate::names::WriterId;

/// Bytes that are written at most, and the part of the free space that they may take.
const MOST_BYTES: u64 = 2 << 30;
const SHARE_OF_FREE: u64 = 20;
/// Free space below which nothing is measured.
const LEAST_FREE: u64 = 2 << 30;
/// How often the caller is asked whether to stop.
const ASK_EVERY: Duration = Duration::from_millis(50);

/// What to examine.
pub struct DoctorOptions<'a> {
    /// The mount.
    pub near: OpenTier<'a>,
    /// Another mount of the same location, if there is one.
    pub other: Option<OpenTier<'a>>,
    /// The clock of all measurements.
    pub clock: Arc<dyn Clock>,
    /// A writer that nobody else is. Its folder is created and removed.
    pub writer: WriterId,
    /// How long it may take, about.
    pub time: Duration,
}

impl std::fmt::Debug for DoctorOptions<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("DoctorOptions").field("writer", &self.writer).finish_non_exhaustive()
    }
}

/// Examines a location. `progress` gets the part of the time that is over, in thousandths, and returns whether to stop.
///
/// # Errors
///
/// [`DoctorError`]. A location that fails in the middle of a check is no error: the check did not hold.
pub fn examine(
    options: &DoctorOptions<'_>,
    progress: &(dyn Fn(u64) -> bool + Sync),
) -> Result<DoctorReport, DoctorError> {
    let near = Location::new((options.near)(objects::WORKERS)?, Arc::clone(&options.clock));
    let other = match options.other {
        Some(open) => Location::new(open(objects::WORKERS)?, Arc::clone(&options.clock)),
        None => near.clone(),
    };
    let Space { free_bytes, .. } = near.call(|tier, ask| tier.space(ask))?;
    if free_bytes < LEAST_FREE {
        return Err(DoctorError::NoSpace { free_bytes });
    }
    let start = options.clock.now();
    let asked = Cell::new(start);
    let is_stopped = || {
        // Not at every request: the caller may take long.
        let now = options.clock.now();
        if now.since(asked.get()) < ASK_EVERY {
            return false;
        }
        asked.set(now);
        progress(objects::thousandths(now.since(start), options.time))
    };
    let mut subject = Subject {
        near,
        other,
        writer: options.writer,
        is_stopped: &is_stopped,
        next_number: 1,
        written_bytes: 0,
        most_bytes: MOST_BYTES.min(free_bytes / SHARE_OF_FREE),
    };
    let mut found = DoctorReport {
        direct: subject.near.tier.geometry().direct,
        two_mounts: options.other.is_some(),
        free_bytes,
        ..DoctorReport::default()
    };
    let examined = examine_parts(options, &mut subject, &mut found);
    found.traces = Traces {
        requests: subject.near.tier.requests(),
        written_bytes: subject.written_bytes,
        left_behind: clean_up(&subject),
    };
    examined?;
    found.advice = advice::advise(&found);
    found.is_safe = found.advice.iter().all(|one| one.severity != Severity::Unsafe);
    Ok(found)
}

fn examine_parts(
    options: &DoctorOptions<'_>,
    subject: &mut Subject<'_>,
    found: &mut DoctorReport,
) -> Result<(), DoctorError> {
    let share = |percent: u32| options.time * percent / 100;
    found.unreadable = unreadable::find(subject, share(15))?;
    found.promises = promises::check(subject, share(30))?;
    if found.promises.iter().any(|row| row.verdict == Verdict::Fails) {
        // Speed does not matter any more, and reads through the other mount may fail.
        return Ok(());
    }
    let (packs, publish) = measure::publish(subject, options.near, share(10))?;
    let read_from = options.other.unwrap_or(options.near);
    found.latency = measure::latency(subject, &packs, share(5))?;
    found.bandwidth = measure::bandwidth(subject, read_from, &packs, share(4), &publish)?;
    Ok(())
}

/// Removes everything that was written. Returns how many objects are left.
fn clean_up(subject: &Subject<'_>) -> u64 {
    if subject.written_bytes == 0 {
        return 0;
    }
    let Ok(objects) = subject.near.list(subject.writer) else { return 1 };
    match remove_all(&subject.near, subject.writer, &objects, &mut || ()) {
        Ok(()) => 0,
        Err(_) => subject.near.list(subject.writer).map_or(1, |left| left.len() as u64),
    }
}
