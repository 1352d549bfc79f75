//! What the threads of a server share: its tenants, their pools and accounts.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::time::Duration;

use dalsegno_core::{Clock, Result};
use dalsegno_store::{Pool, PoolUse};
use serde::Serialize;

use crate::account::{AccountStats, Accounts, Bounds, ClientLines, LeaseShare};

/// How often a thread that waits looks whether the server closes.
pub(crate) const POLL: Duration = Duration::from_millis(200);
/// How long a client may take to read an answer, or to say hello.
pub(crate) const PATIENCE: Duration = Duration::from_secs(5);
/// The pool of some users, apart from those of others.
#[derive(Debug)]
pub struct Tenant {
    /// Its name, for messages.
    pub name: String,
    /// The users who get it.
    pub uids: BTreeSet<u32>,
    /// Their pool.
    pub pool: Pool,
}

#[derive(Debug)]
pub(crate) struct Serving {
    /// The first is for users of no other.
    pub(crate) offers: Vec<Offer>,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) lines: Arc<ClientLines>,
    pub(crate) is_closing: AtomicBool,
    pub(crate) requests: AtomicU64,
    /// Connections of processes without a number.
    pub(crate) nameless: AtomicU64,
}

/// A pool, who gets it, and who holds what of it.
#[derive(Debug)]
pub(crate) struct Offer {
    pub(crate) tenant: Tenant,
    pub(crate) accounts: Arc<Accounts>,
}

/// Everything that the server counts for one tenant.
#[derive(Clone, Debug, Serialize)]
pub struct TenantStats {
    /// Its name; empty for the users of no tenant.
    pub tenant: String,
    /// Bytes of the pool.
    pub pool_bytes: u64,
    /// Bytes of the pool in no place.
    pub pool_free_bytes: u64,
    /// Clients, and what they hold.
    #[serde(flatten)]
    pub accounts: AccountStats,
    /// The store behind the pool.
    pub store: dalsegno_store::Stats,
}

impl Serving {
    pub(crate) fn sessions(&self) -> u64 {
        self.offers.iter().map(|offer| offer.accounts.stats().sessions).sum()
    }

    /// What a user is offered.
    pub(crate) fn offer(&self, uid: u32) -> &Offer {
        let own = self.offers.iter().find(|offer| offer.tenant.uids.contains(&uid));
        own.unwrap_or(&self.offers[0])
    }
}

impl Offer {
    pub(crate) fn new(
        tenant: Tenant,
        sessions: u64,
        share: LeaseShare,
        clock: &Arc<dyn Clock>,
        lines: &Arc<ClientLines>,
    ) -> Result<Self> {
        let (pool, store) = (tenant.pool.usage()?.capacity_bytes, tenant.pool.store());
        let namespaces = store.limits().namespace_count.into();
        let bounds = Bounds::of_pool(pool, share, namespaces, sessions);
        let known = store.namespaces()?.len() as u64;
        let accounts = Accounts::new(bounds, known, Arc::clone(clock), Arc::clone(lines));
        Ok(Self { tenant, accounts })
    }

    pub(crate) fn stats(&self) -> TenantStats {
        let pool = &self.tenant.pool;
        let none = PoolUse { capacity_bytes: 0, free_bytes: 0, leased_bytes: 0 };
        let usage = pool.usage().unwrap_or(none);
        TenantStats {
            tenant: self.tenant.name.clone(),
            pool_bytes: usage.capacity_bytes,
            pool_free_bytes: usage.free_bytes,
            accounts: self.accounts.stats(),
            store: pool.store().stats(),
        }
    }
}
