//! Putting blocks: this process writes them into memory of its own, and the server copies them from there, once.

use std::sync::Arc;

use dalsegno_core::{ChainHash, Error, ErrorKind, KvLayout, Namespace, NamespaceId, Result};
use dalsegno_io::{Call, Claim};
use dalsegno_store::{Keep, Memory, Put, PutOutcome, PutReport};

use super::attachment::Attachment;
use super::connection::Window;
use super::lost::Lost;
use crate::wire::{self, MOST_HASHES, Malformed, Reply, Request, WINDOW_HEADER_BYTES, timeout_ns};

/// Bytes of blocks that one message hands over, unless one block has more.
const MESSAGE_BYTES: usize = 32 << 20;

/// Memory of this process for blocks that it fills and then commits.
#[derive(Debug)]
pub struct Allocation {
    namespace: NamespaceId,
    layout: KvLayout,
    count: usize,
    window: Arc<Window>,
    /// Keeps the bytes for those who write them.
    claim: Claim,
    start: usize,
}

impl Allocation {
    /// Takes memory for `count` blocks of a namespace.
    ///
    /// # Errors
    ///
    /// `Invalid` for none or too many; `Unavailable` if the system cannot provide the memory.
    pub fn new(namespace: &Namespace, count: usize) -> Result<Self> {
        let allocation = Self::empty(namespace, count)?;
        allocation.provide(count)?;
        Ok(allocation)
    }

    /// As [`Self::new`], but the system provides the memory of a block when [`Self::slices`] asks for it.
    pub(super) fn empty(namespace: &Namespace, count: usize) -> Result<Self> {
        let layout = namespace.layout();
        let bytes = block_bytes(layout).checked_mul(count).filter(|bytes| *bytes > 0);
        let Some(bytes) = bytes else {
            return Err(Error::invalid(format!("{count} blocks cannot be allocated")));
        };
        let window = Window::empty(bytes).map_err(|error| no_memory(layout, count, error))?;
        let window = Arc::new(window);
        let mut claim = window.claim(WINDOW_HEADER_BYTES, bytes);
        let start = claim.memory().address();
        let namespace = namespace.id();
        Ok(Self { namespace, layout, count, window, claim, start })
    }

    /// How many blocks it has memory for.
    #[must_use]
    pub fn len(&self) -> usize {
        self.count
    }

    /// Whether it has memory for none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Address and length of the memory of a block, for foreign code that writes it.
    #[must_use]
    pub fn range(&self, at: usize) -> Option<(usize, usize)> {
        let bytes = block_bytes(self.layout);
        (at < self.count).then(|| (self.start + at * bytes, bytes))
    }

    /// Has the system provide the memory of the first `count` blocks.
    fn provide(&self, count: usize) -> Result<()> {
        let end = WINDOW_HEADER_BYTES + count * block_bytes(self.layout);
        self.window.provide(end).map_err(|error| no_memory(self.layout, count, error))
    }

    /// Some bytes of every block, from `offset` on. Fails with `Unavailable` if the system cannot provide the memory.
    pub(super) fn slices(&mut self, offset: usize, bytes: usize) -> Result<Vec<Memory>> {
        self.provide(self.count)?;
        let block_bytes = block_bytes(self.layout);
        let mut all = self.claim.memory();
        let slice = |_| {
            let mut block = all.split_to(block_bytes);
            drop(block.split_to(offset));
            block.split_to(bytes)
        };
        Ok((0..self.count).map(slice).collect())
    }

    /// How many blocks a commit of `chain` from `first` on has.
    ///
    /// # Errors
    ///
    /// `Invalid` if there are more than were allocated.
    pub fn count_of(&self, chain: &[ChainHash], first: usize) -> Result<usize> {
        match chain.len().checked_sub(first) {
            Some(count) if count <= self.count => Ok(count),
            _ => Err(Error::invalid(format!(
                "the chain has {} hashes and first is {first}, but there is memory for {} blocks",
                chain.len(),
                self.count
            ))),
        }
    }
}

fn block_bytes(layout: KvLayout) -> usize {
    usize::try_from(layout.block_bytes()).expect("64-bit addresses")
}

fn no_memory(layout: KvLayout, count: usize, error: dalsegno_io::IoError) -> Error {
    let message = format!("no memory for {count} blocks of {} bytes", block_bytes(layout));
    Error::new(ErrorKind::Unavailable, message).with_source(error)
}

/// A put of the first blocks of an allocation.
#[derive(Clone, Copy, Debug)]
pub struct AllocationPut<'a> {
    /// Hashes of consecutive blocks of a prompt.
    pub chain: &'a [ChainHash],
    /// The position in `chain` of the first block.
    pub first: usize,
    /// Where the blocks are kept.
    pub keep: Keep,
}

/// A part of a put that one message carries.
struct Part<'a> {
    /// The hash before the blocks, if there is one, and theirs.
    chain: &'a [ChainHash],
    first: u32,
    count: usize,
}

/// The part of a put whose blocks start at `at` of the chain, with at most `count` blocks.
fn part(chain: &[ChainHash], at: usize, count: usize) -> Part<'_> {
    let parent = at.saturating_sub(1);
    let first = u32::try_from(at - parent).expect("0 or 1");
    Part { chain: &chain[parent..at + count], first, count }
}

fn message_of(
    namespace: NamespaceId,
    part: &Part<'_>,
    offset: usize,
    ticket: u64,
    limit: Option<u64>,
    keep: Keep,
) -> Vec<u8> {
    let mut message = wire::encode(&Request::Put {
        namespace: namespace.0,
        first: part.first,
        count: u32::try_from(part.count).expect("at most MOST_HASHES"),
        offset: (WINDOW_HEADER_BYTES + offset) as u64,
        ticket,
        timeout_ns: limit,
        pool_only: keep == Keep::PoolOnly,
    });
    wire::push_hashes(&mut message, part.chain);
    message
}

fn blocks_of_message(bytes: usize) -> usize {
    (MESSAGE_BYTES / bytes).clamp(1, MOST_HASHES - 1)
}

/// Puts blocks of the caller's memory.
pub(super) fn put(
    server: &Attachment,
    namespace: &Namespace,
    put: &Put<'_>,
    call: &Call,
) -> Result<PutReport> {
    let bytes = block_bytes(namespace.layout());
    let mut outcomes = Vec::with_capacity(put.blocks.len());
    let count = put.blocks.len();
    for blocks in put.blocks.chunks(blocks_of_message(bytes)) {
        let part = part(put.chain, put.first + outcomes.len(), blocks.len());
        let Ok(left) = server.reach().left(call) else { break };
        let (id, left) = (namespace.id(), timeout_ns(left));
        let message = |ticket| message_of(id, &part, 0, ticket, left, put.keep);
        let all = blocks.len() * bytes;
        let answered = server.call_with_blocks(namespace.id(), message, blocks, all, call);
        if !take_outcomes(&mut outcomes, answered, blocks.len())? {
            break;
        }
    }
    outcomes.resize(count, PutOutcome::Failed);
    Ok(PutReport { outcomes })
}

/// Puts blocks of an allocation.
pub(super) fn commit(
    server: &Attachment,
    allocation: &Allocation,
    AllocationPut { chain, first, keep }: AllocationPut<'_>,
    call: &Call,
) -> Result<PutReport> {
    let count = allocation.count_of(chain, first)?;
    let bytes = block_bytes(allocation.layout);
    let mut outcomes = Vec::with_capacity(count);
    while outcomes.len() < count {
        let now = (count - outcomes.len()).min(blocks_of_message(bytes));
        let part = part(chain, first + outcomes.len(), now);
        let Ok(left) = server.reach().left(call) else { break };
        let offset = outcomes.len() * bytes;
        let (namespace, left) = (allocation.namespace, timeout_ns(left));
        let message = |ticket| message_of(namespace, &part, offset, ticket, left, keep);
        let answered = server.call_with_window(namespace, message, &allocation.window, call);
        if !take_outcomes(&mut outcomes, answered, now)? {
            break;
        }
    }
    outcomes.resize(count, PutOutcome::Failed);
    Ok(PutReport { outcomes })
}

/// Appends the outcomes of an answer. `false` if there is none, or all of its blocks failed: then those of later parts
/// would, too.
///
/// # Errors
///
/// What the server says.
fn take_outcomes(
    outcomes: &mut Vec<PutOutcome>,
    answered: std::result::Result<Vec<u8>, Lost>,
    count: usize,
) -> Result<bool> {
    let Ok(answer) = answered else { return Ok(false) };
    match wire::decode::<Reply>(&answer) {
        Ok((Reply::Put, tail)) if tail.len() == count => {
            let decoded: std::result::Result<Vec<_>, Malformed> =
                tail.iter().map(|byte| wire::put_outcome_of(*byte)).collect();
            let Ok(decoded) = decoded else { return Ok(false) };
            let has_space = decoded.iter().any(|outcome| *outcome != PutOutcome::Failed);
            outcomes.extend(decoded);
            Ok(has_space)
        }
        Ok((Reply::Failed { kind, message }, _)) => {
            let error = wire::error_of(kind, message);
            // A server that closes is a server that is away.
            if error.kind() == ErrorKind::Closed { Ok(false) } else { Err(error) }
        }
        _ => Ok(false),
    }
}
