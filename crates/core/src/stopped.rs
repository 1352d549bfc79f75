//! Why a call ended before its work was done.

use thiserror::Error;

/// Why a call, or a request of it, ended early. The other errors carry it. It says nothing about stored bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum Stopped {
    /// The deadline passed first.
    #[error("deadline passed before the device responded")]
    Deadline,
    /// The caller cancelled it.
    #[error("the call was cancelled")]
    Cancelled,
    /// A queue was full, or all memory of its kind was in use.
    #[error("the I/O queue is full, or no staging memory is free")]
    Busy,
}
