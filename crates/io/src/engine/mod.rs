//! The two engines that carry out requests, behind one small trait.
//!
//! Each stage that adds state wraps the request in a new type: [`crate::Request`] (what to do), `QueuedRequest` (its
//! file and its position in the queue), `InFlight` (what the kernel may touch).

mod backend;
mod open_file;
mod psync;
mod queue;
mod queued_request;
mod select;
mod transfer;
mod uring;

pub(crate) use self::backend::{Engine, Setup};
pub(crate) use self::open_file::OpenFile;
pub(crate) use self::select::start;
pub(crate) use self::transfer::{MAX_PIECES, check_bounds, read, retried};
pub use self::uring::CallRing;
