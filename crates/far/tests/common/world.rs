//! A location with hosts that die, and what a host that starts at any moment must find there.
#![allow(dead_code, unreachable_pub, reason = "each test file uses its own part")]

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use dalsegno_core::{Clock, ManualClock, Nanos};
use dalsegno_far::{
    Applied, LIST_EXPIRES, MemoryLocation, Object, ObjectName, Tier, WATCHED, WriterId, wait_for,
};

use crate::hosts::{Host, LIMIT, RECORD_BYTES};

pub const HOUR: Duration = Duration::from_secs(3600);
pub const YEAR: Duration = Duration::from_secs(365 * 24 * 3600);

/// A location, and the clocks of the hosts that share it: each is a century ahead, or some years more.
pub struct World {
    pub clock: Arc<ManualClock>,
    pub location: MemoryLocation,
    clocks: Vec<Arc<ManualClock>>,
}

impl World {
    pub fn new() -> Self {
        let clock = Arc::new(ManualClock::default());
        clock.advance(YEAR);
        let location = MemoryLocation::new(Arc::clone(&clock) as Arc<dyn Clock>);
        Self { clock, location, clocks: Vec::new() }
    }

    /// A host that starts now.
    pub fn host(&mut self, number: u8) -> Host {
        self.host_of(number, 99)
    }

    /// A host whose folder holds at most so many packs.
    pub fn host_of(&mut self, number: u8, packs: u64) -> Host {
        let clock = Arc::new(ManualClock::default());
        let open = self.clocks.len() as u64 + 1;
        clock.advance(self.clock.now().since(Nanos::default()));
        clock.advance(YEAR * (100 + u32::try_from(open % 3).unwrap()));
        self.clocks.push(Arc::clone(&clock));
        let clock: Arc<dyn Clock> = clock;
        Host::new(&self.location, &clock, (number, open), packs)
    }

    /// A host that starts now, finds all catalogs, and stops after the check for which it was started.
    fn new_host(&mut self) -> Host {
        let mut fresh = self.host(77);
        self.clocks.pop();
        for _ in 0..2 {
            let polled = fresh.poll();
            assert!(polled.bad.now == 0 && polled.failure.is_none(), "{polled:?}");
        }
        fresh
    }

    fn readable_by_a_new_host(&mut self) -> BTreeSet<u8> {
        self.new_host().readable()
    }

    pub fn pass(&self, time: Duration) {
        for clock in self.clocks.iter().chain([&self.clock]) {
            clock.advance(time);
        }
    }

    pub fn objects(&self, writer: WriterId) -> Vec<Object> {
        let all = self.location.objects().into_iter().map(|(name, _)| name);
        all.filter(|name| name.writer == writer && !is_list(name)).map(|name| name.object).collect()
    }

    /// The numbers of the lists of removals of all writers.
    pub fn lists(&self) -> Vec<(WriterId, u64)> {
        let number = |name: ObjectName| match name.object {
            Object::Removals(number) => Some((name.writer, number)),
            _ => None,
        };
        self.location.objects().into_iter().filter_map(|(name, _)| number(name)).collect()
    }

    pub fn has_packs(&self, writer: WriterId) -> bool {
        self.objects(writer).iter().any(dalsegno_far::Object::is_pack)
    }

    pub fn has_folder(&self, writer: WriterId) -> bool {
        let tier = self.location.mount();
        let clock = Arc::clone(&self.clock) as Arc<dyn Clock>;
        let writers = wait_for(&clock, LIMIT, |ask| tier.writers(ask)).unwrap();
        writers.contains(&writer)
    }
}

fn is_list(name: &ObjectName) -> bool {
    matches!(name.object, Object::Removals(_))
}

impl Host {
    /// Lives until lists of removals may expire, then reads everything and collects.
    pub fn pass_keep(&mut self, world: &mut World) {
        world.pass(LIST_EXPIRES);
        self.read_all();
        self.publisher.beat().unwrap();
        for _ in 0..20 {
            assert!(self.collect());
        }
    }
}

/// Lets these hosts collect for a while, and show that they run. Calls `check` after every step.
pub fn collect(world: &mut World, hosts: &mut [&mut Host], check: &mut dyn FnMut(&mut World)) {
    for _ in 0..3 {
        for _ in 0..12 {
            for host in &mut *hosts {
                host.collect();
                check(world);
            }
        }
        world.pass(WATCHED);
        for host in &mut *hosts {
            drop(host.publisher.beat());
        }
    }
}

/// What a host that starts now must find.
#[derive(Debug, Default)]
pub struct Model {
    /// Blocks that were published and not removed, and their writers.
    pub present: BTreeMap<u8, WriterId>,
    /// Blocks whose removal was acknowledged, and that were not put after it.
    pub removed: BTreeSet<u8>,
    /// The removals of each block, those that were not acknowledged included.
    removals: BTreeMap<u8, Applied>,
    pub checks: u64,
    /// Packs that left the folders of earlier opens.
    pub evicted: u64,
    /// What the location had at the last check.
    seen: Vec<ObjectName>,
}

impl Model {
    pub fn publish(&mut self, host: &mut Host, first: u8) {
        // A put comes after a removal only if its host had applied it.
        let live: Vec<u8> =
            [first, first + 1].into_iter().filter(|block| self.is_after(host, *block)).collect();
        // Blocks that are put again may be there, also if that was not acknowledged.
        self.removed.retain(|block| !live.contains(block));
        if host.publish(first) {
            self.present.extend(live.into_iter().map(|block| (block, host.writer)));
        }
    }

    pub fn remove(&mut self, host: &mut Host, block: u8) {
        self.present.remove(&block);
        let is_published = host.remove(block);
        self.removals.entry(block).or_default().note(host.last_removal());
        if is_published {
            self.removed.insert(block);
        }
    }

    /// Whether a host had applied all removals of a block.
    fn is_after(&self, host: &Host, block: u8) -> bool {
        let removals = self.removals.get(&block);
        removals.is_none_or(|removals| removals.iter().all(|id| host.applied.contains(id)))
    }

    /// All opens of a writer's store may be collected if none of them gave a sign of life for a day.
    pub fn is_dead(&mut self, writer: WriterId) {
        self.present.retain(|_, of| of.store != writer.store);
    }

    /// Lets a host evict, and show that its store lives. Only packs of its store leave, and only beyond its bound.
    pub fn keep_up(&mut self, world: &mut World, host: &mut Host) {
        let is_pack = |name: &ObjectName| name.object.is_pack();
        let packs = |world: &World| -> BTreeSet<ObjectName> {
            world.location.objects().into_iter().map(|(name, _)| name).filter(is_pack).collect()
        };
        let before = packs(world);
        host.keep_up().unwrap();
        let after = packs(world);
        let gone: Vec<&ObjectName> = before.difference(&after).collect();
        if gone.is_empty() {
            return;
        }
        let store = host.writer.store;
        assert!(gone.iter().all(|name| name.writer.store == store), "{gone:?} left for {store}");
        let gone_bytes = RECORD_BYTES * gone.len() as u64;
        assert!(gone_bytes <= host.excess_bytes, "{gone:?} left for {} bytes", host.excess_bytes);
        self.evicted += gone.iter().filter(|name| name.writer != host.writer).count() as u64;
        let readable = world.readable_by_a_new_host();
        let expected = self.present.len();
        self.present.retain(|block, of| of.store != store || readable.contains(block));
        assert!(expected - self.present.len() <= 2 * gone.len(), "more is gone than {gone:?}");
    }

    /// Compares everything with what a host finds that starts now, if the location has changed.
    pub fn check(&mut self, world: &mut World) {
        let objects = world.location.objects().into_iter().map(|(name, _)| name).collect();
        if self.seen == objects {
            return;
        }
        self.seen = objects;
        self.checks += 1;
        let fresh = world.new_host();
        let readable = fresh.readable();
        self.check_removed(&readable);
        for (block, writer) in &self.present {
            assert!(readable.contains(block), "block {block} of {writer} is lost");
        }
        let running: BTreeSet<WriterId> = self.present.values().copied().collect();
        for writer in running {
            let objects = world.objects(writer);
            for number in fresh.index.numbers(writer) {
                let has_pack = objects.contains(&Object::Pack(number));
                assert!(has_pack, "pack {number} of {writer} is gone, its catalog is not");
            }
        }
    }

    pub fn check_removed(&self, readable: &BTreeSet<u8>) {
        let back: Vec<&u8> = self.removed.intersection(readable).collect();
        assert!(back.is_empty(), "blocks are back: {back:?}");
    }
}
