//! A location in memory as a [`Tier`], for tests and simulations.
//!
//! 1. Every call is answered, and every request completed, before the call returns. There are no threads.
//! 2. Each mount is a host of its own: one can stop like a killed process while the others continue.
//! 3. The clock of the location decides about ages and deadlines: same calls and same clock, same replies.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::Arc;
use std::time::Duration;

use dalsegno_core::{Clock, Deadline, Nanos, Stopped};
use dalsegno_io::{FileId, Geometry, IoError, Memory, Operation, Request, Source, Space};
use parking_lot::Mutex;

use super::file_names::FileNames;
use super::{Ask, Listed, Tier, TierFacts, TierState};
use crate::names::{Object, ObjectName, WriterId};

/// The size that a location reports.
const TOTAL_BYTES: u64 = 1 << 50;

/// What a location in memory is like.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum LocationKind {
    Directory,
    /// Folders are prefixes: an empty one does not exist. Nothing notes when an object was removed, and an object is
    /// written over by another one of its name.
    Bucket,
}

/// A location that several [`MemoryTier`]s mount.
#[derive(Clone, Debug)]
pub struct MemoryLocation {
    kind: LocationKind,
    clock: Arc<dyn Clock>,
    contents: Arc<Mutex<LocationContents>>,
}

#[derive(Debug, Default)]
struct LocationContents {
    /// Created by the first object of a writer; stays when the last one is removed.
    folders: BTreeMap<WriterId, StoredFolder>,
    /// When a list of removals last appeared or disappeared.
    removals_changed: Nanos,
    /// The lists of removals of all writers.
    removals: BTreeMap<ObjectName, StoredObject>,
    is_full: bool,
    /// Most bytes of all objects.
    capacity_bytes: Option<u64>,
}

#[derive(Debug)]
struct StoredFolder {
    objects: BTreeMap<Object, StoredObject>,
    /// When an object was last published or removed.
    changed: Nanos,
}

#[derive(Debug)]
struct StoredObject {
    bytes: Vec<u8>,
    published: Nanos,
}

/// What happens to the operation at which a mount stops.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StopMode {
    /// It has no effect.
    NotDone,
    /// It takes effect, but its caller sees a failure.
    DoneUnanswered,
}

/// A mount of a [`MemoryLocation`].
#[derive(Debug)]
pub struct MemoryTier {
    location: MemoryLocation,
    files: FileNames,
    progress: Mutex<MountProgress>,
}

/// How far a mount is, and where it stops.
#[derive(Debug, Default)]
struct MountProgress {
    changes: u64,
    stop: Option<(u64, StopMode)>,
    is_stopped: bool,
}

impl MemoryLocation {
    /// An empty location.
    #[must_use]
    pub fn new(clock: Arc<dyn Clock>) -> Self {
        Self { kind: LocationKind::Directory, clock, contents: Arc::default() }
    }

    /// An empty bucket of an object store, such as one in which two creations of a name may both succeed.
    #[must_use]
    pub fn bucket(clock: Arc<dyn Clock>) -> Self {
        Self { kind: LocationKind::Bucket, clock, contents: Arc::default() }
    }

    fn is_bucket(&self) -> bool {
        self.kind == LocationKind::Bucket
    }

    /// Mounts it on another host.
    #[must_use]
    pub fn mount(&self) -> MemoryTier {
        let (location, files) = (self.clone(), FileNames::default());
        MemoryTier { location, files, progress: Mutex::default() }
    }

    /// Whether publishing fails for lack of space.
    pub fn set_full(&self, is_full: bool) {
        self.contents.lock().is_full = is_full;
    }

    /// Makes publishing fail for lack of space while all objects would have more bytes; removing some makes space.
    pub fn set_capacity(&self, bytes: Option<u64>) {
        self.contents.lock().capacity_bytes = bytes;
    }

    /// Inverts the byte at `offset` of an object. Returns whether there is such a byte.
    pub fn damage(&self, name: ObjectName, offset: u64) -> bool {
        let mut contents = self.contents.lock();
        let (object, at) = (contents.object_mut(name), usize::try_from(offset).ok());
        let byte = object.zip(at).and_then(|(object, at)| object.bytes.get_mut(at));
        byte.map(|byte| *byte = !*byte).is_some()
    }

    /// Shortens an object to at most `bytes`. Returns whether it exists.
    pub fn truncate(&self, name: ObjectName, bytes: u64) -> bool {
        let bytes = usize::try_from(bytes).unwrap_or(usize::MAX);
        let mut contents = self.contents.lock();
        contents.object_mut(name).map(|object| object.bytes.truncate(bytes)).is_some()
    }

    /// Every object and its size, sorted by name.
    #[must_use]
    pub fn objects(&self) -> Vec<(ObjectName, u64)> {
        let contents = self.contents.lock();
        let of_folder = |(writer, folder): (&WriterId, &StoredFolder)| {
            let writer = *writer;
            let named = |(object, stored): (&Object, &StoredObject)| {
                (writer.object(*object), stored.bytes.len() as u64)
            };
            folder.objects.iter().map(named).collect::<Vec<_>>()
        };
        let mut objects: Vec<_> = contents.folders.iter().flat_map(of_folder).collect();
        objects.extend(contents.removals());
        objects.sort_unstable();
        objects
    }
}

impl MemoryTier {
    /// Lets `changes` more operations that change the location succeed. The next one stops the mount: from then on
    /// every operation fails with [`IoError::Closed`], as after its process was killed.
    pub fn stop_after(&self, changes: u64, mode: StopMode) {
        let mut progress = self.progress.lock();
        progress.stop = Some((progress.changes + changes, mode));
    }

    /// Whether the mount has stopped.
    #[must_use]
    pub fn is_stopped(&self) -> bool {
        self.progress.lock().is_stopped
    }

    /// How many operations that change the location this mount has carried out, failed ones included.
    #[must_use]
    pub fn changes(&self) -> u64 {
        self.progress.lock().changes
    }

    /// Whether an operation may begin.
    fn admit(&self, deadline: Deadline) -> Result<(), IoError> {
        if self.is_stopped() {
            return Err(IoError::Closed);
        }
        let is_late = deadline.is_bounded() && deadline.expired(self.location.clock.now());
        if is_late { Err(IoError::Stopped(Stopped::Deadline)) } else { Ok(()) }
    }

    fn read<T>(&self, ask: Ask<T>, read: impl FnOnce(&LocationContents) -> Result<T, IoError>) {
        let result = self.admit(ask.deadline).and_then(|()| read(&self.location.contents.lock()));
        ask.answer(result);
    }

    fn change(
        &self,
        ask: Ask<()>,
        change: impl FnOnce(&mut LocationContents) -> Result<(), IoError>,
    ) {
        let result = self.admit(ask.deadline).and_then(|()| {
            let mut progress = self.progress.lock();
            let stop = progress.stop.filter(|(at, _)| progress.changes >= *at);
            progress.changes += 1;
            progress.is_stopped |= stop.is_some();
            drop(progress);
            match stop {
                None => change(&mut self.location.contents.lock()),
                Some((_, mode)) => {
                    if mode == StopMode::DoneUnanswered {
                        // Nobody learns how it ended.
                        let _ = change(&mut self.location.contents.lock());
                    }
                    Err(IoError::Closed)
                }
            }
        });
        ask.answer(result);
    }

    fn serve(&self, request: &mut Request) -> Result<(), IoError> {
        self.admit(request.deadline)?;
        let name = self.files.get(request.file)?;
        let contents = self.location.contents.lock();
        let object = contents.object("read", name)?;
        let expected = request.bytes();
        let start = usize::try_from(request.offset).unwrap_or(usize::MAX);
        let mut rest = object.bytes.get(start..).unwrap_or_default();
        let got = expected.min(rest.len() as u64);
        for memory in &mut request.memory {
            let len = memory.len().min(rest.len());
            memory.as_mut_slice()[..len].copy_from_slice(&rest[..len]);
            rest = &rest[len..];
        }
        if got == expected {
            return Ok(());
        }
        Err(IoError::Short { operation: "read", file: name.to_string(), expected, got })
    }
}

impl LocationContents {
    fn object(&self, operation: &'static str, name: ObjectName) -> Result<&StoredObject, IoError> {
        let object = match name.object {
            Object::Removals(_) => self.removals.get(&name),
            object => self.folders.get(&name.writer).and_then(|folder| folder.objects.get(&object)),
        };
        object.ok_or_else(|| IoError::not_found(operation, name.to_string()))
    }

    fn object_mut(&mut self, name: ObjectName) -> Option<&mut StoredObject> {
        match name.object {
            Object::Removals(_) => self.removals.get_mut(&name),
            object => self.folders.get_mut(&name.writer)?.objects.get_mut(&object),
        }
    }

    fn publish(
        &mut self,
        kind: LocationKind,
        name: ObjectName,
        object: StoredObject,
    ) -> Result<(), IoError> {
        if kind == LocationKind::Directory && self.object("open", name).is_ok() {
            return Err(IoError::exists("create", name.to_string()));
        }
        let needed = self.used_bytes() + object.bytes.len() as u64;
        let is_full = self.is_full || self.capacity_bytes.is_some_and(|most| needed > most);
        if name.is_removals() {
            if is_full {
                return Err(IoError::no_space("write", name.to_string()));
            }
            self.removals_changed = object.published;
            self.removals.insert(name, object);
            return Ok(());
        }
        let changed = object.published;
        if is_full && kind == LocationKind::Bucket {
            return Err(IoError::no_space("write", name.to_string()));
        }
        let new = || StoredFolder { objects: BTreeMap::new(), changed };
        let folder = self.folders.entry(name.writer).or_insert_with(new);
        if is_full {
            return Err(IoError::no_space("write", name.to_string()));
        }
        folder.changed = changed;
        folder.objects.insert(name.object, object);
        Ok(())
    }

    fn remove(&mut self, kind: LocationKind, name: ObjectName, now: Nanos) {
        if self.removals.remove(&name).is_some() {
            self.removals_changed = now;
        }
        if let Some(folder) = self.folders.get_mut(&name.writer)
            && folder.objects.remove(&name.object).is_some()
        {
            folder.changed = now;
        }
        if kind == LocationKind::Bucket {
            self.remove_writer(name.writer);
        }
    }

    /// All lists of removals, with their sizes.
    fn removals(&self) -> impl Iterator<Item = (ObjectName, u64)> {
        self.removals.iter().map(|(name, stored)| (*name, stored.bytes.len() as u64))
    }

    fn remove_writer(&mut self, writer: WriterId) {
        if self.folders.get(&writer).is_some_and(|folder| folder.objects.is_empty()) {
            self.folders.remove(&writer);
        }
    }

    fn list(&self, writer: WriterId, after: Option<Object>) -> Vec<Listed> {
        let Some(folder) = self.folders.get(&writer) else { return Vec::new() };
        let start = after.map_or(Bound::Unbounded, Bound::Excluded);
        let listed = |(object, stored): (&Object, &StoredObject)| Listed {
            object: *object,
            bytes: stored.bytes.len() as u64,
        };
        folder.objects.range((start, Bound::Unbounded)).map(listed).collect()
    }

    fn used_bytes(&self) -> u64 {
        let objects = self.folders.values().flat_map(|folder| folder.objects.values());
        let objects = objects.chain(self.removals.values());
        objects.map(|object| object.bytes.len() as u64).sum()
    }

    fn space(&self) -> Space {
        let free = self.capacity_bytes.unwrap_or(TOTAL_BYTES).saturating_sub(self.used_bytes());
        let free_bytes = if self.is_full { 0 } else { free };
        Space { free_bytes, total_bytes: TOTAL_BYTES }
    }
}

impl Source for MemoryTier {
    /// See [`Source::submit`].
    ///
    /// # Panics
    ///
    /// If a request is not a read, or fails [`Request::check`].
    fn submit(&self, requests: Vec<Request>) {
        for request in &requests {
            request.check();
            assert_eq!(request.operation, Operation::Read, "an object is written once");
        }
        for mut request in requests {
            let result = self.serve(&mut request);
            request.complete(result);
        }
    }

    fn geometry(&self) -> Geometry {
        Geometry { memory_align: 1, engine: "memory", direct: false, places: 1 }
    }
}

impl Tier for MemoryTier {
    fn facts(&self) -> TierFacts {
        let (name, state, idle_poll) = ("memory", TierState::Open, Duration::ZERO);
        TierFacts { name, workers: 1, most_reads: 1, idle_poll, state, reopened: 0 }
    }

    fn file(&self, name: ObjectName) -> FileId {
        self.files.add(name)
    }

    fn forget(&self, file: FileId) {
        self.files.forget(file);
    }

    fn publish(&self, name: ObjectName, bytes: Vec<Memory>, ask: Ask<()>) {
        let copy = bytes.iter().flat_map(Memory::as_slice).copied().collect();
        drop(bytes);
        let object = StoredObject { bytes: copy, published: self.location.clock.now() };
        self.change(ask, |contents| contents.publish(self.location.kind, name, object));
    }

    fn fetch(&self, name: ObjectName, limit: u64, ask: Ask<Vec<u8>>) {
        self.read(ask, |contents| {
            let object = contents.object("read", name)?;
            if object.bytes.len() as u64 > limit {
                return Err(IoError::too_large("read", name.to_string()));
            }
            Ok(object.bytes.clone())
        });
    }

    fn remove(&self, name: ObjectName, ask: Ask<()>) {
        let now = self.location.clock.now();
        self.change(ask, |contents| {
            contents.remove(self.location.kind, name, now);
            Ok(())
        });
    }

    fn remove_writer(&self, writer: WriterId, ask: Ask<()>) {
        self.change(ask, |contents| {
            contents.remove_writer(writer);
            Ok(())
        });
    }

    fn removals(&self, ask: Ask<Vec<(ObjectName, u64)>>) {
        self.read(ask, |contents| Ok(contents.removals().collect()));
    }

    fn now(&self, ask: Ask<Duration>) {
        let now = self.location.clock.now();
        self.read(ask, |_| Ok(now.since(Nanos::default())));
    }

    fn removals_changed(&self, ask: Ask<Duration>) {
        let (now, is_bucket) = (self.location.clock.now(), self.location.is_bucket());
        self.read(ask, |contents| {
            let changed = if is_bucket { now } else { contents.removals_changed };
            Ok(changed.since(Nanos::default()))
        });
    }

    fn writers(&self, ask: Ask<Vec<WriterId>>) {
        self.read(ask, |contents| Ok(contents.folders.keys().copied().collect()));
    }

    fn list(&self, writer: WriterId, after: Option<Object>, ask: Ask<Vec<Listed>>) {
        self.read(ask, |contents| Ok(contents.list(writer, after)));
    }

    fn age(&self, name: ObjectName, ask: Ask<Duration>) {
        let now = self.location.clock.now();
        self.read(ask, |contents| Ok(now.since(contents.object("stat", name)?.published)));
    }

    fn writer_age(&self, writer: WriterId, ask: Ask<Duration>) {
        let (now, is_bucket) = (self.location.clock.now(), self.location.is_bucket());
        self.read(ask, |contents| {
            let folder = contents.folders.get(&writer);
            let folder = folder.ok_or_else(|| IoError::not_found("stat", writer.to_string()))?;
            let newest = folder.objects.values().map(|object| object.published).max();
            Ok(now.since(newest.filter(|_| is_bucket).unwrap_or(folder.changed)))
        });
    }

    fn space(&self, ask: Ask<Space>) {
        self.read(ask, |contents| Ok(contents.space()));
    }
}

#[cfg(test)]
mod tests;
