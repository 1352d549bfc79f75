//! Why a call has no answer.

use dalsegno_core::Stopped;
use dalsegno_store::Cause;

/// Why there is no answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Lost {
    /// The server is gone, or does not respond.
    Away,
    /// The call ended early, or there is no memory for the bytes of a put.
    Stopped(Stopped),
    /// The server has no connection for this client.
    Refused,
    /// The connection ended before the reply.
    Ended,
}

impl Lost {
    pub(super) fn cause(self) -> Cause {
        match self {
            Self::Away | Self::Ended => Cause::Suspended,
            Self::Stopped(stopped) => stopped.into(),
            Self::Refused => Cause::Throttled,
        }
    }
}

impl From<Stopped> for Lost {
    fn from(stopped: Stopped) -> Self {
        Self::Stopped(stopped)
    }
}
