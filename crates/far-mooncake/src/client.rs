//! What a tier needs of Mooncake's client, and how its calls fail.

use std::io::ErrorKind;
use std::sync::{Arc, OnceLock};

use dalsegno_core::Stopped;
use dalsegno_io::{IoError, Memory};
use thiserror::Error;

use crate::location::MooncakeLocation;

/// `ErrorCode` of Mooncake, `mooncake-store/include/types.h`.
const NO_AVAILABLE_HANDLE: i64 = -200;
const INVALID_PARAMS: i64 = -600;
const OBJECT_NOT_FOUND: i64 = -704;
const RPC_FAIL: i64 = -900;
const RPC_TIMEOUT: i64 = -901;

/// A client of a cluster. Its calls wait, and any thread may make them.
pub trait Client: Send + Sync {
    /// Stores the bytes of all pieces, in order, as one object. An object that exists is kept as it is.
    ///
    /// # Errors
    ///
    /// [`ClientError`]: nothing, or all of it, is stored.
    fn put(&self, key: &str, bytes: &[Memory]) -> Result<(), ClientError>;

    /// Reads from `offset` of an object until the memory is full.
    ///
    /// # Errors
    ///
    /// [`ClientError`]: the memory has any bytes.
    fn get(&self, key: &str, offset: u64, memory: &mut [Memory]) -> Result<(), ClientError>;

    /// The sizes of objects in bytes; `None` for one that does not exist.
    ///
    /// # Errors
    ///
    /// [`ClientError`]: nothing is known of any of them.
    fn sizes(&self, keys: &[String]) -> Result<Vec<Option<u64>>, ClientError>;

    /// Removes an object, also one that is being read.
    ///
    /// # Errors
    ///
    /// [`ClientError`], also if there is no such object.
    fn remove(&self, key: &str) -> Result<(), ClientError>;
}

/// Makes a client of a location's cluster. It may wait for minutes.
pub type Connect = dyn Fn(&MooncakeLocation) -> Result<Arc<dyn Client>, ClientError> + Send + Sync;

static CONNECTOR: OnceLock<Arc<Connect>> = OnceLock::new();

/// Sets how clients are made in this process: Mooncake's client is a Python module. Only the first call counts.
pub fn set_connector(connect: Arc<Connect>) {
    let _ = CONNECTOR.set(connect);
}

/// How clients are made in this process, if that was set.
#[must_use]
pub fn connector() -> Option<Arc<Connect>> {
    CONNECTOR.get().cloned()
}

/// Why a call failed.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum ClientError {
    /// What Mooncake returned.
    #[error("{}", shown(*.0))]
    Code(i64),
    /// There is no client.
    #[error("{0}")]
    NoClient(String),
}

impl ClientError {
    /// Whether there is no such object.
    #[must_use]
    pub fn is_missing(&self) -> bool {
        *self == Self::Code(OBJECT_NOT_FOUND)
    }

    /// Whether the arguments do not fit the object, such as a range behind its end.
    #[must_use]
    pub fn is_invalid(&self) -> bool {
        *self == Self::Code(INVALID_PARAMS)
    }

    /// As the store sees it.
    pub(crate) fn to_io(&self, operation: &'static str, file: &str) -> IoError {
        let kind = match self {
            Self::Code(OBJECT_NOT_FOUND) => return IoError::not_found(operation, file),
            Self::Code(NO_AVAILABLE_HANDLE) => return IoError::no_space(operation, file),
            // Further calls would take as long.
            Self::Code(RPC_TIMEOUT) => return IoError::Stopped(Stopped::Deadline),
            Self::Code(RPC_FAIL) | Self::NoClient(_) => ErrorKind::NotConnected,
            Self::Code(_) => ErrorKind::Other,
        };
        let source = std::io::Error::new(kind, self.clone());
        IoError::Os { operation, file: file.to_owned(), source }
    }
}

/// What a code means for somebody who looks for the cause.
fn shown(code: i64) -> String {
    let meaning = match code {
        NO_AVAILABLE_HANDLE => "the cluster has no space",
        INVALID_PARAMS => "the object has another size, or the memory is not registered",
        OBJECT_NOT_FOUND => "there is no such object",
        RPC_FAIL => "the master does not respond; check that mooncake_master runs",
        RPC_TIMEOUT => "the master did not respond in time",
        -899..=-800 => "the transfer failed; check the nodes of the cluster",
        _ => "Mooncake refused it",
    };
    format!("{meaning} (Mooncake {code})")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_become_what_the_store_knows() {
        let io = |code| ClientError::Code(code).to_io("read", "a/b");
        assert!(io(-704).is_not_found() && io(-200).is_no_space());
        assert_eq!(io(-900).system_kind(), Some(ErrorKind::NotConnected));
        assert!(io(-901).is_late() && !io(-900).is_late());
        let transfer = io(-800);
        assert!(!transfer.is_of_object() && !transfer.is_not_found());
        assert!(
            transfer.to_string().contains("nodes of the cluster (Mooncake -800)"),
            "{transfer}"
        );
        let absent = ClientError::NoClient("install it".to_owned()).to_io("read", "a/b");
        assert!(absent.to_string().contains("install it"), "{absent}");
    }
}
