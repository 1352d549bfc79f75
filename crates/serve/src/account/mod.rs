//! What the processes of clients hold: connections, leases, watches and namespaces.
//!
//! 1. An account belongs to one process, which the system named when it connected. Whatever it holds is given up when
//!    its last connection ends.
//! 2. Every resource is bounded for a process, for a user and for all, so none can use up what others need.
//! 3. A lease to copy ends after [`COPY_LEASE`], released or not: its holder finds out by the stamps. A lease to use
//!    blocks in their places ends only when it is released, or with the process.
//! 4. Nothing is logged, and no place is freed, while the lock is held.

mod accounts;
mod book;
mod bounds;
mod client_lines;
mod grant;
mod seat;
mod slot;
mod take_over;
#[cfg(test)]
mod tests;

pub use self::accounts::AccountStats;
pub(crate) use self::accounts::Accounts;
pub(crate) use self::book::NO_LEASE;
pub(crate) use self::bounds::COPY_LEASE;
pub use self::bounds::{Bound, Bounds, LeaseShare};
pub(crate) use self::client_lines::{ClientLines, NO_USER};
pub(crate) use self::grant::{Account, Grant, WatchShare};
pub(crate) use self::seat::ClientId;
pub(crate) use self::slot::SessionSlot;
