//! The requests about a store: how a session answers each.

use std::time::Duration;

use dalsegno_core::{Clock, Deadline};
use dalsegno_io::{IoError, SealedFile};
use dalsegno_store::{
    ChainHash, Compression, EngineId, Error, Keep, Memory, Namespace, NamespaceId, Phase, Pool,
    PoolBlock, PoolPut, PutOutcome, RegisterOptions, Result, Terms, format_bytes,
};

use super::outgoing::{Handled, Outgoing, Trouble, count};
use crate::account::{Account, NO_LEASE};
use crate::wire::{self, Look, MOST_FRAME_BYTES, Malformed, PlaceRow, Reply};

/// A request under way.
pub(super) struct Exchange<'a> {
    pub(super) pool: &'a Pool,
    pub(super) account: &'a Account,
    pub(super) clock: &'a dyn Clock,
    /// How long a put without a timeout waits for space.
    pub(super) patience: Duration,
    pub(super) tail: &'a [u8],
}

/// The numbers of a put.
#[derive(Clone, Copy)]
pub(super) struct PutRequest {
    pub(super) first: u32,
    pub(super) count: u32,
    pub(super) offset: u64,
    pub(super) ticket: u64,
    pub(super) keep: Keep,
}

impl Exchange<'_> {
    pub(super) fn register(&self, encoding: &[u8], codec: Option<(String, u32)>) -> Handled {
        let namespace = Namespace::decode(encoding)?;
        let compression =
            codec.map(|(name, element_bytes)| Compression::parse(&name, element_bytes));
        let options = RegisterOptions { compression: compression.transpose()? };
        let (block, pool) = (namespace.layout().block_bytes(), self.pool.usage()?.capacity_bytes);
        if block > pool {
            return Err(Trouble::Failed(Error::invalid(format!(
                "a block has {}, and the pool of the server {}; give the server a larger one (--pool)",
                format_bytes(block),
                format_bytes(pool)
            ))));
        }
        let is_known = self.pool.block_bytes(namespace.id()).is_ok();
        let share = if is_known { None } else { Some(self.account.grant_namespace()?) };
        let is_new = self.pool.store().register(&namespace, options)?;
        // Another connection may have registered it meanwhile.
        if let Some(share) = share.filter(|_| is_new) {
            share.keep();
        }
        Ok(Outgoing::Reply(Reply::Done))
    }

    pub(super) fn namespaces(&self, skip: usize) -> Handled {
        let mut encodings = Vec::new();
        let mut bytes = 0;
        for namespace in self.pool.store().namespaces()?.into_iter().skip(skip) {
            let encoding = namespace.encode();
            bytes += encoding.len() + size_of::<u32>();
            if bytes > MOST_FRAME_BYTES / 2 {
                break;
            }
            encodings.push(encoding);
        }
        Ok(Outgoing::Reply(Reply::Namespaces { encodings }))
    }

    pub(super) fn look(&self, namespace: NamespaceId, how: Look) -> Handled {
        let (store, hashes) = (self.pool.store(), wire::hashes_of(self.tail)?);
        let flags = match how {
            Look::Probe => return Ok(count(store.probe(namespace, &hashes)? as u64)),
            Look::Touch => return Ok(count(store.touch(namespace, &hashes)? as u64)),
            Look::Stored => return Ok(count(self.pool.count_stored(namespace, &hashes)? as u64)),
            Look::Contains => store.contains(namespace, &hashes)?,
            Look::Peek => store.peek(namespace, &hashes)?,
            Look::Locate => {
                let located = wire::located_bytes(&store.locate(namespace, &hashes)?);
                return Ok(Outgoing::Tailed(Reply::Located, located));
            }
        };
        Ok(Outgoing::Tailed(Reply::Flags, flags.into_iter().map(u8::from).collect()))
    }

    pub(super) fn lease(&self, namespace: NamespaceId, terms: &Terms) -> Handled {
        let hashes = wire::hashes_of(self.tail)?;
        let block_bytes = self.pool.place_bytes(namespace)?;
        let wanted = block_bytes.saturating_mul(hashes.len() as u64);
        let grant = self.account.grant_view(wanted, block_bytes);
        let most = usize::try_from(grant.bytes() / block_bytes).unwrap_or(usize::MAX);
        let asked = &hashes[..hashes.len().min(most)];
        let lease = self.pool.store().lease(namespace, asked, terms)?;
        let mut tail = Vec::new();
        for (unit, stamp) in lease.places() {
            wire::push_row(&mut tail, PlaceRow { unit, stamp });
        }
        // Whether a further block is there is asked only if nothing else ended the lease.
        let is_cut = lease.len() == asked.len()
            && hashes.get(asked.len()).is_some_and(|hash| self.has(namespace, *hash));
        let truncated = lease.is_truncated() || is_cut;
        let lease = if lease.is_empty() {
            NO_LEASE
        } else {
            let bytes = block_bytes * lease.len() as u64;
            grant.hold_view(lease, bytes)
        };
        Ok(Outgoing::Tailed(Reply::Leased { lease, truncated }, tail))
    }

    fn has(&self, namespace: NamespaceId, hash: ChainHash) -> bool {
        self.pool.store().peek(namespace, &[hash]).is_ok_and(|found| found == [true])
    }

    pub(super) fn put(
        &self,
        namespace: NamespaceId,
        PutRequest { first, count, offset, ticket, keep }: PutRequest,
        window: &SealedFile,
        deadline: Deadline,
    ) -> Handled {
        let (chain, arrival) = (wire::hashes_of(self.tail)?, self.pool.arrival()?);
        let (mut first, mut left) = (first as usize, count as usize);
        if first.checked_add(left).is_none_or(|end| end > chain.len()) {
            return Err(Malformed("a put behind the end of its chain").into());
        }
        let block_bytes = self.pool.block_bytes(namespace)?;
        let bytes =
            block_bytes.checked_mul(u64::from(count)).and_then(|all| all.checked_add(offset));
        if bytes.is_none_or(|end| end > window.bytes()) {
            return Err(Malformed("a put behind the end of its window").into());
        }
        let (mut offset, mut outcomes) = (offset, Vec::with_capacity(left));
        while left > 0 {
            // Leases lapse, and other puts end: what it waits for comes back.
            let patience = self.left(deadline).unwrap_or(self.patience);
            let wanted = block_bytes.saturating_mul(left as u64);
            let grant = self.account.grant_put(wanted, block_bytes, patience);
            let Some(grant) = grant.filter(|_| !deadline.expired(self.clock.now())) else { break };
            let now = usize::try_from(grant.bytes() / block_bytes).unwrap_or(usize::MAX).min(left);
            let blocks = self.receive(window, offset, block_bytes, now)?;
            if ticket_of(window)? != ticket {
                // The client gave up, and may have written other bytes meanwhile.
                break;
            }
            let terms = Terms { timeout: self.left(deadline), cancel: None };
            let put = PoolPut { chain: &chain, first, blocks, keep };
            let report = self.pool.put(arrival, namespace, put, &terms)?;
            outcomes.extend(report.outcomes);
            (first, left, offset) = (first + now, left - now, offset + now as u64 * block_bytes);
        }
        outcomes.resize(count as usize, PutOutcome::Failed);
        let tail = outcomes.into_iter().map(|one: PutOutcome| wire::put_outcome_byte(one));
        Ok(Outgoing::Tailed(Reply::Put, tail.collect()))
    }

    fn left(&self, deadline: Deadline) -> Option<Duration> {
        deadline.remaining(self.clock.now())
    }

    /// Copies blocks out of the client's memory.
    fn receive(
        &self,
        window: &SealedFile,
        offset: u64,
        block_bytes: u64,
        count: usize,
    ) -> Result<Vec<PoolBlock>> {
        let bytes = usize::try_from(block_bytes).expect("64-bit addresses");
        let read = |at: usize| {
            let from = offset + at as u64 * block_bytes;
            self.pool.receive(bytes, |memory| window.read_at(from, memory).map_err(not_read))
        };
        (0..count).map(read).collect()
    }

    pub(super) fn remove(&self, namespace: NamespaceId, all: bool, terms: &Terms) -> Handled {
        let hashes = wire::hashes_of(self.tail)?;
        let hashes = if all { None } else { Some(hashes.as_slice()) };
        Ok(count(self.pool.store().remove(namespace, hashes, terms)?))
    }

    pub(super) fn phase(&self, engine: EngineId, phase: Phase, steps: &[u32]) -> Handled {
        if steps.len() > wire::MOST_STEPS {
            return Err(Malformed("too many steps").into());
        }
        let ratios: Vec<f64> = steps.iter().map(|step| f64::from(*step) / 1e3).collect();
        // There is no answer, also if the store is closed.
        drop(self.pool.store().set_phase(engine, phase, &ratios));
        Ok(Outgoing::Nothing)
    }

    pub(super) fn stats(&self) -> Outgoing {
        let stats = serde_json::to_string(&self.pool.store().stats()).expect("plain fields");
        Outgoing::Reply(Reply::Stats { stats })
    }
}

/// The ticket of a window now.
fn ticket_of(window: &SealedFile) -> Result<u64> {
    let mut memory = Memory::zeroed(size_of::<u64>());
    window.read_at(0, &mut memory).map_err(not_read)?;
    Ok(u64::from_le_bytes(*memory.as_slice().first_chunk().expect("eight bytes")))
}

pub(super) fn not_read(error: IoError) -> Error {
    Error::invalid("the memory that the client gave cannot be read").with_source(error)
}
