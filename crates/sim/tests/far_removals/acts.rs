//! Carries out the steps of a history, and compares what calls return with the model.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use dalsegno_core::{ChainHash, Clock, ErrorKind};
use dalsegno_far::format::Catalog;
use dalsegno_far::offline::{Location, prune};
use dalsegno_far::{LIST_EVERY, Object, Tier, wait_for};
use dalsegno_io::{Memory, lend};
use dalsegno_sim::{Fault, Kind, Outage, Rule, chain_hashes};
use dalsegno_store::testing::{FarStep, applied, step_far};
use dalsegno_store::{NamespaceId, Put, PutOutcome, Scope, Terms};

use crate::model::{BLOCK_BYTES, Key, PutFact, Reach, RemovalFact, RemovalNumber, bytes_of};
use crate::steps::{BadFile, CHAIN_BLOCKS, CHAINS, HOSTS, NAMESPACES, Span, Step, Target};
use crate::world::{Directory, OpenLayers, World};

/// How long the location keeps removals.
const KEEP: Duration = Duration::from_secs(7 * 24 * 3600);
/// A poll asks for the location's time if that was not asked for so long.
const ASK_AFTER: Duration = Duration::from_secs(90);
const HOUR: Duration = Duration::from_secs(3600);
/// How long a get may take.
const GET: Duration = Duration::from_secs(600);

impl Span {
    fn chain(&self) -> Vec<ChainHash> {
        chain_hashes(2 * self.chain, self.end)
    }

    fn hashes(&self) -> Vec<ChainHash> {
        self.chain()[self.first..].to_vec()
    }
}

impl World {
    /// Does a step, unless its host is not in the state for it.
    ///
    /// # Panics
    ///
    /// If a call returns what it must not.
    pub(crate) fn act(&self, step: &Step) {
        self.steps.lock().push(format!("{step:?}"));
        match step {
            Step::Put(host, span) => self.put(*host, *span),
            Step::BeginLayers(host, span) => self.begin_layers(*host, *span),
            Step::CommitLayers(host) => self.commit_layers(*host),
            Step::Get(host, span, during) => {
                self.get(*host, span.namespace, &span.hashes(), during);
            }
            Step::Probe(host, span) => {
                if let Some(store) = self.store(*host) {
                    store.probe(self.id(span.namespace), &span.chain()).expect("it is open");
                }
            }
            Step::Remove(host, target) => self.remove(*host, *target),
            Step::Far(host, far, times, pause) => {
                for _ in 0..*times {
                    self.far(*host, *far);
                    self.pass(*pause);
                }
            }
            Step::Prune(host, named) => self.prune(*host, *named),
            Step::Trouble(host, rule) => self.hosts[*host].lock().tier.trouble(*rule),
            Step::DiskTrouble(host, file) => self.trouble_disk(*host, *file),
            Step::Heal(host) => self.heal(*host),
            Step::Full(is_full) => self.location.set_full(*is_full),
            Step::Pass(time) => self.pass(*time),
            Step::Live(time) => self.live(*time),
            Step::Open(host) => self.open(*host),
            Step::Close(host) => self.close(*host),
            Step::Crash(host, outage) => self.crash(*host, *outage),
            Step::BackUp(host) => self.back_up(*host),
            Step::Restore(host) => self.restore(*host),
            Step::CheckAll(host) => self.check_all(*host),
        }
        self.settle_pending();
        (0..HOSTS).for_each(|host| self.check_live(host));
    }

    fn id(&self, namespace: usize) -> NamespaceId {
        self.namespaces[namespace].id()
    }

    /// The removals that a host must have applied.
    fn knowledge(&self, host: usize) -> BTreeSet<RemovalNumber> {
        let Some(store) = self.store(host) else { return BTreeSet::new() };
        let claimed = self.model.lock().among(&applied(&store).expect("it is open"));
        let directory = &mut self.hosts[host].lock().directory;
        directory.known.extend(&claimed);
        directory.claimed.extend(claimed);
        directory.known.clone()
    }

    /// Begins puts. They know what the host says to have applied, and if its disk never failed, what it must have. A
    /// removal that may have expired covers no new put.
    fn versions(&self, host: usize, namespace: usize, hashes: &[ChainHash]) -> Vec<u64> {
        let known = self.knowledge(host);
        let (knew, unsure) = {
            let directory = &self.hosts[host].lock().directory;
            let knew = if directory.had_faults() { directory.claimed.clone() } else { known };
            let mut unsure = directory.seen.clone();
            unsure.extend(self.expired());
            (knew, unsure)
        };
        let fact = |hash: &ChainHash| PutFact {
            key: (namespace, *hash),
            host,
            knew: knew.clone(),
            unsure: unsure.clone(),
        };
        let mut model = self.model.lock();
        hashes.iter().map(|hash| model.put(fact(hash))).collect()
    }

    /// The removals that were issued so long ago that the location may have dropped them.
    fn expired(&self) -> BTreeSet<RemovalNumber> {
        let now = self.location_clock.now();
        let model = self.model.lock();
        let all = model.removals.iter().enumerate();
        all.filter(|(_, one)| now.since(one.issued) + 2 * HOUR >= KEEP).map(|(n, _)| n).collect()
    }

    fn put(&self, host: usize, span: Span) {
        let Some(store) = self.store(host) else { return };
        let (chain, hashes) = (span.chain(), span.hashes());
        let versions = self.versions(host, span.namespace, &hashes);
        let blocks: Vec<Vec<u8>> = versions
            .iter()
            .zip(&hashes)
            .map(|(version, hash)| bytes_of(*version, (span.namespace, *hash)))
            .collect();
        let report = lend(|lender| {
            let blocks = blocks.iter().map(|block| vec![lender.shared(block)]).collect();
            let put = Put { chain: &chain, first: span.first, blocks };
            store.put_batch(self.id(span.namespace), put, &Terms::default())
        });
        let state = &mut *self.hosts[host].lock();
        let Ok(report) = report else {
            assert!(state.directory.is_fragile(), "a put failed without a fault");
            state.directory.is_fragile = true;
            return;
        };
        for (version, outcome) in versions.iter().zip(&report.outcomes) {
            match outcome {
                PutOutcome::Stored => state.directory.stored.push(*version),
                PutOutcome::Failed => {
                    assert!(state.directory.is_fragile(), "a put failed without a fault");
                }
                _ => {}
            }
        }
    }

    fn begin_layers(&self, host: usize, span: Span) {
        let Some(store) = self.store(host) else { return };
        let (chain, count) = (span.chain(), span.end - span.first);
        drop(self.hosts[host].lock().layers.take());
        let knew = self.versions(host, span.namespace, &span.hashes());
        let id = self.id(span.namespace);
        let writer = store.layer_writer(id, &chain, span.first, count, &Terms::default());
        let Ok(writer) = writer else { return };
        let versions = knew[writer.first() - span.first..].to_vec();
        let hashes = &chain[writer.first()..];
        let block = |(version, hash): (&u64, &ChainHash)| {
            vec![Memory::owned(bytes_of(*version, (span.namespace, *hash)), ())]
        };
        let blocks = versions.iter().zip(hashes).map(block).collect();
        if writer.store_layer(0, blocks, &Terms::default()).is_ok() {
            self.hosts[host].lock().layers = Some(OpenLayers { writer, versions });
        }
    }

    fn commit_layers(&self, host: usize) {
        let Some(OpenLayers { writer, versions }) = self.hosts[host].lock().layers.take() else {
            return;
        };
        if writer.commit(&Terms::default()).is_ok() {
            self.hosts[host].lock().directory.stored.extend(versions);
        }
    }

    /// Gets blocks, each independently, while other steps run; returns the hits.
    fn get(
        &self,
        host: usize,
        namespace: usize,
        hashes: &[ChainHash],
        during: &[Step],
    ) -> Vec<bool> {
        let Some(store) = self.store(host) else { return Vec::new() };
        let known = self.knowledge(host);
        let tier = Arc::clone(&self.hosts[host].lock().tier);
        if !during.is_empty() {
            let (world, during) = (self.this.clone(), during.to_vec());
            tier.interrupt(Some(Box::new(move || {
                let world = world.upgrade().expect("the history runs");
                during.iter().for_each(|step| world.act(step));
            })));
        }
        let mut out = vec![vec![0xee_u8; BLOCK_BYTES]; hashes.len()];
        let report = lend(|lender| {
            let targets: Vec<Vec<Memory>> =
                out.iter_mut().map(|block| vec![lender.exclusive(block)]).collect();
            let terms = Terms::within(GET);
            store.get_batch(self.id(namespace), hashes, targets, Scope::Each, &terms)
        });
        tier.interrupt(None);
        let report = report.expect("a get of the right sizes never fails");
        let mut model = self.model.lock();
        for ((hash, bytes), outcome) in hashes.iter().zip(&out).zip(&report.outcomes) {
            if outcome.is_hit() {
                model.check_hit((host, (namespace, *hash)), bytes, &known);
            }
        }
        report.outcomes.iter().map(|outcome| outcome.is_hit()).collect()
    }

    fn remove(&self, host: usize, target: Target) {
        let Some(store) = self.store(host) else { return };
        let (namespace, hashes) = match target {
            Target::Blocks(span) => (span.namespace, Some(span.hashes())),
            Target::Namespace(namespace) => (namespace, None),
            Target::Nothing => {
                let removed = store.remove(self.id(0), Some(&[]), &Terms::default());
                assert_eq!(removed.ok(), Some(0), "a removal of nothing");
                return;
            }
        };
        let (number, faults) = {
            let state = &mut *self.hosts[host].lock();
            state.removals += 1;
            let mut model = self.model.lock();
            model.removals.push(RemovalFact {
                by: state.writer,
                number: state.removals,
                host,
                namespace,
                hashes: hashes.clone(),
                reach: Reach::Unsure,
                issued: self.location_clock.now(),
            });
            (model.removals.len() - 1, state.directory.device.faults_fired())
        };
        let terms = Terms::within(Duration::from_secs(30));
        let removed = store.remove(self.id(namespace), hashes.as_deref(), &terms);
        let state = &mut *self.hosts[host].lock();
        let has_failed = state.directory.device.faults_fired() > faults || store.stats().poisoned;
        let reach = match &removed {
            Ok(_) => Reach::Published,
            Err(error) if error.kind() == ErrorKind::Unavailable && !has_failed => Reach::Pending,
            Err(error) => {
                assert!(has_failed, "a removal failed without a fault: {error}");
                Reach::Unsure
            }
        };
        self.note(format!("  removal {number}: {reach:?}"));
        self.model.lock().removals[number].reach = reach;
        if reach != Reach::Unsure {
            state.directory.known.insert(number);
        }
        state.directory.seen.insert(number);
        state.directory.has_failed |= has_failed;
    }

    /// Notes removals that were published after their calls returned.
    fn settle_pending(&self) {
        let mut model = self.model.lock();
        for (number, removal) in model.removals.iter_mut().enumerate() {
            if removal.reach == Reach::Pending && self.has_published(removal.host) {
                removal.reach = Reach::Published;
                self.steps.lock().push(format!("  removal {number} is published"));
            }
        }
    }

    /// Whether a host says that it has published all its removals.
    fn has_published(&self, host: usize) -> bool {
        let far = self.store(host).and_then(|store| store.stats().far);
        far.is_some_and(|far| far.pending_removals == 0)
    }

    fn far(&self, host: usize, step: FarStep) {
        let Some(store) = self.store(host) else { return };
        if step != FarStep::Poll {
            return step_far(&store, step).expect("it is open");
        }
        self.forgive_if_old(host);
        let faults = || {
            let state = self.hosts[host].lock();
            (state.tier.fired(), state.directory.device.faults_fired())
        };
        let (mut published, expired) = (self.model.lock().published(), self.expired());
        {
            let directory = &mut self.hosts[host].lock().directory;
            if directory.polled.is_none() {
                directory.excused.extend(expired);
            }
            published.retain(|number| !directory.excused.contains(number));
        }
        let before = faults();
        let all = 0..self.model.lock().removals.len();
        self.hosts[host].lock().directory.seen.extend(all);
        step_far(&store, step).expect("it is open");
        let is_complete = faults() == before && !store.stats().poisoned;
        let now = self.clock.now();
        if let Some(far) = store.stats().far {
            let (polls, applied, blocks) =
                (far.complete_polls, far.applied_removals, store.stats().blocks);
            self.note(format!(
                "  {polls} complete polls, {applied} removals applied, {blocks} blocks"
            ));
        }
        let state = &mut *self.hosts[host].lock();
        let asks = state.polls.is_multiple_of(LIST_EVERY)
            || state.asked.is_none_or(|asked| now.since(asked) >= ASK_AFTER);
        state.polls += 1;
        if asks {
            state.asked = Some(now);
        }
        if is_complete {
            state.directory.known.extend(published);
            if asks {
                state.directory.polled = Some(self.location_clock.now());
            }
        }
    }

    /// A store that followed nothing for as long as removals are kept may drop everything.
    fn forgive_if_old(&self, host: usize) {
        let state = &mut *self.hosts[host].lock();
        let away = state.directory.polled.map(|polled| self.location_clock.now().since(polled));
        if away.is_some_and(|away| away + 2 * HOUR >= KEEP) {
            state.directory.stored.clear();
        }
    }

    fn prune(&self, host: usize, named: Option<usize>) {
        let tier = Arc::clone(&self.hosts[host].lock().tier) as Arc<dyn Tier>;
        let names: Vec<String> =
            named.iter().map(|named| self.hosts[*named].lock().writer.store.to_string()).collect();
        let location = Location::new(tier, Arc::clone(&self.clock) as Arc<dyn Clock>);
        let pruned = prune(&location, &names, true, &|_, _| {});
        self.note(format!("  pruned {:?}", pruned.map(|report| report.writers.len())));
    }

    fn trouble_disk(&self, host: usize, file: BadFile) {
        let state = &mut *self.hosts[host].lock();
        let rule = match file {
            BadFile::FarMeta => Rule::once(Kind::Create, Fault::Error, 0).on("far"),
            BadFile::Segment => {
                state.directory.is_fragile = true;
                Rule::once(Kind::Write, Fault::Error, 0).on("segment")
            }
        };
        state.directory.device.inject(rule);
    }

    fn heal(&self, host: usize) {
        let state = self.hosts[host].lock();
        state.tier.heal();
        state.directory.device.heal();
    }

    /// Each open host polls and publishes each hour.
    fn live(&self, time: Duration) {
        let hours = time.as_secs() / HOUR.as_secs();
        for _ in 0..hours {
            for host in 0..self.hosts.len() {
                self.far(host, FarStep::Removals);
                self.far(host, FarStep::Poll);
                self.far(host, FarStep::Publish);
                self.far(host, FarStep::Collect);
            }
            self.pass(HOUR);
        }
    }

    fn close(&self, host: usize) {
        let Some(store) = self.store(host) else { return };
        let layers = self.hosts[host].lock().layers.take();
        drop(layers);
        store.close();
        self.hosts[host].lock().store = None;
    }

    fn crash(&self, host: usize, outage: Outage) {
        let late_happens = self.random.lock().percent(50);
        let state = &mut *self.hosts[host].lock();
        if state.store.is_none() {
            return;
        }
        state.tier.go_down(late_happens);
        let had_faults = state.directory.had_faults();
        state.directory.has_failed = had_faults;
        let (device, _) = state.directory.device.reboot(outage);
        state.layers = None;
        state.store = None;
        state.directory.device = Arc::new(device);
    }

    fn back_up(&self, host: usize) {
        let directory = self.hosts[host].lock().directory.clone();
        let device = Arc::new(directory.device.fork());
        *self.backup.lock() = Some(Directory { device, ..directory });
    }

    /// The copy takes the place of a host's directory. Removals that only this directory knew are not promised any more.
    fn restore(&self, host: usize) {
        let Some(backup) = self.backup.lock().clone() else { return };
        self.crash(host, Outage::Process);
        for removal in &mut self.model.lock().removals {
            if removal.host == host && removal.reach == Reach::Pending {
                removal.reach = Reach::Unsure;
            }
        }
        let device = Arc::new(backup.device.fork());
        self.hosts[host].lock().directory = Directory { device, ..backup };
        self.open(host);
    }

    /// Gets every block on a host, and checks that what it accepted and no removal covers is there.
    pub(crate) fn check_all(&self, host: usize) {
        if self.store(host).is_none() {
            return;
        }
        self.forgive_if_old(host);
        let mut expected = self.live_keys(host);
        if host == HOSTS {
            // It has no log, and was polled.
            expected.extend(self.live_at_location());
        }
        for namespace in 0..NAMESPACES {
            let chains = (0..CHAINS).map(|chain| chain_hashes(2 * chain, CHAIN_BLOCKS));
            let all: BTreeSet<ChainHash> = chains.flatten().collect();
            let all: Vec<ChainHash> = all.into_iter().collect();
            let hits = self.get(host, namespace, &all, &[]);
            for (hash, hit) in all.iter().zip(hits) {
                let must_hit = expected.contains(&(namespace, *hash));
                self.model.lock().checks += 1;
                assert!(hit || !must_hit, "host {host} lost {hash} of namespace {namespace}");
            }
        }
    }

    /// Checks that a host still lists what it accepted and no removal covers.
    fn check_live(&self, host: usize) {
        let Some(store) = self.store(host) else { return };
        for (namespace, hash) in self.live_keys(host) {
            let is_there = store.peek(self.id(namespace), &[hash]).expect("it is open")[0];
            assert!(is_there, "host {host} dropped {hash} of namespace {namespace}");
        }
    }

    /// The blocks that a host accepted and that must be there.
    fn live_keys(&self, host: usize) -> BTreeSet<Key> {
        let state = self.hosts[host].lock();
        if state.directory.is_fragile() {
            return BTreeSet::new();
        }
        let model = self.model.lock();
        let live = state.directory.stored.iter().filter(|version| model.lives(**version));
        live.map(|version| model.key(*version)).collect()
    }

    /// The blocks in packs at the location that no removal covers.
    fn live_at_location(&self) -> BTreeSet<Key> {
        let clock = Arc::clone(&self.location_clock) as Arc<dyn Clock>;
        let tier = self.location.mount();
        let fetch = |name| wait_for(&clock, HOUR, |ask| tier.fetch(name, 64 << 20, ask));
        let model = self.model.lock();
        let mut live = BTreeSet::new();
        for (name, _) in self.location.objects() {
            let Object::Catalog(number) = name.object else { continue };
            let Ok(pack) = fetch(name.writer.object(Object::Pack(number))) else { continue };
            let catalog = Catalog::decode(&fetch(name).expect("it is there")).expect("it is whole");
            for extent in &catalog.extents {
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
        live
    }

    fn note(&self, text: String) {
        self.steps.lock().push(text);
    }
}

impl Directory {
    /// Whether its disk has failed.
    fn is_fragile(&self) -> bool {
        self.is_fragile
    }

    /// Whether an operation of its disk has failed.
    fn had_faults(&self) -> bool {
        self.has_failed || self.device.faults_fired() > 0
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
