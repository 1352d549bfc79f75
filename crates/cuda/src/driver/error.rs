//! Calls of the driver that failed, and drivers that cannot be used.

use super::abi::Code;

/// A call of the driver that failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{call} returned {name} ({code})")]
pub struct CudaError {
    call: &'static str,
    code: Code,
    name: String,
}

impl CudaError {
    pub(super) fn new(call: &'static str, code: Code, name: String) -> Self {
        Self { call, code, name }
    }

    /// What every call would return in a forked child, which makes none.
    pub(crate) fn forked() -> Self {
        let name = "CUDA_ERROR_NOT_INITIALIZED".to_owned();
        Self { call: "a call of a forked process", code: 3, name }
    }

    /// What a call would return that orders work with a stream whose work is captured: it is done later, or never.
    pub(crate) fn captured() -> Self {
        let name = "CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED".to_owned();
        Self { call: "a call on a captured stream", code: 900, name }
    }
}

/// Why the driver of this machine cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Absent {
    /// There is no library, or it cannot be loaded.
    #[error("no CUDA driver: {0}")]
    NoLibrary(String),
    /// The library lacks a call.
    #[error("the CUDA driver is too old: it has no {0}")]
    NoCall(&'static str),
    /// A call failed: a stub of the library, or no GPU.
    #[error("the CUDA driver does not work here: {0}")]
    Failed(#[from] CudaError),
}
