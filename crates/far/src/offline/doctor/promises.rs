//! What stores need of a file system, checked through two mounts, or through one.
//!
//! 1. Each round uses new names, and asks for them through the other mount before they exist. A mount that remembers
//!    for long that there was no such name shows it here.

use std::time::Duration;

use crossbeam_channel::bounded;
use dalsegno_core::{Deadline, Stopped};
use dalsegno_io::IoError;

use super::objects::{Subject, content, in_memory, percentile_us};
use super::report::{DoctorError, PromiseRow, Verdict};
use crate::names::{Object, ObjectName};
use crate::tier::{Ask, Reply};

/// How long a change may take to be visible.
const VISIBLE: Duration = Duration::from_secs(10);
/// Changes that take longer than the period in which stores look for new packs are slow.
const SLOW: Duration = Duration::from_secs(2);
/// Longest wait for one reply.
const LIMIT: Duration = Duration::from_secs(15);
/// Between two looks.
const PAUSE: Duration = Duration::from_millis(1);
const PACK_BYTES: usize = 2 << 20;
/// The part of the bytes that the rounds may write.
const SHARE: u64 = 4;
const MOST_ROUNDS: usize = 40;
const LEAST_ROUNDS: usize = 2;
/// Ages that differ by more than this from the time that passed.
const WRONG_AGE: Duration = Duration::from_secs(60);
/// Ages that are wrong by more than this are no base for what expires after days.
const UNSAFE_AGE: Duration = Duration::from_secs(60 * 60);

/// What the rounds saw.
#[derive(Debug, Default)]
struct Seen {
    rounds: usize,
    /// Reads of a pack while it was being published.
    early_reads: usize,
    /// The first failure of each promise.
    torn: Option<String>,
    unseen: Option<String>,
    early_catalog: Option<String>,
    replaced: Option<String>,
    /// Times until a change was visible.
    visible: Vec<Duration>,
    listed: Vec<Duration>,
    removed: Vec<Duration>,
    /// The largest difference between an age and the time that passed.
    wrong_age: Duration,
}

/// Publishes and removes objects for `time`, and reports which promises held.
pub(super) fn check(
    subject: &mut Subject<'_>,
    time: Duration,
) -> Result<Vec<PromiseRow>, DoctorError> {
    let end = subject.until(time);
    let limit = subject.most_bytes / SHARE;
    let mut seen = Seen::default();
    while seen.rounds < MOST_ROUNDS
        && (seen.rounds < LEAST_ROUNDS || !end.expired(subject.now()))
        && subject.may_write(PACK_BYTES, limit)
    {
        round(subject, &mut seen)?;
        seen.rounds += 1;
        subject.check_stop()?;
        if seen.unseen.is_some() {
            break;
        }
    }
    Ok(seen.rows(subject.near.tier.requests().is_some()))
}

fn round(subject: &mut Subject<'_>, seen: &mut Seen) -> Result<(), DoctorError> {
    let number = subject.number();
    let (pack, catalog) = (subject.pack(number), subject.catalog(number));
    let bytes = content(number, PACK_BYTES);
    let catalog_bytes = subject.catalog_bytes(number, PACK_BYTES);
    for name in [pack, catalog] {
        if fetch(subject, name).is_ok() {
            seen.torn
                .get_or_insert_with(|| "an object was there before it was published".to_owned());
        }
    }
    let published = publish_while_reading(subject, pack, &bytes, seen);
    published?;
    subject.publish(catalog, &catalog_bytes)?;
    let start = subject.now();
    let Some(found) = wait_until(subject, || fetch(subject, catalog).ok()) else {
        let what = format!("a catalog was not visible after {} s", VISIBLE.as_secs());
        seen.unseen.get_or_insert(what);
        return Ok(());
    };
    // The pack first: any delay here would hide that it is not there yet.
    let whole = fetch(subject, pack);
    seen.visible.push(subject.now().since(start));
    if found != catalog_bytes {
        seen.torn.get_or_insert_with(|| "a catalog was read with other bytes".to_owned());
    }
    match whole {
        Ok(whole) if whole == bytes => {}
        Ok(_) => {
            seen.torn.get_or_insert_with(|| "a pack was read with other bytes".to_owned());
        }
        Err(error) => {
            let what = format!("a catalog was visible and its pack was not: {error}");
            seen.early_catalog.get_or_insert(what);
        }
    }
    check_listing(subject, catalog, seen);
    // Stores need no bucket that refuses a name, and to try it would write over a catalog.
    if subject.near.tier.requests().is_none() {
        check_second_publish(subject, catalog, &catalog_bytes, seen);
    }
    let age = subject.other.call(|tier, ask| tier.age(catalog, ask));
    let passed = subject.now().since(start);
    let wrong = age.map_or(Duration::MAX, |age| age.abs_diff(passed));
    seen.wrong_age = seen.wrong_age.max(wrong);
    for name in [pack, catalog] {
        subject.near.call(|tier, ask| tier.remove(name, ask))?;
    }
    let start = subject.now();
    let gone = || [pack, catalog].iter().all(|name| fetch(subject, *name).is_err()).then_some(());
    let is_gone = wait_until(subject, gone).is_some();
    seen.removed.push(if is_gone { subject.now().since(start) } else { Duration::MAX });
    Ok(())
}

/// Publishes a pack, and reads it through the other mount meanwhile: whole, or not at all.
fn publish_while_reading(
    subject: &Subject<'_>,
    pack: ObjectName,
    bytes: &[u8],
    seen: &mut Seen,
) -> Result<(), IoError> {
    let (reply, replies) = bounded::<Reply<()>>(1);
    let ask = Ask { tag: 0, deadline: subject.until(LIMIT), reply };
    subject.near.tier.publish(pack, vec![in_memory(bytes)], ask);
    let end = subject.until(LIMIT);
    loop {
        if let Ok(reply) = replies.recv_timeout(PAUSE) {
            return reply.result;
        }
        if end.expired(subject.now()) {
            return Err(IoError::Stopped(Stopped::Deadline));
        }
        if let Ok(read) = fetch(subject, pack) {
            seen.early_reads += 1;
            if read != bytes {
                let what = format!("a pack was read with {} of {} bytes", read.len(), bytes.len());
                seen.torn.get_or_insert(what);
            }
        }
    }
}

fn check_listing(subject: &Subject<'_>, catalog: ObjectName, seen: &mut Seen) {
    let start = subject.now();
    let is_listed = || {
        let writers = subject.other.writers().ok()?;
        let objects = subject.other.list(subject.writer).ok()?;
        let is_there = objects.iter().any(|listed| listed.object == catalog.object);
        (writers.contains(&subject.writer) && is_there).then_some(())
    };
    let is_seen = wait_until(subject, is_listed).is_some();
    seen.listed.push(if is_seen { subject.now().since(start) } else { Duration::MAX });
}

/// A name that exists is refused, also through the other mount, and keeps its bytes.
fn check_second_publish(subject: &Subject<'_>, name: ObjectName, bytes: &[u8], seen: &mut Seen) {
    let memory = vec![in_memory(&vec![0xff; bytes.len()])];
    let refused = subject.other.call(|tier, ask| tier.publish(name, memory, ask));
    let is_refused = refused.is_err_and(|error| error.is_exists());
    if !is_refused || fetch(subject, name).ok().as_deref() != Some(bytes) {
        seen.replaced.get_or_insert_with(|| "an object was written a second time".to_owned());
    }
}

fn fetch(subject: &Subject<'_>, name: ObjectName) -> Result<Vec<u8>, IoError> {
    let limit = match name.object {
        Object::Pack(_) => 2 * PACK_BYTES as u64,
        _ => 1 << 20,
    };
    subject.other.fetch(name, limit)
}

/// Repeats `look` until it returns something, for as long as a change may take.
fn wait_until<T>(subject: &Subject<'_>, look: impl Fn() -> Option<T>) -> Option<T> {
    let end: Deadline = subject.until(VISIBLE);
    loop {
        if let Some(found) = look() {
            return Some(found);
        }
        if end.expired(subject.now()) || (subject.is_stopped)() {
            return None;
        }
        std::thread::sleep(PAUSE);
    }
}

impl Seen {
    fn rows(mut self, is_bucket: bool) -> Vec<PromiseRow> {
        let rounds = format!("{} rounds", self.rounds);
        let early = format!("{rounds}, {} reads while it was being published", self.early_reads);
        let visible = self.unseen.take();
        let mut rows = vec![
            delays("a new object becomes visible", &mut self.visible, visible),
            row("an object is whole or not there", self.torn, early),
            row("a pack is readable before its catalog", self.early_catalog, rounds.clone()),
        ];
        if !is_bucket {
            let name = "a name that exists is not written again";
            rows.push(row(name, self.replaced, rounds.clone()));
        }
        rows.extend([
            delays("listings show new objects", &mut self.listed, None),
            delays("a removed object disappears", &mut self.removed, None),
            self_age(self.wrong_age, &rounds),
        ]);
        rows
    }
}

fn row(name: &'static str, failure: Option<String>, detail: String) -> PromiseRow {
    match failure {
        None => PromiseRow { name, verdict: Verdict::Holds, detail },
        Some(detail) => PromiseRow { name, verdict: Verdict::Fails, detail },
    }
}

fn delays(name: &'static str, times: &mut [Duration], failure: Option<String>) -> PromiseRow {
    times.sort_unstable();
    let most = times.last().copied().unwrap_or_default();
    if let Some(detail) = failure {
        return PromiseRow { name, verdict: Verdict::Fails, detail };
    }
    if most > VISIBLE {
        let detail = format!("not within {} s", VISIBLE.as_secs());
        return PromiseRow { name, verdict: Verdict::Slow, detail };
    }
    let ms = |us: u64| format!("{}.{} ms", us / 1000, us / 100 % 10);
    let detail = format!(
        "after {}, at most {}",
        ms(percentile_us(times, 50)),
        ms(u64::try_from(most.as_micros()).unwrap_or(u64::MAX))
    );
    let verdict = if most > SLOW { Verdict::Slow } else { Verdict::Holds };
    PromiseRow { name, verdict, detail }
}

/// Whether ages can be trusted: a writer that seems silent for a day may be removed, and a list of removals that seems
/// old.
fn self_age(wrong: Duration, rounds: &str) -> PromiseRow {
    let name = "the age of an object is right";
    if wrong <= WRONG_AGE {
        let detail = format!("{rounds}, off by {:.1} s at most", wrong.as_secs_f64());
        return PromiseRow { name, verdict: Verdict::Holds, detail };
    }
    if wrong == Duration::MAX {
        let detail = "it cannot be found out".to_owned();
        return PromiseRow { name, verdict: Verdict::Slow, detail };
    }
    let verdict = if wrong > UNSAFE_AGE { Verdict::Fails } else { Verdict::Slow };
    let detail = format!("off by {:.0} s: the clocks of hosts differ", wrong.as_secs_f64());
    PromiseRow { name, verdict, detail }
}
