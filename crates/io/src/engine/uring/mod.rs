//! The engine over Linux `io_uring`: one thread owns the ring, and calls may drive small rings of their own.

mod call_ring;
mod doorbell;
mod engine;
mod in_flight;
mod ring;

pub use self::call_ring::CallRing;
pub(super) use self::engine::Uring;
