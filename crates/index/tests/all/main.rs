//! Tests of indexes in files.
//!
//! They are one program, because compiling generic code and linking cost more than most tests.

mod flush_amid_compaction;
mod model;
mod uses;
