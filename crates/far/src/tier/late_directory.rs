//! A directory whose file system may not respond when it is opened.

use std::io::{Error, ErrorKind};
use std::path::Path;
use std::sync::{Arc, OnceLock};

use dalsegno_io::{IoError, SharedDirectory};
use parking_lot::Mutex;

type Opener = Box<dyn Fn() -> Result<SharedDirectory, IoError> + Send + Sync>;

/// A directory that is opened by the first call that needs it. While one call waits for that, others fail.
pub(super) struct LateDirectory {
    label: String,
    open: Opener,
    directory: OnceLock<Arc<SharedDirectory>>,
    opening: Mutex<()>,
}

impl LateDirectory {
    pub(super) fn new(path: &Path) -> Self {
        let of_opener = path.to_owned();
        Self::with(path, Box::new(move || SharedDirectory::open(&of_opener)))
    }

    pub(super) fn with(path: &Path, open: Opener) -> Self {
        let label = path.display().to_string();
        Self { label, open, directory: OnceLock::new(), opening: Mutex::default() }
    }

    /// The directory, if it is open.
    pub(super) fn opened(&self) -> Option<&Arc<SharedDirectory>> {
        self.directory.get()
    }

    /// The directory. Waits for the file system if it is not open and no other call opens it.
    pub(super) fn get(&self) -> Result<Arc<SharedDirectory>, IoError> {
        if let Some(directory) = self.opened() {
            return Ok(Arc::clone(directory));
        }
        let Some(_opening) = self.opening.try_lock() else {
            let source = Error::new(ErrorKind::TimedOut, "the file system does not respond");
            return Err(IoError::Os { operation: "open", file: self.label.clone(), source });
        };
        if let Some(directory) = self.opened() {
            return Ok(Arc::clone(directory));
        }
        let directory = Arc::new((self.open)()?);
        Ok(Arc::clone(self.directory.get_or_init(|| directory)))
    }
}

impl std::fmt::Debug for LateDirectory {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("LateDirectory").field("directory", &self.directory).finish_non_exhaustive()
    }
}
