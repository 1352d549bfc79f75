//! Which far location a store may use: a directory, a place in an object store, or one in a Mooncake cluster.
//!
//! 1. It is looked at before anything of the store is created, so a store with a wrong `far` leaves nothing behind.
//! 2. A file system that does not respond delays that for a second. What it would have shown is found out when it does.
//!    An object store and a cluster are not asked at all: what is wrong there makes the tier fail, and local blocks are
//!    served.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use dalsegno_core::{Clock, Config, Error, ErrorKind, FarOptions, Limits, Result};
use dalsegno_extent::format::STORE_FILE;
use dalsegno_far::{
    DirectoryTier, DirectoryTierOptions, LocationError, LocationPath, Tier, TierState, wait_for,
};
use dalsegno_far_mooncake::{MooncakeLocation, MooncakeTier, connector};
use dalsegno_far_object::{ObjectLocation, ObjectTier, OpenError};
use dalsegno_io::{IoError, nearest_with_file};

use crate::error::{absolute, dangling_link, no_thread, unavailable};
use crate::far_work::lanes::FAR_SHARE;

/// How long opening waits for the size of the far file system, after it was opened.
const SPACE_TIMEOUT: Duration = Duration::from_secs(1);
/// How long the first look at the directory may take.
const LOOK_TIMEOUT: Duration = Duration::from_secs(1);
/// What a store has in an object store or a cluster, unless its settings say otherwise: a bill has a bound.
const OBJECT_CAPACITY: u64 = 1 << 40;

/// Where the far tier of a store is.
#[derive(Clone, Debug)]
pub(crate) enum FarLocation {
    /// A directory of a shared file system.
    Directory(LocationPath),
    /// A place in an object store.
    Object(ObjectLocation),
    /// A place in a Mooncake cluster, and where everything but packs is.
    Mooncake(MooncakeLocation, Box<FarLocation>),
}

/// The far location of the store in `path`, if it has one.
///
/// # Errors
///
/// `Invalid` if the two contain each other, the far directory is in that of any store, or the URL or an option of an
/// object store is wrong; `Unavailable` if there is no such directory.
pub(crate) fn far_location(path: &Path, config: &Config) -> Result<Option<FarLocation>> {
    let Some(far) = &config.far else {
        if config.far_options.is_some() {
            return Err(Error::invalid(
                "far_options without far; give far=\"s3://bucket/prefix\" too",
            ));
        }
        return Ok(None);
    };
    let folder = config.far_folder.as_deref();
    let directory = |far: &str| far_directory(path, far, folder);
    located(far, config.far_options.as_ref(), folder, &directory).map(Some)
}

/// Whether a text is the URL of a far location, and no path.
pub(crate) fn is_url(text: &str) -> bool {
    ObjectLocation::is_url(text) || MooncakeLocation::is_url(text)
}

/// The location that a text names, in a folder of it. `directory` looks at that of a file system.
///
/// # Errors
///
/// `Invalid` if the URL or an option is wrong, and what `directory` returns.
pub(crate) fn located(
    far: &str,
    options: Option<&FarOptions>,
    folder: Option<&str>,
    directory: &dyn Fn(&str) -> Result<FarLocation>,
) -> Result<FarLocation> {
    let given = options.cloned().unwrap_or_default();
    if MooncakeLocation::is_url(far) {
        let location = MooncakeLocation::parse(far, &given)
            .map_err(|error| Error::invalid(error.to_string()))?;
        let of_catalogs = given.of_object_store();
        let of_catalogs = Some(&of_catalogs).filter(|one| **one != FarOptions::default());
        let catalogs = located(&location.catalogs, of_catalogs, folder, directory)?;
        let location = match folder {
            Some(folder) => location.within(folder),
            None => location,
        };
        return Ok(FarLocation::Mooncake(location, Box::new(catalogs)));
    }
    if ObjectLocation::is_url(far) {
        let location =
            ObjectLocation::parse(far, given).map_err(|error| Error::invalid(error.to_string()))?;
        return Ok(FarLocation::Object(match folder {
            Some(folder) => location.within(folder),
            None => location,
        }));
    }
    if options.is_some() {
        return Err(Error::invalid(format!(
            "far_options are for s3://, gs://, az:// and mooncake://, and far is {far}; leave them out"
        )));
    }
    directory(far)
}

fn far_directory(path: &Path, far: &str, folder: Option<&str>) -> Result<FarLocation> {
    let location = LocationPath {
        path: absolute(Path::new(far))?,
        folder: folder.map(PathBuf::from),
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
        Ok(Ok(None)) | Err(_) => Ok(FarLocation::Directory(location)),
    }
}

/// Checks the directory. Returns that of another store which it is or is in.
fn look_at(location: &LocationPath) -> std::result::Result<Option<PathBuf>, LocationError> {
    location.check()?;
    Ok(nearest_with_file(&location.path, STORE_FILE))
}

/// Opens the far tier, and completes its limits.
pub(crate) fn open_far(
    location: &FarLocation,
    limits: &mut Limits,
    clock: &Arc<dyn Clock>,
) -> Result<Arc<dyn Tier>> {
    let tier = open_location(location, limits.far_workers, clock)?;
    if limits.far_capacity_bytes.is_none() {
        limits.far_capacity_bytes = match location {
            FarLocation::Directory(location) => share_of(location, &*tier, clock)?,
            FarLocation::Object(_) | FarLocation::Mooncake(..) => Some(OBJECT_CAPACITY),
        };
    }
    Ok(tier)
}

/// Opens a far location. A directory is waited for, for a second; nothing is sent to others.
pub(crate) fn open_location(
    location: &FarLocation,
    workers: u32,
    clock: &Arc<dyn Clock>,
) -> Result<Arc<dyn Tier>> {
    match location {
        FarLocation::Directory(location) => {
            let options = DirectoryTierOptions { workers, ..Default::default() };
            let opened = DirectoryTier::open_at(location.clone(), options, Arc::clone(clock));
            Ok(Arc::new(opened.map_err(|error| unusable(location, error))?))
        }
        FarLocation::Object(location) => match ObjectTier::open(location, workers, clock) {
            Ok(tier) => Ok(Arc::new(tier)),
            Err(OpenError::Location(error)) => Err(Error::invalid(error.to_string())),
            Err(OpenError::Io(error)) => Err(unavailable(Path::new(&location.url()), error)),
        },
        FarLocation::Mooncake(location, catalogs) => {
            let connect = connector().ok_or_else(|| {
                Error::invalid(format!(
                    "far is {location}, and this program has no client of Mooncake; use the Python package"
                ))
            })?;
            let catalogs = open_location(catalogs, workers, clock)?;
            let opened = MooncakeTier::open(location, catalogs, connect, workers, clock);
            let failed = |error| unavailable(Path::new(&location.to_string()), error);
            Ok(Arc::new(opened.map_err(failed)?))
        }
    }
}

/// What a store may have of a directory's file system, if that responds.
fn share_of(
    location: &LocationPath,
    tier: &dyn Tier,
    clock: &Arc<dyn Clock>,
) -> Result<Option<u64>> {
    if tier.facts().state != TierState::Open {
        return Ok(None);
    }
    match wait_for(clock, SPACE_TIMEOUT, |ask| tier.space(ask)) {
        Ok(space) => Ok(Some(space.total_bytes / FAR_SHARE)),
        Err(error) if error.is_late() => {
            tracing::warn!("the far directory does not respond");
            Ok(None)
        }
        Err(error) => Err(unusable(location, error)),
    }
}

fn unusable(location: &LocationPath, error: IoError) -> Error {
    let message = format!(
        "the far directory {} cannot be used; mount it and create it, or leave `far` out",
        location.path.display()
    ) + &dangling_link(&location.path);
    Error::new(ErrorKind::Unavailable, message).with_source(error)
}
