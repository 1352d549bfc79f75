//! Beyond the host: what a store writes to and reads from locations that other hosts share.
//!
//! A location is a [`Tier`]: it keeps objects that are written once. [`DirectoryTier`] is a directory of a mounted file
//! system, [`MemoryTier`] a location in memory for tests and simulations.
//!
//! 1. A name at a location is written once and never again.
//! 2. No call waits for a location: each gets a reply, and has a deadline.
//! 3. Bytes of a location are trusted only after their checksum was verified. A wrong, missing or truncated object is a
//!    miss.

#![forbid(unsafe_code)]

mod names;
mod tier;

pub use names::{Object, ObjectName, WriterId};
pub use tier::{
    Ask, DirectoryTier, DirectoryTierOptions, Listed, MemoryLocation, MemoryTier, Reply, StopMode,
    Tier, TierFacts,
};
