//! What every process, every user and all of them together hold. One lock guards it, so sums and bounds always agree.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use dalsegno_core::Nanos;
use dalsegno_store::{Lease, LeasedBlock};
use parking_lot::Mutex;

use super::bounds::{Bounds, Resource, share};
use super::seat::{ClientId, Seat, Standing};

/// The number of a lease without blocks.
pub(crate) const NO_LEASE: u64 = 0;

/// An amount of each resource.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Amounts([u64; Resource::ALL.len()]);

/// What one process holds.
#[derive(Debug, Default)]
pub(super) struct Holdings {
    user: u32,
    amounts: Amounts,
    leases: HashMap<u64, Held>,
}

/// A lease. Dropping it frees its places, which is done without the lock of the book.
#[derive(Debug)]
pub(super) enum Held {
    Copy { _blocks: Vec<LeasedBlock>, bytes: u64, until: Nanos },
    View { _lease: Lease, bytes: u64 },
}

/// See the module.
#[derive(Debug)]
pub(super) struct Book {
    bounds: Bounds,
    all: Amounts,
    users: HashMap<u32, Amounts>,
    processes: HashMap<u64, Holdings>,
    /// By number. A session that was taken over has none any more.
    pub(super) seats: BTreeMap<u64, Seat>,
    /// Sessions that were taken over and have not ended yet.
    pub(super) leaving: usize,
    last_seat: u64,
    /// Numbers of leases are never used again, also not by a process that connects again: it may still release an
    /// older one.
    last_lease: u64,
}

impl Amounts {
    pub(super) fn of(&self, resource: Resource) -> u64 {
        self.0[resource as usize]
    }

    fn add(&mut self, resource: Resource, amount: u64) {
        self.0[resource as usize] += amount;
    }

    fn subtract(&mut self, resource: Resource, amount: u64) {
        self.0[resource as usize] -= amount;
    }
}

impl Held {
    fn bytes(&self) -> (Resource, u64) {
        match self {
            Self::Copy { bytes, .. } => (Resource::CopyBytes, *bytes),
            Self::View { bytes, .. } => (Resource::ViewBytes, *bytes),
        }
    }
}

impl Book {
    pub(super) fn new(bounds: Bounds, namespaces: u64) -> Self {
        let mut all = Amounts::default();
        all.add(Resource::Namespaces, namespaces);
        Self {
            bounds,
            all,
            users: HashMap::new(),
            processes: HashMap::new(),
            seats: BTreeMap::new(),
            leaving: 0,
            last_seat: 0,
            last_lease: 0,
        }
    }

    pub(super) fn clients(&self) -> usize {
        self.processes.len()
    }

    pub(super) fn all(&self) -> &Amounts {
        &self.all
    }

    pub(super) fn leases(&self) -> usize {
        self.processes.values().map(|process| process.leases.len()).sum()
    }

    /// How much of a resource a process holds.
    pub(super) fn own(&self, process: u64, resource: Resource) -> u64 {
        self.processes.get(&process).map_or(0, |held| held.amounts.of(resource))
    }

    /// How much of a resource all processes of a user hold.
    pub(super) fn of_user(&self, user: u32, resource: Resource) -> u64 {
        self.users.get(&user).map_or(0, |amounts| amounts.of(resource))
    }

    /// How much of a resource is free for a user.
    pub(super) fn left(&self, user: u32, resource: Resource) -> u64 {
        let bound = self.bounds.of(resource);
        let of_all = bound.all.saturating_sub(self.all.of(resource));
        of_all.min(bound.user().saturating_sub(self.of_user(user, resource)))
    }

    /// How much more of a resource a process may take.
    pub(super) fn offer(&self, client: ClientId, resource: Resource) -> u64 {
        let most = self.bounds.of(resource).process;
        share(self.own(client.process, resource), most, self.left(client.user, resource))
    }

    /// As [`Book::offer`], for blocks of `least` bytes: a process that holds nothing gets one, however large, if there
    /// is space for it or nobody else holds any.
    pub(super) fn offer_block(&self, client: ClientId, resource: Resource, least: u64) -> u64 {
        let offer = self.offer(client, resource);
        let is_first = self.own(client.process, resource) == 0;
        let is_possible = self.left(client.user, resource) >= least || self.all.of(resource) == 0;
        if offer >= least {
            offer
        } else if is_first && is_possible {
            least
        } else {
            0
        }
    }

    pub(super) fn take(&mut self, client: ClientId, resource: Resource, amount: u64) {
        self.all.add(resource, amount);
        self.users.entry(client.user).or_default().add(resource, amount);
        let new = || Holdings { user: client.user, ..Holdings::default() };
        self.processes.entry(client.process).or_insert_with(new).amounts.add(resource, amount);
    }

    /// Returns what [`Book::take`] took. The end of a process returned all that it held.
    pub(super) fn give_back(&mut self, client: ClientId, resource: Resource, amount: u64) {
        let Some(held) = self.processes.get_mut(&client.process) else { return };
        held.amounts.subtract(resource, amount);
        self.all.subtract(resource, amount);
        if let Some(amounts) = self.users.get_mut(&client.user) {
            amounts.subtract(resource, amount);
            if amounts.0.iter().all(|amount| *amount == 0) {
                self.users.remove(&client.user);
            }
        }
    }

    /// Records a lease whose number and bytes were taken already.
    pub(super) fn insert(&mut self, process: u64, held: Held) -> u64 {
        self.last_lease += 1;
        let holdings = self.processes.get_mut(&process).expect("a session of the process lives");
        holdings.leases.insert(self.last_lease, held);
        self.last_lease
    }

    /// Takes a lease out.
    pub(super) fn remove(&mut self, process: u64, lease: u64) -> Option<Held> {
        let holdings = self.processes.get_mut(&process)?;
        let held = holdings.leases.remove(&lease)?;
        let (client, (resource, bytes)) = (ClientId { process, user: holdings.user }, held.bytes());
        self.give_back(client, resource, bytes);
        self.give_back(client, Resource::Leases, 1);
        Some(held)
    }

    /// Lets a lease to copy last until `end`. Returns whether it has not ended.
    pub(super) fn renew(&mut self, process: u64, lease: u64, end: Nanos) -> bool {
        let holdings = self.processes.get_mut(&process);
        match holdings.and_then(|holdings| holdings.leases.get_mut(&lease)) {
            Some(Held::Copy { until, .. }) => *until = end,
            Some(Held::View { .. }) => {}
            None => return false,
        }
        true
    }

    /// Takes the leases to copy out that are overdue.
    pub(super) fn take_overdue(&mut self, now: Nanos) -> Vec<Held> {
        let is_over = |held: &Held| match held {
            Held::Copy { until, .. } => *until <= now,
            Held::View { .. } => false,
        };
        let mut over = Vec::new();
        for (process, holdings) in &self.processes {
            let leases = holdings.leases.iter().filter(|(_, held)| is_over(held));
            over.extend(leases.map(|(lease, _)| (*process, *lease)));
        }
        over.into_iter().filter_map(|(process, lease)| self.remove(process, lease)).collect()
    }

    /// Adds a session; returns its number and whether it is the first of its process.
    pub(super) fn sit_down(&mut self, client: ClientId, now: Nanos) -> (u64, Seat, bool) {
        let is_first = !self.processes.contains_key(&client.process);
        self.take(client, Resource::Sessions, 1);
        self.last_seat += 1;
        let seat = Seat { client, standing: Arc::new(Mutex::new(Standing::new(now))) };
        self.seats.insert(self.last_seat, seat.clone());
        (self.last_seat, seat, is_first)
    }

    /// Ends a session. Returns the leases of its process if it was the last.
    pub(super) fn get_up(&mut self, number: u64) -> Option<Vec<Held>> {
        let Some(Seat { client, .. }) = self.seats.remove(&number) else {
            // It was taken over.
            self.leaving -= 1;
            return None;
        };
        self.give_back(client, Resource::Sessions, 1);
        if self.own(client.process, Resource::Sessions) > 0 {
            return None;
        }
        // Namespaces stay in the store, and count for the user.
        let of_process = |one: &Resource| *one != Resource::Namespaces;
        for resource in Resource::ALL.into_iter().filter(of_process) {
            self.give_back(client, resource, self.own(client.process, resource));
        }
        let holdings = self.processes.remove(&client.process)?;
        Some(holdings.leases.into_values().collect())
    }

    /// Whether a process holds leases.
    pub(super) fn has_leases(&self, process: u64) -> bool {
        self.own(process, Resource::Leases) > 0
    }

    pub(super) fn bounds(&self) -> &Bounds {
        &self.bounds
    }
}
