//! Tests of engines and directories that need no process of their own.
//!
//! They are one program, because each program compiles helpers and generic code again.
#![expect(clippy::disallowed_methods, reason = "plays the world outside of the crate")]
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod call_rings;
#[path = "../common/mod.rs"]
mod common;
mod directory;
mod engines;
mod shared;
