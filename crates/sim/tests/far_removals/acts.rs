//! Carries out the steps of a history, and compares what calls return with the model.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use dalsegno_core::{ChainHash, Clock, ErrorKind};
use dalsegno_far::LIST_EVERY;
use dalsegno_io::{Memory, lend};
use dalsegno_sim::chain_hashes;
use dalsegno_store::testing::{FarStep, applied, step_far};
use dalsegno_store::{Keep, LayerSpan, NamespaceId, Put, PutOutcome, Scope, Store, Terms};

use crate::model::{BLOCK_BYTES, PutFact, Reach, RemovalFact, RemovalNumber, bytes_of};
use crate::steps::{HOSTS, Span, Step, Target};
use crate::world::{Directory, HostState, OpenLayers, World};

/// How long the location keeps removals.
const KEEP: Duration = Duration::from_secs(7 * 24 * 3600);
/// A poll asks for the location's time if that was not asked for so long.
const ASK_AFTER: Duration = Duration::from_secs(90);
pub(crate) const HOUR: Duration = Duration::from_secs(3600);
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

    pub(crate) fn id(&self, namespace: usize) -> NamespaceId {
        self.namespaces[namespace].id()
    }

    /// The removals that a host must have applied.
    fn knowledge(&self, host: usize) -> BTreeSet<RemovalNumber> {
        let Some(store) = self.store(host) else { return BTreeSet::new() };
        let claimed = self.model.lock().among(&applied(&store).expect("it is open"));
        let directory = &mut self.hosts[host].lock().directory;
        directory.known.extend(claimed.difference(&directory.excused));
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
    pub(crate) fn expired(&self) -> BTreeSet<RemovalNumber> {
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
            let keep = self.keep(versions.first());
            let put = Put { chain: &chain, first: span.first, blocks, keep };
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
        let writer = store.layer_writer(
            id,
            LayerSpan { chain: &chain, first: span.first, count },
            &Terms::default(),
        );
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
        let keep = self.keep(versions.first());
        if writer.commit(keep, &Terms::default()).is_ok() && keep == Keep::Stored {
            self.hosts[host].lock().directory.stored.extend(versions);
        }
    }

    /// Gets blocks, each independently, while other steps run; returns the hits.
    pub(crate) fn get(
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
                for step in &during {
                    world.act(step);
                }
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

    pub(crate) fn far(&self, host: usize, step: FarStep) {
        let Some(store) = self.store(host) else { return };
        if step != FarStep::Poll {
            return step_far(&store, step).expect("it is open");
        }
        self.forgive_if_old(host);
        let faults = || {
            let state = self.hosts[host].lock();
            (state.tier.fired(), state.directory.device.faults_fired())
        };
        let mut published = self.model.lock().published();
        let expired = self.expired();
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
        self.excuse_hidden(host, &store, || step_far(&store, step).expect("it is open"));
        let has_unread = store.stats().far.is_some_and(|far| far.bad_objects > 0);
        let is_complete = faults() == before && !has_unread && !store.stats().poisoned;
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

    /// Runs something that may poll. A listing that does not show a list says that its removals have expired. If this
    /// open has not read the list, or two listings do not show it, the host forgets them until the list is back.
    pub(crate) fn excuse_hidden(&self, host: usize, store: &Store, poll: impl FnOnce()) {
        let far = store.stats().far;
        let has_read = far.is_some_and(|far| far.complete_polls > 0 && far.bad_objects == 0);
        let hidden = || self.hosts[host].lock().tier.hidden();
        let before = hidden();
        poll();
        let hides = hidden() > before;
        let state = &mut *self.hosts[host].lock();
        if hides && (state.missed_list || !has_read) {
            state.directory.known.clear();
            state.directory.claimed.clear();
            state.forgive();
        }
        state.missed_list = hides;
    }

    /// A store that followed nothing for as long as removals are kept may drop everything.
    pub(crate) fn forgive_if_old(&self, host: usize) {
        let state = &mut *self.hosts[host].lock();
        let since = state.directory.polled.unwrap_or(state.directory.made);
        if self.location_clock.now().since(since) + 2 * HOUR >= KEEP {
            state.forgive();
        }
    }

    pub(crate) fn note(&self, text: String) {
        self.steps.lock().push(text);
    }
}

impl HostState {
    /// Nothing that it accepted must be there, nor what it is about to accept.
    fn forgive(&mut self) {
        self.directory.stored.clear();
        if let Some(layers) = &mut self.layers {
            layers.versions.clear();
        }
    }
}

impl Directory {
    /// Whether its disk has failed.
    pub(crate) fn is_fragile(&self) -> bool {
        self.is_fragile
    }

    /// Whether an operation of its disk has failed.
    pub(crate) fn had_faults(&self) -> bool {
        self.has_failed || self.device.faults_fired() > 0
    }
}
