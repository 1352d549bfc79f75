//! Checks of what hosts must have, and the end of a history.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use dalsegno_core::{ChainHash, Clock};
use dalsegno_far::format::Catalog;
use dalsegno_far::{Object, Tier, wait_for};
use dalsegno_sim::chain_hashes;
use dalsegno_store::testing::FarStep;

use crate::acts::HOUR;
use crate::model::{BLOCK_BYTES, Key};
use crate::steps::{CHAIN_BLOCKS, CHAINS, HOSTS, NAMESPACES, Step};
use crate::world::World;

impl World {
    /// Gets every block on a host, and checks that what it accepted and no removal covers is there.
    pub(crate) fn check_all(&self, host: usize) {
        if self.store(host).is_none() {
            return;
        }
        self.forgive_if_old(host);
        let chains = (0..CHAINS).map(|chain| chain_hashes(2 * chain, CHAIN_BLOCKS));
        let all: BTreeSet<ChainHash> = chains.flatten().collect();
        let all: Vec<ChainHash> = all.into_iter().collect();
        let mut expected = self.live_keys(host);
        if host == HOSTS {
            // It has no log, and was polled. Reads find out which packs are gone.
            for _ in 0..3 {
                (0..NAMESPACES).for_each(|namespace| drop(self.get(host, namespace, &all, &[])));
                self.far(host, FarStep::Poll);
            }
            expected.extend(self.live_at_location());
        }
        for namespace in 0..NAMESPACES {
            let hits = self.get(host, namespace, &all, &[]);
            for (hash, hit) in all.iter().zip(hits) {
                let must_hit = expected.contains(&(namespace, *hash));
                self.model.lock().checks += 1;
                assert!(hit || !must_hit, "host {host} lost {hash} of namespace {namespace}");
            }
        }
    }

    /// Checks that a host still lists what it accepted and no removal covers.
    pub(crate) fn check_live(&self, host: usize) {
        let Some(store) = self.store(host) else { return };
        for (namespace, hash) in self.live_keys(host) {
            let is_there = store.peek(self.id(namespace), &[hash]).expect("it is open")[0];
            assert!(is_there, "host {host} dropped {hash} of namespace {namespace}");
        }
    }

    /// The blocks that a host accepted and that must be there.
    pub(crate) fn live_keys(&self, host: usize) -> BTreeSet<Key> {
        let state = self.hosts[host].lock();
        if state.directory.is_fragile() {
            return BTreeSet::new();
        }
        let model = self.model.lock();
        let live = state.directory.stored.iter().filter(|version| model.lives(**version));
        live.map(|version| model.key(*version)).collect()
    }

    /// The blocks in packs at the location that no removal covers.
    pub(crate) fn live_at_location(&self) -> BTreeSet<Key> {
        let clock = Arc::clone(&self.location_clock) as Arc<dyn Clock>;
        let tier = self.location.mount();
        let fetch = |name| wait_for(&clock, HOUR, |ask| tier.fetch(name, 64 << 20, ask));
        let model = self.model.lock();
        let (mut live, mut gone) = (BTreeSet::new(), BTreeSet::new());
        for (name, _) in self.location.objects() {
            let Object::Catalog(number) = name.object else { continue };
            let catalog = Catalog::decode(&fetch(name).expect("it is there")).expect("it is whole");
            assert_eq!(catalog.number, number);
            for extent in catalog.extents() {
                let Ok(pack) = fetch(name.writer.object(Object::Pack(extent.location.segment)))
                else {
                    // A catalog whose pack is gone costs misses.
                    gone.extend(extent.hashes.clone());
                    continue;
                };
                let at = extent.location.offset + u64::from(extent.location.header_bytes);
                let at = usize::try_from(at).expect("64-bit addresses");
                for (block, bytes) in
                    pack[at..].chunks(BLOCK_BYTES).enumerate().take(extent.hashes.len())
                {
                    let version = u64::from_le_bytes(bytes[..8].try_into().expect("8 bytes"));
                    let key = model.key(version);
                    assert_eq!(key.1, extent.hashes[block], "a pack has another block");
                    if model.lives(version) {
                        live.insert(key);
                    }
                }
            }
        }
        live.retain(|key: &Key| !gone.contains(&key.1));
        live
    }
}

/// Brings everything to rest: all hosts are open, publish and poll.
pub(crate) fn come_to_rest(world: &World) {
    world.location.set_full(false);
    let hosts = 0..world.hosts.len();
    for host in hosts.clone() {
        world.heal(host);
        world.act(&Step::Open(host));
    }
    for _ in 0..3 {
        for host in hosts.clone() {
            world.act(&Step::Far(host, FarStep::Removals, 1, Duration::ZERO));
            world.act(&Step::Far(host, FarStep::Publish, 4, Duration::from_secs(6)));
            world.act(&Step::Far(host, FarStep::Poll, 1, Duration::from_secs(2)));
        }
    }
    for host in hosts {
        world.act(&Step::Far(host, FarStep::Promote, 1, Duration::ZERO));
        world.act(&Step::CheckAll(host));
        world.act(&Step::CheckAll(host));
        world.act(&Step::Far(host, FarStep::Promote, 1, Duration::ZERO));
        world.act(&Step::CheckAll(host));
    }
}
