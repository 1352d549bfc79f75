//! Removing blocks from the store of a server.

use dalsegno_core::{ChainHash, Error, ErrorKind, NamespaceId, Result};
use dalsegno_store::Terms;

use super::inner::Parts;
use crate::wire::{self, MOST_HASHES, Reply, Request, timeout_ns};

/// Removes blocks, all of the namespace without `hashes`; returns how many there were.
///
/// # Errors
///
/// `Unavailable` also if the server is away. The message says what was not removed.
pub(super) fn remove(
    parts: &Parts,
    namespace: NamespaceId,
    hashes: Option<&[ChainHash]>,
    terms: &Terms,
) -> Result<u64> {
    let call = terms.call(&parts.clock);
    parts.submitted.wait_for_earlier(&call, &parts.clock).map_err(|_| not_begun())?;
    let everything: &[ChainHash] = &[];
    let messages: Vec<&[ChainHash]> =
        hashes.map_or_else(|| vec![everything], |all| all.chunks(MOST_HASHES).collect());
    let (mut removed, mut done) = (0, 0);
    for part in messages {
        let answered = parts.server().and_then(|server| {
            let mut message = wire::encode(&Request::Remove {
                namespace: namespace.0,
                all: hashes.is_none(),
                timeout_ns: timeout_ns(server.reach().left(&call)?),
            });
            wire::push_hashes(&mut message, part);
            server.call(namespace, &message, &call)
        });
        let count = answered.map_err(|_| away()).and_then(|answer| count_of(&answer));
        done += part.len();
        let left = hashes.map_or(0, <[ChainHash]>::len) - done;
        removed += count.map_err(|error| with_rest(error, left))?;
    }
    Ok(removed)
}

fn away() -> Error {
    let message = "the server is away or did not respond in time: the blocks may or may not be \
                   removed; remove them again";
    Error::new(ErrorKind::Unavailable, message)
}

fn not_begun() -> Error {
    let message = "nothing was removed: puts that were submitted before have not ended; remove \
                   these blocks again";
    Error::new(ErrorKind::Unavailable, message)
}

/// The error of one part of a removal, with the blocks of later parts.
fn with_rest(error: Error, left: usize) -> Error {
    if left == 0 {
        return error;
    }
    let message = format!("{error}; the last {left} blocks were not removed: remove them again");
    Error::new(error.kind(), message)
}

/// The number that an answer carries, or its error.
fn count_of(answer: &[u8]) -> Result<u64> {
    match wire::decode::<Reply>(answer) {
        Ok((Reply::Count { count }, _)) => Ok(count),
        Ok((Reply::Failed { kind, message }, _)) => match wire::error_of(kind, message) {
            // The server is about to end; this client is not closed.
            error if error.kind() == ErrorKind::Closed => Err(away()),
            error => Err(error),
        },
        _ => Err(away()),
    }
}
