//! Tests of indexes in files.
//!
//! They are one program, because each program compiles helpers and generic code again.
#![expect(clippy::disallowed_methods, reason = "golden files are read and copied as files")]
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

#[path = "../dump/mod.rs"]
mod dump;
mod flush_amid_compaction;
mod golden;
mod model;
mod uses;
