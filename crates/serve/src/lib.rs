//! One store for many processes: the server that owns it, and the client that reads its pool.
//!
//! | module | what it does |
//! |---|---|
//! | `wire` | messages and their encoding |
//! | `account` | what processes and users hold, its bounds, and which connections can be taken over |
//! | `acquire` | blocks that a client copies, and those that are read ahead |
//! | `session` | message in, answer out; no sockets, so that a simulation drives it |
//! | `accept` | the thread that accepts connections, and those that serve them |
//! | `server` | start and end, the heartbeat |
//! | `serving` | what the threads share: tenants, pools, accounts |
//! | `client` | a store of another process, with the calls of a store of this one |
//! | `handle` | either of them |
//! | `presence` | whether a server is there, and why it cannot be used |
//!
//! 1. A client never writes memory of the server, and the server never maps memory of a client.
//! 2. What a client copied counts only if the stamp of its place is the same afterwards.
//! 3. Everything that a client can hold is bounded, and is given up when its process ends.
//! 4. A server that is gone, stopped or incompatible is a miss, within the terms of the call.

#![forbid(unsafe_code)]

mod accept;
mod account;
mod acquire;
mod client;
#[doc(hidden)]
pub mod fuzzing;
mod handle;
mod place;
mod presence;
mod server;
mod serving;
mod session;
#[cfg(test)]
mod simulation;
mod wire;

pub use account::{AccountStats, Bound, Bounds, LeaseShare};
pub use client::{Allocation, AllocationPut, Client, ServedLease, ServedWatch};
pub use handle::{Handle, HandleLease, HandleWatch};
pub use place::{SOCKET_PREFIX, socket_of};
pub use presence::{Presence, explained, server_of};
pub use server::{Server, ServerStats};
pub use serving::{Tenant, TenantStats};
