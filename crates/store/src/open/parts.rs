//! The parts that a store is opened from: the real ones of a directory, or those of a test.
//!
//! 1. One process owns a directory. The lock is taken before anything is read, and belongs to the device (`device`).

use std::path::Path;
use std::sync::Arc;

use dalsegno_core::{Clock, Config, Error, ErrorKind, Limits, Result, StoreId};
use dalsegno_far::Tier;
use dalsegno_io::{
    BufferPool, Device, DirectoryLock, DirectoryOptions, Executor, IoError, LocalDirectory,
    StopSignal, SystemClock, allow_open_files,
};
use dalsegno_policy::merging::MergeRules;

use crate::error::{absolute, unavailable};
use crate::open::directory::{DirectoryReader, lock_error, refuse_forked};
use crate::open::far_location::{FarLocation, far_location, open_far};
use crate::state::arena::ArenaBacking;
use crate::upkeep::scrubber::ScrubRules;

/// Files that a process has open in addition to segments: tables of an index, descriptors of the I/O engine, its own.
const OTHER_FILES: u64 = 512;

/// What a store is made of. [`Store::open`](crate::Store::open) makes the real parts; a test or a simulation brings its
/// own.
#[derive(Debug)]
pub struct Parts {
    /// The files.
    pub device: Arc<dyn Device>,
    /// The time.
    pub clock: Arc<dyn Clock>,
    /// Staging memory.
    pub pool: BufferPool,
    /// The bounds.
    pub limits: Limits,
    /// The lock of the device's directory, held until the store is closed and the device has completed every write.
    pub lock: Option<DirectoryLock>,
    /// The id if the store is new.
    pub new_store: StoreId,
    /// The tiers above and below the log.
    pub tiers: Tiers,
    /// What carries out background work. [`Executor::Inline`] also makes the open read headers one after the other.
    pub executor: Executor,
    /// What merging of small extents aims at.
    pub merging: MergeRules,
    /// When scrubbing starts.
    pub scrubbing: ScrubRules,
}

/// What the tiers above and below the log are made of.
#[derive(Debug, Default)]
pub struct Tiers {
    /// Who can map the memory of the DRAM tier.
    pub arena: ArenaBacking,
    /// The far tier, if the limits have one.
    pub far: Option<Arc<dyn Tier>>,
    /// The number of this open in the far tier; random if there is none.
    pub far_open: Option<u64>,
    /// Ends the open while it waits for the memory of the DRAM tier.
    pub stop: StopSignal,
}

/// The real parts of the store in a directory.
///
/// # Errors
///
/// See [`Store::open`](crate::Store::open).
pub(crate) fn parts_of(path: &Path, config: &Config) -> Result<Parts> {
    if path.as_os_str().is_empty() {
        return Err(Error::invalid("the path is empty; give the store a directory"));
    }
    refuse_forked()?;
    // A later change of the working directory changes nothing.
    let path = &absolute(path)?;
    let far = far_location(path, config)?;
    let created = LocalDirectory::create_dir(path).map_err(|error| unavailable(path, error))?;
    // A refused store leaves no directory. One that has a lock file is not empty, and stays.
    parts_in(path, config, far, !created.is_empty())
        .inspect_err(|_| LocalDirectory::remove_created(&created))
}

fn parts_in(path: &Path, config: &Config, far: Option<FarLocation>, is_new: bool) -> Result<Parts> {
    let clock: Arc<dyn Clock> = Arc::new(SystemClock::new());
    // Before the lock file is created: nothing is left in a directory that is not ours.
    let reader = DirectoryReader::open(path)?;
    let facts = reader.facts(path)?;
    if is_new {
        config.validate(facts.space)?;
    }
    let lock = DirectoryLock::acquire(path).map_err(|error| lock_error(path, error))?;
    let facts = reader.facts(path)?;
    let mut limits = config.validate(facts.space)?;
    if facts.space.own_bytes > limits.capacity_bytes {
        tracing::warn!(
            path = %path.display(),
            stored_bytes = facts.space.own_bytes,
            capacity_bytes = limits.capacity_bytes,
            "the capacity is below what is stored; the blocks that were used last are kept"
        );
    }
    let pool = BufferPool::new(limits.staging_bytes, limits.io_request_bytes)
        .map_err(|error| unavailable(path, error))?;
    let options = DirectoryOptions { engine: limits.io_engine, ..DirectoryOptions::default() };
    let device = LocalDirectory::open(path, options, &pool, Arc::clone(&clock))
        .map_err(|error| not_served(path, error))?;
    let needed = u64::from(limits.segment_count) + OTHER_FILES;
    let allowed = allow_open_files(needed);
    if allowed < needed {
        tracing::warn!(
            path = %path.display(),
            allowed,
            needed,
            "too few open files allowed: raise the limit of the process (ulimit -n)"
        );
    }
    let new_store =
        dalsegno_io::random_bytes().map(StoreId).map_err(|error| unavailable(path, error))?;
    let far = far.map(|location| open_far(&location, &mut limits, &clock)).transpose()?;
    Ok(Parts {
        device: Arc::new(device),
        clock,
        pool,
        limits,
        lock: Some(lock),
        new_store,
        tiers: Tiers { arena: ArenaBacking::Private, far, ..Tiers::default() },
        executor: Executor::Threads,
        merging: MergeRules::default(),
        scrubbing: ScrubRules::default(),
    })
}

/// The error if the requested I/O engine is not available.
fn not_served(path: &Path, error: IoError) -> Error {
    if !error.is_start() {
        return unavailable(path, error);
    }
    let message = format!(
        "{} cannot be served: this kernel, or the sandbox, does not let the process use the I/O engine; set \
         \"io_engine\" to \"auto\" or \"psync\"",
        path.display()
    );
    Error::new(ErrorKind::Unavailable, message).with_source(error)
}
