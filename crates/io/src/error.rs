//! Errors between the store and a device.

use dalsegno_core::Stopped;
use rustix::io::Errno;
use thiserror::Error;

/// Why a request failed.
#[derive(Debug, Error)]
pub enum IoError {
    /// The operating system refused or failed.
    #[error("{operation} of {file} failed: {source}")]
    Os {
        /// What was tried, such as `"write"`.
        operation: &'static str,
        /// The file's name in its directory.
        file: String,
        /// The system's own error.
        source: std::io::Error,
    },
    /// Fewer bytes moved than requested.
    #[error("{operation} of {file} moved {got} of {expected} bytes")]
    Short {
        /// What was tried.
        operation: &'static str,
        /// The file's name in its directory.
        file: String,
        /// Bytes requested.
        expected: u64,
        /// Bytes moved.
        got: u64,
    },
    /// It, or the call that it belongs to, ended early. A device cancels no request.
    #[error(transparent)]
    Stopped(#[from] Stopped),
    /// The device hangs or fails. Requests fail fast until it responds again.
    #[error("device suspended: it does not respond, so requests fail until it does")]
    Suspended,
    /// The device was closed.
    #[error("the device is closed")]
    Closed,
}

impl IoError {
    /// An error of the system, with the operation and the file.
    pub(crate) fn os(
        operation: &'static str,
        file: impl Into<String>,
        source: impl Into<std::io::Error>,
    ) -> Self {
        Self::Os { operation, file: file.into(), source: source.into() }
    }

    /// The kind of the system's error, if it is one.
    #[must_use]
    pub fn system_kind(&self) -> Option<std::io::ErrorKind> {
        match self {
            Self::Os { source, .. } => Some(source.kind()),
            _ => None,
        }
    }

    /// There is no file or directory of this name (`ENOENT`).
    #[must_use]
    pub fn not_found(operation: &'static str, file: impl Into<String>) -> Self {
        Self::os(operation, file, Errno::NOENT)
    }

    /// The file already exists (`EEXIST`).
    #[must_use]
    pub fn exists(operation: &'static str, file: impl Into<String>) -> Self {
        Self::os(operation, file, Errno::EXIST)
    }

    /// The file is larger than allowed (`EFBIG`).
    #[must_use]
    pub fn too_large(operation: &'static str, file: impl Into<String>) -> Self {
        Self::os(operation, file, Errno::FBIG)
    }

    /// No space is left (`ENOSPC`).
    #[must_use]
    pub fn no_space(operation: &'static str, file: impl Into<String>) -> Self {
        Self::os(operation, file, Errno::NOSPC)
    }

    /// The file is not open, or was closed (`EBADF`).
    #[must_use]
    pub fn not_open(operation: &'static str, file: impl Into<String>) -> Self {
        Self::os(operation, file, Errno::BADF)
    }

    /// A thread failed while it carried out the operation.
    #[must_use]
    pub fn panicked(operation: &'static str, file: impl Into<String>) -> Self {
        Self::os(operation, file, std::io::Error::other("the I/O thread failed"))
    }

    /// Whether the deadline passed first.
    #[must_use]
    pub fn is_late(&self) -> bool {
        matches!(self, Self::Stopped(Stopped::Deadline))
    }

    /// Whether it is a system error with one of these numbers.
    fn is_one_of(&self, numbers: &[i32]) -> bool {
        matches!(self, Self::Os { source, .. }
            if source.raw_os_error().is_some_and(|number| numbers.contains(&number)))
    }

    /// Whether the file system has no space left (`ENOSPC`, `EDQUOT`, `EFBIG`).
    #[must_use]
    pub fn is_no_space(&self) -> bool {
        self.is_one_of(&[libc::ENOSPC, libc::EDQUOT, libc::EFBIG])
    }

    /// Whether the file was closed before the request reached it (`EBADF`).
    #[must_use]
    pub fn is_closed_file(&self) -> bool {
        self.is_one_of(&[libc::EBADF])
    }

    /// Whether a quota is exhausted (`EDQUOT`).
    #[must_use]
    pub fn is_quota(&self) -> bool {
        self.is_one_of(&[libc::EDQUOT])
    }

    /// Whether a file would exceed the size limit of this process or of the file system (`EFBIG`).
    #[must_use]
    pub fn is_too_large(&self) -> bool {
        self.is_one_of(&[libc::EFBIG])
    }

    /// Whether the medium is damaged at this place (`EIO`, `ENODATA`, `EBADMSG`, `EILSEQ`, `EUCLEAN`).
    #[must_use]
    pub fn is_of_medium(&self) -> bool {
        self.is_one_of(&[libc::EIO, libc::ENODATA, libc::EBADMSG, libc::EILSEQ, libc::EUCLEAN])
    }

    /// Whether this process or the system has too many open files (`EMFILE`, `ENFILE`).
    #[must_use]
    pub fn is_out_of_files(&self) -> bool {
        self.is_one_of(&[libc::EMFILE, libc::ENFILE])
    }

    /// Whether an I/O engine could not be started.
    #[must_use]
    pub fn is_start(&self) -> bool {
        matches!(self, Self::Os { operation: "start", .. })
    }

    /// Whether a file or directory does not exist.
    #[must_use]
    pub fn is_not_found(&self) -> bool {
        self.is_one_of(&[libc::ENOENT])
    }

    /// Whether this process may not do that (`EACCES`, `EPERM`).
    #[must_use]
    pub fn is_denied(&self) -> bool {
        self.is_one_of(&[libc::EACCES, libc::EPERM])
    }

    /// Whether the name is that of a directory, a link or something else that is no regular file (`EISDIR`, `ENOTDIR`,
    /// `ELOOP`, and `EINVAL`, which this crate returns before it opens one).
    #[must_use]
    pub fn is_not_regular(&self) -> bool {
        self.is_one_of(&[libc::EISDIR, libc::ENOTDIR, libc::ELOOP, libc::EINVAL])
    }

    /// Whether a path leads to something that is no directory, or through it (`ENOTDIR`).
    #[must_use]
    pub fn is_not_directory(&self) -> bool {
        self.is_one_of(&[libc::ENOTDIR])
    }

    /// Whether this process can never read the name as a file of the allowed size, while other names can be read.
    #[must_use]
    pub fn is_of_object(&self) -> bool {
        self.is_denied() || self.is_not_regular() || self.is_too_large()
    }

    /// Whether the arguments do not suit the file or its file system (`EINVAL`).
    pub(crate) fn is_invalid(&self) -> bool {
        self.is_one_of(&[libc::EINVAL])
    }

    /// Whether nobody listens on a socket (`ECONNREFUSED`).
    #[must_use]
    pub fn is_refused(&self) -> bool {
        self.is_one_of(&[libc::ECONNREFUSED])
    }

    /// Whether too many connections wait to be accepted (`EAGAIN`).
    #[must_use]
    pub fn is_full_backlog(&self) -> bool {
        self.is_one_of(&[libc::EAGAIN])
    }

    /// Whether the file already exists.
    #[must_use]
    pub fn is_exists(&self) -> bool {
        self.is_one_of(&[libc::EEXIST])
    }
}
