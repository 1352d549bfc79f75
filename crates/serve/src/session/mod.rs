//! One connection of a client, without its socket: a message comes in, an answer goes out.
//!
//! 1. Nothing that a client sends panics or blocks for longer than its own terms. A malformed message ends the session.
//! 2. Numbers of leases, offsets and counts from a client are checked before they are used. Leases belong to the
//!    account of its process, so a client can end only its own.
//! 3. A block of a put is copied out of the client's memory once, before anything looks at it, and counts only if the
//!    client still wanted it then.

mod exchange;
mod outgoing;

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use dalsegno_core::{Clock, Deadline};
use dalsegno_io::SealedFile;
use dalsegno_store::{
    EngineId, Error, ErrorKind, Keep, NamespaceId, Phase, Pool, RemovalWatch, Result, Scope, Terms,
};

use self::exchange::{Exchange, PutRequest, not_read};
use self::outgoing::{Handled, Outgoing, Trouble, count};
use crate::account::{COPY_LEASE, NO_LEASE, SessionSlot, WatchShare};
use crate::acquire::{Parties, ReadAhead, Wanted, acquire};
use crate::wire::{self, MOST_FRAME_BYTES, Malformed, OLDEST_VERSION, Reply, Request, VERSION};

/// Most removals of one answer.
const MOST_REMOVALS: usize = MOST_FRAME_BYTES / 64;

/// What the server does with a message.
#[derive(Debug)]
pub(crate) enum Answer {
    /// Send this frame, with a descriptor of the arena if `with_arena`. If that fails, `lease` is to be taken back.
    Send { bytes: Vec<u8>, with_arena: bool, lease: u64 },
    /// Send nothing.
    Nothing,
    /// Close the connection.
    End(Malformed),
    /// Close the connection: its place was given to another one before the message came.
    TakenOver,
}

/// How long requests wait for what others of the client's process hold.
#[derive(Clone, Copy, Debug)]
struct Patience {
    /// A get waits for leases to end.
    get: Duration,
    /// A put without a timeout waits for leases and puts.
    put: Duration,
}

impl Patience {
    const USUAL: Self = Self { get: COPY_LEASE, put: Duration::from_secs(30) };
    const NONE: Self = Self { get: Duration::ZERO, put: Duration::ZERO };
}

/// A connection of a client.
#[derive(Debug)]
pub(crate) struct Session {
    pool: Pool,
    patience: Patience,
    clock: Arc<dyn Clock>,
    /// Dropped before the slot, whose account it uses.
    state: State,
    slot: SessionSlot,
}

#[derive(Debug)]
enum State {
    /// Nothing came yet.
    New,
    /// The client and the server understand each other.
    Greeted(Box<Greeted>),
}

/// What a session has beyond its account.
#[derive(Debug, Default)]
struct Greeted {
    window: Option<SealedFile>,
    watch: Option<Watched>,
    ahead: ReadAhead,
}

/// A watch of removals, and its part of what the server notes.
#[derive(Debug)]
struct Watched {
    removals: RemovalWatch,
    _share: WatchShare,
}

impl Session {
    pub(crate) fn new(pool: Pool, clock: Arc<dyn Clock>, slot: SessionSlot) -> Self {
        Self { pool, patience: Patience::USUAL, clock, state: State::New, slot }
    }

    /// The same session, whose requests wait for nothing.
    pub(crate) fn impatient(self) -> Self {
        Self { patience: Patience::NONE, ..self }
    }

    /// Counts a message that was too malformed to be handled.
    pub(crate) fn note_malformed(&self) {
        self.slot.accounts().note_malformed();
    }

    /// The connection of the session in the accounts.
    pub(crate) fn slot(&self) -> &SessionSlot {
        &self.slot
    }

    /// Handles one message of the client. Then the session is busy until [`SessionSlot::rest`].
    pub(crate) fn handle(&mut self, bytes: &[u8], descriptors: Vec<OwnedFd>) -> Answer {
        if !self.slot.begin() {
            return Answer::TakenOver;
        }
        let handled = match wire::decode::<Request>(bytes) {
            Ok((request, tail)) => self.answer(request, tail, descriptors),
            Err(malformed) => Err(malformed.into()),
        };
        let (reply, tail) = match handled {
            Ok(Outgoing::Nothing) => return Answer::Nothing,
            Ok(Outgoing::Reply(reply)) => (reply, Vec::new()),
            Ok(Outgoing::Tailed(reply, tail)) => (reply, tail),
            Err(Trouble::Failed(error)) => (wire::failed(&error), Vec::new()),
            Err(Trouble::Malformed(malformed)) => {
                self.slot.accounts().note_malformed();
                return Answer::End(malformed);
            }
        };
        let with_arena = matches!(reply, Reply::Welcome { .. });
        let lease = match reply {
            Reply::Acquired { lease, .. } | Reply::Leased { lease, .. } => lease,
            _ => NO_LEASE,
        };
        let mut bytes = wire::encode(&reply);
        bytes.extend_from_slice(&tail);
        Answer::Send { bytes, with_arena, lease }
    }

    /// Reads the blocks that the client is about to ask for. Call it when an answer was sent.
    pub(crate) fn read_ahead(&mut self) {
        if let State::Greeted(greeted) = &mut self.state {
            let (account, clock) = (self.slot.account(), &*self.clock);
            greeted.ahead.read(Parties { pool: &self.pool, account, clock });
        }
    }

    fn answer(&mut self, request: Request, tail: &[u8], descriptors: Vec<OwnedFd>) -> Handled {
        let greeted = match (&mut self.state, request) {
            (State::New, Request::Hello { version }) => {
                let welcome = welcome(&self.pool, version)?;
                self.state = State::Greeted(Box::default());
                return Ok(Outgoing::Reply(welcome));
            }
            (State::New, _) => return Err(Malformed("the first message is no hello").into()),
            (State::Greeted(greeted), request) => (greeted, request),
        };
        let (greeted, request) = greeted;
        let (pool, patience) = (&self.pool, self.patience);
        let (account, clock) = (self.slot.account(), &*self.clock);
        let call = Exchange { pool, account, clock, patience: patience.put, tail };
        match request {
            Request::Hello { .. } => Err(Malformed("a second hello").into()),
            Request::Register { encoding, codec } => call.register(&encoding, codec),
            Request::Namespaces { skip } => call.namespaces(skip as usize),
            Request::Look { namespace, how } => call.look(NamespaceId(namespace), how),
            Request::Acquire { namespace, each, timeout_ns } => {
                let wanted = Wanted {
                    namespace: NamespaceId(namespace),
                    hashes: wire::hashes_of(tail)?,
                    scope: if each { Scope::Each } else { Scope::Prefix },
                    deadline: deadline_of(clock, timeout_ns),
                };
                let parties = Parties { pool, account, clock };
                let (reply, tail) = acquire(parties, &mut greeted.ahead, wanted, patience.get)?;
                Ok(Outgoing::Tailed(reply, tail))
            }
            Request::Lease { namespace, timeout_ns } => {
                call.lease(NamespaceId(namespace), &terms_of(timeout_ns))
            }
            Request::Release { leases } => {
                call.account.release(&leases);
                Ok(Outgoing::Nothing)
            }
            Request::Window => {
                greeted.window = Some(window_of(descriptors)?);
                Ok(Outgoing::Reply(Reply::Done))
            }
            Request::Put { namespace, first, count, offset, ticket, timeout_ns, pool_only } => {
                let Some(window) = &greeted.window else {
                    return Err(Malformed("a put without a window").into());
                };
                let keep = if pool_only { Keep::PoolOnly } else { Keep::Stored };
                let put = PutRequest { first, count, offset, ticket, keep };
                call.put(NamespaceId(namespace), put, window, deadline_of(clock, timeout_ns))
            }
            Request::Remove { namespace, all, timeout_ns } => {
                call.remove(NamespaceId(namespace), all, &terms_of(timeout_ns))
            }
            Request::Stats => Ok(call.stats()),
            Request::Watch { capacity } => {
                greeted.watch = None;
                self.slot.set_watch(false);
                let share = self.slot.account().grant_watch(capacity)?;
                let removals = self.pool.store().watch_removals(share.blocks())?;
                greeted.watch = Some(Watched { removals, _share: share });
                self.slot.set_watch(true);
                Ok(Outgoing::Reply(Reply::Done))
            }
            Request::Take { limit } => greeted.take(limit),
            Request::Waiting => Ok(count(greeted.watch()?.waiting() as u64)),
            Request::Phase { engine, phase, slack_ns, steps } => {
                let phase = phase_of(phase, slack_ns)?;
                call.phase(EngineId { process: account.process(), number: engine }, phase, &steps)
            }
        }
    }
}

impl Greeted {
    fn watch(&self) -> std::result::Result<&RemovalWatch, Trouble> {
        let watch = self.watch.as_ref().map(|watch| &watch.removals);
        watch.ok_or_else(|| Malformed("removals without a watch").into())
    }

    fn take(&self, limit: u32) -> Handled {
        let limit = usize::try_from(limit).unwrap_or(usize::MAX).min(MOST_REMOVALS);
        let removals = self.watch()?.take(limit);
        let mut tail = Vec::new();
        wire::push_removals(&mut tail, &removals.blocks);
        Ok(Outgoing::Tailed(Reply::Removals { complete: removals.is_complete }, tail))
    }
}

fn welcome(pool: &Pool, version: u32) -> Result<Reply> {
    if version < OLDEST_VERSION {
        return Err(Error::new(
            ErrorKind::Incompatible,
            format!(
                "the client speaks version {version} and the server {OLDEST_VERSION} to {VERSION}; update the client"
            ),
        ));
    }
    let (store, header) = (pool.store(), pool.header());
    Ok(Reply::Welcome {
        // A client that speaks a newer version and understands this one goes on with it.
        version: version.min(VERSION),
        store: store.id().0,
        epoch: header.epoch,
        arena_bytes: header.arena_bytes() as u64,
        limits: serde_json::to_string(store.limits()).expect("plain fields"),
    })
}

/// What an engine does; `slack_ns` is that of prefill.
fn phase_of(phase: u8, slack_ns: u64) -> std::result::Result<Phase, Malformed> {
    match phase {
        0 => Ok(Phase::Prefill { slack: Duration::from_nanos(slack_ns) }),
        1 => Ok(Phase::Decode),
        2 => Ok(Phase::Idle),
        _ => Err(Malformed("an unknown phase")),
    }
}

fn window_of(descriptors: Vec<OwnedFd>) -> std::result::Result<SealedFile, Trouble> {
    let file = descriptors.into_iter().next().ok_or(Malformed("a window without a descriptor"))?;
    Ok(SealedFile::new(file).map_err(not_read)?)
}

fn deadline_of(clock: &dyn Clock, timeout_ns: Option<u64>) -> Deadline {
    let after = |timeout| Deadline::At(clock.now().after(Duration::from_nanos(timeout)));
    timeout_ns.map_or(Deadline::Never, after)
}

fn terms_of(timeout_ns: Option<u64>) -> Terms {
    Terms { timeout: timeout_ns.map(Duration::from_nanos), cancel: None }
}
