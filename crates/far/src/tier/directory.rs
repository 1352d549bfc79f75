//! A directory of a mounted file system as a [`Tier`]: a folder for each writer, a file for each object.
//!
//! 1. Every access to the file system runs on a thread of its lanes ([`TierLanes`]), never on the caller's.
//! 2. Before an object is published, and when the lists of removals or the writers are listed, the path is compared
//!    with the open directory. So nothing is published to a directory that others do not see any more, and no catalog
//!    without its pack.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use dalsegno_core::{Clock, Deadline};
use dalsegno_io::{
    FileId, FolderEntry, Geometry, IoError, Memory, Request, SharedDirectory, Source, Space,
};

use super::file_names::FileNames;
use super::lanes::TierLanes;
use super::late_directory::{LateDirectory, LocationPath, OpenDirectory};
use super::written_packs::WrittenPacks;
use super::{Ask, Listed, Tier, TierFacts};
use crate::names::{Object, ObjectName, REMOVALS_FOLDER, WriterId};

/// Most calls of a kind at a time. More do not make a file system faster.
const MAX_WORKERS: u32 = 64;

/// How long opening waits for the file system.
const OPEN_TIMEOUT: Duration = Duration::from_secs(1);

/// How to open a [`DirectoryTier`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DirectoryTierOptions {
    /// Requests that it works on at a time, and other calls, 1 to 64 of each. Each takes a thread, which is started on
    /// demand.
    pub workers: u32,
    /// Requests that wait for a thread, and other calls that do. More are refused as busy.
    pub queue: usize,
}

impl Default for DirectoryTierOptions {
    fn default() -> Self {
        Self { workers: 16, queue: 1024 }
    }
}

/// Objects as files of a directory that hosts share.
#[derive(Debug)]
pub struct DirectoryTier {
    directory: Arc<LateDirectory>,
    workers: u32,
    written: Arc<WrittenPacks>,
    files: FileNames,
    lanes: TierLanes,
}

impl DirectoryTier {
    /// Opens an existing directory of a mounted file system. Waits for the file system for at most a second; no later
    /// call does. If it has not responded by then, the tier exists, and its calls fail until the directory could be
    /// opened. `clock` decides whether a deadline has passed.
    ///
    /// # Errors
    ///
    /// [`IoError::Os`] with the path.
    ///
    /// # Panics
    ///
    /// If an option is out of range.
    pub fn open(
        path: &Path,
        options: DirectoryTierOptions,
        clock: Arc<dyn Clock>,
    ) -> Result<Self, IoError> {
        Self::open_at(LocationPath::of(path), options, clock)
    }

    /// As [`Self::open`], at the directory that a store names.
    ///
    /// # Errors
    ///
    /// As [`Self::open`], and [`IoError::Os`] if the store's directory and this one contain each other.
    ///
    /// # Panics
    ///
    /// If an option is out of range.
    pub fn open_at(
        path: LocationPath,
        options: DirectoryTierOptions,
        clock: Arc<dyn Clock>,
    ) -> Result<Self, IoError> {
        Self::open_late(LateDirectory::new(path), options, clock)
    }

    fn open_late(
        directory: LateDirectory,
        options: DirectoryTierOptions,
        clock: Arc<dyn Clock>,
    ) -> Result<Self, IoError> {
        let DirectoryTierOptions { workers, queue } = options;
        assert!((1..=MAX_WORKERS).contains(&workers), "{workers} workers are out of range");
        let lanes = TierLanes::start(workers, queue, clock)?;
        let (directory, files) = (Arc::new(directory), FileNames::default());
        let tier = Self { directory, workers, written: Arc::default(), files, lanes };
        let (reply, opened) = crossbeam_channel::bounded(1);
        let ask = Ask { tag: 0, deadline: Deadline::Never, reply };
        tier.answer(ask, |_| Ok(()));
        if let Ok(reply) = opened.recv_timeout(OPEN_TIMEOUT) {
            reply.result?;
        } else {
            tracing::warn!("the far directory does not respond; it is tried again periodically");
        }
        Ok(tier)
    }

    /// Runs a call on a thread, and answers it. It uses the directory that is open.
    fn answer<T: Send + 'static>(
        &self,
        ask: Ask<T>,
        call: impl FnOnce(&SharedDirectory) -> Result<T, IoError> + Send + 'static,
    ) {
        self.answer_with(ask, LateDirectory::get, |open| call(&open.directory));
    }

    /// As [`Self::answer`], with the directory that the path leads to now.
    fn answer_now<T: Send + 'static>(
        &self,
        ask: Ask<T>,
        call: impl FnOnce(&OpenDirectory) -> Result<T, IoError> + Send + 'static,
    ) {
        self.answer_with(ask, LateDirectory::current, call);
    }

    fn answer_with<T: Send + 'static>(
        &self,
        ask: Ask<T>,
        directory_of: fn(&LateDirectory) -> Result<OpenDirectory, IoError>,
        call: impl FnOnce(&OpenDirectory) -> Result<T, IoError> + Send + 'static,
    ) {
        let directory = Arc::clone(&self.directory);
        self.lanes.answer(ask, move || call(&directory_of(&directory)?));
    }
}

impl Source for DirectoryTier {
    /// See [`Source::submit`].
    ///
    /// # Panics
    ///
    /// If a request is not a read, fails [`Request::check`], or has more than 1024 pieces or 1 GiB. Nothing is
    /// submitted then.
    fn submit(&self, requests: Vec<Request>) {
        requests.iter().for_each(SharedDirectory::check);
        for request in requests {
            let name = match self.files.get(request.file) {
                Ok(name) => name,
                Err(error) => {
                    request.complete(Err(error));
                    continue;
                }
            };
            let (directory, deadline) = (Arc::clone(&self.directory), request.deadline);
            self.lanes.read(deadline, move |permission| {
                match permission.and_then(|()| directory.get()) {
                    Ok(open) => {
                        open.directory.serve(&name.folder(), &name.file(), request);
                    }
                    Err(error) => request.complete(Err(error)),
                }
            });
        }
    }

    fn geometry(&self) -> Geometry {
        let direct = self.directory.direct();
        Geometry {
            memory_align: direct.unwrap_or(1),
            engine: "directory",
            direct: direct.is_some(),
            places: self.workers as usize,
        }
    }
}

impl Tier for DirectoryTier {
    fn facts(&self) -> TierFacts {
        let (state, reopened) = self.directory.state();
        let (name, workers, idle_poll) = ("directory", self.workers, Duration::ZERO);
        TierFacts { name, workers, most_reads: workers, idle_poll, state, reopened }
    }

    fn file(&self, name: ObjectName) -> FileId {
        self.files.add(name)
    }

    fn forget(&self, file_id: FileId) {
        let Some(name) = self.files.forget(file_id) else { return };
        let directory = Arc::clone(&self.directory);
        // A close may wait for the network. If it is refused, the file stays open until others need its place.
        self.lanes.spawn(move |permission| {
            if let Some(directory) = directory.opened().filter(|_| permission.is_ok()) {
                directory.close(&name.folder(), &name.file());
            }
        });
    }

    fn publish(&self, name: ObjectName, bytes: Vec<Memory>, ask: Ask<()>) {
        let written = Arc::clone(&self.written);
        self.answer_now(ask, move |open| {
            written.check(name, open.number)?;
            open.directory.publish(&name.folder(), &name.file(), &bytes)?;
            written.note(name, open.number);
            Ok(())
        });
    }

    fn fetch(&self, name: ObjectName, limit: u64, ask: Ask<Vec<u8>>) {
        self.answer(ask, move |directory| {
            directory.read_whole(&name.folder(), &name.file(), limit)
        });
    }

    fn remove(&self, name: ObjectName, ask: Ask<()>) {
        self.answer(ask, move |directory| directory.remove(&name.folder(), &name.file()));
    }

    fn remove_writer(&self, writer: WriterId, ask: Ask<()>) {
        self.answer(ask, move |directory| directory.remove_folder(&writer.to_string()));
    }

    fn removals(&self, ask: Ask<Vec<(ObjectName, u64)>>) {
        self.answer_now(ask, |open| {
            let is_list = |name: &str| ObjectName::parse_removals(name).is_some();
            let entries = match open.directory.entries(REMOVALS_FOLDER, is_list) {
                Err(error) if error.is_not_found() => return Ok(Vec::new()),
                entries => entries?,
            };
            let named = |entry: &FolderEntry| {
                ObjectName::parse_removals(&entry.name).map(|name| (name, entry.bytes))
            };
            let mut lists: Vec<_> = entries.iter().filter_map(named).collect();
            lists.sort_unstable();
            Ok(lists)
        });
    }

    fn now(&self, ask: Ask<Duration>) {
        self.answer_now(ask, |open| open.directory.now());
    }

    fn removals_changed(&self, ask: Ask<Duration>) {
        self.answer(ask, |directory| directory.folder_changed(REMOVALS_FOLDER));
    }

    fn writers(&self, ask: Ask<Vec<WriterId>>) {
        self.answer_now(ask, |open| {
            let folders = open.directory.folders()?;
            let mut writers: Vec<WriterId> =
                folders.iter().filter_map(|folder| WriterId::parse(folder)).collect();
            writers.sort_unstable();
            Ok(writers)
        });
    }

    fn list(&self, writer: WriterId, after: Option<Object>, ask: Ask<Vec<Listed>>) {
        self.answer(ask, move |directory| {
            let is_wanted = |name: &str| {
                Object::parse(name).is_some_and(|object| after.is_none_or(|after| object > after))
            };
            let entries = match directory.entries(&writer.to_string(), is_wanted) {
                Err(error) if error.is_not_found() => return Ok(Vec::new()),
                entries => entries?,
            };
            let listed = |entry: &FolderEntry| {
                Object::parse(&entry.name).map(|object| Listed { object, bytes: entry.bytes })
            };
            let mut objects: Vec<Listed> = entries.iter().filter_map(listed).collect();
            objects.sort_unstable();
            Ok(objects)
        });
    }

    fn age(&self, name: ObjectName, ask: Ask<Duration>) {
        self.answer(ask, move |directory| directory.age(&name.folder(), &name.file()));
    }

    fn writer_age(&self, writer: WriterId, ask: Ask<Duration>) {
        self.answer(ask, move |directory| directory.folder_age(&writer.to_string()));
    }

    fn space(&self, ask: Ask<Space>) {
        self.answer_now(ask, |open| open.directory.space());
    }
}

#[cfg(test)]
mod tests;
