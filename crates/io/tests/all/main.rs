//! Tests of engines and directories that need no process of their own.
//!
//! They are one program, because compiling generic code and linking cost more than most tests.

mod call_rings;
#[path = "../common/mod.rs"]
mod common;
mod directory;
mod engines;
mod shared;
