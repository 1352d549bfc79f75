//! The engine over Linux `io_uring`: one thread owns the ring, and calls may drive small rings of their own.

mod call_ring;
mod doorbell;
mod in_flight;
mod owner;
mod ring;
mod submitter;

pub use self::call_ring::CallRing;
pub(super) use self::submitter::Uring;
