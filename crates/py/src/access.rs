//! What a call does with Python memory.

/// The direction of a transfer.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Access {
    /// The store reads the buffers.
    Read,
    /// The store fills the buffers.
    Write,
}
