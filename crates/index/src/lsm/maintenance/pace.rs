//! The rate of compactions.

/// Limits the rate at which compactions write. Flushes do not use it.
pub trait Pace: Send + Sync + std::fmt::Debug {
    /// Returns when so many bytes may be written.
    fn wait(&self, bytes: u64);
}
