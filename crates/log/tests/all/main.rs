//! Tests of logs in files.
//!
//! They are one program, because each program compiles helpers and generic code again.
#![expect(clippy::disallowed_methods, reason = "plays the world outside of the crate")]
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod compressed;
#[path = "../dump/mod.rs"]
mod dump;
mod extents;
mod golden;
#[path = "../limits/mod.rs"]
mod limits;
mod recovery;
