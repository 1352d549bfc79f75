use super::*;
use crate::account::{Accounts, Bounds, ClientId, LeaseShare, SessionSlot};
use crate::session::{Answer, Session};
use crate::wire::{Request, VERSION};
use dalsegno_core::{Config, KvLayout, ManualClock, Namespace};
use dalsegno_store::{Backing, Keep, Memory, Put, RegisterOptions};
use std::sync::Arc;

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

fn block(at: usize) -> Vec<Memory> {
    vec![Memory::owned(vec![u8::try_from(at).unwrap(); BLOCK], ())]
}

impl Talk {
    /// Puts some blocks of the chain into a store, and opens it again.
    fn new(present: impl Fn(usize) -> bool) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let dram = (8 * 4 * ANSWER * BLOCK) as u64;
        let config = Config { capacity: Some(256 << 20), dram: Some(dram), ..Config::default() };
        let open = || Pool::open(folder.path(), &config, Backing::MemoryFile).unwrap();
        let (id, pool) = (namespace().id(), open());
        pool.store().register(&namespace(), RegisterOptions::default()).unwrap();
        for (at, hash) in chain().iter().enumerate().filter(|(at, _)| present(*at)) {
            let put =
                Put { chain: &[*hash], first: 0, blocks: vec![block(at)], keep: Keep::Stored };
            pool.store().put_batch(id, put, &Terms::default()).unwrap();
        }
        pool.store().close();
        drop(pool);
        let (pool, clock) = (open(), Arc::new(ManualClock::default()));
        let now: Arc<dyn Clock> = Arc::<ManualClock>::clone(&clock);
        let bounds = Bounds::of_pool(dram, LeaseShare::default(), 10, 10);
        let accounts = Accounts::new(bounds, 0, Arc::clone(&now), Arc::default());
        let slot = SessionSlot::open(&accounts, ClientId { process: 1, user: 1 }).unwrap();
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
fn a_block_put_after_it_was_missed_is_a_hit() {
    for each in [false, true] {
        let mut talk = Talk::new(|at| at != 5);
        talk.ask(&chain(), each);
        talk.session.read_ahead();
        let put =
            Put { chain: &[chain()[5]], first: 0, blocks: vec![block(5)], keep: Keep::Stored };
        talk.pool.store().put_batch(namespace().id(), put, &Terms::default()).unwrap();
        let (outcomes, _) = talk.ask(&chain()[ANSWER..], each);
        assert!(outcomes.iter().all(|outcome| outcome.is_hit()), "{outcomes:?}");
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
