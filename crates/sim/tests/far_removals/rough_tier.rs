//! A mount of a far location in memory that fails, hangs and is interrupted on command.
//!
//! 1. A mount that is down has the effect of a killed process: nothing it calls happens any more.
//! 2. A call that hangs takes 31 seconds of its host's clock and ends with `Deadline`. Its change happens when the
//!    mount recovers, or never.
//! 3. Listings of the folders of a bucket show a new object late. Lists of removals that a listing does not show are a
//!    [`Trouble`] of their own.
//! 4. Before a read of a pack an interruption runs once, on the same thread: other calls, while the read is in flight.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use dalsegno_core::{Clock, ManualClock, Nanos, Stopped};
use dalsegno_far::{
    Ask, Listed, MemoryTier, Object, ObjectName, Tier, TierFacts, WriterId, wait_for,
};
use dalsegno_io::{FileId, Geometry, IoError, Memory, Request, Source, Space};
use parking_lot::Mutex;

const EIO: i32 = 5;
const EACCES: i32 = 13;
const EROFS: i32 = 30;
/// Longer than any call of a tier may take.
const HANG: Duration = Duration::from_secs(31);

/// A call that hangs for longer has no effect.
const LATEST: Duration = Duration::from_secs(1800);

/// How calls of a mount fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Trouble {
    /// `EIO`, without an effect.
    Fails,
    /// `EIO`, but what was to change has changed.
    FailsLate,
    /// Hangs. What was to change changes later.
    Hangs,
    /// `EROFS` for whatever changes something.
    ReadOnly,
    /// `EIO` for reads of catalogs. Removals must hold even so.
    NoCatalogs,
    /// Reads of lists fail, with `EACCES` (`false`) or `EIO`. Everything else succeeds.
    NoLists(bool),
    /// Listings do not show the list at this position, modulo their number.
    HidesList(usize),
}

/// Which calls fail.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rule {
    pub(crate) trouble: Trouble,
    /// Calls that succeed first.
    pub(crate) skip: u64,
    /// Calls that fail then.
    pub(crate) times: u64,
}

/// When a call began that hangs, and what it changes.
type Later = (Nanos, Box<dyn FnOnce(&MemoryTier) + Send>);

/// What a mount does next.
#[derive(Default)]
struct Mood {
    rule: Option<Rule>,
    is_down: bool,
    fired: u64,
    /// Listings that did not show a list.
    hidden: u64,
    /// Changes of calls that hang.
    late: Vec<Later>,
    interruption: Option<Box<dyn FnOnce() + Send>>,
}

impl Mood {
    /// How a call fails that the rule is for, if it does.
    fn fire(&mut self) -> Option<Trouble> {
        let rule = self.rule.as_mut()?;
        if rule.skip > 0 {
            rule.skip -= 1;
            return None;
        }
        let trouble = rule.trouble;
        rule.times -= 1;
        if rule.times == 0 {
            self.rule = None;
        }
        self.fired += 1;
        Some(trouble)
    }
}

/// A mount that fails on command.
pub(crate) struct RoughTier {
    mount: MemoryTier,
    clock: Arc<ManualClock>,
    /// How late listings show a new object.
    lag: Duration,
    mood: Mutex<Mood>,
}

impl std::fmt::Debug for RoughTier {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RoughTier").finish_non_exhaustive()
    }
}

fn system(number: i32) -> IoError {
    let source = io::Error::from_raw_os_error(number);
    IoError::Os { operation: "call", file: "the far location".to_owned(), source }
}

/// A receiver for a call whose caller does not wait any more.
fn nowhere() -> Ask<()> {
    let (reply, _) = crossbeam_channel::unbounded();
    Ask { tag: 0, deadline: dalsegno_core::Deadline::Never, reply }
}

impl RoughTier {
    pub(crate) fn new(mount: MemoryTier, clock: &Arc<ManualClock>, lag: Duration) -> Arc<Self> {
        Arc::new(Self { mount, clock: Arc::clone(clock), lag, mood: Mutex::default() })
    }

    /// A call of the location that succeeds.
    fn ask<T>(&self, call: impl FnOnce(&MemoryTier, Ask<T>)) -> Result<T, IoError> {
        let clock = Arc::clone(&self.clock) as Arc<dyn Clock>;
        wait_for(&clock, HANG, |ask| call(&self.mount, ask))
    }

    /// Whether listings do not show an object yet.
    fn is_late(&self, name: ObjectName) -> bool {
        !self.lag.is_zero()
            && self.ask(|mount, ask| mount.age(name, ask)).is_ok_and(|age| age < self.lag)
    }

    /// Lets calls fail from now on.
    pub(crate) fn trouble(&self, rule: Rule) {
        self.mood.lock().rule = Some(rule);
    }

    /// Lets calls succeed again. What hung happens now.
    pub(crate) fn heal(&self) {
        self.mood.lock().rule = None;
        self.settle(true);
    }

    /// Ends the process that has this mount. What hung happens or not.
    pub(crate) fn go_down(&self, late_happens: bool) {
        self.settle(late_happens);
        self.mood.lock().is_down = true;
    }

    fn settle(&self, happens: bool) {
        let late = std::mem::take(&mut self.mood.lock().late);
        let now = self.clock.now();
        for (began, change) in late {
            if happens && now.since(began) < LATEST {
                change(&self.mount);
            }
        }
    }

    /// How many calls failed so far.
    pub(crate) fn fired(&self) -> u64 {
        self.mood.lock().fired
    }

    /// How many listings did not show a list so far.
    pub(crate) fn hidden(&self) -> u64 {
        self.mood.lock().hidden
    }

    /// Runs `body` once, before the next read of a pack.
    pub(crate) fn interrupt(&self, body: Option<Box<dyn FnOnce() + Send>>) {
        self.mood.lock().interruption = body;
    }

    /// How this call fails, if it does.
    fn next(&self, changes: bool) -> Option<Trouble> {
        let mood = &mut *self.mood.lock();
        let rule = mood.rule.as_mut()?;
        let is_meant = match rule.trouble {
            Trouble::NoCatalogs | Trouble::NoLists(_) | Trouble::HidesList(_) => false,
            Trouble::ReadOnly => changes,
            Trouble::Fails | Trouble::FailsLate | Trouble::Hangs => true,
        };
        if !is_meant {
            return None;
        }
        mood.fire()
    }

    /// Whether catalogs cannot be read.
    fn has_no_catalogs(&self) -> bool {
        self.mood.lock().rule.is_some_and(|rule| rule.trouble == Trouble::NoCatalogs)
    }

    /// How this call fails, if calls do in one of these ways.
    fn next_of(&self, is_meant: impl FnOnce(Trouble) -> bool) -> Option<Trouble> {
        let mut mood = self.mood.lock();
        let is_so = mood.rule.is_some_and(|rule| is_meant(rule.trouble));
        is_so.then(|| mood.fire()).flatten()
    }

    fn is_down(&self) -> bool {
        self.mood.lock().is_down
    }

    fn read<T>(&self, ask: Ask<T>, call: impl FnOnce(&MemoryTier, Ask<T>)) {
        if self.is_down() {
            return ask.answer(Err(IoError::Closed));
        }
        match self.next(false) {
            None => call(&self.mount, ask),
            Some(Trouble::Hangs) => {
                self.clock.advance(HANG);
                ask.answer(Err(IoError::Stopped(Stopped::Deadline)));
            }
            Some(_) => ask.answer(Err(system(EIO))),
        }
    }

    fn change(&self, ask: Ask<()>, call: impl FnOnce(&MemoryTier, Ask<()>) + Send + 'static) {
        if self.is_down() {
            return ask.answer(Err(IoError::Closed));
        }
        match self.next(true) {
            None => call(&self.mount, ask),
            Some(Trouble::ReadOnly) => ask.answer(Err(system(EROFS))),
            Some(Trouble::FailsLate) => {
                call(&self.mount, nowhere());
                ask.answer(Err(system(EIO)));
            }
            Some(Trouble::Hangs) => {
                self.clock.advance(HANG);
                let change = Box::new(move |mount: &MemoryTier| call(mount, nowhere()));
                self.mood.lock().late.push((self.clock.now(), change));
                ask.answer(Err(IoError::Stopped(Stopped::Deadline)));
            }
            Some(_) => ask.answer(Err(system(EIO))),
        }
    }
}

impl Source for RoughTier {
    fn submit(&self, requests: Vec<Request>) {
        let interruption = self.mood.lock().interruption.take();
        if let Some(run) = interruption {
            run();
        }
        for request in requests {
            if self.is_down() {
                request.complete(Err(IoError::Closed));
            } else if self.next(false).is_some() {
                request.complete(Err(system(EIO)));
            } else {
                self.mount.submit(vec![request]);
            }
        }
    }

    fn geometry(&self) -> Geometry {
        self.mount.geometry()
    }
}

impl Tier for RoughTier {
    fn facts(&self) -> TierFacts {
        self.mount.facts()
    }

    fn file(&self, name: ObjectName) -> FileId {
        self.mount.file(name)
    }

    fn forget(&self, file: FileId) {
        self.mount.forget(file);
    }

    fn publish(&self, name: ObjectName, bytes: Vec<Memory>, ask: Ask<()>) {
        // The caller gets its memory back before a late write happens.
        let copy: Vec<u8> = bytes.iter().flat_map(Memory::as_slice).copied().collect();
        drop(bytes);
        self.change(ask, move |mount, ask| {
            mount.publish(name, vec![Memory::owned(copy, ())], ask);
        });
    }

    fn fetch(&self, name: ObjectName, limit: u64, ask: Ask<Vec<u8>>) {
        if matches!(name.object, Object::Catalog(_)) && self.has_no_catalogs() {
            return ask.answer(Err(system(EIO)));
        }
        if name.is_removals() {
            let trouble = self.next_of(|trouble| matches!(trouble, Trouble::NoLists(_)));
            if let Some(Trouble::NoLists(is_eio)) = trouble {
                return ask.answer(Err(system(if is_eio { EIO } else { EACCES })));
            }
        }
        self.read(ask, |mount, ask| mount.fetch(name, limit, ask));
    }

    fn remove(&self, name: ObjectName, ask: Ask<()>) {
        self.change(ask, move |mount, ask| mount.remove(name, ask));
    }

    fn remove_writer(&self, writer: WriterId, ask: Ask<()>) {
        self.change(ask, move |mount, ask| mount.remove_writer(writer, ask));
    }

    fn removals(&self, ask: Ask<Vec<(ObjectName, u64)>>) {
        let trouble = self.next_of(|trouble| matches!(trouble, Trouble::HidesList(_)));
        let Some(Trouble::HidesList(at)) = trouble.filter(|_| !self.is_down()) else {
            return self.read(ask, Tier::removals);
        };
        let mut listed = self.ask(Tier::removals);
        if let Some(listed) = listed.as_mut().ok().filter(|listed| !listed.is_empty()) {
            listed.remove(at % listed.len());
            self.mood.lock().hidden += 1;
        }
        ask.answer(listed);
    }

    fn now(&self, ask: Ask<Duration>) {
        // A location shows its time by a new file.
        if self.next_of(|trouble| trouble == Trouble::ReadOnly).is_some() {
            ask.answer(Err(system(EROFS)));
        } else {
            self.read(ask, Tier::now);
        }
    }

    fn removals_changed(&self, ask: Ask<Duration>) {
        self.read(ask, Tier::removals_changed);
    }

    fn writers(&self, ask: Ask<Vec<WriterId>>) {
        self.read(ask, Tier::writers);
    }

    fn list(&self, writer: WriterId, after: Option<Object>, ask: Ask<Vec<Listed>>) {
        self.read(ask, |_, ask| {
            let mut listed = self.ask(|mount, ask| mount.list(writer, after, ask));
            if let Ok(listed) = &mut listed {
                listed.retain(|one| !self.is_late(writer.object(one.object)));
            }
            ask.answer(listed);
        });
    }

    fn age(&self, name: ObjectName, ask: Ask<Duration>) {
        self.read(ask, |mount, ask| mount.age(name, ask));
    }

    fn writer_age(&self, writer: WriterId, ask: Ask<Duration>) {
        self.read(ask, |mount, ask| mount.writer_age(writer, ask));
    }

    fn space(&self, ask: Ask<Space>) {
        self.read(ask, Tier::space);
    }
}
