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

use dalsegno_extent::NewExtent;
use dalsegno_log::{Append, Log, Payload, SpaceUse};

/// An extent with space for it.
fn append_of(log: &Log, extent: NewExtent, payload: Payload) -> Append {
    let bytes = payload.total_bytes(&extent);
    Append::new(extent, payload, log.writer().reserve(bytes, SpaceUse::Creatable).unwrap())
}
