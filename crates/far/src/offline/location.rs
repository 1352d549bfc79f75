//! Calls of a tier for programs that look at a location: each waits for its reply, for a bounded time.

use std::sync::Arc;
use std::time::Duration;

use dalsegno_core::{Class, Clock, Deadline, Stopped, StoreId};
use dalsegno_io::{IoError, Memory, Operation, Purpose, Request};
use serde::Serialize;

use crate::format::MAX_PACK_BYTES;
use crate::names::{Object, ObjectName, WriterId};
use crate::replies::{Replies, wait_for};
use crate::signs::{DEAD_AFTER, SILENT_AFTER};
use crate::tier::{Ask, Listed, Tier};

/// Longest wait for one reply.
const LIMIT: Duration = Duration::from_secs(30);
/// Bytes of one request.
const REQUEST_BYTES: usize = 1 << 20;
/// Objects that are fetched at a time. The largest has 16 MiB.
const FETCHES: usize = 8;

/// Whether a writer runs, by its last sign of life.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum WriterState {
    /// It gave a sign of life within [`SILENT_AFTER`].
    Live,
    /// Its store is closed, or its host does not reach the location.
    Silent,
    /// It is silent, and its store gave a sign of life through a later open within [`DEAD_AFTER`]. Its packs are in
    /// use.
    Earlier,
    /// It gave none for [`DEAD_AFTER`], and has no packs or is of a store that gave none, either.
    Dead,
    /// Its age cannot be found out.
    Unknown,
}

/// A writer as a look at the location found it.
#[derive(Debug)]
pub(super) struct SeenWriter {
    pub(super) writer: WriterId,
    /// Sorted.
    pub(super) objects: Vec<Listed>,
    /// The time since its last sign of life; `None` if it cannot be found out, or there are no objects.
    pub(super) age: Option<Duration>,
    pub(super) state: WriterState,
    /// Why the folder cannot be listed, if it belongs to another user.
    pub(super) refused: Option<IoError>,
}

impl WriterState {
    /// The state of a writer whose last sign of life has this age, if it is the only one of its store.
    fn of_one(age: Option<Duration>) -> Self {
        match age {
            None => Self::Unknown,
            Some(age) if age < SILENT_AFTER => Self::Live,
            Some(age) if age < DEAD_AFTER => Self::Silent,
            Some(_) => Self::Dead,
        }
    }
}

impl SeenWriter {
    /// The number of its packs.
    pub(super) fn packs(&self) -> u64 {
        let is_pack = |listed: &&Listed| listed.object.is_pack();
        self.objects.iter().filter(is_pack).count() as u64
    }
}

/// A far location that is looked at.
#[derive(Clone, Debug)]
pub struct Location {
    pub(super) tier: Arc<dyn Tier>,
    pub(super) clock: Arc<dyn Clock>,
}

impl Location {
    /// The location behind a tier.
    #[must_use]
    pub fn new(tier: Arc<dyn Tier>, clock: Arc<dyn Clock>) -> Self {
        Self { tier, clock }
    }

    /// Makes a call and waits for its reply.
    pub(super) fn call<T>(&self, call: impl FnOnce(&dyn Tier, Ask<T>)) -> Result<T, IoError> {
        wait_for(&self.clock, LIMIT, |ask| call(self.tier.as_ref(), ask))
    }

    pub(super) fn writers(&self) -> Result<Vec<WriterId>, IoError> {
        self.call(|tier, ask| tier.writers(ask))
    }

    pub(super) fn list(&self, writer: WriterId) -> Result<Vec<Listed>, IoError> {
        self.call(|tier, ask| tier.list(writer, None, ask))
    }

    /// Looks at all writers, or at those of a store, in the order of their names. Decides their states.
    pub(super) fn look(&self, store: Option<StoreId>) -> Result<Vec<SeenWriter>, IoError> {
        let mut seen = Vec::new();
        for writer in self.writers()? {
            if store.is_some_and(|store| store != writer.store) {
                continue;
            }
            let (objects, refused) = match self.list(writer) {
                Ok(objects) => (objects, None),
                Err(error) if error.is_of_object() => (Vec::new(), Some(error)),
                Err(error) => return Err(error),
            };
            let age = self.silent_for(writer, &objects);
            let state = WriterState::of_one(age);
            seen.push(SeenWriter { writer, objects, age, state, refused });
        }
        for of_store in seen.chunk_by_mut(|one, next| one.writer.store == next.writer.store) {
            self.find_earlier(of_store);
        }
        Ok(seen)
    }

    /// Finds the silent writers of a store whose packs stay, because the store lived longer through another open.
    fn find_earlier(&self, of_store: &mut [SeenWriter]) {
        let signs: Vec<Option<Duration>> =
            of_store.iter().map(|one| self.last_change(one)).collect();
        for (at, one) in of_store.iter_mut().enumerate() {
            let is_silent = matches!(one.state, WriterState::Silent | WriterState::Dead);
            let lives_after_it = |(other, sign): (usize, &Option<Duration>)| {
                let is_later = sign.is_none() || *sign < one.age;
                other != at && is_later && WriterState::of_one(*sign) != WriterState::Dead
            };
            if is_silent && one.packs() > 0 && signs.iter().enumerate().any(lives_after_it) {
                one.state = WriterState::Earlier;
            }
        }
    }

    /// The time since a writer gave a sign of life, or since its folder changed if it has no objects.
    fn last_change(&self, one: &SeenWriter) -> Option<Duration> {
        if one.objects.is_empty() {
            return self.call(|tier, ask| tier.writer_age(one.writer, ask)).ok();
        }
        one.age
    }

    pub(super) fn fetch(&self, name: ObjectName, limit: u64) -> Result<Vec<u8>, IoError> {
        self.call(|tier, ask| tier.fetch(name, limit, ask))
    }

    /// Whether an object is there now.
    pub(super) fn has(&self, name: ObjectName) -> Result<bool, IoError> {
        let after = self.list(name.writer)?;
        Ok(after.iter().any(|listed| listed.object == name.object))
    }

    /// Fetches objects, several at a time, and passes each to `each` in the order of arrival.
    pub(super) fn fetch_each(
        &self,
        names: &[ObjectName],
        limit: u64,
        mut each: impl FnMut(ObjectName, Result<Vec<u8>, IoError>),
    ) {
        let replies = Replies::new(&self.clock);
        let (mut next, mut arrived) = (0, vec![false; names.len()]);
        let mut in_flight = 0;
        while next < names.len() || in_flight > 0 {
            while next < names.len() && in_flight < FETCHES {
                self.tier.fetch(names[next], limit, replies.ask(next as u64, LIMIT));
                (next, in_flight) = (next + 1, in_flight + 1);
            }
            let Some(reply) = replies.next(Deadline::At(self.clock.now().after(LIMIT))) else {
                break;
            };
            let at = usize::try_from(reply.tag).expect("a position");
            arrived[at] = true;
            in_flight -= 1;
            each(names[at], reply.result);
        }
        for (at, name) in names.iter().enumerate() {
            if !arrived[at] {
                each(*name, Err(IoError::Stopped(Stopped::Deadline)));
            }
        }
    }

    /// Reads a whole pack with the requests by which stores read parts of it.
    pub(super) fn read_pack(&self, name: ObjectName, bytes: u64) -> Result<Vec<u8>, IoError> {
        assert!(bytes <= MAX_PACK_BYTES, "a pack of {bytes} bytes");
        let total = usize::try_from(bytes).expect("bounded above");
        let file = self.tier.file(name);
        let (reply, replies) = crossbeam_channel::unbounded();
        let deadline = Deadline::At(self.clock.now().after(LIMIT));
        let requests = (0..total).step_by(REQUEST_BYTES).map(|at| Request {
            operation: Operation::Read,
            purpose: Purpose::of(Class::Need),
            file,
            offset: at as u64,
            memory: vec![Memory::zeroed(REQUEST_BYTES.min(total - at))],
            tag: at as u64,
            deadline,
            guard: None,
            watch: None,
            reply: reply.clone(),
        });
        self.tier.submit(requests.collect());
        drop(reply);
        let mut pack = vec![0; total];
        let mut left = total;
        let mut result = Ok(());
        while left > 0 && result.is_ok() {
            let wait = deadline.remaining(self.clock.now()).unwrap_or(LIMIT);
            let Ok(completion) = replies.recv_timeout(wait) else {
                result = Err(IoError::Stopped(Stopped::Deadline));
                break;
            };
            let at = usize::try_from(completion.tag).expect("an offset in a pack");
            let memory = completion.memory.first().map_or(&[][..], |memory| memory.as_slice());
            result = completion.result;
            pack[at..at + memory.len()].copy_from_slice(memory);
            left -= memory.len();
        }
        self.tier.forget(file);
        result.map(|()| pack)
    }

    /// The time since a writer gave a sign of life; `None` if it cannot be found out.
    fn silent_for(&self, writer: WriterId, objects: &[Listed]) -> Option<Duration> {
        // The newest of each kind. Descriptions are older than the packs that need them, unless there are none.
        let newest =
            |of: fn(&Object) -> bool| objects.iter().rev().find(|listed| of(&listed.object));
        let signs = [
            newest(|object| matches!(object, Object::Beat(_))),
            newest(|object| matches!(object, Object::Catalog(_))),
            newest(Object::is_pack),
            newest(|object| matches!(object, Object::Namespace(_))),
        ];
        let age = |listed: &Listed| {
            self.call(|tier, ask| tier.age(writer.object(listed.object), ask)).ok()
        };
        signs.into_iter().flatten().filter_map(age).min()
    }
}
