//! What a client and the server say to each other. Format: docs/formats/wire.md.
//!
//! A frame is a message, encoded with postcard, and a *tail* of rows of fixed size: hashes, places, outcomes. Tails are
//! copied as they are, because an encoding item by item would cost more than the work behind it.
//!
//! 1. Both ends check everything that they receive. A message that does not decode, or a tail of the wrong length, is
//!    an error and never a panic.
//! 2. New variants and fields come at the end, with a new version.

use std::time::Duration;

use dalsegno_arena::Stamp;
use dalsegno_core::{ChainHash, Error, ErrorKind, NamespaceId};
use dalsegno_store::{BlockTier, Cause, Located, Outcome, Phase, PutOutcome};
use serde::{Deserialize, Serialize};

/// The version that this build speaks.
pub(crate) const VERSION: u32 = 1;
/// The oldest version that it understands.
pub(crate) const OLDEST_VERSION: u32 = 1;
/// Where the blocks of a window start. Its first eight bytes are its ticket.
pub(crate) const WINDOW_HEADER_BYTES: usize = 4096;
/// Most bytes of a frame.
pub(crate) const MOST_FRAME_BYTES: usize = 1 << 20;
/// Most steps of a message.
pub(crate) const MOST_STEPS: usize = 64;
/// Most hashes of a frame.
pub(crate) const MOST_HASHES: usize = 4096;

const HASH_BYTES: usize = ChainHash::BYTES;
const ROW_BYTES: usize = 12;
const REMOVAL_BYTES: usize = NamespaceId::BYTES + ChainHash::BYTES;

/// What a client asks.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Request {
    /// The first message of a connection. Answer: [`Reply::Welcome`].
    Hello { version: u32 },
    /// Makes a namespace known; its codec, if one was given, by name and bytes of a number. Answer:
    /// [`Reply::Done`].
    Register { encoding: Vec<u8>, codec: Option<(String, u32)> },
    /// The namespaces behind the first `skip`, by their ids. Answer: [`Reply::Namespaces`].
    Namespaces { skip: u32 },
    /// The tail has the hashes. Answer: [`Reply::Count`] for those about leading blocks, [`Reply::Flags`] for those
    /// about each block, or
    /// [`Reply::Located`] for [`Look::Locate`].
    Look { namespace: NamespaceBytes, how: Look },
    /// Finds blocks, to copy them. The tail has the hashes. Answer: [`Reply::Acquired`].
    Acquire { namespace: NamespaceBytes, each: bool, timeout_ns: Option<u64> },
    /// Finds leading blocks, to use them in their places. The tail has the hashes. Answer: [`Reply::Leased`].
    Lease { namespace: NamespaceBytes, timeout_ns: Option<u64> },
    /// Ends leases. There is no answer.
    Release { leases: Vec<u64> },
    /// Hands over memory for puts; comes with a descriptor. Answer: [`Reply::Done`].
    Window,
    /// Puts `count` blocks that lie one after the other in the window from `offset` on, if the window still has this
    /// ticket when they were copied. The tail has the hashes of the chain. Answer: [`Reply::Put`].
    Put {
        namespace: NamespaceBytes,
        first: u32,
        count: u32,
        offset: u64,
        ticket: u64,
        timeout_ns: Option<u64>,
        pool_only: bool,
    },
    /// Removes blocks, all of the namespace if `all`. The tail has the hashes. Answer: [`Reply::Count`].
    Remove { namespace: NamespaceBytes, all: bool, timeout_ns: Option<u64> },
    /// Answer: [`Reply::Stats`].
    Stats,
    /// Starts to note removals for this connection. Answer: [`Reply::Done`].
    Watch { capacity: u64 },
    /// Takes noted removals of this connection's watch. Answer: [`Reply::Removals`].
    Take { limit: u32 },
    /// How many removals wait. Answer: [`Reply::Count`].
    Waiting,
    /// What an engine of the process does from now on: 0 for prefill, 1 for decode, 2 for nothing; and how long its
    /// last steps took, in thousandths of what they take beside no write. There is no answer.
    Phase { engine: u64, phase: u8, slack_ns: u64, steps: Vec<u32> },
}

/// What is asked about hashes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Look {
    Probe,
    Touch,
    Contains,
    Peek,
    Locate,
    /// How many leading blocks a put by layer skips.
    Stored,
}

/// What the server answers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Reply {
    /// Comes with a descriptor of the arena. `limits` are those of the store, as JSON.
    Welcome { version: u32, store: [u8; 16], epoch: u64, arena_bytes: u64, limits: String },
    /// It was done.
    Done,
    /// A number.
    Count { count: u64 },
    /// The tail has a byte for each hash: 1 for yes.
    Flags,
    /// The encodings of some namespaces; none if there are no more.
    Namespaces { encodings: Vec<Vec<u8>> },
    /// The tail has an outcome for each of the first `outcomes` hashes, then a row for each hit.
    Acquired { lease: u64, outcomes: u32 },
    /// The tail has a row for each leading hit.
    Leased { lease: u64, truncated: bool },
    /// The tail has an outcome for each block.
    Put,
    /// All counters, as JSON.
    Stats { stats: String },
    /// The tail has namespace and hash of each block.
    Removals { complete: bool },
    /// It was not done.
    Failed { kind: u8, message: String },
    /// The tail has a row for each run of leading blocks that one tier would serve.
    Located,
}

pub(crate) type NamespaceBytes = [u8; NamespaceId::BYTES];

/// Where a block lies: the first unit of its place, and the place's stamp.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PlaceRow {
    pub(crate) unit: u32,
    pub(crate) stamp: Stamp,
}

/// Why bytes of the other end are not accepted.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error("malformed message: {0}")]
pub(crate) struct Malformed(pub(crate) &'static str);

/// Encodes a message without its tail, which follows.
pub(crate) fn encode<M: Serialize>(message: &M) -> Vec<u8> {
    postcard::to_allocvec(message).expect("messages have no types that postcard lacks")
}

/// The message of what an engine does.
pub(crate) fn phase_message(engine: u64, phase: Phase, steps: &[f64]) -> Vec<u8> {
    let (phase, slack) = match phase {
        Phase::Prefill { slack } => (0, slack),
        Phase::Decode => (1, Duration::ZERO),
        Phase::Idle => (2, Duration::ZERO),
    };
    let slack_ns = u64::try_from(slack.as_nanos()).unwrap_or(u64::MAX);
    let thousandths = |ratio: &f64| Duration::try_from_secs_f64(*ratio).map_or(0, in_thousandths);
    let steps = steps.iter().map(thousandths).collect();
    encode(&Request::Phase { engine, phase, slack_ns, steps })
}

/// A ratio that is given as seconds, in thousandths.
fn in_thousandths(ratio: Duration) -> u32 {
    u32::try_from(ratio.as_millis()).unwrap_or(u32::MAX)
}

/// Decodes a message, and returns its tail.
pub(crate) fn decode<'a, M: Deserialize<'a>>(bytes: &'a [u8]) -> Result<(M, &'a [u8]), Malformed> {
    postcard::take_from_bytes(bytes).map_err(|_| Malformed("it does not decode"))
}

/// Appends hashes to a message.
pub(crate) fn push_hashes<'a>(
    bytes: &mut Vec<u8>,
    hashes: impl IntoIterator<Item = &'a ChainHash, IntoIter: ExactSizeIterator>,
) {
    let hashes = hashes.into_iter();
    bytes.reserve(hashes.len() * HASH_BYTES);
    for hash in hashes {
        bytes.extend_from_slice(&hash.0);
    }
}

/// The hashes of a tail.
pub(crate) fn hashes_of(tail: &[u8]) -> Result<Vec<ChainHash>, Malformed> {
    let (rows, rest) = tail.as_chunks::<HASH_BYTES>();
    if !rest.is_empty() || rows.len() > MOST_HASHES {
        return Err(Malformed("the number of hashes"));
    }
    Ok(rows.iter().map(|row| ChainHash(*row)).collect())
}

/// Appends a row to a message.
pub(crate) fn push_row(bytes: &mut Vec<u8>, row: PlaceRow) {
    bytes.extend_from_slice(&row.unit.to_le_bytes());
    bytes.extend_from_slice(&row.stamp.0.to_le_bytes());
}

/// The rows of a tail.
pub(crate) fn rows_of(tail: &[u8]) -> Result<Vec<PlaceRow>, Malformed> {
    let (rows, rest) = tail.as_chunks::<ROW_BYTES>();
    if !rest.is_empty() {
        return Err(Malformed("the number of places"));
    }
    let row = |row: &[u8; ROW_BYTES]| {
        let [a, b, c, d, stamp @ ..] = *row;
        PlaceRow { unit: u32::from_le_bytes([a, b, c, d]), stamp: Stamp(u64::from_le_bytes(stamp)) }
    };
    Ok(rows.iter().map(row).collect())
}

/// Appends removed blocks to a message.
pub(crate) fn push_removals(bytes: &mut Vec<u8>, blocks: &[(NamespaceId, ChainHash)]) {
    for (namespace, hash) in blocks {
        bytes.extend_from_slice(&namespace.0);
        bytes.extend_from_slice(&hash.0);
    }
}

/// The removed blocks of a tail.
pub(crate) fn removals_of(tail: &[u8]) -> Result<Vec<(NamespaceId, ChainHash)>, Malformed> {
    let (rows, rest) = tail.as_chunks::<REMOVAL_BYTES>();
    if !rest.is_empty() {
        return Err(Malformed("the number of removals"));
    }
    let row = |row: &[u8; REMOVAL_BYTES]| {
        let (mut namespace, mut hash) = (NamespaceId::default(), ChainHash::default());
        namespace.0.copy_from_slice(&row[..NamespaceId::BYTES]);
        hash.0.copy_from_slice(&row[NamespaceId::BYTES..]);
        (namespace, hash)
    };
    Ok(rows.iter().map(row).collect())
}

const TIERS: [BlockTier; 3] = [BlockTier::Dram, BlockTier::Log, BlockTier::Far];
const LOCATED_BYTES: usize = 1 + 4 * size_of::<u64>();
/// In place of a speed that was not measured.
const UNKNOWN: u64 = u64::MAX;

/// The tail of an answer about where blocks are.
pub(crate) fn located_bytes(located: &[Located]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(located.len() * LOCATED_BYTES);
    for run in located {
        let tier = TIERS.iter().position(|one| *one == run.tier).expect("all tiers are listed");
        bytes.push(u8::try_from(tier).expect("a few tiers"));
        let speed = [run.latency_p50_ns, run.bytes_per_s].map(|one| one.unwrap_or(UNKNOWN));
        for number in [run.blocks, run.bytes].into_iter().chain(speed) {
            bytes.extend_from_slice(&number.to_le_bytes());
        }
    }
    bytes
}

/// Where blocks are, of a tail.
pub(crate) fn located_of(tail: &[u8]) -> Result<Vec<Located>, Malformed> {
    let (rows, rest) = tail.as_chunks::<LOCATED_BYTES>();
    if !rest.is_empty() {
        return Err(Malformed("the number of runs"));
    }
    let of_row = |[tier, numbers @ ..]: &[u8; LOCATED_BYTES]| {
        let number = |at: usize| {
            let bytes = numbers.as_chunks().0[at];
            u64::from_le_bytes(bytes)
        };
        let speed = |at| Some(number(at)).filter(|speed| *speed != UNKNOWN);
        let tier = *TIERS.get(usize::from(*tier)).ok_or(Malformed("a tier"))?;
        let (latency_p50_ns, bytes_per_s) = (speed(2), speed(3));
        Ok(Located { tier, blocks: number(0), bytes: number(1), latency_p50_ns, bytes_per_s })
    };
    rows.iter().map(of_row).collect()
}

const OUTCOME_DRAM: u8 = 0;
const OUTCOME_LOG: u8 = 1;
const OUTCOME_ABSENT: u8 = 2;
/// The first of the causes, in their order.
const OUTCOME_LOST: u8 = 3;
const OUTCOME_FAR: u8 = 255;

/// The byte of an outcome of a get.
pub(crate) fn outcome_byte(outcome: Outcome) -> u8 {
    match outcome {
        Outcome::Dram => OUTCOME_DRAM,
        Outcome::Log => OUTCOME_LOG,
        Outcome::Far => OUTCOME_FAR,
        Outcome::Absent => OUTCOME_ABSENT,
        Outcome::Lost(cause) => {
            let at = Cause::ALL.iter().position(|one| *one == cause).unwrap_or_default();
            OUTCOME_LOST.saturating_add(u8::try_from(at).unwrap_or(u8::MAX))
        }
    }
}

/// The outcome of a get that a byte stands for.
pub(crate) fn outcome_of(byte: u8) -> Result<Outcome, Malformed> {
    match byte {
        OUTCOME_DRAM => Ok(Outcome::Dram),
        OUTCOME_LOG => Ok(Outcome::Log),
        OUTCOME_FAR => Ok(Outcome::Far),
        OUTCOME_ABSENT => Ok(Outcome::Absent),
        lost => {
            let cause = Cause::ALL.get(usize::from(lost - OUTCOME_LOST));
            cause.map(|cause| Outcome::Lost(*cause)).ok_or(Malformed("an outcome"))
        }
    }
}

const PUT_OUTCOMES: [PutOutcome; 6] = [
    PutOutcome::Stored,
    PutOutcome::Present,
    PutOutcome::Pending,
    PutOutcome::Declined,
    PutOutcome::Failed,
    PutOutcome::PoolOnly,
];

/// The byte of an outcome of a put.
pub(crate) fn put_outcome_byte(outcome: PutOutcome) -> u8 {
    let at = PUT_OUTCOMES.iter().position(|one| *one == outcome).expect("all outcomes are listed");
    u8::try_from(at).expect("a few outcomes")
}

/// The outcome of a put that a byte stands for.
pub(crate) fn put_outcome_of(byte: u8) -> Result<PutOutcome, Malformed> {
    PUT_OUTCOMES.get(usize::from(byte)).copied().ok_or(Malformed("an outcome"))
}

const KINDS: [ErrorKind; 7] = [
    ErrorKind::Invalid,
    ErrorKind::Incompatible,
    ErrorKind::Unavailable,
    ErrorKind::Full,
    ErrorKind::Corrupt,
    ErrorKind::Poisoned,
    ErrorKind::Closed,
];

/// The reply that carries an error.
pub(crate) fn failed(error: &Error) -> Reply {
    let at = KINDS.iter().position(|kind| *kind == error.kind()).expect("all kinds are listed");
    Reply::Failed { kind: u8::try_from(at).expect("a few kinds"), message: error.to_string() }
}

/// The error that a reply carries.
pub(crate) fn error_of(kind: u8, message: String) -> Error {
    let kind = KINDS.get(usize::from(kind)).copied().unwrap_or(ErrorKind::Unavailable);
    Error::new(kind, message)
}

/// A timeout as messages have it.
pub(crate) fn timeout_ns(timeout: Option<Duration>) -> Option<u64> {
    timeout.map(|timeout| u64::try_from(timeout.as_nanos()).unwrap_or(u64::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn the_examples_of_the_document() {
        assert_eq!(encode(&Request::Hello { version: 1 }), [0, 1]);
        let namespace = [0xaa; 16];
        let mut probe = encode(&Request::Look { namespace, how: Look::Probe });
        push_hashes(&mut probe, &[ChainHash([0xbb; 32])]);
        assert_eq!(probe, [&[3][..], &[0xaa; 16], &[0], &[0xbb; 32]].concat());
        let mut put = encode(&Request::Put {
            namespace,
            first: 0,
            count: 1,
            offset: 4096,
            ticket: 9,
            timeout_ns: Some(500),
            pool_only: true,
        });
        push_hashes(&mut put, &[ChainHash([0xbb; 32])]);
        let numbers = [0, 1, 128, 32, 9, 1, 244, 3, 1];
        assert_eq!(put, [&[8][..], &[0xaa; 16], &numbers, &[0xbb; 32]].concat());
        let located = Located {
            tier: BlockTier::Far,
            blocks: 3,
            bytes: 768,
            latency_p50_ns: Some(500),
            bytes_per_s: None,
        };
        let tail = located_bytes(std::slice::from_ref(&located));
        let number = |one: u8| [one, 0, 0, 0, 0, 0, 0, 0];
        let rest = [number(3), [0, 3, 0, 0, 0, 0, 0, 0], [244, 1, 0, 0, 0, 0, 0, 0], [255; 8]];
        assert_eq!(encode(&Reply::Located), [11]);
        assert_eq!(tail, [&[2][..], &rest.concat()].concat());
        assert_eq!(located_of(&tail), Ok(vec![located]));
        assert!(
            located_of(&tail[1..]).is_err()
                && located_of(&[[3; 1].as_slice(), &[0; 32]].concat()).is_err()
        );
        let mut acquired = encode(&Reply::Acquired { lease: 7, outcomes: 2 });
        acquired.extend([outcome_byte(Outcome::Dram), outcome_byte(Outcome::Absent)]);
        push_row(&mut acquired, PlaceRow { unit: 258, stamp: Stamp(6) });
        assert_eq!(acquired, [5, 7, 2, 0, 2, 2, 1, 0, 0, 6, 0, 0, 0, 0, 0, 0, 0]);
    }

    #[test]
    fn every_outcome_and_error_kind_survives() {
        let lost = Cause::ALL.iter().map(|cause| Outcome::Lost(*cause));
        for outcome in
            [Outcome::Dram, Outcome::Log, Outcome::Far, Outcome::Absent].into_iter().chain(lost)
        {
            assert_eq!(outcome_of(outcome_byte(outcome)), Ok(outcome));
        }
        for outcome in PUT_OUTCOMES {
            assert_eq!(put_outcome_of(put_outcome_byte(outcome)), Ok(outcome));
        }
        assert!(outcome_of(u8::MAX - 1).is_err() && put_outcome_of(6).is_err());
        for kind in KINDS {
            let Reply::Failed { kind: byte, message } = failed(&Error::new(kind, "why")) else {
                panic!("not a failure")
            };
            assert_eq!(error_of(byte, message).kind(), kind);
        }
    }

    proptest! {
        #[test]
        fn whatever_arrives_is_decoded_or_refused(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            if let Ok((request, tail)) = decode::<Request>(&bytes) {
                let again = [encode(&request), tail.to_vec()].concat();
                prop_assert_eq!(decode::<Request>(&again).unwrap().0, request);
                let _ = hashes_of(tail);
            }
            if let Ok((_, tail)) = decode::<Reply>(&bytes) {
                let _ = (rows_of(tail), removals_of(tail), located_of(tail));
            }
        }
    }
}
