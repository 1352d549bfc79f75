//! Tests of stores and indexes on simulated devices.
//!
//! They are one program, because each program compiles helpers and generic code again.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod agreement;
mod crash;
#[path = "../../../io/tests/common/dose.rs"]
mod dose;
mod faults;
mod full;
mod hung;
mod index;
mod merges;
mod partial;
mod room;
mod syncs;
mod transient;
mod unread;
#[path = "../common/worlds.rs"]
mod worlds;
