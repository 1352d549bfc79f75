//! Tests of logs in files.
//!
//! They are one program, because each program compiles helpers and generic code again.
#![expect(clippy::disallowed_methods, reason = "plays the world outside of the crate")]
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod compressed;
mod extents;
#[path = "../limits/mod.rs"]
mod limits;
mod recovery;
