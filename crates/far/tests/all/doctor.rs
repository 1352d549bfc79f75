//! The examination of a location notices each promise that a file system breaks.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use crossbeam_channel::bounded;
use dalsegno_core::{Clock, Deadline, Nanos, StoreId};
use dalsegno_far::offline::{DoctorOptions, DoctorReport, Verdict, examine};
use dalsegno_far::{
    Ask, Listed, MemoryLocation, Object, ObjectName, Reply, Tier, TierFacts, WriterId,
};
use dalsegno_io::{FileId, Geometry, IoError, Memory, Request, Source, Space, SystemClock};

use crate::common::call;

/// What a mount does wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fault {
    /// Nothing.
    None,
    /// Packs are not found, although their catalogs are.
    HidesPacks,
    /// Packs end in the middle.
    TornPacks,
    /// An object that exists is replaced.
    Replaces,
    /// A catalog is found some time after it was published.
    Late(Duration),
    /// Nothing that was published is found.
    Blind,
    /// Files seem so much older.
    WrongClock(Duration),
}

/// A mount with a fault.
#[derive(Debug)]
struct FaultyTier {
    inner: Arc<dyn Tier>,
    fault: Fault,
    clock: Arc<dyn Clock>,
    /// When an object was first found.
    found: Mutex<HashMap<ObjectName, Nanos>>,
}

impl FaultyTier {
    fn fetched(&self, name: ObjectName, limit: u64) -> Result<Vec<u8>, IoError> {
        let (reply, replies) = bounded::<Reply<Vec<u8>>>(1);
        self.inner.fetch(name, limit, Ask { tag: 0, deadline: Deadline::Never, reply });
        replies.recv().unwrap().result
    }

    /// What a file system returns for a name that does not exist.
    fn missing(&self, name: ObjectName) -> IoError {
        self.fetched(name.writer.object(Object::Beat(u64::MAX >> 2)), 0).unwrap_err()
    }

    fn is_too_early(&self, name: ObjectName, delay: Duration) -> bool {
        let now = self.clock.now();
        let first = *self.found.lock().unwrap().entry(name).or_insert(now);
        now.since(first) < delay
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
        self.inner.facts()
    }

    fn file(&self, name: ObjectName) -> FileId {
        self.inner.file(name)
    }

    fn forget(&self, file: FileId) {
        self.inner.forget(file);
    }

    fn publish(&self, name: ObjectName, bytes: Vec<Memory>, ask: Ask<()>) {
        if self.fault == Fault::Replaces {
            let (reply, replies) = bounded::<Reply<()>>(1);
            self.inner.remove(name, Ask { tag: 0, deadline: Deadline::Never, reply });
            replies.recv().unwrap().result.unwrap();
        }
        self.inner.publish(name, bytes, ask);
    }

    fn fetch(&self, name: ObjectName, limit: u64, ask: Ask<Vec<u8>>) {
        let is_pack = name.object.is_pack();
        let result = self.fetched(name, limit).and_then(|mut bytes| match self.fault {
            Fault::HidesPacks if is_pack => Err(self.missing(name)),
            Fault::TornPacks if is_pack => {
                bytes.truncate(bytes.len() / 2);
                Ok(bytes)
            }
            Fault::Late(delay) if !is_pack && self.is_too_early(name, delay) => {
                Err(self.missing(name))
            }
            Fault::Blind => Err(self.missing(name)),
            _ => Ok(bytes),
        });
        ask.answer(result);
    }

    fn remove(&self, name: ObjectName, ask: Ask<()>) {
        self.inner.remove(name, ask);
    }

    fn remove_writer(&self, writer: WriterId, ask: Ask<()>) {
        self.inner.remove_writer(writer, ask);
    }

    fn writer_age(&self, writer: WriterId, ask: Ask<Duration>) {
        self.inner.writer_age(writer, ask);
    }

    fn removals(&self, ask: Ask<Vec<(ObjectName, u64)>>) {
        self.inner.removals(ask);
    }

    fn now(&self, ask: Ask<Duration>) {
        self.inner.now(ask);
    }

    fn removals_changed(&self, ask: Ask<Duration>) {
        self.inner.removals_changed(ask);
    }

    fn writers(&self, ask: Ask<Vec<WriterId>>) {
        self.inner.writers(ask);
    }

    fn list(&self, writer: WriterId, after: Option<Object>, ask: Ask<Vec<Listed>>) {
        self.inner.list(writer, after, ask);
    }

    fn age(&self, name: ObjectName, ask: Ask<Duration>) {
        if let Fault::WrongClock(by) = self.fault {
            ask.answer(Ok(by));
        } else {
            self.inner.age(name, ask);
        }
    }

    fn space(&self, ask: Ask<Space>) {
        ask.answer(Ok(Space { free_bytes: 8 << 30, total_bytes: 8 << 30 }));
    }
}

/// Examines a location whose second mount has a fault. Returns what was found, after everything was removed.
fn examined(fault: Fault) -> DoctorReport {
    let clock: Arc<dyn Clock> = Arc::new(SystemClock::new());
    let location = MemoryLocation::new(Arc::clone(&clock));
    let mount = |fault: Fault| -> Arc<dyn Tier> {
        let (inner, clock, found) =
            (Arc::new(location.mount()), Arc::clone(&clock), Mutex::default());
        Arc::new(FaultyTier { inner, fault, clock, found })
    };
    let options = DoctorOptions {
        near: &|_| Ok(mount(Fault::None)),
        other: Some(&|_| Ok(mount(fault))),
        clock: Arc::clone(&clock),
        writer: WriterId { store: StoreId([3; 16]), open: 7 },
        time: Duration::from_millis(600),
    };
    let found = examine(&options, &|_| false).unwrap();
    assert_eq!(found.traces.left_behind, 0);
    let left = call(|ask| location.mount().list(options.writer, None, ask)).unwrap();
    assert_eq!(left, Vec::new());
    found
}

fn verdict(found: &DoctorReport, name: &str) -> Verdict {
    found.promises.iter().find(|row| row.name.contains(name)).expect("a promise").verdict
}

#[test]
fn a_location_that_keeps_its_promises_is_safe_and_is_measured() {
    let found = examined(Fault::None);
    assert!(found.is_safe, "{found:?}");
    assert!(found.promises.iter().all(|row| row.verdict == Verdict::Holds), "{found:?}");
    assert_eq!(found.bandwidth.len(), 7);
    assert!(found.bandwidth.iter().all(|row| row.read_bytes_per_s > 0));
}

#[test]
fn each_broken_promise_is_unsafe_and_is_named() {
    for (fault, name) in [
        (Fault::HidesPacks, "before its catalog"),
        (Fault::TornPacks, "whole or not there"),
        (Fault::Replaces, "not written again"),
    ] {
        let found = examined(fault);
        assert!(!found.is_safe, "{fault:?}: {found:?}");
        assert_eq!(verdict(&found, name), Verdict::Fails, "{fault:?}: {found:?}");
        let failed = found.promises.iter().filter(|row| row.verdict == Verdict::Fails).count();
        assert_eq!(failed, 1, "{fault:?}: {found:?}");
    }
}

#[test]
fn a_mount_that_shows_nothing_is_unsafe() {
    let found = examined(Fault::Blind);
    assert!(!found.is_safe);
    assert_eq!(verdict(&found, "becomes visible"), Verdict::Fails);
}

#[test]
fn a_mount_that_shows_new_objects_late_is_slow_and_the_advice_names_mount_options() {
    let found = examined(Fault::Late(Duration::from_millis(2100)));
    assert!(found.is_safe);
    assert_eq!(verdict(&found, "becomes visible"), Verdict::Slow);
    assert!(found.advice.iter().any(|one| one.action.contains("negative-timeout=0")), "{found:?}");
}

#[test]
fn clocks_that_differ_are_noticed() {
    for (minutes, expected) in [(50, Verdict::Slow), (24 * 60, Verdict::Fails)] {
        let found = examined(Fault::WrongClock(Duration::from_secs(minutes * 60)));
        assert_eq!(found.is_safe, expected == Verdict::Slow);
        assert_eq!(verdict(&found, "age"), expected);
        assert!(found.advice.iter().any(|one| one.action.contains("NTP")), "{found:?}");
    }
}
