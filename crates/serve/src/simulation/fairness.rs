//! Sessions of greedy clients and of a modest one: idle connections are taken over, answers are lost or read late.
//!
//! 1. Sums never exceed their bounds.
//! 2. The modest client always gets a connection, a block to copy, a block in its place and, as another user, a
//!    namespace.
//! 3. No take-over ends a lease. Everything is free at the end, and all bytes are right.

use dalsegno_sim::Random;

use super::*;
use crate::account::{ClientId, SessionSlot};

const GREEDY: u64 = 3;
const MODEST: u64 = 9;
const STEPS: usize = 400;

/// A client with any number of connections.
#[derive(Default)]
struct Party {
    sessions: Vec<Session>,
    shown: Vec<Shown>,
    /// Answers that the client gave up and reads later.
    owed: Vec<(Shown, Answer)>,
}

struct Fair {
    world: World,
    chance: Random,
    greedy: Vec<Party>,
    modest: Party,
    modest_user: u32,
    created: u64,
}

impl Fair {
    fn new(seed: u64, staging: &BufferPool, blocks: &Blocks) -> Self {
        let mut world = World::new(seed, staging, blocks);
        for number in 0..CHAINS as u64 {
            let chain = chain_hashes(number, BLOCKS);
            world.write(0, 0, &chain);
            let put = Request::Put {
                namespace: namespaces()[0].id().0,
                first: 0,
                count: u32::try_from(BLOCKS).unwrap(),
                offset: WINDOW_HEADER_BYTES as u64,
                ticket: FIRST_TICKET,
                timeout_ns: None,
                pool_only: false,
            };
            let mut message = wire::encode(&put);
            wire::push_hashes(&mut message, &chain);
            assert_eq!(said(&world.clients[0].session.handle(&message, Vec::new())).0, Reply::Put);
        }
        world.clients.clear();
        let greedy = (0..GREEDY).map(|_| Party::default()).collect();
        // As one of the same user, or of another one.
        let modest_user = 1 + u32::from(seed % 2 == 1);
        let (chance, modest) = (Random::new(seed + 1000), Party::default());
        Self { world, chance, greedy, modest, modest_user, created: 0 }
    }

    fn open(&self, process: u64, user: u32) -> Option<Session> {
        let clock: Arc<dyn Clock> = Arc::<ManualClock>::clone(&self.world.clock);
        let slot = SessionSlot::open(&self.world.accounts, ClientId { process, user }).ok()?;
        let pool = self.world.pool.clone().unwrap();
        let mut session = Session::new(pool, clock, slot).impatient();
        let hello = wire::encode(&Request::Hello { version: wire::VERSION });
        assert!(matches!(said(&session.handle(&hello, Vec::new())).0, Reply::Welcome { .. }));
        session.slot().rest();
        Some(session)
    }

    /// What the threads of connections do that were taken over.
    fn leave(&mut self) {
        for party in self.greedy.iter_mut().chain([&mut self.modest]) {
            party.sessions.retain(|session| !session.slot().is_taken_over());
        }
    }

    fn check(&self) {
        let (stats, bounds) = (self.world.accounts.stats(), bounds());
        assert!(stats.sessions <= bounds.sessions.all, "{stats:?}");
        assert!(stats.view_bytes <= bounds.view_bytes.all, "{stats:?}");
        assert!(stats.copy_bytes <= bounds.copy_bytes.all, "{stats:?}");
        assert!(stats.watched_blocks <= bounds.watched_blocks.all, "{stats:?}");
        for shown in self.greedy.iter().chain([&self.modest]).flat_map(|party| &party.shown) {
            for (hash, row) in &shown.blocks {
                let bytes = block_bytes(shown.namespace);
                let copy = self.world.copy(*row, bytes);
                assert!(copy.is_some() || !shown.is_view, "a lease in place ended");
                let right = self.world.blocks.bytes(shown.namespace as u64, *hash, bytes);
                assert!(copy.is_none_or(|copy| *copy == *right), "wrong bytes");
            }
        }
    }

    /// A request for blocks, and what is to be shown for it.
    fn request(&mut self, is_view: bool, count: usize) -> (Vec<u8>, Shown) {
        let chain = chain_hashes(self.chance.below(CHAINS) as u64, BLOCKS);
        let namespace = namespaces()[0].id().0;
        let request = if is_view {
            Request::Lease { namespace, timeout_ns: None }
        } else {
            Request::Acquire { namespace, each: false, timeout_ns: None }
        };
        let mut message = wire::encode(&request);
        wire::push_hashes(&mut message, &chain[..count]);
        let blocks = chain[..count].iter().map(|hash| (*hash, NOWHERE)).collect();
        (message, Shown { namespace: 0, lease: 0, is_view, blocks })
    }

    fn step_greedy(&mut self) {
        let at = self.chance.below(self.greedy.len());
        let (draw, loss) = (self.chance.below(100), self.chance.below(10));
        if draw < 40 || self.greedy[at].sessions.is_empty() {
            let session = self.open(at as u64 + 1, 1);
            self.greedy[at].sessions.extend(session);
            return self.leave();
        }
        let line = self.chance.below(self.greedy[at].sessions.len());
        if draw < 85 {
            let (message, shown) = self.request(draw < 65, BLOCKS);
            let answer = self.greedy[at].sessions[line].handle(&message, Vec::new());
            self.receive(at, line, shown, answer, loss);
        } else if draw < 90 {
            self.created += 1;
            let encoding = created(self.created).encode();
            let message = wire::encode(&Request::Register { encoding, codec: None });
            self.greedy[at].sessions[line].handle(&message, Vec::new());
        } else if draw < 95 {
            let message = wire::encode(&Request::Watch { capacity: u64::MAX });
            // One for each: a connection with a watch is not taken over.
            self.greedy[at].sessions[0].handle(&message, Vec::new());
            self.greedy[at].sessions[0].slot().rest();
        } else if let Some((shown, answer)) = self.greedy[at].owed.pop() {
            // It reads an answer late, and releases what it finds in it.
            let lease = shown_of(shown, &answer).lease;
            let message = wire::encode(&Request::Release { leases: vec![lease, 1 << 50] });
            self.greedy[at].sessions[line].handle(&message, Vec::new());
        } else {
            self.greedy[at].shown.clear();
            self.greedy[at].sessions.clear();
        }
        if let Some(session) = self.greedy[at].sessions.get(line) {
            session.slot().rest();
        }
    }

    /// A greedy client reads its answer, reads it later, or is gone before it is sent.
    fn receive(&mut self, at: usize, line: usize, shown: Shown, answer: Answer, loss: usize) {
        let party = &mut self.greedy[at];
        match (loss, &answer) {
            (0, Answer::Send { lease, .. }) => {
                party.sessions[line].slot().account().take_back(*lease);
            }
            (1, _) => party.owed.push((shown, answer)),
            _ => party.shown.push(shown_of(shown, &answer)),
        }
    }

    /// One call of the modest client. If it has no connection any more, it connects again.
    fn modest(&mut self, message: &[u8]) -> Answer {
        if self.modest.sessions.is_empty() {
            let session = self.open(MODEST, self.modest_user);
            self.modest.sessions.push(session.expect("the modest client gets a connection"));
            self.leave();
        }
        let answer = self.modest.sessions[0].handle(message, Vec::new());
        self.modest.sessions[0].slot().rest();
        answer
    }

    fn step_modest(&mut self) {
        if self.modest_user != 1 {
            self.created += 1;
            let encoding = created(self.created).encode();
            let message = wire::encode(&Request::Register { encoding, codec: None });
            let reply = said(&self.modest(&message)).0;
            // It keeps some of its own: a quarter is for other users.
            assert!(reply == Reply::Done || self.created > 15, "{reply:?}");
        }
        for is_view in [true, false] {
            let (message, shown) = self.request(is_view, 1);
            let answer = self.modest(&message);
            let shown = shown_of(shown, &answer);
            assert_eq!(
                shown.blocks.len(),
                1,
                "the modest client gets a block, in place: {is_view}"
            );
            let lease = shown.lease;
            self.modest.shown.push(shown);
            self.check();
            // Others connect meanwhile. No connection of a process with a lease is taken over.
            self.step_greedy();
            self.check();
            assert_eq!(self.modest.sessions.len(), 1, "it holds a lease");
            self.modest(&wire::encode(&Request::Release { leases: vec![lease] }));
            self.modest.shown.clear();
        }
    }

    fn finish(mut self) -> u64 {
        let taken_over = self.world.accounts.stats().taken_over_sessions;
        self.modest.sessions.clear();
        self.modest.shown.clear();
        for party in &mut self.greedy {
            // What was lost and never read ends with the process.
            party.shown.clear();
            party.sessions.clear();
        }
        let stats = self.world.accounts.stats();
        let left = (stats.clients, stats.sessions, stats.leases, stats.watched_blocks);
        assert_eq!(left, (0, 0, 0, 0));
        self.world.finish();
        taken_over
    }
}

fn created(number: u64) -> Namespace {
    let layout = KvLayout::new(1, 100).unwrap();
    Namespace::builder(layout).field("created", number.to_string()).build().unwrap()
}

/// What an answer shows.
fn shown_of(mut shown: Shown, answer: &Answer) -> Shown {
    let (reply, tail) = said(answer);
    let (lease, hits, rows) = match reply {
        Reply::Acquired { lease, outcomes } => {
            let (bytes, rows) = tail.split_at(outcomes as usize);
            let hit = |byte: &u8| wire::outcome_of(*byte).unwrap().is_hit();
            (lease, bytes.iter().filter(|byte| hit(byte)).count(), wire::rows_of(rows).unwrap())
        }
        Reply::Leased { lease, .. } => {
            let rows = wire::rows_of(&tail).unwrap();
            (lease, rows.len(), rows)
        }
        other => panic!("{other:?}"),
    };
    shown.blocks = shown.blocks.iter().take(hits).map(|block| block.0).zip(rows).collect();
    shown.lease = lease;
    shown
}

#[test]
fn greedy_clients_take_nothing_that_a_modest_one_needs() {
    let (staging, blocks) = (BufferPool::new(16 << 20, 1 << 20).unwrap(), Blocks::default());
    let mut taken_over = 0;
    for seed in 0..12 {
        let mut fair = Fair::new(seed, &staging, &blocks);
        for _ in 0..STEPS {
            if fair.chance.percent(5) {
                fair.world.clock.advance(Duration::from_secs(3));
                fair.world.accounts.lapse(fair.world.clock.now());
            }
            if fair.chance.percent(20) {
                fair.step_modest();
            } else {
                fair.step_greedy();
            }
            fair.check();
        }
        taken_over += fair.finish();
    }
    assert!(taken_over > 100, "{taken_over} connections were taken over");
}
