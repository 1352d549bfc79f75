//! The two engines that carry out requests, behind one small trait.
//!
//! 1. Every accepted request is answered exactly once, by the engine's thread or by the call whose ring it is on; a
//!    refused one by the submitter's.
//! 2. Memory is handed back only when the kernel cannot touch it any more.
//! 3. Dropping an engine refuses what waits, lets what is in flight finish, and waits at most [`PATIENCE`].

mod job;
mod psync;
mod queue;
mod uring;

use std::fmt;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use dalsegno_core::{Clock, EngineChoice};

pub use self::uring::CallRing;
use crate::{BufferPool, IoError, Request};

/// How long a closing engine waits for the device.
const PATIENCE: Duration = Duration::from_secs(5);

/// Most pieces of one request, the kernel's `IOV_MAX`.
pub(crate) const MAX_PIECES: usize = 1024;

/// Most bytes of one request; the kernel itself cuts a transfer at 2 GiB less a page.
pub(crate) const MAX_REQUEST_BYTES: u64 = 1 << 30;

/// An open file; requests in flight keep it open.
#[derive(Debug)]
pub(crate) struct OpenFile {
    pub(crate) descriptor: OwnedFd,
    /// For messages.
    pub(crate) name: String,
}

/// What carries out requests.
pub(crate) trait Engine: Send + Sync + fmt::Debug {
    /// The word of [`crate::Geometry::engine`].
    fn name(&self) -> &'static str;

    /// Takes requests over. Never waits; answers what it cannot take at once.
    fn submit(&self, batch: Vec<(Request, Arc<OpenFile>)>);

    /// See [`crate::Device::call_ring`].
    fn call_ring(&self) -> Option<CallRing> {
        None
    }
}

/// What an engine is made with.
#[derive(Clone, Debug)]
pub(crate) struct Setup {
    /// Requests the device works on at a time.
    pub(crate) depth: u32,
    /// Requests of each direction accepted and not yet answered.
    pub(crate) queue: usize,
    /// Memory to register with the kernel.
    pub(crate) pool: BufferPool,
    /// Tells whether a deadline passed.
    pub(crate) clock: Arc<dyn Clock>,
}

/// Starts the chosen engine.
pub(crate) fn start(choice: EngineChoice, setup: &Setup) -> Result<Box<dyn Engine>, IoError> {
    let psync = || psync::Psync::start(setup);
    let started: io::Result<Box<dyn Engine>> = match choice {
        EngineChoice::Psync => psync().map(|engine| Box::new(engine) as _),
        EngineChoice::Uring => uring::Uring::start(setup).map(|engine| Box::new(engine) as _),
        EngineChoice::Auto => match uring::Uring::start(setup) {
            Ok(engine) => Ok(Box::new(engine)),
            Err(error) => {
                tracing::info!(%error, "io_uring is not to be had; psync serves the files");
                psync().map(|engine| Box::new(engine) as _)
            }
        },
    };
    let name = if choice == EngineChoice::Uring { "io_uring" } else { "psync" };
    started.map_err(|error| IoError::os("start", format!("the {name} engine"), error))
}
