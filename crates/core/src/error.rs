//! Errors by what the caller does about them. Miss, pending and throttled are outcomes, not errors.

use std::fmt;

/// What the caller can do about an error.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ErrorKind {
    /// The call is wrong: fix it.
    Invalid,
    /// The format or layout differs from what this build reads.
    Incompatible,
    /// Skip the store or retry: it is locked or read-only, the device failed, or the deadline passed.
    Unavailable,
    /// No space: lower the load or raise the capacity.
    Full,
    /// Stored bytes failed their check and were quarantined. The caller sees a miss.
    Corrupt,
    /// A sync failed. Writes are refused until the store is reopened.
    Poisoned,
    /// The store was closed.
    Closed,
}

impl ErrorKind {
    /// The name in messages, counters and Python's exceptions.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Invalid => "invalid",
            Self::Incompatible => "incompatible",
            Self::Unavailable => "unavailable",
            Self::Full => "full",
            Self::Corrupt => "corrupt",
            Self::Poisoned => "poisoned",
            Self::Closed => "closed",
        }
    }
}

/// The error of the public API: a kind, a message for people, and the cause.
#[derive(Debug)]
pub struct Error {
    kind: ErrorKind,
    message: String,
    source: Option<Box<dyn std::error::Error + Send + Sync>>,
}

/// Result of the public API.
pub type Result<T> = std::result::Result<T, Error>;

impl Error {
    /// An error whose message says what was wrong, what was expected and what to do.
    #[must_use]
    pub fn new(kind: ErrorKind, message: impl Into<String>) -> Self {
        Self { kind, message: message.into(), source: None }
    }

    /// Shorthand for [`ErrorKind::Invalid`].
    #[must_use]
    pub fn invalid(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::Invalid, message)
    }

    /// Adds the cause.
    #[must_use]
    pub fn with_source(
        mut self,
        source: impl Into<Box<dyn std::error::Error + Send + Sync>>,
    ) -> Self {
        self.source = Some(source.into());
        self
    }

    /// What the caller can do about it.
    #[must_use]
    pub fn kind(&self) -> ErrorKind {
        self.kind
    }

    /// The message without its cause.
    #[must_use]
    pub fn message(&self) -> &str {
        &self.message
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)?;
        // The errors of the other crates include their own causes.
        self.source.as_ref().map_or(Ok(()), |cause| write!(f, ": {cause}"))
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.source.as_deref().map(|e| e as _)
    }
}
