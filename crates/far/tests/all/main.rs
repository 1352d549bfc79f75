//! Tests of the far tier that need no process of their own.
//!
//! They are one program, because each program compiles helpers and generic code again.
#![expect(clippy::disallowed_methods, reason = "golden files are read as files")]
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]
#![expect(clippy::print_stdout, reason = "reports what the tests ran")]

mod collect;
mod collect_crash;
mod collectable;
#[path = "../common/mod.rs"]
mod common;
mod conformance;
mod crash;
mod doctor;
#[path = "../../../io/tests/common/dose.rs"]
mod dose;
mod earlier;
mod golden;
#[path = "../common/hosts.rs"]
mod hosts;
mod removals;
mod shared_catalogs;
#[path = "../common/world.rs"]
mod world;
