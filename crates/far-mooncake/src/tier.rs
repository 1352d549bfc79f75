//! A place in a Mooncake cluster, and its companion, as a [`Tier`].
//!
//! 1. Packs are in the cluster; the companion has an empty object of the same name for each, its marker, and everything
//!    else. The marker is written before the pack, and removed after it.
//! 2. A listing shows the packs that the cluster has, with their sizes there. What is known of packs that were
//!    published here is not asked again.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;

use dalsegno_core::{Clock, Deadline, Nanos, Stopped};
use dalsegno_far::{
    Ask, FileNames, Listed, Object, ObjectName, Tier, TierFacts, TierLanes, TierState, WriterId,
    wait_for,
};
use dalsegno_io::{FileId, Geometry, IoError, Memory, Operation, Request, Source, Space};
use parking_lot::Mutex;

use crate::client::{Client, Connect};
use crate::late_client::LateClient;
use crate::location::MooncakeLocation;
use crate::own_packs::{Known, OwnPacks};

/// Calls of a kind that wait for a thread. More are refused as busy.
const QUEUE: usize = 1024;
/// How long a call without a deadline waits for the companion.
const LONGEST_WAIT: Duration = Duration::from_secs(30);
/// How long a call waits until another one has connected the client.
const CONNECT_LIMIT: Duration = Duration::from_secs(5);
/// How often some packs are looked at, whether the cluster lost them.
const LOOK_AFTER: Duration = Duration::from_secs(30);
/// Objects that one question asks for.
const ASKED_TOGETHER: usize = 1024;
/// The size of a location for those who ask. Mooncake does not say it, and evicts what it has no space for: so an
/// examination, which writes a part of what is free, writes little.
const ASSUMED_BYTES: u64 = 4 << 30;

/// See the module.
pub struct MooncakeTier {
    shared: Arc<Shared>,
    files: FileNames,
    workers: u32,
    lanes: TierLanes,
}

/// What the threads of a tier use.
struct Shared {
    client: LateClient,
    companion: Arc<dyn Tier>,
    prefix: String,
    own: OwnPacks,
    clock: Arc<dyn Clock>,
    /// When packs are looked at next.
    look: Mutex<Nanos>,
}

impl std::fmt::Debug for MooncakeTier {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("MooncakeTier").field("prefix", &self.shared.prefix).finish_non_exhaustive()
    }
}

impl MooncakeTier {
    /// Opens a location whose other objects are in `companion`. Connects to nothing: the first call does.
    ///
    /// # Errors
    ///
    /// The system's own if it refuses a thread.
    ///
    /// # Panics
    ///
    /// If `workers` is 0.
    pub fn open(
        location: &MooncakeLocation,
        companion: Arc<dyn Tier>,
        connect: Arc<Connect>,
        workers: u32,
        clock: &Arc<dyn Clock>,
    ) -> Result<Self, IoError> {
        let lanes = TierLanes::start(workers, QUEUE, Arc::clone(clock))?;
        let shared = Arc::new(Shared {
            client: LateClient::new(location.clone(), connect, Arc::clone(clock)),
            companion,
            prefix: location.prefix.clone(),
            own: OwnPacks::default(),
            clock: Arc::clone(clock),
            look: Mutex::new(clock.now().after(LOOK_AFTER)),
        });
        let tier = Self { shared, files: FileNames::default(), workers, lanes };
        // So that it is connected when somebody reads. A failure is logged, and the next call tries again.
        let shared = Arc::clone(&tier.shared);
        tier.lanes.spawn(move |_| drop(shared.client.get(Duration::ZERO)));
        Ok(tier)
    }

    /// Runs a call on a thread, and answers it.
    fn answer<T: Send + 'static>(
        &self,
        ask: Ask<T>,
        call: impl FnOnce(&Shared, Duration) -> Result<T, IoError> + Send + 'static,
    ) {
        let (shared, deadline) = (Arc::clone(&self.shared), ask.deadline);
        self.lanes.answer(ask, move || {
            let left = deadline.remaining(shared.clock.now()).unwrap_or(LONGEST_WAIT);
            call(&shared, left)
        });
    }

    /// Looks at some packs, if that was not done for a while.
    fn look_at_times(&self) {
        let now = self.shared.clock.now();
        let mut look = self.shared.look.lock();
        if now < *look || !self.shared.client.is_connected() {
            return;
        }
        *look = now.after(LOOK_AFTER);
        drop(look);
        let shared = Arc::clone(&self.shared);
        self.lanes.spawn(move |permission| {
            if permission.is_ok() {
                shared.look_for_lost();
            }
        });
    }
}

impl Shared {
    fn key(&self, name: ObjectName) -> String {
        format!("{}/{name}", self.prefix)
    }

    fn client(&self, operation: &'static str, name: &str) -> Result<Arc<dyn Client>, IoError> {
        self.client.get(CONNECT_LIMIT).map_err(|error| error.to_io(operation, name))
    }

    /// The size of a pack in the cluster.
    fn size(&self, operation: &'static str, name: ObjectName) -> Result<Option<u64>, IoError> {
        Ok(self.sizes(operation, &[name])?.into_iter().next().flatten())
    }

    fn sizes(
        &self,
        operation: &'static str,
        names: &[ObjectName],
    ) -> Result<Vec<Option<u64>>, IoError> {
        let mut sizes = Vec::with_capacity(names.len());
        for names in names.chunks(ASKED_TOGETHER) {
            let keys: Vec<String> = names.iter().map(|name| self.key(*name)).collect();
            let folder = names[0].folder();
            let asked = self.client(operation, &folder)?.sizes(&keys);
            sizes.extend(asked.map_err(|error| error.to_io(operation, &folder))?);
        }
        Ok(sizes)
    }

    fn publish(&self, name: ObjectName, bytes: &[Memory], left: Duration) -> Result<(), IoError> {
        let text = name.to_string();
        let client = self.client("publish", &text)?;
        if self.size("publish", name)?.is_some() {
            return Err(IoError::exists("publish", text));
        }
        let marked =
            wait_for(&self.clock, left, |ask| self.companion.publish(name, Vec::new(), ask));
        match marked {
            // An earlier try wrote it, or the cluster lost the pack.
            Err(error) if !error.is_exists() => return Err(error),
            _ => {}
        }
        let deadline = Deadline::At(self.clock.now().after(left));
        client.put(&self.key(name), bytes).map_err(|error| error.to_io("publish", &text))?;
        if deadline.expired(self.clock.now()) {
            // The caller gave up, and may have removed it before it was there.
            client.remove(&self.key(name)).map_err(|error| error.to_io("remove", &text))?;
            return Err(IoError::Stopped(Stopped::Deadline));
        }
        self.own.note_published(name, bytes.iter().map(|piece| piece.len() as u64).sum());
        Ok(())
    }

    fn fetch(&self, name: ObjectName, limit: u64) -> Result<Vec<u8>, IoError> {
        let text = name.to_string();
        let size = self.size("read", name)?.ok_or_else(|| IoError::not_found("read", &text))?;
        if size > limit {
            return Err(IoError::too_large("read", text));
        }
        let bytes = usize::try_from(size).expect("64-bit addresses");
        if bytes == 0 {
            return Ok(Vec::new());
        }
        let mut memory = [Memory::zeroed(bytes)];
        let read = self.client("read", &text)?.get(&self.key(name), 0, &mut memory);
        read.map_err(|error| error.to_io("read", &text))?;
        Ok(memory[0].as_slice().to_vec())
    }

    fn remove(&self, name: ObjectName, left: Duration) -> Result<(), IoError> {
        let text = name.to_string();
        match self.client("remove", &text)?.remove(&self.key(name)) {
            Err(error) if !error.is_missing() => return Err(error.to_io("remove", &text)),
            _ => {}
        }
        self.own.note_removed(name);
        wait_for(&self.clock, left, |ask| self.companion.remove(name, ask))
    }

    /// Removes the markers of packs that the cluster lost, and then the folder.
    fn remove_writer(&self, writer: WriterId, left: Duration) -> Result<(), IoError> {
        let deadline = Deadline::At(self.clock.now().after(left));
        let remaining = || deadline.remaining(self.clock.now()).unwrap_or_default();
        let listed =
            wait_for(&self.clock, remaining(), |ask| self.companion.list(writer, None, ask))?;
        let markers: Vec<ObjectName> = markers(writer, &listed).collect();
        for (marker, size) in markers.iter().zip(self.sizes("remove", &markers)?) {
            if size.is_none() {
                wait_for(&self.clock, remaining(), |ask| self.companion.remove(*marker, ask))?;
            }
        }
        wait_for(&self.clock, remaining(), |ask| self.companion.remove_writer(writer, ask))
    }

    fn list(
        &self,
        writer: WriterId,
        after: Option<Object>,
        left: Duration,
    ) -> Result<Vec<Listed>, IoError> {
        let mut listed =
            wait_for(&self.clock, left, |ask| self.companion.list(writer, after, ask))?;
        let known = |name: &ObjectName| self.own.known(*name);
        let unknown: Vec<ObjectName> =
            markers(writer, &listed).filter(|name| known(name) == Known::Unknown).collect();
        let mut asked = self.sizes("list", &unknown)?.into_iter();
        listed.retain_mut(|one| {
            if !one.object.is_pack() {
                return true;
            }
            let name = writer.object(one.object);
            let bytes = match unknown.binary_search(&name) {
                Ok(_) => asked.next().flatten(),
                Err(_) => match known(&name) {
                    Known::There(bytes) => Some(bytes),
                    Known::Lost | Known::Unknown => None,
                },
            };
            one.bytes = bytes.unwrap_or(0);
            bytes.is_some()
        });
        Ok(listed)
    }

    /// Finds out which of the packs that were published here the cluster lost: a few, unless most of those are lost.
    fn look_for_lost(&self) {
        let mut looked = 0;
        loop {
            let sample = self.own.next_sample();
            let Ok(sizes) = self.sizes("look", &sample) else { return };
            let of_size = sample.iter().zip(sizes);
            let lost: Vec<ObjectName> =
                of_size.filter(|(_, size)| size.is_none()).map(|(name, _)| *name).collect();
            self.own.note_lost(&lost);
            looked += lost.len();
            if lost.len() * 2 <= sample.len() {
                break;
            }
        }
        if looked > 0 {
            tracing::info!(packs = looked, "the Mooncake cluster lost packs of this store");
        }
    }

    /// Reads into the memory of a request.
    fn read(&self, name: ObjectName, request: &mut Request) -> Result<(), IoError> {
        let text = name.to_string();
        let client = self.client("read", &text)?;
        let (offset, expected) = (request.offset, request.bytes());
        match client.get(&self.key(name), offset, &mut request.memory) {
            Ok(()) => Ok(()),
            Err(error) if error.is_invalid() => match self.size("read", name)? {
                Some(size) if size < offset + expected => {
                    let (operation, got) = ("read", size.saturating_sub(offset).min(expected));
                    Err(IoError::Short { operation, file: text, expected, got })
                }
                _ => Err(error.to_io("read", &text)),
            },
            Err(error) => Err(error.to_io("read", &text)),
        }
    }
}

/// The markers of a sorted listing.
fn markers(writer: WriterId, listed: &[Listed]) -> impl Iterator<Item = ObjectName> {
    listed.iter().filter(|one| one.object.is_pack()).map(move |one| writer.object(one.object))
}

impl Source for MooncakeTier {
    /// See [`Source::submit`].
    ///
    /// # Panics
    ///
    /// If a request is not a read, or fails [`Request::check`]. Nothing is submitted then.
    fn submit(&self, requests: Vec<Request>) {
        for request in &requests {
            assert_eq!(request.operation, Operation::Read, "a tier is read with requests");
            request.check();
        }
        for mut request in requests {
            let name = match self.files.get(request.file) {
                Ok(name) => name,
                Err(error) => {
                    request.complete(Err(error));
                    continue;
                }
            };
            let shared = Arc::clone(&self.shared);
            self.lanes.read(request.deadline, move |permission| {
                let result = permission.and_then(|()| {
                    let read = AssertUnwindSafe(|| shared.read(name, &mut request));
                    catch_unwind(read)
                        .unwrap_or_else(|_| Err(IoError::panicked("read", name.to_string())))
                });
                request.complete(result);
            });
        }
    }

    fn geometry(&self) -> Geometry {
        let places = self.workers as usize;
        Geometry { memory_align: 1, engine: "mooncake", direct: false, places }
    }
}

impl Tier for MooncakeTier {
    fn facts(&self) -> TierFacts {
        let companion = self.shared.companion.facts();
        let state = match companion.state {
            TierState::Open if !self.shared.client.is_connected() => TierState::Opening,
            state => state,
        };
        let reopened = companion.reopened + self.shared.own.losses();
        let (name, workers) = ("mooncake", self.workers);
        let idle_poll = companion.idle_poll;
        TierFacts { name, workers, most_reads: workers, idle_poll, state, reopened }
    }

    fn file(&self, name: ObjectName) -> FileId {
        self.files.add(name)
    }

    fn forget(&self, file: FileId) {
        self.files.forget(file);
    }

    fn publish(&self, name: ObjectName, bytes: Vec<Memory>, ask: Ask<()>) {
        if !name.object.is_pack() {
            return self.shared.companion.publish(name, bytes, ask);
        }
        self.answer(ask, move |shared, left| shared.publish(name, &bytes, left));
    }

    fn fetch(&self, name: ObjectName, limit: u64, ask: Ask<Vec<u8>>) {
        if !name.object.is_pack() {
            return self.shared.companion.fetch(name, limit, ask);
        }
        self.answer(ask, move |shared, _| shared.fetch(name, limit));
    }

    fn remove(&self, name: ObjectName, ask: Ask<()>) {
        if !name.object.is_pack() {
            return self.shared.companion.remove(name, ask);
        }
        self.answer(ask, move |shared, left| shared.remove(name, left));
    }

    fn remove_writer(&self, writer: WriterId, ask: Ask<()>) {
        self.answer(ask, move |shared, left| shared.remove_writer(writer, left));
    }

    fn removals(&self, ask: Ask<Vec<(ObjectName, u64)>>) {
        self.shared.companion.removals(ask);
    }

    fn now(&self, ask: Ask<Duration>) {
        self.shared.companion.now(ask);
    }

    fn removals_changed(&self, ask: Ask<Duration>) {
        self.shared.companion.removals_changed(ask);
    }

    fn writers(&self, ask: Ask<Vec<WriterId>>) {
        self.look_at_times();
        self.shared.companion.writers(ask);
    }

    fn list(&self, writer: WriterId, after: Option<Object>, ask: Ask<Vec<Listed>>) {
        if after.is_some_and(|after| after >= Object::LAST_PACK) {
            return self.shared.companion.list(writer, after, ask);
        }
        self.answer(ask, move |shared, left| shared.list(writer, after, left));
    }

    fn age(&self, name: ObjectName, ask: Ask<Duration>) {
        self.shared.companion.age(name, ask);
    }

    fn writer_age(&self, writer: WriterId, ask: Ask<Duration>) {
        self.shared.companion.writer_age(writer, ask);
    }

    fn space(&self, ask: Ask<Space>) {
        let space = Space { free_bytes: ASSUMED_BYTES, total_bytes: ASSUMED_BYTES };
        self.answer(ask, move |_, _| Ok(space));
    }
}
