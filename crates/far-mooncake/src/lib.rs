//! The memory of a Mooncake cluster as a [`Tier`](dalsegno_far::Tier).
//!
//! A cluster keeps packs, and nothing else: it has no listing, and it evicts what it likes without a word. Everything
//! that must be found or must stay is in a second tier, the companion: catalogs, descriptions, signs of life, removals,
//! and a marker for each pack.
//!
//! | module | what it does |
//! |---|---|
//! | `location` | [`MooncakeLocation`]: a URL and its options, checked |
//! | `client` | [`Client`]: what a tier needs of Mooncake's client, and how it failed |
//! | `late_client` | the client, connected by the first call that needs it |
//! | `own_packs` | the packs that were published here, and which of them the cluster lost |
//! | `tier` | [`MooncakeTier`] |
//!
//! 1. A client's calls run on threads of the tier, never on the caller's. One that never returns keeps its thread and
//!    the memory that it was given; nobody uses that memory again.
//! 2. Nothing depends on the cluster: a pack that it lost is not found, and what was published here is offered again.
//! 3. A marker is there before its pack, and goes after it. So a listing of the companion shows every pack.

#![forbid(unsafe_code)]

mod client;
mod late_client;
mod location;
mod own_packs;
mod tier;

pub use client::{Client, ClientError, Connect, connector, set_connector};
pub use location::{LocationError, MooncakeLocation};
pub use tier::MooncakeTier;
