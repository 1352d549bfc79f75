//! Blocks that a client copies: what one answer names, and what is read ahead for the next one.
//!
//! 1. An answer names blocks that stay in their places for [`COPY_LEASE`], of a bounded size. So a large get has
//!    several answers.
//! 2. While the client copies the blocks of an answer, the session reads those of the next one. It reads only blocks
//!    that the client is about to ask for, waits for no space, and stops at the deadline of the request.
//! 3. Blocks that were read ahead answer a request only if their lease still holds, and none of them was removed since
//!    they were looked up.

use std::sync::Arc;
use std::time::Duration;

use dalsegno_core::{Clock, Deadline};
use dalsegno_store::{
    Acquired, Arrival, Cause, ChainHash, NamespaceId, Outcome, Pool, Result, Scope, Terms,
};

use crate::account::{Account, COPY_LEASE, Grant, NO_LEASE, ahead};
use crate::wire::{self, PlaceRow, Reply};

/// Most bytes that one answer keeps in places for a client to copy.
const MOST_ACQUIRED_BYTES: u64 = 64 << 20;
/// The part of what a process may hold that one answer takes at most, as a divisor: its threads get blocks at the same
/// time.
const ANSWER_SHARE: u64 = 4;

/// Blocks that a client wants to copy.
#[derive(Debug)]
pub(crate) struct Wanted {
    pub(crate) namespace: NamespaceId,
    pub(crate) hashes: Vec<ChainHash>,
    pub(crate) scope: Scope,
    pub(crate) deadline: Deadline,
}

/// What a session knows of the next request for blocks to copy.
#[derive(Debug, Default)]
pub(crate) enum ReadAhead {
    #[default]
    Nothing,
    /// The client is about to ask for these.
    Expected(Wanted),
    /// They were read.
    Ready(Prepared),
}

/// An answer to a request that has not come yet. Dropping it frees its places.
#[derive(Debug)]
pub(crate) struct Prepared {
    account: Arc<Account>,
    /// The blocks that it has an outcome for.
    wanted: Wanted,
    answer: Named,
    /// From before they were looked up.
    arrival: Arrival,
}

/// The outcomes of blocks, and where the hits are.
#[derive(Debug)]
struct Named {
    outcomes: Vec<Outcome>,
    rows: Vec<PlaceRow>,
    lease: u64,
}

impl Drop for Prepared {
    fn drop(&mut self) {
        if self.answer.lease != NO_LEASE {
            self.account.release(&[self.answer.lease]);
        }
    }
}

/// The parties of a request.
#[derive(Clone, Copy)]
pub(crate) struct Parties<'a> {
    pub(crate) pool: &'a Pool,
    pub(crate) account: &'a Arc<Account>,
    pub(crate) clock: &'a dyn Clock,
}

impl Parties<'_> {
    /// Most bytes that one answer names.
    fn most_bytes(&self) -> u64 {
        MOST_ACQUIRED_BYTES.min(self.account.most_copy_bytes() / ANSWER_SHARE)
    }

    /// Finds blocks, and keeps them in their places for the client.
    fn find(&self, wanted: &Wanted, grant: Grant) -> Result<Named> {
        let now = self.clock.now();
        let terms = Terms { timeout: wanted.deadline.remaining(now), cancel: None };
        let blocks = (wanted.hashes.as_slice(), wanted.scope);
        let acquired = self.pool.acquire(wanted.namespace, blocks, grant.bytes(), &terms)?;
        Ok(named(acquired, grant, self.clock))
    }
}

/// Records the lease of an answer.
fn named(acquired: Acquired, grant: Grant, clock: &dyn Clock) -> Named {
    let Acquired { outcomes, blocks } = acquired;
    let row = |(unit, stamp)| PlaceRow { unit, stamp };
    let rows: Vec<PlaceRow> = blocks.iter().map(|block| row(block.place())).collect();
    let bytes = blocks.iter().map(dalsegno_store::LeasedBlock::place_bytes).sum();
    let until = clock.now().after(COPY_LEASE);
    let lease = if rows.is_empty() { NO_LEASE } else { grant.hold_copy(blocks, bytes, until) };
    Named { outcomes, rows, lease }
}

/// Answers a request for blocks to copy. It waits at most `patience` for other leases of the process to end.
pub(crate) fn acquire(
    parties: Parties<'_>,
    next: &mut ReadAhead,
    wanted: Wanted,
    patience: Duration,
) -> Result<(Reply, Vec<u8>)> {
    let ready = match std::mem::take(next) {
        ReadAhead::Ready(prepared) => prepared.answer(parties, &wanted),
        ReadAhead::Nothing | ReadAhead::Expected(_) => None,
    };
    let named = if let Some(named) = ready {
        named
    } else {
        let place_bytes = parties.pool.place_bytes(wanted.namespace)?;
        let left = wanted.deadline.remaining(parties.clock.now());
        let patience = left.map_or(patience, |left| left.min(patience));
        match parties.account.grant_copy(parties.most_bytes(), place_bytes, patience) {
            Some(grant) => parties.find(&wanted, grant)?,
            None => throttled(wanted.hashes.len().min(1)),
        }
    };
    let encoded = encode(&named);
    *next = expected(wanted, &named.outcomes);
    Ok(encoded)
}

impl ReadAhead {
    /// Reads the blocks that the client is about to ask for.
    pub(crate) fn read(&mut self, parties: Parties<'_>) {
        let wanted = match std::mem::take(self) {
            Self::Expected(wanted) => wanted,
            other => return *self = other,
        };
        let Ok(place_bytes) = parties.pool.place_bytes(wanted.namespace) else { return };
        // Fewer and larger reads keep the disk busier. An answer that has to come first is smaller.
        let most = MOST_ACQUIRED_BYTES.max(place_bytes);
        let grant = ahead::grant_free(parties.account, most, place_bytes);
        let (Some(grant), Ok(arrival)) = (grant, parties.pool.arrival()) else { return };
        if wanted.deadline.expired(parties.clock.now()) {
            return;
        }
        let Ok(answer) = parties.find(&wanted, grant) else { return };
        let account = Arc::clone(parties.account);
        let mut prepared = Prepared { account, wanted, answer, arrival };
        // The request may find a place for what was lost now.
        if prepared.answer.outcomes.iter().all(|outcome| !outcome.is_lost()) {
            prepared.wanted.hashes.truncate(prepared.answer.outcomes.len());
            *self = Self::Ready(prepared);
        }
    }
}

impl Prepared {
    /// The answer to a request; `None` if it is another request, or blocks were removed or freed meanwhile.
    fn answer(mut self, parties: Parties<'_>, wanted: &Wanted) -> Option<Named> {
        let until = parties.clock.now().after(COPY_LEASE);
        let is_same = wanted.namespace == self.wanted.namespace
            && wanted.scope == self.wanted.scope
            && wanted.hashes.starts_with(&self.wanted.hashes);
        let (namespace, hashes) = (wanted.namespace, self.wanted.hashes.as_slice());
        let stays = is_same
            && ahead::renew(&self.account, self.answer.lease, until)
            && !parties.pool.has_removed(namespace, hashes, self.arrival).unwrap_or(true);
        let none = Named { outcomes: Vec::new(), rows: Vec::new(), lease: NO_LEASE };
        stays.then(|| std::mem::replace(&mut self.answer, none))
    }
}

/// What the client is going to ask for after an answer. It is exact: other requests get an answer of their own.
fn expected(mut wanted: Wanted, outcomes: &[Outcome]) -> ReadAhead {
    let goes_on = |outcome: &Outcome| match wanted.scope {
        Scope::Prefix => outcome.is_hit(),
        Scope::Each => !outcome.is_lost(),
    };
    if !outcomes.iter().all(goes_on) || outcomes.len() >= wanted.hashes.len() {
        return ReadAhead::Nothing;
    }
    wanted.hashes.drain(..outcomes.len());
    ReadAhead::Expected(wanted)
}

fn throttled(blocks: usize) -> Named {
    let outcomes = vec![Outcome::Lost(Cause::Throttled); blocks];
    Named { outcomes, rows: Vec::new(), lease: NO_LEASE }
}

fn encode(named: &Named) -> (Reply, Vec<u8>) {
    let bytes = named.outcomes.iter().map(|outcome| wire::outcome_byte(*outcome));
    let mut tail: Vec<u8> = bytes.collect();
    for row in &named.rows {
        wire::push_row(&mut tail, *row);
    }
    let outcomes = u32::try_from(named.outcomes.len()).expect("at most MOST_HASHES");
    (Reply::Acquired { lease: named.lease, outcomes }, tail)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::account::{Accounts, Bounds};
    use crate::session::{Answer, Session};
    use crate::wire::{Request, VERSION};
    use dalsegno_core::{Config, KvLayout, ManualClock, Namespace};
    use dalsegno_store::{Backing, Memory, Put, RegisterOptions};

    /// Bytes of a block: a unit of the pool.
    const BLOCK: usize = 64 << 10;
    /// Blocks of a chain, and of an answer.
    const BLOCKS: usize = 20;
    const ANSWER: usize = 4;

    /// A session, and a store that has blocks only on its disk.
    struct Talk {
        session: Session,
        accounts: Arc<Accounts>,
        pool: Pool,
        clock: Arc<ManualClock>,
        _folder: tempfile::TempDir,
    }

    fn namespace() -> Namespace {
        let layout = KvLayout::new(1, u32::try_from(BLOCK).unwrap()).unwrap();
        Namespace::builder(layout).field("model", "m").build().unwrap()
    }

    fn chain() -> Vec<ChainHash> {
        (0..BLOCKS).map(|at| ChainHash([u8::try_from(at).unwrap() + 1; 32])).collect()
    }

    impl Talk {
        /// Puts some blocks of the chain into a store, and opens it again.
        fn new(present: impl Fn(usize) -> bool) -> Self {
            let folder = tempfile::tempdir().unwrap();
            let dram = (8 * 4 * ANSWER * BLOCK) as u64;
            let config =
                Config { capacity: Some(256 << 20), dram: Some(dram), ..Config::default() };
            let open = || Pool::open(folder.path(), &config, Backing::MemoryFile).unwrap();
            let (id, pool) = (namespace().id(), open());
            pool.store().register(&namespace(), RegisterOptions::default()).unwrap();
            for (at, hash) in chain().iter().enumerate().filter(|(at, _)| present(*at)) {
                let block = vec![Memory::owned(vec![u8::try_from(at).unwrap(); BLOCK], ())];
                let put = Put { chain: &[*hash], first: 0, blocks: vec![block] };
                pool.store().put_batch(id, put, &Terms::default()).unwrap();
            }
            pool.store().close();
            drop(pool);
            let (pool, clock) = (open(), Arc::new(ManualClock::default()));
            let accounts = Accounts::new(Bounds::of_pool(dram));
            let slot = accounts.open_session(1).unwrap();
            let now: Arc<dyn Clock> = Arc::<ManualClock>::clone(&clock);
            let mut session = Session::new(pool.clone(), now, slot).impatient();
            session.handle(&wire::encode(&Request::Hello { version: VERSION }), Vec::new());
            Self { session, accounts, pool, clock, _folder: folder }
        }

        /// Asks for blocks; returns the outcomes, and the lease.
        fn ask(&mut self, hashes: &[ChainHash], each: bool) -> (Vec<Outcome>, u64) {
            self.ask_within(hashes, each, None)
        }

        fn ask_within(
            &mut self,
            hashes: &[ChainHash],
            each: bool,
            timeout_ns: Option<u64>,
        ) -> (Vec<Outcome>, u64) {
            let namespace = namespace().id().0;
            let mut message = wire::encode(&Request::Acquire { namespace, each, timeout_ns });
            wire::push_hashes(&mut message, hashes);
            let Answer::Send { bytes, .. } = self.session.handle(&message, Vec::new()) else {
                panic!("no answer")
            };
            let (Reply::Acquired { lease, outcomes }, tail) = wire::decode(&bytes).unwrap() else {
                panic!("another answer")
            };
            let outcomes = &tail[..outcomes as usize];
            (outcomes.iter().map(|one| wire::outcome_of(*one).unwrap()).collect(), lease)
        }

        fn release(&mut self, lease: u64) {
            let message = wire::encode(&Request::Release { leases: vec![lease] });
            self.session.handle(&message, Vec::new());
        }

        /// Blocks that were read from the disk.
        fn read(&self) -> u64 {
            self.pool.store().stats().get_log_blocks
        }

        fn leases(&self) -> u64 {
            self.accounts.stats().leases
        }
    }

    #[test]
    fn the_next_answer_is_read_while_the_client_copies() {
        let mut talk = Talk::new(|_| true);
        let (mut at, mut read) = (0, ANSWER);
        while at < BLOCKS {
            let (outcomes, lease) = talk.ask(&chain()[at..], false);
            assert!(outcomes.iter().all(|outcome| *outcome == Outcome::Log), "{outcomes:?}");
            at += outcomes.len();
            assert_eq!((at, talk.read()), (read, read as u64), "each block is read once");
            talk.session.read_ahead();
            read = usize::try_from(talk.read()).unwrap();
            assert!(read >= (at + ANSWER).min(BLOCKS), "{read} blocks read, {at} copied");
            talk.session.read_ahead();
            assert_eq!(talk.read(), read as u64, "one answer ahead");
            talk.release(lease);
        }
        assert_eq!(talk.leases(), 0);
    }

    #[test]
    fn nothing_behind_the_first_miss_of_a_prefix_is_read() {
        let mut talk = Talk::new(|at| at != 6);
        assert_eq!(talk.ask(&chain(), false).0.len(), ANSWER);
        talk.session.read_ahead();
        assert_eq!(talk.read(), 6);
        let (outcomes, _) = talk.ask(&chain()[ANSWER..], false);
        let hits = [Outcome::Log, Outcome::Log, Outcome::Absent];
        assert_eq!(outcomes[..3], hits);
        talk.session.read_ahead();
        assert_eq!(talk.read(), 6, "the client does not ask for more");
    }

    #[test]
    fn each_block_is_read_ahead_behind_a_miss() {
        let mut talk = Talk::new(|at| at % 2 == 0);
        assert_eq!(talk.ask(&chain(), true).0.len(), ANSWER);
        talk.session.read_ahead();
        let read = talk.read();
        assert!(read > 2, "{read} blocks read");
        let (outcomes, _) = talk.ask(&chain()[ANSWER..], true);
        let hits = outcomes.iter().filter(|outcome| outcome.is_hit()).count() as u64;
        assert_eq!((outcomes.len() > ANSWER, 2 + hits, talk.read()), (true, read, read));
        assert_eq!(outcomes[..2], [Outcome::Log, Outcome::Absent]);
    }

    #[test]
    fn blocks_removed_after_they_were_read_ahead_are_misses() {
        for removed in [None, Some([chain()[5]])] {
            let mut talk = Talk::new(|_| true);
            talk.ask(&chain(), false);
            talk.session.read_ahead();
            let (id, terms) = (namespace().id(), Terms::default());
            let hashes = removed.as_ref().map(<[_; 1]>::as_slice);
            talk.pool.store().remove(id, hashes, &terms).unwrap();
            let (outcomes, _) = talk.ask(&chain()[ANSWER..], false);
            let hits = outcomes.iter().filter(|outcome| outcome.is_hit()).count();
            assert_eq!(hits, usize::from(removed.is_some()), "{outcomes:?}");
        }
    }

    #[test]
    fn an_answer_whose_lease_ended_is_found_again() {
        let mut talk = Talk::new(|_| true);
        talk.ask(&chain(), false);
        talk.session.read_ahead();
        assert_eq!(talk.leases(), 2);
        talk.clock.advance(COPY_LEASE);
        talk.accounts.lapse(talk.clock.now());
        assert_eq!(talk.leases(), 0);
        let (outcomes, lease) = talk.ask(&chain()[ANSWER..], false);
        assert!(outcomes.len() == ANSWER && outcomes.iter().all(|outcome| outcome.is_hit()));
        assert!(lease != NO_LEASE && talk.leases() == 1);
    }

    #[test]
    fn an_answer_that_was_read_ahead_lasts_as_long_as_another_one() {
        let mut talk = Talk::new(|_| true);
        talk.ask(&chain(), false);
        talk.session.read_ahead();
        talk.clock.advance(COPY_LEASE / 2);
        talk.ask(&chain()[ANSWER..], false);
        talk.clock.advance(COPY_LEASE / 2);
        talk.accounts.lapse(talk.clock.now());
        assert_eq!(talk.leases(), 1, "only the first answer is overdue");
    }

    #[test]
    fn another_request_frees_what_was_read_ahead() {
        let requests: [(&[ChainHash], bool); 3] =
            [(&chain(), false), (&chain()[ANSWER..], true), (&chain()[ANSWER + 1..], false)];
        for (hashes, each) in requests {
            let mut talk = Talk::new(|_| true);
            let (_, lease) = talk.ask(&chain(), false);
            talk.session.read_ahead();
            talk.release(lease);
            let (outcomes, _) = talk.ask(hashes, each);
            assert!(outcomes.len() == ANSWER && outcomes.iter().all(|outcome| outcome.is_hit()));
            assert_eq!(talk.leases(), 1);
        }
    }

    #[test]
    fn nothing_is_read_ahead_after_the_deadline_or_without_free_bytes() {
        let mut talk = Talk::new(|_| true);
        assert_eq!(talk.ask_within(&chain(), false, Some(u64::MAX)).0.len(), ANSWER);
        talk.ask_within(&chain(), false, Some(60_000_000_000));
        talk.clock.advance(Duration::from_secs(60));
        talk.session.read_ahead();
        assert_eq!(talk.read(), ANSWER as u64);
        // Two answers of four are held.
        talk.ask(&chain()[ANSWER..], false);
        talk.ask(&chain()[2 * ANSWER..], false);
        assert_eq!(talk.leases(), 4, "all that the process may hold");
        let before = talk.read();
        talk.session.read_ahead();
        assert_eq!(talk.read(), before);
    }
}
