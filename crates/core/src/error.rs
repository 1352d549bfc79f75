//! Errors sorted by what the caller does about them. Miss, pending and throttled are outcomes, not errors.

use std::fmt;

/// What the caller can do about an error.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ErrorKind {
    /// The call itself is wrong: fix it.
    Invalid,
    /// Format or layout differ from what this build reads.
    Incompatible,
    /// Skip the store or try again: locked, read-only, device trouble, deadline.
    Unavailable,
    /// No room: lower the load or raise the capacity.
    Full,
    /// Stored bytes failed their check and were set aside; the caller sees a miss.
    Corrupt,
    /// A sync failed: writes are refused until the store is opened again.
    Poisoned,
    /// The store was closed.
    Closed,
}

impl ErrorKind {
    /// The name that messages, counters and Python's exceptions carry.
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

/// The one error of the public API: a kind, a sentence for people, and the cause.
#[derive(Debug)]
pub struct Error {
    kind: ErrorKind,
    message: String,
    source: Option<Box<dyn std::error::Error + Send + Sync>>,
}

/// Shorthand for results of the public API.
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

    /// The sentence without its cause.
    #[must_use]
    pub fn message(&self) -> &str {
        &self.message
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)?;
        // The rooms' errors tell their own causes.
        self.source.as_ref().map_or(Ok(()), |cause| write!(f, ": {cause}"))
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.source.as_deref().map(|e| e as _)
    }
}
