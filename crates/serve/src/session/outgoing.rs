//! What a request leads to, before it is encoded.

use dalsegno_store::Error;

use crate::wire::{Malformed, Reply};

/// An answer to a request, before it is encoded.
pub(super) enum Outgoing {
    Reply(Reply),
    /// With a tail.
    Tailed(Reply, Vec<u8>),
    Nothing,
}

/// Why a request has no ordinary answer.
pub(super) enum Trouble {
    Malformed(Malformed),
    Failed(Error),
}

impl From<Malformed> for Trouble {
    fn from(malformed: Malformed) -> Self {
        Self::Malformed(malformed)
    }
}

impl From<Error> for Trouble {
    fn from(error: Error) -> Self {
        Self::Failed(error)
    }
}

pub(super) type Handled = std::result::Result<Outgoing, Trouble>;

/// A reply that is a number.
pub(super) fn count(count: u64) -> Outgoing {
    Outgoing::Reply(Reply::Count { count })
}
