//! How much clients may hold.
//!
//! 1. A process holds at most its own bound of each resource, and at most as much as it leaves free: see [`share`].
//! 2. All processes of a user hold at most three quarters of each resource.

use std::time::Duration;

use dalsegno_core::{Error, Result};

/// How long blocks stay in their places for a client that copies them.
pub(crate) const COPY_LEASE: Duration = Duration::from_secs(2);

/// What clients hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Resource {
    Sessions,
    Leases,
    /// Bytes of blocks that a client copies.
    CopyBytes,
    /// Bytes of blocks that a client uses in their places.
    ViewBytes,
    /// Removals that watches may note.
    WatchedBlocks,
    /// Namespaces that a client created.
    Namespaces,
}

impl Resource {
    pub(crate) const ALL: [Self; 6] = [
        Self::Sessions,
        Self::Leases,
        Self::CopyBytes,
        Self::ViewBytes,
        Self::WatchedBlocks,
        Self::Namespaces,
    ];
}

/// The most of one resource.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bound {
    /// Of all processes together.
    pub all: u64,
    /// Of one process.
    pub process: u64,
}

/// The most that clients may hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bounds {
    /// Connections.
    pub sessions: Bound,
    /// Leases.
    pub leases: Bound,
    /// Bytes in leases to copy, and of puts that the server copies.
    pub copy_bytes: Bound,
    /// Bytes in leases to use blocks in their places.
    pub view_bytes: Bound,
    /// Removals that wait in watches: 48 bytes each.
    pub watched_blocks: Bound,
    /// Namespaces; for a process those that it created.
    pub namespaces: Bound,
}

/// The share of a pool that all processes together may lease in place. One process may lease a quarter of it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LeaseShare(f64);

impl LeaseShare {
    /// The rest is for bytes that clients copy, and for puts.
    const MOST: f64 = 0.75;

    /// A share of `part`.
    ///
    /// # Errors
    ///
    /// `Invalid` if it is not above 0 and at most three quarters.
    pub fn new(part: f64) -> Result<Self> {
        if part > 0.0 && part <= Self::MOST {
            return Ok(Self(part));
        }
        let most = Self::MOST;
        Err(Error::invalid(format!(
            "lease_share is {part}; it must be above 0 and at most {most}: the rest of the pool is for copies and puts"
        )))
    }

    #[allow(clippy::cast_precision_loss, clippy::cast_possible_truncation, clippy::cast_sign_loss)]
    fn of(self, pool_bytes: u64) -> u64 {
        (pool_bytes as f64 * self.0) as u64
    }
}

impl Default for LeaseShare {
    fn default() -> Self {
        Self(0.5)
    }
}

impl Bounds {
    /// Most connections of a tenant.
    pub const SESSIONS: u64 = 512;

    /// Bounds for a pool of `pool_bytes` of which `share` may be leased in place, a store of at most `namespaces`, and
    /// at most `sessions` connections.
    #[must_use]
    pub fn of_pool(pool_bytes: u64, share: LeaseShare, namespaces: u64, sessions: u64) -> Self {
        let leased = share.of(pool_bytes);
        // An eighth is left for puts in any case.
        let copied = (pool_bytes / 8 * 7).saturating_sub(leased);
        Self {
            sessions: Bound { all: sessions, process: 32 },
            leases: Bound { all: 16_384, process: 1024 },
            copy_bytes: Bound { all: copied, process: copied / 3 },
            view_bytes: Bound { all: leased, process: leased / 4 },
            watched_blocks: Bound { all: 1 << 21, process: 1 << 19 },
            namespaces: Bound { all: namespaces, process: namespaces / 8 * 3 },
        }
    }

    pub(crate) fn of(&self, resource: Resource) -> Bound {
        match resource {
            Resource::Sessions => self.sessions,
            Resource::Leases => self.leases,
            Resource::CopyBytes => self.copy_bytes,
            Resource::ViewBytes => self.view_bytes,
            Resource::WatchedBlocks => self.watched_blocks,
            Resource::Namespaces => self.namespaces,
        }
    }
}

impl Bound {
    /// The most of all processes of one user.
    pub(crate) fn user(self) -> u64 {
        self.all - self.all / 4
    }
}

/// How much more a process may take that holds `own` of at most `most`, while `left` is free: what it then holds is at
/// most one more than what it then leaves. So something is always left for the next process.
pub(crate) fn share(own: u64, most: u64, left: u64) -> u64 {
    most.saturating_sub(own).min(left.saturating_sub(own).div_ceil(2))
}
