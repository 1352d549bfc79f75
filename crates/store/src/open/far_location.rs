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

/// Opens a place in an object store. Sends nothing.
pub(crate) fn open_object(
    location: &ObjectLocation,
    workers: u32,
    clock: &Arc<dyn Clock>,
) -> Result<Arc<dyn Tier>> {
    match ObjectTier::open(location, workers, clock) {
        Ok(tier) => Ok(Arc::new(tier)),
        Err(OpenError::Location(error)) => Err(Error::invalid(error.to_string())),
        Err(OpenError::Io(error)) => Err(unavailable(Path::new(&location.url()), error)),
    }
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
    match location {
        FarLocation::Directory(location) => open_directory(location, limits, clock),
        FarLocation::Object(location) => {
            limits.far_capacity_bytes.get_or_insert(OBJECT_CAPACITY);
            open_object(location, limits.far_workers, clock)
        }
        FarLocation::Mooncake(location, catalogs) => {
            // That of the cluster is not known, and it evicts what it has no space for.
            limits.far_capacity_bytes.get_or_insert(OBJECT_CAPACITY);
            let catalogs = open_far(catalogs, limits, clock)?;
            open_mooncake(location, catalogs, limits.far_workers, clock)
        }
    }
}

/// Opens a place in a Mooncake cluster. Waits for nothing.
pub(crate) fn open_mooncake(
    location: &MooncakeLocation,
    catalogs: Arc<dyn Tier>,
    workers: u32,
    clock: &Arc<dyn Clock>,
) -> Result<Arc<dyn Tier>> {
    let connect = connector().ok_or_else(|| {
        Error::invalid(format!(
            "far is {location}, and this program has no client of Mooncake; use the Python package"
        ))
    })?;
    match MooncakeTier::open(location, catalogs, connect, workers, clock) {
        Ok(tier) => Ok(Arc::new(tier)),
        Err(error) => Err(unavailable(Path::new(&location.to_string()), error)),
    }
}

fn open_directory(
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
