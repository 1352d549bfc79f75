//! Which far directory a store may use.
//!
//! 1. It is looked at before anything of the store is created, so a store with a wrong `far` leaves nothing behind.
//! 2. A file system that does not respond delays that for a second. What it would have shown is found out when it does.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use dalsegno_core::{Clock, Config, Error, ErrorKind, Limits, Result};
use dalsegno_extent::format::STORE_FILE;
use dalsegno_far::{
    DirectoryTier, DirectoryTierOptions, LocationError, LocationPath, Tier, TierState, wait_for,
};
use dalsegno_io::{IoError, nearest_with_file};

use crate::error::{absolute, dangling_link, no_thread};
use crate::far_work::lanes::FAR_SHARE;

/// How long opening waits for the size of the far file system, after it was opened.
const SPACE_TIMEOUT: Duration = Duration::from_secs(1);
/// How long the first look at the directory may take.
const LOOK_TIMEOUT: Duration = Duration::from_secs(1);

/// The far directory of the store in `path`, if it has one.
///
/// # Errors
///
/// `Invalid` if the two contain each other, or the far directory is in that of any store; `Unavailable` if there is no
/// such directory.
pub(crate) fn far_location(path: &Path, config: &Config) -> Result<Option<LocationPath>> {
    let Some(far) = &config.far else { return Ok(None) };
    let location = LocationPath {
        path: absolute(Path::new(far))?,
        folder: config.far_folder.as_ref().map(PathBuf::from),
        store: Some(path.to_owned()),
    };
    let (reply, looked) = crossbeam_channel::bounded(1);
    let of_thread = location.clone();
    // The caller may have left.
    let look = move || drop(reply.send(look_at(&of_thread)));
    dalsegno_io::spawn("dalsegno-far-look", look).map_err(no_thread)?;
    match looked.recv_timeout(LOOK_TIMEOUT) {
        Ok(Ok(Some(other))) => Err(Error::invalid(format!(
            "far is {far}, and {} holds a store; give `far` a directory of a shared file system that is apart from the \
             directories of stores",
            other.display()
        ))),
        Ok(Err(LocationError::WithinStore)) => Err(Error::invalid(format!(
            "far is {far}, and the store is in {}: one is or contains the other; give `far` a directory of a shared \
             file system that is apart from the store's directory",
            path.display()
        ))),
        Ok(Err(LocationError::Io(error))) => Err(unusable(&location, error)),
        // It is looked at again when it is opened.
        Ok(Ok(None)) | Err(_) => Ok(Some(location)),
    }
}

/// Checks the directory. Returns that of another store which it is or is in.
fn look_at(location: &LocationPath) -> std::result::Result<Option<PathBuf>, LocationError> {
    location.check()?;
    Ok(nearest_with_file(&location.path, STORE_FILE))
}

/// Opens the directory of the far tier, and completes its limits.
pub(crate) fn open_far(
    location: &LocationPath,
    limits: &mut Limits,
    clock: &Arc<dyn Clock>,
) -> Result<Arc<dyn Tier>> {
    let options = DirectoryTierOptions { workers: limits.far_workers, ..Default::default() };
    let tier = DirectoryTier::open_at(location.clone(), options, Arc::clone(clock))
        .map_err(|error| unusable(location, error))?;
    if limits.far_capacity_bytes.is_none() && tier.facts().state == TierState::Open {
        match wait_for(clock, SPACE_TIMEOUT, |ask| tier.space(ask)) {
            Ok(space) => limits.far_capacity_bytes = Some(space.total_bytes / FAR_SHARE),
            Err(error) if error.is_late() => tracing::warn!("the far directory does not respond"),
            Err(error) => return Err(unusable(location, error)),
        }
    }
    Ok(Arc::new(tier))
}

fn unusable(location: &LocationPath, error: IoError) -> Error {
    let message = format!(
        "the far directory {} cannot be used; mount it and create it, or leave `far` out",
        location.path.display()
    ) + &dangling_link(&location.path);
    Error::new(ErrorKind::Unavailable, message).with_source(error)
}
