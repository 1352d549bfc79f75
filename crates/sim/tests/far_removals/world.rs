//! Hosts that share a far location, and what each knows.

use std::collections::BTreeSet;
use std::sync::{Arc, Weak};
use std::time::Duration;

use dalsegno_core::{Clock, FarWrite, KvLayout, ManualClock, Nanos, SpaceFacts, StoreId};
use dalsegno_far::{MemoryLocation, Tier, WriterId};
use dalsegno_io::BufferPool;
use dalsegno_sim::{DeviceOptions, Random, SimDevice, Style};
use dalsegno_store::testing::{Executor, MergeRules, Parts, ScrubRules, Tiers};
use dalsegno_store::{Durability, Keep, LayerWriter, Namespace, RegisterOptions, Store};
use parking_lot::Mutex;

use crate::model::{BLOCK_BYTES, Model, RemovalNumber};
use crate::rough_tier::RoughTier;
use crate::steps::{HOSTS, NAMESPACES};

/// How far the clocks of hosts are ahead of that of the location.
const AHEAD: Duration = Duration::from_secs(100 * 365 * 24 * 3600);
/// How late listings of a bucket show a new object.
const LAG: Duration = Duration::from_millis(1500);
const YEAR: Duration = Duration::from_secs(365 * 24 * 3600);

/// A put whose layer was stored, and which was not committed.
pub(crate) struct OpenLayers {
    pub(crate) writer: LayerWriter,
    pub(crate) versions: Vec<u64>,
}

/// A directory: its files, and what the model knows of them.
#[derive(Clone)]
pub(crate) struct Directory {
    pub(crate) device: Arc<SimDevice>,
    /// The removals that must be applied in it.
    pub(crate) known: BTreeSet<RemovalNumber>,
    /// The removals that its store may have read or issued.
    pub(crate) seen: BTreeSet<RemovalNumber>,
    /// The removals that its store said to have applied.
    pub(crate) claimed: BTreeSet<RemovalNumber>,
    /// Removals that expired before its store learnt the location's time. It cannot know that it was away for too long.
    pub(crate) excused: BTreeSet<RemovalNumber>,
    /// Puts that were acknowledged.
    pub(crate) stored: Vec<u64>,
    /// The time of the location at the last poll without a failure that asked for it.
    pub(crate) polled: Option<Nanos>,
    /// The time of the location when it was made.
    pub(crate) made: Nanos,
    /// Whether its disk failed, so that blocks may be missing.
    pub(crate) is_fragile: bool,
    /// Whether an operation of its disk failed before the last crash.
    pub(crate) has_failed: bool,
}

/// A host at a moment.
pub(crate) struct HostState {
    pub(crate) directory: Directory,
    pub(crate) store: Option<Store>,
    pub(crate) tier: Arc<RoughTier>,
    pub(crate) writer: WriterId,
    /// Removals of this open.
    pub(crate) removals: u64,
    /// Polls of this open.
    pub(crate) polls: u64,
    /// Whether the last poll of this open did not see a list.
    pub(crate) missed_list: bool,
    /// When a poll of this open asked for the location's time.
    pub(crate) asked: Option<Nanos>,
    pub(crate) layers: Option<OpenLayers>,
}

/// Everything of a history.
pub(crate) struct World {
    pub(crate) this: Weak<Self>,
    pub(crate) clock: Arc<ManualClock>,
    pub(crate) location_clock: Arc<ManualClock>,
    pub(crate) location: MemoryLocation,
    /// How late listings show a new object.
    lag: Duration,
    pub(crate) namespaces: Vec<Namespace>,
    pub(crate) hosts: Vec<Mutex<HostState>>,
    pub(crate) model: Mutex<Model>,
    pub(crate) random: Mutex<Random>,
    pub(crate) backup: Mutex<Option<Directory>>,
    pub(crate) steps: Mutex<Vec<String>>,
    write: FarWrite,
    /// Whether some puts keep their blocks in the pool only.
    uses_pool: bool,
    pool: BufferPool,
    opens: Mutex<u64>,
}

impl World {
    /// Where a put keeps the block of a version, and those after it.
    pub(crate) fn keep(&self, version: Option<&u64>) -> Keep {
        let is_for_pool = version.is_some_and(|version| version % 5 < 2);
        if self.uses_pool && is_for_pool { Keep::PoolOnly } else { Keep::Stored }
    }

    /// Hosts with empty directories, none of them open, and one more for the end of the history.
    pub(crate) fn new(
        seed: u64,
        (write, uses_pool, is_bucket): (FarWrite, bool, bool),
        pool: &BufferPool,
    ) -> Arc<Self> {
        let (clock, location_clock) =
            (Arc::new(ManualClock::default()), Arc::new(ManualClock::default()));
        location_clock.advance(YEAR);
        clock.advance(AHEAD);
        let of_location = Arc::clone(&location_clock) as Arc<dyn Clock>;
        let (location, lag) = if is_bucket {
            (MemoryLocation::bucket(of_location), LAG)
        } else {
            (MemoryLocation::new(of_location), Duration::ZERO)
        };
        let layout = KvLayout::new(1, u32::try_from(BLOCK_BYTES).expect("small")).expect("valid");
        let namespace = |tenant: usize| {
            let named = Namespace::builder(layout).field("tenant", tenant.to_string());
            named.build().expect("one field")
        };
        let random = Random::new(seed);
        let host = |number: usize| {
            let options =
                DeviceOptions { seed: seed ^ (number as u64) << 40, ..Default::default() };
            let directory = Directory {
                device: Arc::new(SimDevice::new(options, Arc::clone(&clock))),
                known: BTreeSet::new(),
                claimed: BTreeSet::new(),
                seen: BTreeSet::new(),
                excused: BTreeSet::new(),
                stored: Vec::new(),
                polled: None,
                made: location_clock.now(),
                is_fragile: false,
                has_failed: false,
            };
            Mutex::new(HostState {
                directory,
                store: None,
                tier: RoughTier::new(location.mount(), &clock, lag),
                writer: WriterId { store: store_id(number), open: 0 },
                removals: 0,
                polls: 0,
                missed_list: false,
                asked: None,
                layers: None,
            })
        };
        let hosts: Vec<_> = (0..=HOSTS).map(host).collect();
        Arc::new_cyclic(|this| Self {
            this: Weak::clone(this),
            namespaces: (0..NAMESPACES).map(namespace).collect(),
            hosts,
            clock,
            location_clock,
            location,
            lag,
            model: Mutex::default(),
            random: Mutex::new(random),
            backup: Mutex::default(),
            steps: Mutex::default(),
            write,
            uses_pool,
            pool: pool.clone(),
            opens: Mutex::new(0),
        })
    }

    pub(crate) fn pass(&self, time: Duration) {
        self.clock.advance(time);
        self.location_clock.advance(time);
    }

    /// The open store of a host.
    pub(crate) fn store(&self, host: usize) -> Option<Store> {
        self.hosts[host].lock().store.clone()
    }

    /// Opens the store in a host's directory.
    pub(crate) fn open(&self, host: usize) {
        if self.store(host).is_some() {
            return;
        }
        let open = {
            let mut opens = self.opens.lock();
            *opens += 1;
            *opens
        };
        let tier = RoughTier::new(self.location.mount(), &self.clock, self.lag);
        let device = Arc::clone(&self.hosts[host].lock().directory.device);
        let mut config = Style::config(24 << 20, Durability::Batch);
        config.dram = Some(8 << 20);
        config.far = Some("memory".to_owned());
        config.far_capacity = Some(1 << 30);
        config.far_workers = Some(2);
        config.far_flush_s = Some(1.0);
        config.far_write = self.write;
        let space =
            SpaceFacts { free_bytes: 1 << 40, own_bytes: 0, existing_segment_bytes: Some(1 << 20) };
        let opened = Store::open_parts(Parts {
            device,
            clock: Arc::<ManualClock>::clone(&self.clock),
            pool: self.pool.clone(),
            limits: config.validate(space).expect("valid settings"),
            lock: None,
            new_store: store_id(host),
            tiers: Tiers {
                far: Some(Arc::<RoughTier>::clone(&tier) as Arc<dyn Tier>),
                far_open: Some(open),
                ..Tiers::default()
            },
            executor: Executor::Inline,
            merging: MergeRules::default(),
            scrubbing: ScrubRules::default(),
        });
        let state = &mut *self.hosts[host].lock();
        let Ok(store) = opened else {
            assert!(state.directory.is_fragile || state.directory.device.faults_fired() > 0);
            return;
        };
        for namespace in &self.namespaces {
            // A disk that fails refuses that: then calls of this namespace fail.
            drop(store.register(namespace, RegisterOptions::default()));
        }
        state.writer = WriterId { store: store.id(), open };
        (state.store, state.tier) = (Some(store), tier);
        (state.removals, state.polls, state.asked) = (0, 0, None);
        state.missed_list = false;
    }
}

pub(crate) fn store_id(host: usize) -> StoreId {
    StoreId([u8::try_from(host + 1).expect("a few"); 16])
}
