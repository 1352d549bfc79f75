//! One connection of a client, without its socket: a message comes in, an answer goes out.
//!
//! 1. Nothing that a client sends panics or blocks for longer than its own terms. A malformed message ends the session.
//! 2. Numbers of leases, offsets and counts from a client are checked before they are used. Leases belong to the
//!    account of its process, so a client can end only its own.
//! 3. A block of a put is copied out of the client's memory once, before anything looks at it, and counts only if the
//!    client still wanted it then.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use dalsegno_core::{Clock, Deadline};
use dalsegno_io::{IoError, SealedFile};
use dalsegno_store::{
    ChainHash, Compression, Error, ErrorKind, Memory, Namespace, NamespaceId, Pool, PoolBlock,
    PutOutcome, RegisterOptions, RemovalWatch, Result, Scope, Terms, format_bytes,
};

use crate::account::{Account, COPY_LEASE, Grant, Kind, NO_LEASE, SessionSlot};
use crate::acquire::{Parties, ReadAhead, Wanted, acquire};
use crate::wire::{
    self, Look, MOST_FRAME_BYTES, Malformed, OLDEST_VERSION, PlaceRow, Reply, Request, VERSION,
};

/// Most removals that wait for a connection: 48 bytes each.
const MOST_WATCHED: usize = 1 << 18;
/// Most removals of one answer.
const MOST_REMOVALS: usize = MOST_FRAME_BYTES / 64;

/// What the server does with a message.
#[derive(Debug)]
pub(crate) enum Answer {
    /// Send this frame, with a descriptor of the arena if `with_arena`.
    Send { bytes: Vec<u8>, with_arena: bool },
    /// Send nothing.
    Nothing,
    /// Close the connection.
    End(Malformed),
}

/// A connection of a client.
#[derive(Debug)]
pub(crate) struct Session {
    pool: Pool,
    /// How long a request waits for the client's own leases to end.
    patience: Duration,
    clock: Arc<dyn Clock>,
    slot: SessionSlot,
    state: State,
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
    watch: Option<RemovalWatch>,
    ahead: ReadAhead,
}

/// An answer to a request, before it is encoded.
enum Outgoing {
    Reply(Reply),
    /// With a tail.
    Tailed(Reply, Vec<u8>),
    Nothing,
}

/// Why a request has no ordinary answer.
enum Trouble {
    Malformed(Malformed),
    Failed(Error),
}

impl From<Malformed> for Trouble {
    fn from(malformed: Malformed) -> Self {
        Self::Malformed(malformed)
    }
}

impl From<Error> for Trouble {
    fn from(error: Error) -> Self {
        Self::Failed(error)
    }
}

type Handled = std::result::Result<Outgoing, Trouble>;

impl Session {
    pub(crate) fn new(pool: Pool, clock: Arc<dyn Clock>, slot: SessionSlot) -> Self {
        Self { pool, patience: COPY_LEASE, clock, slot, state: State::New }
    }

    /// The same session, whose requests wait for nothing.
    pub(crate) fn impatient(self) -> Self {
        Self { patience: Duration::ZERO, ..self }
    }

    /// Counts a message that was too malformed to be handled.
    pub(crate) fn note_malformed(&self) {
        self.slot.accounts().note_malformed();
    }

    /// Handles one message of the client.
    pub(crate) fn handle(&mut self, bytes: &[u8], descriptors: Vec<OwnedFd>) -> Answer {
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
        let mut bytes = wire::encode(&reply);
        bytes.extend_from_slice(&tail);
        Answer::Send { bytes, with_arena }
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
        let call = Exchange { pool, account: self.slot.account(), tail };
        match request {
            Request::Hello { .. } => Err(Malformed("a second hello").into()),
            Request::Register { encoding, codec } => call.register(&encoding, codec),
            Request::Namespaces { skip } => call.namespaces(skip as usize),
            Request::Look { namespace, how } => call.look(NamespaceId(namespace), how),
            Request::Acquire { namespace, each, timeout_ns } => {
                let after = |timeout| Deadline::At(self.clock.now().after(timeout));
                let wanted = Wanted {
                    namespace: NamespaceId(namespace),
                    hashes: wire::hashes_of(tail)?,
                    scope: if each { Scope::Each } else { Scope::Prefix },
                    deadline: timeout_ns.map(Duration::from_nanos).map_or(Deadline::Never, after),
                };
                let parties = Parties { pool, account: call.account, clock: &*self.clock };
                let (reply, tail) = acquire(parties, &mut greeted.ahead, wanted, patience)?;
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
            Request::Put { namespace, first, count, offset, ticket, timeout_ns } => {
                let Some(window) = &greeted.window else {
                    return Err(Malformed("a put without a window").into());
                };
                let put = PutRequest { first, count, offset, ticket };
                call.put(NamespaceId(namespace), put, window, &terms_of(timeout_ns))
            }
            Request::Remove { namespace, all, timeout_ns } => {
                call.remove(NamespaceId(namespace), all, &terms_of(timeout_ns))
            }
            Request::Stats => Ok(call.stats()),
            Request::Watch { capacity } => {
                let capacity = usize::try_from(capacity).unwrap_or(usize::MAX).min(MOST_WATCHED);
                greeted.watch = Some(self.pool.store().watch_removals(capacity)?);
                Ok(Outgoing::Reply(Reply::Done))
            }
            Request::Take { limit } => greeted.take(limit),
            Request::Waiting => Ok(count(greeted.watch()?.waiting() as u64)),
        }
    }
}

impl Greeted {
    fn watch(&self) -> std::result::Result<&RemovalWatch, Trouble> {
        self.watch.as_ref().ok_or_else(|| Malformed("removals without a watch").into())
    }

    fn take(&self, limit: u32) -> Handled {
        let limit = usize::try_from(limit).unwrap_or(usize::MAX).min(MOST_REMOVALS);
        let removals = self.watch()?.take(limit);
        let mut tail = Vec::new();
        wire::push_removals(&mut tail, &removals.blocks);
        Ok(Outgoing::Tailed(Reply::Removals { complete: removals.is_complete }, tail))
    }
}

/// A request under way.
struct Exchange<'a> {
    pool: &'a Pool,
    account: &'a Arc<Account>,
    tail: &'a [u8],
}

/// The numbers of a put.
#[derive(Clone, Copy)]
struct PutRequest {
    first: u32,
    count: u32,
    offset: u64,
    ticket: u64,
}

impl Exchange<'_> {
    fn register(&self, encoding: &[u8], codec: Option<(String, u32)>) -> Handled {
        let namespace = Namespace::decode(encoding)?;
        let compression =
            codec.map(|(name, element_bytes)| Compression::parse(&name, element_bytes));
        let options = RegisterOptions { compression: compression.transpose()? };
        let (block, pool) = (namespace.layout().block_bytes(), self.pool.usage()?.capacity_bytes);
        if block > pool {
            return Err(Trouble::Failed(Error::invalid(format!(
                "a block has {}, and the pool of the server {}; give the server a larger one (--pool)",
                format_bytes(block),
                format_bytes(pool)
            ))));
        }
        self.pool.store().register(&namespace, options)?;
        Ok(Outgoing::Reply(Reply::Done))
    }

    fn namespaces(&self, skip: usize) -> Handled {
        let mut encodings = Vec::new();
        let mut bytes = 0;
        for namespace in self.pool.store().namespaces()?.into_iter().skip(skip) {
            let encoding = namespace.encode();
            bytes += encoding.len() + size_of::<u32>();
            if bytes > MOST_FRAME_BYTES / 2 {
                break;
            }
            encodings.push(encoding);
        }
        Ok(Outgoing::Reply(Reply::Namespaces { encodings }))
    }

    fn look(&self, namespace: NamespaceId, how: Look) -> Handled {
        let (store, hashes) = (self.pool.store(), wire::hashes_of(self.tail)?);
        let flags = match how {
            Look::Probe => return Ok(count(store.probe(namespace, &hashes)? as u64)),
            Look::Touch => return Ok(count(store.touch(namespace, &hashes)? as u64)),
            Look::Contains => store.contains(namespace, &hashes)?,
            Look::Peek => store.peek(namespace, &hashes)?,
            Look::Locate => {
                let located = wire::located_bytes(&store.locate(namespace, &hashes)?);
                return Ok(Outgoing::Tailed(Reply::Located, located));
            }
        };
        Ok(Outgoing::Tailed(Reply::Flags, flags.into_iter().map(u8::from).collect()))
    }

    fn lease(&self, namespace: NamespaceId, terms: &Terms) -> Handled {
        let hashes = wire::hashes_of(self.tail)?;
        let block_bytes = self.pool.place_bytes(namespace)?;
        let grant = self.account.grant(Kind::View, block_bytes.saturating_mul(hashes.len() as u64));
        let most = usize::try_from(grant.bytes() / block_bytes).unwrap_or(usize::MAX);
        let asked = &hashes[..hashes.len().min(most)];
        let lease = self.pool.store().lease(namespace, asked, terms)?;
        let mut tail = Vec::new();
        for (unit, stamp) in lease.places() {
            wire::push_row(&mut tail, PlaceRow { unit, stamp });
        }
        // Whether a further block is there is asked only if nothing else ended the lease.
        let is_cut = lease.len() == asked.len()
            && hashes.get(asked.len()).is_some_and(|hash| self.has(namespace, *hash));
        let truncated = lease.is_truncated() || is_cut;
        let lease = if lease.is_empty() {
            NO_LEASE
        } else {
            let bytes = block_bytes * lease.len() as u64;
            grant.hold_view(lease, bytes)
        };
        Ok(Outgoing::Tailed(Reply::Leased { lease, truncated }, tail))
    }

    fn has(&self, namespace: NamespaceId, hash: ChainHash) -> bool {
        self.pool.store().peek(namespace, &[hash]).is_ok_and(|found| found == [true])
    }

    fn put(
        &self,
        namespace: NamespaceId,
        PutRequest { first, count, offset, ticket }: PutRequest,
        window: &SealedFile,
        terms: &Terms,
    ) -> Handled {
        let (chain, arrival) = (wire::hashes_of(self.tail)?, self.pool.arrival()?);
        let (mut first, mut left) = (first as usize, count as usize);
        if first.checked_add(left).is_none_or(|end| end > chain.len()) {
            return Err(Malformed("a put behind the end of its chain").into());
        }
        let block_bytes = self.pool.block_bytes(namespace)?;
        let bytes =
            block_bytes.checked_mul(u64::from(count)).and_then(|all| all.checked_add(offset));
        if bytes.is_none_or(|end| end > window.bytes()) {
            return Err(Malformed("a put behind the end of its window").into());
        }
        let (mut offset, mut outcomes) = (offset, Vec::with_capacity(left));
        while left > 0 {
            let grant = self.account.grant(Kind::Copy, block_bytes.saturating_mul(left as u64));
            let now = blocks_in(&grant, block_bytes).min(left);
            let blocks = self.receive(window, offset, block_bytes, now)?;
            if ticket_of(window)? != ticket {
                // The client gave up, and may have written other bytes meanwhile.
                outcomes.resize(count as usize, PutOutcome::Failed);
                break;
            }
            let report = self.pool.put(arrival, namespace, (&chain, first), blocks, terms)?;
            outcomes.extend(report.outcomes);
            (first, left, offset) = (first + now, left - now, offset + now as u64 * block_bytes);
        }
        let tail = outcomes.into_iter().map(|one: PutOutcome| wire::put_outcome_byte(one));
        Ok(Outgoing::Tailed(Reply::Put, tail.collect()))
    }

    /// Copies blocks out of the client's memory.
    fn receive(
        &self,
        window: &SealedFile,
        offset: u64,
        block_bytes: u64,
        count: usize,
    ) -> Result<Vec<PoolBlock>> {
        let bytes = usize::try_from(block_bytes).expect("64-bit addresses");
        let read = |at: usize| {
            let from = offset + at as u64 * block_bytes;
            self.pool.receive(bytes, |memory| window.read_at(from, memory).map_err(not_read))
        };
        (0..count).map(read).collect()
    }

    fn remove(&self, namespace: NamespaceId, all: bool, terms: &Terms) -> Handled {
        let hashes = wire::hashes_of(self.tail)?;
        let hashes = if all { None } else { Some(hashes.as_slice()) };
        Ok(count(self.pool.store().remove(namespace, hashes, terms)?))
    }

    fn stats(&self) -> Outgoing {
        let stats = serde_json::to_string(&self.pool.store().stats()).expect("plain fields");
        Outgoing::Reply(Reply::Stats { stats })
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

fn window_of(descriptors: Vec<OwnedFd>) -> std::result::Result<SealedFile, Trouble> {
    let file = descriptors.into_iter().next().ok_or(Malformed("a window without a descriptor"))?;
    Ok(SealedFile::new(file).map_err(not_read)?)
}

/// The ticket of a window now.
fn ticket_of(window: &SealedFile) -> Result<u64> {
    let mut memory = Memory::zeroed(size_of::<u64>());
    window.read_at(0, &mut memory).map_err(not_read)?;
    Ok(u64::from_le_bytes(*memory.as_slice().first_chunk().expect("eight bytes")))
}

fn not_read(error: IoError) -> Error {
    Error::invalid("the memory that the client gave cannot be read").with_source(error)
}

fn terms_of(timeout_ns: Option<u64>) -> Terms {
    Terms { timeout: timeout_ns.map(Duration::from_nanos), cancel: None }
}

fn count(count: u64) -> Outgoing {
    Outgoing::Reply(Reply::Count { count })
}

/// How many blocks fit into a grant; one always does, so that every put goes on.
fn blocks_in(grant: &Grant, block_bytes: u64) -> usize {
    usize::try_from(grant.bytes() / block_bytes).unwrap_or(usize::MAX).max(1)
}
