//! A far location whose reads can be held.

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use dalsegno_far::{
    Ask, DirectoryTier, DirectoryTierOptions, Listed, Object, ObjectName, Tier, TierFacts,
    TierState, WriterId,
};
use dalsegno_io::{FileId, Geometry, IoError, Memory, Request, Source, Space, SystemClock};

/// A directory whose reads of packs wait while they are held.
#[allow(dead_code, reason = "each test file uses its part")]
#[derive(Debug)]
pub(crate) struct HeldTier {
    directory: DirectoryTier,
    /// The reads that wait; `None` if reads are not held.
    held: Mutex<Option<Vec<Request>>>,
    /// The thread whose reads are held; `None` for all.
    thread: Mutex<Option<&'static str>>,
    /// Whether calls fail.
    is_silent: AtomicBool,
    /// The publications that wait; `None` if they are not held.
    kept: Mutex<Option<Vec<Kept>>>,
}

type Kept = (ObjectName, Vec<Memory>, Ask<()>);

#[allow(dead_code, reason = "each test file uses its part")]
impl HeldTier {
    pub(crate) fn open(path: &Path, workers: u32) -> Arc<Self> {
        let options = DirectoryTierOptions { workers, ..DirectoryTierOptions::default() };
        let directory = DirectoryTier::open(path, options, Arc::new(SystemClock::new())).unwrap();
        let (held, thread) = (Mutex::default(), Mutex::default());
        let (is_silent, kept) = (AtomicBool::new(false), Mutex::default());
        Arc::new(Self { directory, held, thread, is_silent, kept })
    }

    /// Holds reads from now on.
    pub(crate) fn hold(&self) {
        *self.held.lock().unwrap() = Some(Vec::new());
    }

    /// Holds the reads of one thread from now on.
    pub(crate) fn hold_thread(&self, name: &'static str) {
        *self.thread.lock().unwrap() = Some(name);
        self.hold();
    }

    /// Carries out the reads that waited.
    pub(crate) fn go_on(&self) {
        let held = self.held.lock().unwrap().take();
        self.directory.submit(held.unwrap_or_default());
    }

    /// Fails calls, as if the directory had not responded when it was opened.
    pub(crate) fn set_silent(&self, is_silent: bool) {
        self.is_silent.store(is_silent, Ordering::Relaxed);
    }

    /// Answers a call with an error if calls fail.
    fn admit<T>(&self, ask: Ask<T>) -> Option<Ask<T>> {
        if !self.is_silent.load(Ordering::Relaxed) {
            return Some(ask);
        }
        let source = std::io::ErrorKind::TimedOut.into();
        ask.answer(Err(IoError::Os { operation: "open", file: "far".into(), source }));
        None
    }

    /// Holds publications from now on.
    pub(crate) fn hold_publications(&self) {
        *self.kept.lock().unwrap() = Some(Vec::new());
    }

    /// How many publications wait.
    pub(crate) fn waiting_publications(&self) -> usize {
        self.kept.lock().unwrap().as_ref().map_or(0, Vec::len)
    }

    /// Carries out the publications that waited.
    pub(crate) fn publish_kept(&self) {
        for (name, bytes, ask) in self.kept.lock().unwrap().take().unwrap_or_default() {
            self.directory.publish(name, bytes, ask);
        }
    }

    /// How many reads wait.
    pub(crate) fn waiting(&self) -> usize {
        self.held.lock().unwrap().as_ref().map_or(0, Vec::len)
    }
}

impl Source for HeldTier {
    fn submit(&self, requests: Vec<Request>) {
        let of = *self.thread.lock().unwrap();
        let is_meant = of.is_none_or(|name| std::thread::current().name() == Some(name));
        match &mut *self.held.lock().unwrap() {
            Some(held) if is_meant => held.extend(requests),
            _ => self.directory.submit(requests),
        }
    }

    fn geometry(&self) -> Geometry {
        self.directory.geometry()
    }
}

impl Tier for HeldTier {
    fn facts(&self) -> TierFacts {
        let facts = self.directory.facts();
        let is_silent = self.is_silent.load(Ordering::Relaxed);
        TierFacts { state: if is_silent { TierState::Opening } else { facts.state }, ..facts }
    }

    fn file(&self, name: ObjectName) -> FileId {
        self.directory.file(name)
    }

    fn forget(&self, file: FileId) {
        self.directory.forget(file);
    }

    fn publish(&self, name: ObjectName, bytes: Vec<Memory>, ask: Ask<()>) {
        let Some(ask) = self.admit(ask) else { return };
        match &mut *self.kept.lock().unwrap() {
            Some(kept) => kept.push((name, bytes, ask)),
            None => self.directory.publish(name, bytes, ask),
        }
    }

    fn fetch(&self, name: ObjectName, limit: u64, ask: Ask<Vec<u8>>) {
        if let Some(ask) = self.admit(ask) {
            self.directory.fetch(name, limit, ask);
        }
    }

    fn remove(&self, name: ObjectName, ask: Ask<()>) {
        if let Some(ask) = self.admit(ask) {
            self.directory.remove(name, ask);
        }
    }

    fn remove_writer(&self, writer: WriterId, ask: Ask<()>) {
        if let Some(ask) = self.admit(ask) {
            self.directory.remove_writer(writer, ask);
        }
    }

    fn writer_age(&self, writer: WriterId, ask: Ask<Duration>) {
        if !self.is_silent.load(Ordering::Relaxed) {
            self.directory.writer_age(writer, ask);
        }
    }

    fn removals(&self, ask: Ask<Vec<(ObjectName, u64)>>) {
        if let Some(ask) = self.admit(ask) {
            self.directory.removals(ask);
        }
    }

    fn now(&self, ask: Ask<Duration>) {
        if let Some(ask) = self.admit(ask) {
            self.directory.now(ask);
        }
    }

    fn removals_changed(&self, ask: Ask<Duration>) {
        if let Some(ask) = self.admit(ask) {
            self.directory.removals_changed(ask);
        }
    }

    fn writers(&self, ask: Ask<Vec<WriterId>>) {
        if let Some(ask) = self.admit(ask) {
            self.directory.writers(ask);
        }
    }

    fn list(&self, writer: WriterId, after: Option<Object>, ask: Ask<Vec<Listed>>) {
        if let Some(ask) = self.admit(ask) {
            self.directory.list(writer, after, ask);
        }
    }

    fn age(&self, name: ObjectName, ask: Ask<Duration>) {
        if let Some(ask) = self.admit(ask) {
            self.directory.age(name, ask);
        }
    }

    fn space(&self, ask: Ask<Space>) {
        if let Some(ask) = self.admit(ask) {
            self.directory.space(ask);
        }
    }
}
