//! The [`Engine`] trait: what an engine does, whichever system calls it uses.
//!
//! 1. Every accepted request gets exactly one completion, from the engine's thread or from the call whose ring it is
//!    on. A refused request gets it from the submitter's thread.
//! 2. Memory returns to the caller only when the kernel cannot touch it any more.
//! 3. Dropping an engine refuses waiting requests, lets requests in flight finish, and waits at most [`CLOSE_TIMEOUT`].

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use dalsegno_core::Clock;

use super::OpenFile;
use super::uring::CallRing;
use crate::{BufferPool, Request};

/// How long a closing engine waits for the device.
pub(super) const CLOSE_TIMEOUT: Duration = Duration::from_secs(5);

/// Executes requests.
pub(crate) trait Engine: Send + Sync + fmt::Debug {
    /// The value of [`crate::Geometry::engine`].
    fn name(&self) -> &'static str;

    /// The value of [`crate::Geometry::places`].
    fn places(&self) -> usize;

    /// Takes requests. Never waits. Completes those that it cannot accept.
    fn submit(&self, batch: Vec<(Request, Arc<OpenFile>)>);

    /// See [`crate::Device::call_ring`].
    fn call_ring(&self) -> Option<CallRing> {
        None
    }
}

/// Parameters of an engine.
#[derive(Clone, Debug)]
pub(crate) struct Setup {
    /// Requests the device works on at a time.
    pub(crate) depth: u32,
    /// Requests of each direction that are accepted but not completed.
    pub(crate) queue: usize,
    /// Memory to register with the kernel.
    pub(crate) pool: BufferPool,
    /// Decides whether a deadline has passed.
    pub(crate) clock: Arc<dyn Clock>,
}
