//! Tests of logs in files.
//!
//! They are one program, because compiling generic code and linking cost more than most tests.

mod compressed;
mod extents;
#[path = "../limits/mod.rs"]
mod limits;
mod recovery;
