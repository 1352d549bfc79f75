//! A mount on which some names fail, and which becomes that of another directory on command.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use dalsegno_core::{SECTOR_BYTES, Stopped};
use dalsegno_io::{FileId, Geometry, IoError, Memory, Request, Source, Space};
use parking_lot::Mutex;

use crate::names::{Object, ObjectName, WriterId};
use crate::tier::{Ask, Listed, MemoryTier, Tier, TierFacts};

/// In the place of an error number: a call that does not end in time.
pub(super) const LATE: i32 = -1;

/// A mount on which some names fail.
#[derive(Debug)]
pub(super) struct FaultyTier {
    pub(super) inner: MemoryTier,
    /// The error of a folder or an object, by name.
    pub(super) faults: Mutex<HashMap<String, i32>>,
    /// Lists that a listing shows although they are gone.
    pub(super) stale: Mutex<Vec<ObjectName>>,
    /// The call, by name, before which another directory appears.
    pub(super) reopen_at: Mutex<Option<String>>,
    pub(super) reopened: AtomicU64,
}

impl FaultyTier {
    fn check(&self, name: &str) -> Result<(), IoError> {
        match self.faults.lock().get(name) {
            None => Ok(()),
            Some(&LATE) => Err(IoError::Stopped(Stopped::Deadline)),
            Some(errno) => Err(IoError::Os {
                operation: "open",
                file: name.to_owned(),
                source: std::io::Error::from_raw_os_error(*errno),
            }),
        }
    }

    fn run<T>(&self, name: &str, ask: Ask<T>, call: impl FnOnce(Ask<T>)) {
        if self.reopen_at.lock().take_if(|at| *at == name).is_some() {
            self.reopened.fetch_add(1, Ordering::Relaxed);
        }
        match self.check(name) {
            Ok(()) => call(ask),
            Err(error) => ask.answer(Err(error)),
        }
    }
}

impl Source for FaultyTier {
    fn submit(&self, requests: Vec<Request>) {
        self.inner.submit(requests);
    }

    fn geometry(&self) -> Geometry {
        self.inner.geometry()
    }
}

impl Tier for FaultyTier {
    fn facts(&self) -> TierFacts {
        TierFacts { reopened: self.reopened.load(Ordering::Relaxed), ..self.inner.facts() }
    }

    fn file(&self, name: ObjectName) -> FileId {
        self.inner.file(name)
    }

    fn forget(&self, file: FileId) {
        self.inner.forget(file);
    }

    fn publish(&self, name: ObjectName, bytes: Vec<Memory>, ask: Ask<()>) {
        self.inner.publish(name, bytes, ask);
    }

    fn fetch(&self, name: ObjectName, limit: u64, ask: Ask<Vec<u8>>) {
        self.run(&name.to_string(), ask, |ask| self.inner.fetch(name, limit, ask));
    }

    fn remove(&self, name: ObjectName, ask: Ask<()>) {
        self.run(&name.to_string(), ask, |ask| self.inner.remove(name, ask));
    }

    fn remove_writer(&self, writer: WriterId, ask: Ask<()>) {
        self.inner.remove_writer(writer, ask);
    }

    fn removals(&self, ask: Ask<Vec<(ObjectName, u64)>>) {
        let stale = std::mem::take(&mut *self.stale.lock());
        if stale.is_empty() {
            return self.run("removals", ask, |ask| self.inner.removals(ask));
        }
        ask.answer(Ok(stale.into_iter().map(|name| (name, SECTOR_BYTES)).collect()));
    }

    fn now(&self, ask: Ask<Duration>) {
        self.run("now", ask, |ask| self.inner.now(ask));
    }

    fn removals_changed(&self, ask: Ask<Duration>) {
        self.run("removals changed", ask, |ask| self.inner.removals_changed(ask));
    }

    fn writers(&self, ask: Ask<Vec<WriterId>>) {
        self.run("writers", ask, |ask| self.inner.writers(ask));
    }

    fn list(&self, writer: WriterId, after: Option<Object>, ask: Ask<Vec<Listed>>) {
        self.run(&writer.to_string(), ask, |ask| self.inner.list(writer, after, ask));
    }

    fn age(&self, name: ObjectName, ask: Ask<Duration>) {
        self.run(&name.to_string(), ask, |ask| self.inner.age(name, ask));
    }

    fn writer_age(&self, writer: WriterId, ask: Ask<Duration>) {
        self.inner.writer_age(writer, ask);
    }

    fn space(&self, ask: Ask<Space>) {
        self.inner.space(ask);
    }
}
