//! A far location as programs look at it, next to the stores that use it.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use dalsegno_core::{Clock, Error, ErrorKind, FarOptions, Result, StoreId};
use dalsegno_extent::{
    format::{STORE_FILE, segment_number},
    offline::Inspection,
};
use dalsegno_far::offline::{
    DoctorError, DoctorOptions, DoctorReport, FarVerifyReport, Location, PruneError, PruneReport,
    Survey, SurveyOptions, examine, inspect, prune, survey, verify,
};
use dalsegno_far::{
    DirectoryTier, DirectoryTierOptions, Object, ObjectName, Tier, WriterId, wait_for,
};
use dalsegno_far_object::{ObjectLocation, ObjectTier, OpenError};
use dalsegno_io::{DirectoryNames, IoError, SystemClock, random_bytes};

use crate::error::unavailable;
use crate::far::tier::writer_id;
use crate::open::directory::refuse_forked;
use crate::open::far_location::{object_location, open_object};

/// Calls to a location at a time.
const WORKERS: u32 = 16;
/// Allowed seconds of an examination.
const DOCTOR_SECONDS: std::ops::RangeInclusive<f64> = 2.0..=600.0;
/// How long an object store may take to list its writers.
const LIST_TIMEOUT: Duration = Duration::from_secs(10);

/// Whether a directory is a far location: it has folders of writers, and is no store itself. An object store always is
/// one. Nothing is written.
///
/// # Errors
///
/// `Unavailable` if the directory cannot be read.
pub fn is_far_location(path: &Path) -> Result<bool> {
    if object_url(path).is_some() {
        return Ok(true);
    }
    let names = DirectoryNames::read(path).map_err(|error| unavailable(path, error))?;
    Ok(!holds_store(&names) && has_writers(&names))
}

/// Returns what a far location holds, and at most `extents` of its extents. `progress` gets the objects read so far and
/// in all.
///
/// # Errors
///
/// `Invalid` if the directory is no far location; `Unavailable` if it cannot be read.
pub fn far_survey(
    path: &Path,
    extents: usize,
    progress: &(dyn Fn(u64, u64) + Sync),
) -> Result<Survey> {
    let location = open(path)?;
    survey(&location, SurveyOptions { extents }, progress).map_err(|error| unavailable(path, error))
}

/// Reads and checks every byte of a far location. `progress` gets the bytes done so far and in all.
///
/// # Errors
///
/// As [`far_survey`]. Damage is no error: it is in the report.
pub fn far_verify(path: &Path, progress: &(dyn Fn(u64, u64) + Sync)) -> Result<FarVerifyReport> {
    verify(&open(path)?, progress).map_err(|error| unavailable(path, error))
}

/// Shows an object of a far location with the names of its format: with `at`, the record of a pack that holds that
/// offset. `file` is the folder and the name of the object.
///
/// # Errors
///
/// As [`far_survey`]; `Invalid` if there is no such object or record.
pub fn far_inspect(path: &Path, file: &str, at: Option<u64>) -> Result<Inspection> {
    let location = open(path)?;
    let missing = || {
        Error::invalid(format!(
            "{file:?} is not an object of the far location {}; give a folder and a name in it, as `dalsegno verify` \
             prints them, such as {}",
            path.display(),
            WriterId { store: StoreId([0xab; 16]), open: 7 }.object(Object::Catalog(1))
        ))
    };
    let name = ObjectName::parse(file).ok_or_else(missing)?;
    match inspect(&location, name, at) {
        Ok(Some(found)) => Ok(found),
        Ok(None) => Err(Error::invalid(format!(
            "{file} has no record at offset {}; without an offset its contents are listed",
            at.unwrap_or(0)
        ))),
        Err(error) if error.is_not_found() => Err(missing()),
        Err(error) => Err(unavailable(path, error)),
    }
}

/// Finds writers that have been dead for a day, and those that are `named` by the first digits of their folders, and
/// removes their objects if `remove` is set. `progress` gets the objects removed so far and in all.
///
/// # Errors
///
/// As [`far_survey`]; `Invalid` if a name fits no writer, or a writer that runs. Nothing was removed then.
pub fn far_prune(
    path: &Path,
    named: &[String],
    remove: bool,
    progress: &(dyn Fn(u64, u64) + Sync),
) -> Result<PruneReport> {
    prune(&open(path)?, named, remove, progress).map_err(|error| match error {
        PruneError::Io(error) => unavailable(path, error),
        error => Error::invalid(format!("{}: {error}", path.display())),
    })
}

/// Measures a directory as a far location, which it need not be yet, and finds out whether it is safe. `other` is
/// another mount of it. `progress` gets the thousandths of the time that are over, and returns whether to stop.
///
/// # Errors
///
/// `Invalid` if the directory holds a store, or `seconds` is not 2 to 600; `Unavailable` if it cannot be written, is
/// nearly full, or `progress` returned true.
pub fn far_doctor(
    path: &Path,
    other: Option<&Path>,
    seconds: f64,
    progress: &(dyn Fn(u64) -> bool + Sync),
) -> Result<DoctorReport> {
    refuse_forked()?;
    if !DOCTOR_SECONDS.contains(&seconds) {
        let message = format!("seconds is {seconds}; it must be 2 to 600");
        return Err(Error::invalid(message));
    }
    for path in [Some(path), other].into_iter().flatten().filter(|path| object_url(path).is_none())
    {
        let names = DirectoryNames::read(path).map_err(|error| unavailable(path, error))?;
        refuse_store(path, &names)?;
    }
    let clock: Arc<dyn Clock> = Arc::new(SystemClock::new());
    if other.is_some_and(|other| object_url(other).is_some() || object_url(path).is_some()) {
        return Err(Error::invalid("a bucket has no second mount; leave out `other`"));
    }
    let bucket = object_url(path).map(looked_at).transpose()?;
    let open_at = |path: &Path, workers: u32| -> std::result::Result<Arc<dyn Tier>, IoError> {
        if let Some(bucket) = &bucket {
            return match ObjectTier::open(bucket, workers, &clock) {
                Ok(tier) => Ok(Arc::new(tier)),
                Err(OpenError::Location(error)) => Err(IoError::Os {
                    operation: "open",
                    file: bucket.url(),
                    source: std::io::Error::new(std::io::ErrorKind::InvalidInput, error),
                }),
                Err(OpenError::Io(error)) => Err(error),
            };
        }
        let options = DirectoryTierOptions { workers, ..Default::default() };
        Ok(Arc::new(DirectoryTier::open(path, options, Arc::clone(&clock))?))
    };
    let near = |workers: u32| open_at(path, workers);
    let far = |workers: u32| open_at(other.unwrap_or(path), workers);
    let random = |error| unavailable(path, error);
    let store = StoreId(random_bytes().map_err(random)?);
    let options = DoctorOptions {
        near: &near,
        other: other.is_some().then_some(&far),
        clock: Arc::clone(&clock),
        writer: writer_id(store, random_bytes().map_err(random)?),
        time: Duration::from_secs_f64(seconds),
    };
    examine(&options, progress).map_err(|error| match error {
        DoctorError::Io(error) => unavailable(path, error),
        error => Error::new(ErrorKind::Unavailable, format!("{}: {error}", path.display())),
    })
}

/// Whether a text is the URL of an object store, and no path.
#[must_use]
pub fn is_object_url(text: &str) -> bool {
    ObjectLocation::is_url(text)
}

/// The URL of an object store, if a path is one.
fn object_url(path: &Path) -> Option<&str> {
    path.to_str().filter(|text| is_object_url(text))
}

/// A bucket that a program looks at. The environment has its endpoint and the credentials.
fn looked_at(url: &str) -> Result<ObjectLocation> {
    object_location(url, FarOptions::default())
}

/// Opens an object store in which a writer has published.
fn open_bucket(path: &Path, url: &str) -> Result<Location> {
    let clock: Arc<dyn Clock> = Arc::new(SystemClock::new());
    let tier = open_object(&looked_at(url)?, WORKERS, &clock)?;
    let writers = wait_for(&clock, LIST_TIMEOUT, |ask| tier.writers(ask));
    if writers.map_err(|error| unavailable(path, error))?.is_empty() {
        return Err(Error::invalid(format!(
            "{url} is no far location: it has no folder <store id>-<number> of a writer; give the URL that stores name \
             as `far`, and in which one has published"
        )));
    }
    Ok(Location::new(tier, clock))
}

/// Opens a far location that exists.
fn open(path: &Path) -> Result<Location> {
    refuse_forked()?;
    if let Some(url) = object_url(path) {
        return open_bucket(path, url);
    }
    let failed = |error| unavailable(path, error);
    let names = DirectoryNames::read(path).map_err(failed)?;
    refuse_store(path, &names)?;
    if !has_writers(&names) {
        return Err(Error::invalid(format!(
            "{} is no far location: it has no folder <store id>-<number> of a writer; give the directory that stores \
             name as `far`, and in which one has published",
            path.display()
        )));
    }
    let clock: Arc<dyn Clock> = Arc::new(SystemClock::new());
    let options = DirectoryTierOptions { workers: WORKERS, ..Default::default() };
    let tier = DirectoryTier::open(path, options, Arc::clone(&clock)).map_err(failed)?;
    Ok(Location::new(Arc::new(tier), clock))
}

fn refuse_store(path: &Path, names: &DirectoryNames) -> Result<()> {
    if holds_store(names) {
        return Err(Error::invalid(format!(
            "{} holds a store and is no far location; give the directory that stores name as `far`",
            path.display()
        )));
    }
    Ok(())
}

fn holds_store(names: &DirectoryNames) -> bool {
    let is_of_store = |name: &String| name == STORE_FILE || segment_number(name).is_some();
    names.files.iter().any(is_of_store)
}

fn has_writers(names: &DirectoryNames) -> bool {
    names.folders.iter().any(|name| WriterId::parse(name).is_some())
}
