//! Sessions without sockets, over a simulated device: random histories of several clients, one of which, or the server,
//! is killed at each message. Histories with greedy clients: `fairness`.

mod fairness;

use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::Duration;

use dalsegno_arena::{ArenaHeader, Places, UNIT_BYTES, is_current};
use dalsegno_core::{ChainHash, Clock, KvLayout, ManualClock, Namespace, SpaceFacts, StoreId};
use dalsegno_io::{Access, Backing, BufferPool, Memory, Region, lend};
use dalsegno_sim::{Blocks, DeviceOptions, Outage, Random, SimDevice, Style, chain_hashes};
use dalsegno_store::testing::{Executor, MergeRules, Parts, ScrubRules, Tiers};
use dalsegno_store::{ArenaBacking, Durability, Pool, Store};

use crate::account::{Accounts, Bounds, LeaseShare};
use crate::client::{FIRST_TICKET, Window};
use crate::session::{Answer, Session};
use crate::wire::{self, Look, PlaceRow, Reply, Request, WINDOW_HEADER_BYTES};

const CLIENTS: usize = 3;
const CHAINS: usize = 8;
const BLOCKS: usize = 6;
/// Blocks of less and of more than a unit.
const SHAPES: [(u32, u32); 2] = [(2, 6000), (1, 70_000)];
const DRAM_BYTES: u64 = 24 * UNIT_BYTES;
const WINDOW_BYTES: usize = 1 << 20;
const MESSAGES: usize = 70;

/// Who is killed, and when.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fate {
    Nobody,
    /// The client, before its message is handled.
    Before(usize),
    /// The client, after its message was handled and before it got the answer.
    After(usize),
    /// The server, after the message.
    Server(usize),
}

/// Blocks that a client was shown.
struct Shown {
    namespace: usize,
    lease: u64,
    /// Whether the places must stay until the lease ends.
    is_view: bool,
    blocks: Vec<(ChainHash, PlaceRow)>,
}

struct Guest {
    session: Session,
    window: Window,
    shown: Vec<Shown>,
}

struct World {
    device: Arc<SimDevice>,
    clock: Arc<ManualClock>,
    staging: BufferPool,
    blocks: Blocks,
    chance: Random,
    pool: Option<Pool>,
    accounts: Arc<Accounts>,
    reader: Option<Region>,
    clients: Vec<Guest>,
    /// Blocks whose bytes were compared.
    checks: u64,
}

fn bounds() -> Bounds {
    Bounds::of_pool(DRAM_BYTES, LeaseShare::default(), 64, 12)
}

fn accounts(bounds: Bounds, clock: &Arc<ManualClock>) -> Arc<Accounts> {
    let clock: Arc<dyn Clock> = Arc::<ManualClock>::clone(clock);
    Accounts::new(bounds, SHAPES.len() as u64, clock, Arc::default())
}

fn namespaces() -> [Namespace; 2] {
    SHAPES.map(|(layers, slice_bytes)| {
        let layout = KvLayout::new(layers, slice_bytes).unwrap();
        Namespace::builder(layout).field("shape", layers.to_string()).build().unwrap()
    })
}

fn block_bytes(namespace: usize) -> usize {
    usize::try_from(namespaces()[namespace].layout().block_bytes()).unwrap()
}

impl World {
    fn new(seed: u64, staging: &BufferPool, blocks: &Blocks) -> Self {
        let clock = Arc::new(ManualClock::default());
        let options = DeviceOptions { seed, ..DeviceOptions::default() };
        let mut world = Self {
            device: Arc::new(SimDevice::new(options, Arc::clone(&clock))),
            accounts: accounts(bounds(), &clock),
            clock,
            staging: staging.clone(),
            blocks: blocks.clone(),
            chance: Random::new(seed),
            pool: None,
            reader: None,
            clients: Vec::new(),
            checks: 0,
        };
        world.start();
        world
    }

    /// Starts a server, and connects all clients.
    fn start(&mut self) {
        let mut config = Style::config(12 << 20, Durability::None);
        config.dram = Some(DRAM_BYTES);
        let space =
            SpaceFacts { free_bytes: 1 << 40, own_bytes: 0, existing_segment_bytes: Some(1 << 20) };
        let store = Store::open_parts(Parts {
            device: Arc::<SimDevice>::clone(&self.device),
            clock: Arc::<ManualClock>::clone(&self.clock),
            pool: self.staging.clone(),
            limits: config.validate(space).unwrap(),
            lock: None,
            new_store: StoreId([7; 16]),
            tiers: Tiers { arena: ArenaBacking::Shared(Backing::MemoryFile), ..Tiers::default() },
            executor: Executor::Inline,
            merging: MergeRules::default(),
            scrubbing: ScrubRules::default(),
        });
        let pool = Pool::of(store.unwrap()).unwrap();
        let file = pool.file().as_fd().try_clone_to_owned().unwrap();
        let bytes = pool.header().arena_bytes();
        self.reader = Some(Region::map(file, bytes, Access::Read, "a test").unwrap());
        self.pool = Some(pool);
        self.accounts = accounts(bounds(), &self.clock);
        self.clients = (0..CLIENTS).map(|number| self.connect(number)).collect();
    }

    fn connect(&self, number: usize) -> Guest {
        let clock: Arc<dyn Clock> = Arc::<ManualClock>::clone(&self.clock);
        let guest = crate::account::ClientId { process: number as u64 + 1, user: 1 };
        let slot =
            crate::account::SessionSlot::open(&self.accounts, guest).expect("few connections");
        let mut session = Session::new(self.pool.clone().unwrap(), clock, slot).impatient();
        let window = Window::new(WINDOW_BYTES).unwrap();
        let hello = wire::encode(&Request::Hello { version: wire::VERSION });
        assert!(matches!(said(&session.handle(&hello, Vec::new())).0, Reply::Welcome { .. }));
        for namespace in namespaces() {
            let request = Request::Register { encoding: namespace.encode(), codec: None };
            let answer = session.handle(&wire::encode(&request), Vec::new());
            assert_eq!(said(&answer).0, Reply::Done);
        }
        session.slot().rest();
        let file = window.file().try_clone_to_owned().unwrap();
        let answer = session.handle(&wire::encode(&Request::Window), vec![file]);
        assert_eq!(said(&answer).0, Reply::Done);
        Guest { session, window, shown: Vec::new() }
    }

    /// One message of a random client.
    fn step(&mut self, at: usize, fate: Fate) {
        self.check_shown();
        if self.chance.percent(10) {
            self.clock.advance(Duration::from_secs(3));
            self.accounts.lapse(self.clock.now());
        }
        let number = self.chance.below(CLIENTS);
        let (message, asked) = self.message(number);
        if fate == Fate::Before(at) {
            // The draws of the message were made, so that the rest of the history is the same.
            self.connect_again(number);
            return;
        }
        let answer = self.clients[number].session.handle(&message, Vec::new());
        self.clients[number].session.read_ahead();
        if fate == Fate::After(at) {
            self.connect_again(number);
        } else {
            self.understand(number, asked, &answer);
        }
        if fate == Fate::Server(at) {
            self.restart();
        }
    }

    /// Kills a client and starts it again.
    fn connect_again(&mut self, number: usize) {
        drop(self.clients.remove(number));
        let client = self.connect(number);
        self.clients.insert(number, client);
    }

    fn restart(&mut self) {
        self.clients.clear();
        // A simulation ends a process by dropping its store.
        self.pool = None;
        let (device, _) = self.device.reboot(Outage::Process);
        self.device = Arc::new(device);
        self.start();
    }

    /// Draws what a client says.
    fn message(&mut self, number: usize) -> (Vec<u8>, Option<Shown>) {
        let namespace = self.chance.below(SHAPES.len());
        let chain = chain_hashes(self.chance.below(CHAINS) as u64, BLOCKS);
        let count = 1 + self.chance.below(BLOCKS);
        let chain = &chain[..count];
        let id = namespaces()[namespace].id().0;
        let timeout_ns = None;
        let asked = |is_view| {
            let blocks = chain.iter().map(|hash| (*hash, NOWHERE)).collect();
            Some(Shown { namespace, lease: 0, is_view, blocks })
        };
        let draw = self.chance.below(100);
        let release = self.chance.below(8);
        let (request, asked) = match draw {
            0..40 => {
                let first = self.chance.below(count);
                self.write(number, namespace, &chain[first..]);
                let [first, count] = [first, count - first].map(|one| u32::try_from(one).unwrap());
                let offset = WINDOW_HEADER_BYTES as u64;
                (
                    Request::Put {
                        namespace: id,
                        first,
                        count,
                        offset,
                        ticket: FIRST_TICKET,
                        timeout_ns,
                        pool_only: false,
                    },
                    None,
                )
            }
            40..65 => {
                let each = draw < 50;
                (Request::Acquire { namespace: id, each, timeout_ns }, asked(false))
            }
            65..80 => (Request::Lease { namespace: id, timeout_ns }, asked(true)),
            80..92 => {
                let shown = &mut self.clients[number].shown;
                let ended = if release < shown.len() { Some(shown.remove(release)) } else { None };
                let leases = ended.iter().map(|one| one.lease).chain([1 << 40]).collect();
                return (wire::encode(&Request::Release { leases }), None);
            }
            92..95 => (Request::Remove { namespace: id, all: false, timeout_ns }, None),
            _ => (Request::Look { namespace: id, how: Look::Probe }, None),
        };
        let mut message = wire::encode(&request);
        wire::push_hashes(&mut message, chain);
        (message, asked)
    }

    /// Writes blocks into the window of a client.
    fn write(&self, number: usize, namespace: usize, hashes: &[ChainHash]) {
        let bytes = block_bytes(namespace);
        let mut claim =
            self.clients[number].window.claim(WINDOW_HEADER_BYTES, hashes.len() * bytes);
        let mut memory = claim.memory();
        for (block, hash) in memory.as_mut_slice().chunks_exact_mut(bytes).zip(hashes) {
            block.copy_from_slice(&self.blocks.bytes(namespace as u64, *hash, bytes));
        }
    }

    fn understand(&mut self, number: usize, asked: Option<Shown>, answer: &Answer) {
        let Some(mut shown) = asked else { return };
        let (reply, tail) = said(answer);
        let (lease, flags, rows) = match reply {
            Reply::Acquired { lease, outcomes } => {
                let (bytes, rows) = tail.split_at(outcomes as usize);
                let hit = |byte: &u8| wire::outcome_of(*byte).unwrap().is_hit();
                (lease, bytes.iter().map(hit).collect(), wire::rows_of(rows).unwrap())
            }
            Reply::Leased { lease, .. } => {
                let rows = wire::rows_of(&tail).unwrap();
                (lease, vec![true; rows.len()], rows)
            }
            other => panic!("{other:?}"),
        };
        let hits = shown.blocks.iter().zip(flags).filter(|(_, hit)| *hit).map(|(block, _)| block.0);
        shown.blocks = hits.zip(rows).collect();
        shown.lease = lease;
        if lease != 0 {
            self.clients[number].shown.push(shown);
        }
        self.check_shown();
    }

    /// Copies every block that a client may still read, and checks the copy.
    fn check_shown(&mut self) {
        for client in &self.clients {
            for shown in &client.shown {
                for (hash, row) in &shown.blocks {
                    let bytes = block_bytes(shown.namespace);
                    let copy = self.copy(*row, bytes);
                    assert!(copy.is_some() || !shown.is_view, "a leased block lost its place");
                    let right = self.blocks.bytes(shown.namespace as u64, *hash, bytes);
                    assert!(copy.is_none_or(|copy| *copy == *right), "wrong bytes");
                    self.checks += 1;
                }
            }
        }
    }

    /// The bytes of a block as a client copies them; `None` if its place ended.
    fn copy(&self, row: PlaceRow, bytes: usize) -> Option<Vec<u8>> {
        let reader = self.reader.as_ref().unwrap();
        let header = self.pool.as_ref().unwrap().header();
        let unit = usize::try_from(UNIT_BYTES).unwrap();
        let offset = header.units_offset() + row.unit as usize * unit;
        let mut copy = vec![0; bytes];
        lend(|lender| reader.copy_racing(offset, &mut [lender.exclusive(&mut copy)]));
        let units = Places::units_of(bytes as u64).unwrap();
        let generation = |at: usize| reader.counter(ArenaHeader::GENERATIONS_OFFSET + 8 * at);
        is_current(generation, row.unit, units, row.stamp).then_some(copy)
    }

    /// Ends all clients: nothing of them is left.
    fn finish(mut self) -> u64 {
        self.check_shown();
        self.clients.clear();
        let stats = self.accounts.stats();
        let left = (stats.clients, stats.leases, stats.copy_bytes, stats.view_bytes);
        assert_eq!(left, (0, 0, 0, 0));
        let pool = self.pool.take().unwrap();
        for namespace in namespaces() {
            pool.store().remove(namespace.id(), None, &dalsegno_store::Terms::default()).unwrap();
        }
        let usage = pool.usage().unwrap();
        assert_eq!((usage.free_bytes, usage.leased_bytes), (usage.capacity_bytes, 0));
        self.checks
    }
}

const NOWHERE: PlaceRow = PlaceRow { unit: 0, stamp: dalsegno_arena::Stamp(0) };

/// An answer as a client reads it.
fn said(answer: &Answer) -> (Reply, Vec<u8>) {
    match answer {
        Answer::Send { bytes, .. } => {
            let (reply, tail) = wire::decode::<Reply>(bytes).unwrap();
            (reply, tail.to_vec())
        }
        other => panic!("{other:?}"),
    }
}

fn live(seed: u64, fate: Fate, staging: &BufferPool, blocks: &Blocks) -> u64 {
    let mut world = World::new(seed, staging, blocks);
    for at in 0..MESSAGES {
        world.step(at, fate);
    }
    world.finish()
}

#[test]
fn a_process_killed_at_any_message_leaves_no_lease_and_shows_no_wrong_byte() {
    let (staging, blocks) = (BufferPool::new(16 << 20, 1 << 20).unwrap(), Blocks::default());
    let mut checks = 0;
    for seed in 0..3 {
        checks += live(seed, Fate::Nobody, &staging, &blocks);
        for at in 0..MESSAGES {
            for fate in [Fate::Before(at), Fate::After(at), Fate::Server(at)] {
                checks += live(seed, fate, &staging, &blocks);
            }
        }
    }
    assert!(checks > 100_000, "{checks} blocks were checked");
}

#[test]
fn a_client_may_write_its_window_at_any_time() {
    let (staging, blocks) = (BufferPool::new(16 << 20, 1 << 20).unwrap(), Blocks::default());
    let mut world = World::new(9, &staging, &blocks);
    let chain = chain_hashes(1, 2);
    world.write(0, 0, &chain);
    let id = namespaces()[0].id();
    let offset = WINDOW_HEADER_BYTES as u64;
    let put = |ticket| Request::Put {
        namespace: id.0,
        first: 0,
        count: 2,
        offset,
        ticket,
        timeout_ns: None,
        pool_only: false,
    };
    // 4: failed, because the ticket is another one. 0: stored.
    for (ticket, outcome) in [(FIRST_TICKET + 1, 4), (FIRST_TICKET, 0)] {
        let mut message = wire::encode(&put(ticket));
        wire::push_hashes(&mut message, &chain);
        let answer = world.clients[0].session.handle(&message, Vec::new());
        assert_eq!(said(&answer), (Reply::Put, vec![outcome; 2]));
    }
    world.clients[0]
        .window
        .claim(WINDOW_HEADER_BYTES, 2 * block_bytes(0))
        .memory()
        .as_mut_slice()
        .fill(0);
    world.restart();
    let mut out = vec![vec![0; block_bytes(0)]; 2];
    let store = world.pool.as_ref().unwrap().store().clone();
    let report = lend(|lender| {
        let out: Vec<Vec<Memory>> = out.iter_mut().map(|one| vec![lender.exclusive(one)]).collect();
        let scope = dalsegno_store::Scope::Prefix;
        store.get_batch(id, &chain, out, scope, &dalsegno_store::Terms::default()).unwrap()
    });
    assert_eq!(report.leading_blocks(), 2);
    for (block, hash) in out.iter().zip(&chain) {
        assert_eq!(**block, *blocks.bytes(0, *hash, block_bytes(0)));
    }
}
