//! The directory of a tier. Its file system may not respond when it is opened, and its path may lead to another
//! directory later.
//!
//! 1. The directory is opened by the first call that needs it. While one call waits for that, others fail.
//! 2. A directory to which the path does not lead any more is not used: it was removed, or its file system unmounted.
//!    What the path leads to instead is opened, and has the next number.
//! 3. A mount point whose file system is not mounted is not used, if a file system was mounted there before.

use std::io::{Error, ErrorKind};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use dalsegno_io::{
    DirectoryPlace, IoError, LocalDirectory, MountId, SharedDirectory, is_within, mount_below,
};
use parking_lot::{Mutex, RwLock};

use super::TierState;

/// How long a call waits for another one that opens what the path leads to now.
const REOPEN_WAIT: Duration = Duration::from_secs(2);

/// The directory of a location, as a store names it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LocationPath {
    /// An existing directory.
    pub path: PathBuf,
    /// A folder in it that is used in its place. It is created, with mode 0700, if it is missing.
    pub folder: Option<PathBuf>,
    /// The directory of the store that uses it, if any. The two must not contain each other.
    pub store: Option<PathBuf>,
}

/// Why a directory cannot be a location.
#[derive(Debug)]
pub enum LocationError {
    /// It does not exist, or cannot be looked at.
    Io(IoError),
    /// The store's directory is it, contains it, or is in it.
    WithinStore,
}

impl LocationPath {
    /// A directory without anything else.
    #[must_use]
    pub fn of(path: &Path) -> Self {
        Self { path: path.to_owned(), folder: None, store: None }
    }

    /// Whether the directory exists and is apart from that of the store. Waits for its file system.
    ///
    /// # Errors
    ///
    /// Why not.
    pub fn check(&self) -> Result<(), LocationError> {
        DirectoryPlace::of(&self.path).map_err(LocationError::Io)?;
        let overlaps =
            |store: &PathBuf| is_within(&self.path, store) || is_within(store, &self.path);
        if self.store.as_ref().is_some_and(overlaps) {
            return Err(LocationError::WithinStore);
        }
        Ok(())
    }

    fn full(&self) -> PathBuf {
        self.folder.as_ref().map_or_else(|| self.path.clone(), |folder| self.path.join(folder))
    }

    fn open(&self) -> Result<SharedDirectory, IoError> {
        self.check().map_err(|error| match error {
            LocationError::Io(error) => error,
            LocationError::WithinStore => {
                let what = "the store's directory and the far directory contain each other";
                let source = Error::new(ErrorKind::InvalidInput, what);
                IoError::Os { operation: "open", file: self.path.display().to_string(), source }
            }
        })?;
        let path = self.full();
        if self.folder.is_some() {
            LocalDirectory::create_dir(&path)?;
        }
        SharedDirectory::open(&path)
    }

    /// What the path leads to now: the folder or, if that is missing, the directory in which it is created.
    fn place(&self) -> Result<DirectoryPlace, IoError> {
        match DirectoryPlace::of(&self.full()) {
            Err(error) if error.is_not_found() && self.folder.is_some() => {
                DirectoryPlace::of(&self.path)
            }
            place => place,
        }
    }
}

type Opener = Box<dyn Fn() -> Result<SharedDirectory, IoError> + Send + Sync>;

/// A directory that is open.
#[derive(Clone, Debug)]
pub(super) struct OpenDirectory {
    pub(super) directory: Arc<SharedDirectory>,
    /// How many others were open before it.
    pub(super) number: u64,
    /// The mount that its own mount is on. If the path leads there, the file system is not mounted.
    below: Option<MountId>,
}

#[derive(Clone, Debug)]
enum DirectoryState {
    /// It was never open.
    Opening,
    Open(OpenDirectory),
    /// It was open, and the path leads to no directory that may be used.
    Away {
        number: u64,
        below: Option<MountId>,
    },
}

/// What the path of an open directory leads to.
enum Looked {
    Same,
    Other,
    Nothing(&'static str),
}

/// A directory that is opened when it is needed, and again if its path leads to another one.
pub(super) struct LateDirectory {
    path: LocationPath,
    open: Opener,
    state: RwLock<DirectoryState>,
    opening: Mutex<()>,
}

impl LateDirectory {
    pub(super) fn new(mut path: LocationPath) -> Self {
        // The process may change its working directory.
        path.path = std::path::absolute(&path.path).unwrap_or(path.path);
        path.store = path.store.map(|store| std::path::absolute(&store).unwrap_or(store));
        let of_opener = path.clone();
        Self::with(path, Box::new(move || of_opener.open()))
    }

    pub(super) fn with(path: LocationPath, open: Opener) -> Self {
        Self { path, open, state: RwLock::new(DirectoryState::Opening), opening: Mutex::default() }
    }

    /// Whether calls can reach a directory, and how many were open before the present or last one.
    pub(super) fn state(&self) -> (TierState, u64) {
        match &*self.state.read() {
            DirectoryState::Opening => (TierState::Opening, 0),
            DirectoryState::Open(open) => (TierState::Open, open.number),
            DirectoryState::Away { number, .. } => (TierState::Away, *number),
        }
    }

    /// The alignment that direct I/O requires, if the directory is open and has that.
    pub(super) fn direct(&self) -> Option<usize> {
        match &*self.state.read() {
            DirectoryState::Open(open) => open.directory.direct(),
            _ => None,
        }
    }

    /// The directory, if it is open. The last user closes its files, so this is no call for a thread that may not wait.
    pub(super) fn opened(&self) -> Option<Arc<SharedDirectory>> {
        match &*self.state.read() {
            DirectoryState::Open(open) => Some(Arc::clone(&open.directory)),
            _ => None,
        }
    }

    /// The directory that is open. Waits for the file system if none was open yet and no other call opens it.
    pub(super) fn get(&self) -> Result<OpenDirectory, IoError> {
        let state = self.state.read().clone();
        match state {
            DirectoryState::Open(open) => Ok(open),
            DirectoryState::Opening => self.open(Duration::ZERO, 0, None),
            DirectoryState::Away { .. } => {
                Err(self.failed(ErrorKind::NotConnected, "the directory is not there"))
            }
        }
    }

    /// The directory that the path leads to now, as [`Self::get`]. Waits for the file system.
    pub(super) fn current(&self) -> Result<OpenDirectory, IoError> {
        let state = self.state.read().clone();
        let (number, below) = match state {
            DirectoryState::Opening => return self.get(),
            DirectoryState::Away { number, below } => (number, below),
            DirectoryState::Open(open) => match self.look(&open)? {
                Looked::Same => return Ok(open),
                Looked::Other => (open.number, open.below),
                Looked::Nothing(why) => {
                    self.leave(open.number, open.below, why);
                    return Err(self.failed(ErrorKind::NotConnected, why));
                }
            },
        };
        if let Err(why) = self.usable(below)? {
            return Err(self.failed(ErrorKind::NotConnected, why));
        }
        self.open(REOPEN_WAIT, number + 1, below)
    }

    /// Compares what the path leads to with the directory that is open.
    fn look(&self, open: &OpenDirectory) -> Result<Looked, IoError> {
        match self.usable(open.below)? {
            Err(why) => Ok(Looked::Nothing(why)),
            // Of a file system that is gone, the second look fails.
            Ok(place) if DirectoryPlace::of_open(&open.directory).is_ok_and(|of| of == place) => {
                Ok(Looked::Same)
            }
            Ok(_) => Ok(Looked::Other),
        }
    }

    /// What the path leads to, or why that may not be used.
    fn usable(
        &self,
        below: Option<MountId>,
    ) -> Result<Result<DirectoryPlace, &'static str>, IoError> {
        match self.path.place() {
            Ok(place) if Some(place.mount()) == below => Ok(Err("its file system is not mounted")),
            Ok(place) => Ok(Ok(place)),
            Err(error) if error.is_not_found() || error.is_not_directory() => {
                Ok(Err("the directory does not exist"))
            }
            Err(error) => Err(error),
        }
    }

    /// Opens what the path leads to, as the directory with this number.
    fn open(
        &self,
        wait: Duration,
        number: u64,
        below: Option<MountId>,
    ) -> Result<OpenDirectory, IoError> {
        let Some(_opening) = self.opening.try_lock_for(wait) else {
            return Err(self.failed(ErrorKind::TimedOut, "the file system does not respond"));
        };
        if let DirectoryState::Open(open) = &*self.state.read()
            && open.number >= number
        {
            return Ok(open.clone());
        }
        let directory = match (self.open)() {
            Ok(directory) => Arc::new(directory),
            Err(error) => {
                if number > 0 {
                    self.leave(number - 1, below, "the new directory cannot be opened");
                }
                return Err(error);
            }
        };
        let below = mount_below(&self.path.full());
        let open = OpenDirectory { directory, number, below };
        let state = DirectoryState::Open(open.clone());
        let before = std::mem::replace(&mut *self.state.write(), state);
        // Without the lock: closing files may wait for the network.
        drop(before);
        if number > 0 {
            tracing::warn!(
                path = %self.path.full().display(),
                reopened = number,
                "the far directory is another one than before; it is used from now on"
            );
        }
        Ok(open)
    }

    /// Stops using the directory with this number, if it is in use.
    fn leave(&self, number: u64, below: Option<MountId>, why: &str) {
        let mut state = self.state.write();
        if !matches!(&*state, DirectoryState::Open(open) if open.number == number) {
            return;
        }
        let before = std::mem::replace(&mut *state, DirectoryState::Away { number, below });
        drop(state);
        // Without the lock: closing files may wait for the network.
        drop(before);
        tracing::warn!(
            path = %self.path.full().display(),
            why,
            "the far directory is away; nothing is read or written there until it is back"
        );
    }

    fn failed(&self, kind: ErrorKind, why: &'static str) -> IoError {
        let file = self.path.full().display().to_string();
        IoError::Os { operation: "open", file, source: Error::new(kind, why) }
    }
}

impl std::fmt::Debug for LateDirectory {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("LateDirectory").field("state", &self.state).finish_non_exhaustive()
    }
}
