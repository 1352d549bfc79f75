//! A far location as programs look at it, next to the stores that use it.

use std::path::{Path, PathBuf};
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
    DirectoryTier, DirectoryTierOptions, LocationPath, Object, ObjectName, Tier, WriterId, wait_for,
};
use dalsegno_io::{DirectoryNames, IoError, SystemClock, random_bytes};

use crate::error::unavailable;
use crate::far::tier::writer_id;
use crate::open::directory::refuse_forked;
use crate::open::far_location::{FarLocation, is_url, located, open_location};

/// Calls to a location at a time.
const WORKERS: u32 = 16;
/// Allowed seconds of an examination.
const DOCTOR_SECONDS: std::ops::RangeInclusive<f64> = 2.0..=600.0;
/// How long an object store may take to list its writers.
const LIST_TIMEOUT: Duration = Duration::from_secs(10);

/// A far location as a program names it.
#[derive(Clone, Debug)]
pub struct FarPlace {
    /// A directory, or a URL.
    pub path: PathBuf,
    /// How what a URL names is reached.
    pub options: Option<FarOptions>,
}

impl FarPlace {
    /// The URL, if it is one.
    fn url(&self) -> Option<&str> {
        self.path.to_str().filter(|text| is_url(text))
    }

    fn failed(&self, error: IoError) -> Error {
        unavailable(&self.path, error)
    }
}

/// Whether a directory is a far location: it has folders of writers, and is no store itself. A URL always is one.
/// Nothing is written.
///
/// # Errors
///
/// `Unavailable` if the directory cannot be read.
pub fn is_far_location(path: &Path) -> Result<bool> {
    if path.to_str().is_some_and(is_url) {
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
    place: &FarPlace,
    extents: usize,
    progress: &(dyn Fn(u64, u64) + Sync),
) -> Result<Survey> {
    let location = open(place)?;
    survey(&location, SurveyOptions { extents }, progress).map_err(|error| place.failed(error))
}

/// Reads and checks every byte of a far location. `progress` gets the bytes done so far and in all.
///
/// # Errors
///
/// As [`far_survey`]. Damage is no error: it is in the report.
pub fn far_verify(
    place: &FarPlace,
    progress: &(dyn Fn(u64, u64) + Sync),
) -> Result<FarVerifyReport> {
    verify(&open(place)?, progress).map_err(|error| place.failed(error))
}

/// Shows an object of a far location with the names of its format: with `at`, the record of a pack that holds that
/// offset. `file` is the folder and the name of the object.
///
/// # Errors
///
/// As [`far_survey`]; `Invalid` if there is no such object or record.
pub fn far_inspect(place: &FarPlace, file: &str, at: Option<u64>) -> Result<Inspection> {
    let location = open(place)?;
    let missing = || {
        Error::invalid(format!(
            "{file:?} is not an object of the far location {}; give a folder and a name in it, as `dalsegno verify` \
             prints them, such as {}",
            place.path.display(),
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
        Err(error) => Err(place.failed(error)),
    }
}

/// Finds writers that have been dead for a day, and those that are `named` by the first digits of their folders, and
/// removes their objects if `remove` is set. `progress` gets the objects removed so far and in all.
///
/// # Errors
///
/// As [`far_survey`]; `Invalid` if a name fits no writer, or a writer that runs. Nothing was removed then.
pub fn far_prune(
    place: &FarPlace,
    named: &[String],
    remove: bool,
    progress: &(dyn Fn(u64, u64) + Sync),
) -> Result<PruneReport> {
    prune(&open(place)?, named, remove, progress).map_err(|error| match error {
        PruneError::Io(error) => place.failed(error),
        error => Error::invalid(format!("{}: {error}", place.path.display())),
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
    place: &FarPlace,
    other: Option<&Path>,
    seconds: f64,
    progress: &(dyn Fn(u64) -> bool + Sync),
) -> Result<DoctorReport> {
    refuse_forked()?;
    if !DOCTOR_SECONDS.contains(&seconds) {
        let message = format!("seconds is {seconds}; it must be 2 to 600");
        return Err(Error::invalid(message));
    }
    let is_elsewhere = |path: &&Path| path.to_str().is_some_and(is_url);
    if other.is_some_and(|other| place.url().is_some() || is_elsewhere(&other)) {
        return Err(Error::invalid("what a URL names has no second mount; leave out `other`"));
    }
    for path in [Some(&*place.path), other].into_iter().flatten().filter(|path| !is_elsewhere(path))
    {
        let names = DirectoryNames::read(path).map_err(|error| unavailable(path, error))?;
        refuse_store(path, &names)?;
    }
    let clock: Arc<dyn Clock> = Arc::new(SystemClock::new());
    let url = place.url().map(|url| located_at(url, place)).transpose()?;
    // What can be wrong with a URL is found here and not by each part of the examination.
    let _tried = url.as_ref().map(|location| open_location(location, 1, &clock)).transpose()?;
    let open_at = |path: &Path, workers: u32| -> std::result::Result<Arc<dyn Tier>, IoError> {
        if let Some(location) = &url {
            return open_location(location, workers, &clock).map_err(|error| IoError::Os {
                operation: "open",
                file: path.display().to_string(),
                source: std::io::Error::other(error),
            });
        }
        let options = DirectoryTierOptions { workers, ..Default::default() };
        Ok(Arc::new(DirectoryTier::open(path, options, Arc::clone(&clock))?))
    };
    let near = |workers: u32| open_at(&place.path, workers);
    let far = |workers: u32| open_at(other.unwrap_or(&place.path), workers);
    let random = |error| place.failed(error);
    let store = StoreId(random_bytes().map_err(random)?);
    let options = DoctorOptions {
        near: &near,
        other: other.is_some().then_some(&far),
        clock: Arc::clone(&clock),
        writer: writer_id(store, random_bytes().map_err(random)?),
        time: Duration::from_secs_f64(seconds),
    };
    examine(&options, progress).map_err(|error| match error {
        DoctorError::Io(error) => place.failed(error),
        error => Error::new(ErrorKind::Unavailable, format!("{}: {error}", place.path.display())),
    })
}

/// Whether a text is the URL of a far location, and no path.
#[must_use]
pub fn is_far_url(text: &str) -> bool {
    is_url(text)
}

/// The location that a URL names. What is not in the options, the environment has.
fn located_at(url: &str, place: &FarPlace) -> Result<FarLocation> {
    let directory = |far: &str| {
        let (path, folder, store) = (PathBuf::from(far), None, None);
        Ok(FarLocation::Directory(LocationPath { path, folder, store }))
    };
    located(url, place.options.as_ref(), None, &directory)
}

/// Opens what a URL names, and in which a writer has published.
fn open_url(place: &FarPlace, url: &str) -> Result<Location> {
    let clock: Arc<dyn Clock> = Arc::new(SystemClock::new());
    let tier = open_location(&located_at(url, place)?, WORKERS, &clock)?;
    let writers = wait_for(&clock, LIST_TIMEOUT, |ask| tier.writers(ask));
    if writers.map_err(|error| place.failed(error))?.is_empty() {
        return Err(Error::invalid(format!(
            "{url} is no far location: it has no folder <store id>-<number> of a writer; give the URL that stores name \
             as `far`, and in which one has published"
        )));
    }
    Ok(Location::new(tier, clock))
}

/// Opens a far location that exists.
fn open(place: &FarPlace) -> Result<Location> {
    refuse_forked()?;
    if let Some(url) = place.url() {
        return open_url(place, url);
    }
    if place.options.is_some() {
        return Err(Error::invalid("a directory has no options; leave them out"));
    }
    let path = &place.path;
    let names = DirectoryNames::read(path).map_err(|error| place.failed(error))?;
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
    let tier = DirectoryTier::open(path, options, Arc::clone(&clock));
    Ok(Location::new(Arc::new(tier.map_err(|error| place.failed(error))?), clock))
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
