//! Blocks that a client copies: what one answer names, and what is read ahead for the next one.
//!
//! 1. An answer names blocks that stay in their places for [`COPY_LEASE`], of a bounded size. So a large get has
//!    several answers.
//! 2. While the client copies the blocks of an answer, the session reads those of the next one. It reads only blocks
//!    that the client is about to ask for, waits for no space, and stops at the deadline of the request.
//! 3. Blocks that were read ahead answer a request only if their lease still holds, and since they were looked up none
//!    of them was removed, and none that was absent was put.

#[cfg(test)]
mod tests;

use std::time::Duration;

use dalsegno_core::{Clock, Deadline};
use dalsegno_store::{
    Acquired, Arrival, Cause, ChainHash, NamespaceId, Outcome, Pool, Result, Scope, Terms,
};

use crate::account::{Account, COPY_LEASE, Grant, NO_LEASE};
use crate::wire::{self, PlaceRow, Reply};

/// Most bytes that one answer keeps in places for a client to copy.
const MOST_ACQUIRED_BYTES: u64 = 64 << 20;
/// The part of what a process may hold that one answer takes at most, as a divisor: its threads get blocks at the same
/// time.
const ANSWER_SHARE: u64 = 4;

/// Blocks that a client wants to copy.
#[derive(Debug)]
pub(crate) struct Wanted {
    pub(crate) namespace: NamespaceId,
    pub(crate) hashes: Vec<ChainHash>,
    pub(crate) scope: Scope,
    pub(crate) deadline: Deadline,
}

/// What a session knows of the next request for blocks to copy.
#[derive(Debug, Default)]
pub(crate) enum ReadAhead {
    #[default]
    Nothing,
    /// The client is about to ask for these.
    Expected(Wanted),
    /// They were read.
    Ready(Prepared),
}

/// An answer to a request that has not come yet. Dropping it frees its places.
#[derive(Debug)]
pub(crate) struct Prepared {
    account: Account,
    /// The blocks that it has an outcome for.
    wanted: Wanted,
    answer: Named,
    /// From before they were looked up.
    arrival: Arrival,
}

/// The outcomes of blocks, and where the hits are.
#[derive(Debug)]
struct Named {
    outcomes: Vec<Outcome>,
    rows: Vec<PlaceRow>,
    lease: u64,
}

impl Drop for Prepared {
    fn drop(&mut self) {
        if self.answer.lease != NO_LEASE {
            self.account.release(&[self.answer.lease]);
        }
    }
}

/// The parties of a request.
#[derive(Clone, Copy)]
pub(crate) struct Parties<'a> {
    pub(crate) pool: &'a Pool,
    pub(crate) account: &'a Account,
    pub(crate) clock: &'a dyn Clock,
}

impl Parties<'_> {
    /// Most bytes that one answer names.
    fn most_bytes(&self) -> u64 {
        MOST_ACQUIRED_BYTES.min(self.account.most_copy_bytes() / ANSWER_SHARE)
    }

    /// Finds blocks that were not read ahead.
    fn find_now(&self, wanted: &Wanted, patience: Duration) -> Result<Named> {
        let place_bytes = self.pool.place_bytes(wanted.namespace)?;
        let left = wanted.deadline.remaining(self.clock.now());
        let patience = left.map_or(patience, |left| left.min(patience));
        match self.account.grant_copy(self.most_bytes(), place_bytes, patience) {
            Some(grant) => self.find(wanted, grant),
            None => Ok(throttled(wanted.hashes.len().min(1))),
        }
    }

    /// Finds blocks, and keeps them in their places for the client.
    fn find(&self, wanted: &Wanted, grant: Grant) -> Result<Named> {
        let now = self.clock.now();
        let terms = Terms { timeout: wanted.deadline.remaining(now), cancel: None };
        let Wanted { namespace, hashes, scope, .. } = wanted;
        let acquired = self.pool.acquire(*namespace, hashes, *scope, grant.bytes(), &terms)?;
        Ok(named(acquired, grant, self.clock))
    }
}

/// Records the lease of an answer.
fn named(acquired: Acquired, grant: Grant, clock: &dyn Clock) -> Named {
    let Acquired { outcomes, blocks } = acquired;
    let row = |(unit, stamp)| PlaceRow { unit, stamp };
    let rows: Vec<PlaceRow> = blocks.iter().map(|block| row(block.place())).collect();
    let bytes = blocks.iter().map(dalsegno_store::LeasedBlock::place_bytes).sum();
    let until = clock.now().after(COPY_LEASE);
    let lease = if rows.is_empty() { NO_LEASE } else { grant.hold_copy(blocks, bytes, until) };
    Named { outcomes, rows, lease }
}

/// Answers a request for blocks to copy. It waits at most `patience` for other leases of the process to end.
pub(crate) fn acquire(
    parties: Parties<'_>,
    ahead: &mut ReadAhead,
    wanted: Wanted,
    patience: Duration,
) -> Result<(Reply, Vec<u8>)> {
    let named = match std::mem::take(ahead) {
        ReadAhead::Ready(prepared) => prepared.answer(parties, &wanted),
        ReadAhead::Nothing | ReadAhead::Expected(_) => None,
    };
    let named = named.map_or_else(|| parties.find_now(&wanted, patience), Ok)?;
    let encoded = encode(&named);
    *ahead = expected(wanted, &named.outcomes);
    Ok(encoded)
}

impl ReadAhead {
    /// Reads the blocks that the client is about to ask for.
    pub(crate) fn read(&mut self, parties: Parties<'_>) {
        let wanted = match std::mem::take(self) {
            Self::Expected(wanted) => wanted,
            other => return *self = other,
        };
        let Ok(place_bytes) = parties.pool.place_bytes(wanted.namespace) else { return };
        // Fewer and larger reads keep the disk busier. An answer that has to come first is smaller.
        let most = MOST_ACQUIRED_BYTES.max(place_bytes);
        let grant = parties.account.grant_free(most, place_bytes);
        let (Some(grant), Ok(arrival)) = (grant, parties.pool.arrival()) else { return };
        if wanted.deadline.expired(parties.clock.now()) {
            return;
        }
        let Ok(answer) = parties.find(&wanted, grant) else { return };
        let account = parties.account.clone();
        let mut prepared = Prepared { account, wanted, answer, arrival };
        // The request may find a place for what was lost now.
        if prepared.answer.outcomes.iter().all(|outcome| !outcome.is_lost()) {
            prepared.wanted.hashes.truncate(prepared.answer.outcomes.len());
            *self = Self::Ready(prepared);
        }
    }
}

impl Prepared {
    /// The answer to a request; `None` if it is another request, or blocks were removed or freed meanwhile.
    fn answer(mut self, parties: Parties<'_>, wanted: &Wanted) -> Option<Named> {
        let until = parties.clock.now().after(COPY_LEASE);
        let is_same = wanted.namespace == self.wanted.namespace
            && wanted.scope == self.wanted.scope
            && wanted.hashes.starts_with(&self.wanted.hashes);
        let (namespace, hashes) = (wanted.namespace, self.wanted.hashes.as_slice());
        let stays = is_same
            && self.account.renew(self.answer.lease, until)
            && !parties.pool.has_removed(namespace, hashes, self.arrival).unwrap_or(true)
            && self.misses_stay(parties.pool);
        let none = Named { outcomes: Vec::new(), rows: Vec::new(), lease: NO_LEASE };
        stays.then(|| std::mem::replace(&mut self.answer, none))
    }

    /// Whether the blocks that were absent still are.
    fn misses_stay(&self, pool: &Pool) -> bool {
        let outcomes = self.wanted.hashes.iter().zip(&self.answer.outcomes);
        let missed = outcomes.filter(|(_, outcome)| !outcome.is_hit()).map(|(hash, _)| *hash);
        // Behind the first miss of a prefix nothing was looked up.
        let most = if self.wanted.scope == Scope::Prefix { 1 } else { usize::MAX };
        // A block that was put meanwhile is in the memory of the index. So this waits for no device.
        let is_absent = |hash: ChainHash| {
            pool.store().locate(self.wanted.namespace, &[hash]).is_ok_and(|found| found.is_empty())
        };
        missed.take(most).all(is_absent)
    }
}

/// What the client is going to ask for after an answer. It is exact: other requests get an answer of their own.
fn expected(mut wanted: Wanted, outcomes: &[Outcome]) -> ReadAhead {
    let goes_on = |outcome: &Outcome| match wanted.scope {
        Scope::Prefix => outcome.is_hit(),
        Scope::Each => !outcome.is_lost(),
    };
    if !outcomes.iter().all(goes_on) || outcomes.len() >= wanted.hashes.len() {
        return ReadAhead::Nothing;
    }
    wanted.hashes.drain(..outcomes.len());
    ReadAhead::Expected(wanted)
}

fn throttled(blocks: usize) -> Named {
    let outcomes = vec![Outcome::Lost(Cause::Throttled); blocks];
    Named { outcomes, rows: Vec::new(), lease: NO_LEASE }
}

fn encode(named: &Named) -> (Reply, Vec<u8>) {
    let bytes = named.outcomes.iter().map(|outcome| wire::outcome_byte(*outcome));
    let mut tail: Vec<u8> = bytes.collect();
    for row in &named.rows {
        wire::push_row(&mut tail, *row);
    }
    let outcomes = u32::try_from(named.outcomes.len()).expect("at most MOST_HASHES");
    (Reply::Acquired { lease: named.lease, outcomes }, tail)
}
