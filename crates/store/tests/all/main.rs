//! Tests of stores that need no process of their own.
//!
//! They are one program, because compiling generic code and linking cost more than most tests.

mod basics;
mod compressed;
mod faults;
mod hanging;
mod index_files;
mod layers;
mod lost_parts;
mod merging;
mod namespaces;
mod removal_watch;
mod repair;
mod scrub;
#[path = "../support/mod.rs"]
mod support;
mod suspended;
mod transfers;
mod tuning;
mod verify_index;
