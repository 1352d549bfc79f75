//! Syncs files and directory names, and stops all writing after the first failure.
//!
//! A failed sync may drop the data that it should have written, and a later sync would then succeed without writing it.
//! So the log never syncs again, with two exceptions: the sync was never started, or the file system had no space. New
//! files alone meet the latter, and the log removes them.

use std::fmt::Display;
use std::sync::Arc;
use std::time::Duration;

use dalsegno_core::Stopped;
use dalsegno_extent::{DeviceIo, start_sync, sync};
use dalsegno_io::{Call, FileId, IoError};

use super::gate::{StartedSync, SyncGate, SyncWaiter, Unsynced};
use super::write_state::WriteState;
use crate::error::LogError;
use crate::stats::LogStats;

/// Makes writes durable.
#[derive(Debug)]
pub(crate) struct Syncer {
    io: Arc<DeviceIo>,
    stats: Arc<LogStats>,
    state: WriteState,
}

impl Syncer {
    pub(crate) fn new(io: Arc<DeviceIo>, stats: Arc<LogStats>, read_only: bool) -> Self {
        Self { io, stats, state: WriteState::new(read_only) }
    }

    /// Fails if writing has stopped.
    pub(crate) fn check_writable(&self) -> Result<(), LogError> {
        self.state.check()
    }

    /// Stops all writing, as a failed sync does.
    pub(crate) fn poison(&self, why: &dyn Display) {
        self.state.poison(why);
    }

    pub(crate) fn is_poisoned(&self) -> bool {
        self.state.is_poisoned()
    }

    pub(crate) fn is_read_only(&self) -> bool {
        self.state.is_read_only()
    }

    pub(crate) fn close(&self) {
        self.state.close();
    }

    /// Makes completed writes of a file durable, and stops all writing if that fails.
    pub(crate) fn sync_file(&self, file: FileId) -> Result<(), IoError> {
        LogStats::count(&self.stats.syncs);
        self.poison_unless_kept(sync(&self.io, file))
    }

    /// Makes created and removed names durable, and stops all writing if that fails.
    pub(crate) fn sync_names(&self) -> Result<(), IoError> {
        self.poison_unless_kept(self.io.device.sync_names())
    }

    /// Makes everything written to a file so far durable, in one sync with all others that wait at its gate. A call
    /// that ends early leaves its sync to the next waiter.
    pub(crate) fn sync_together(
        &self,
        gate: &SyncGate,
        file: FileId,
        call: &Call,
    ) -> Result<(), Unsynced> {
        gate.pass(&WaitingCall { syncer: self, file, call })
    }

    fn poison_unless_kept(&self, synced: Result<(), IoError>) -> Result<(), IoError> {
        match &synced {
            Ok(())
            | Err(IoError::Stopped(Stopped::Busy) | IoError::Suspended | IoError::Closed) => {}
            Err(error) if error.is_no_space() => {}
            Err(error) => self.poison(error),
        }
        synced
    }
}

/// A call that waits until a file is durable.
struct WaitingCall<'a> {
    syncer: &'a Syncer,
    file: FileId,
    call: &'a Call,
}

impl SyncWaiter for WaitingCall<'_> {
    fn start(&self) -> StartedSync {
        let io = &self.syncer.io;
        LogStats::count(&self.syncer.stats.syncs);
        // Its time begins when it starts, however long that takes.
        let limit = io.own_call().deadline;
        StartedSync { completion: start_sync(io, self.file), limit }
    }

    fn finish(&self, sync: &StartedSync) -> Result<Result<(), IoError>, Stopped> {
        loop {
            if let Ok(completion) = sync.completion.try_recv() {
                return Ok(completion.result);
            }
            let timeout = self.timeout()?;
            let left = sync.limit.remaining(self.syncer.io.clock.now());
            if left.is_some_and(|left| left.is_zero()) {
                return Ok(Err(Stopped::Deadline.into()));
            }
            let received = match left.into_iter().chain(timeout).min() {
                None => sync.completion.recv().ok(),
                Some(wait) => sync.completion.recv_timeout(wait).ok(),
            };
            if let Some(completion) = received {
                return Ok(completion.result);
            }
        }
    }

    fn timeout(&self) -> Result<Option<Duration>, Stopped> {
        self.call.timeout(self.syncer.io.clock.as_ref())
    }

    fn on_failure(&self, error: &IoError) {
        self.syncer.poison(error);
    }
}
