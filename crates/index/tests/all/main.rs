//! Tests of indexes in files.
//!
//! They are one program, because each program compiles helpers and generic code again.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod flush_amid_compaction;
mod model;
mod uses;
