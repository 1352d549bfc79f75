//! Getting blocks: the server finds them, and this process copies them out of the pool.
//!
//! 1. A copy counts only if the place of its block was the same after the last byte.
//! 2. The server keeps blocks for a copy as long as it takes, but only some at a time. So a large get has several
//!    rounds, each of which ends its lease.

use std::collections::VecDeque;

use dalsegno_core::{ChainHash, Namespace, Result};
use dalsegno_store::{Cause, GetReport, Memory, Outcome, Scope, check_get};

use super::attachment::Attachment;
use super::limit::{Limit, Lost, timeout_ns};
use crate::wire::{self, MOST_HASHES, Malformed, PlaceRow, Reply, Request};

/// A get under way.
pub(super) struct Load<'a> {
    namespace: &'a Namespace,
    chain: &'a [ChainHash],
    out: Vec<Vec<Memory>>,
    /// Where the wanted bytes start in a block.
    from: usize,
    outcomes: Vec<Outcome>,
    /// Positions in the chain that were not asked for yet, or that the server had no place for.
    pending: VecDeque<usize>,
}

/// What one answer says.
struct Round {
    lease: u64,
    outcomes: Vec<Outcome>,
    /// Of the hits among them, in order.
    rows: Vec<PlaceRow>,
}

impl<'a> Load<'a> {
    /// Checks a request, as the store does.
    ///
    /// # Errors
    ///
    /// `Invalid`.
    pub(super) fn new(
        namespace: &'a Namespace,
        chain: &'a [ChainHash],
        out: Vec<Vec<Memory>>,
        layer: Option<u32>,
    ) -> Result<Self> {
        let layout = namespace.layout();
        let layers = check_get(layout, chain, &out, layer)?;
        let from = layers.start as usize * layout.slice_bytes() as usize;
        let outcomes = vec![Outcome::Absent; chain.len()];
        Ok(Self { namespace, chain, out, from, outcomes, pending: (0..chain.len()).collect() })
    }

    /// Gets the blocks.
    pub(super) fn run(mut self, server: &Attachment, scope: Scope, limit: &Limit) -> GetReport {
        while !self.pending.is_empty() {
            let asked: Vec<usize> = self.pending.iter().take(MOST_HASHES).copied().collect();
            let round = match self.ask(server, scope, &asked, limit) {
                Ok(round) => round,
                Err(lost) => return self.lose(lost),
            };
            let hits = self.copy(server, &asked, &round);
            if round.lease != 0 {
                server.end_lease(round.lease);
            }
            let asked = &asked[..round.outcomes.len()];
            if !self.settle(scope, asked, &round.outcomes, hits) {
                break;
            }
        }
        GetReport { outcomes: self.outcomes }
    }

    /// Every block that is not there yet is a miss.
    pub(super) fn lose(mut self, lost: Lost) -> GetReport {
        for at in self.pending {
            self.outcomes[at] = Outcome::Lost(lost.cause());
        }
        GetReport { outcomes: self.outcomes }
    }

    fn ask(
        &self,
        server: &Attachment,
        scope: Scope,
        asked: &[usize],
        limit: &Limit,
    ) -> std::result::Result<Round, Lost> {
        let mut message = wire::encode(&Request::Acquire {
            namespace: self.namespace.id().0,
            each: scope == Scope::Each,
            timeout_ns: timeout_ns(server.left(limit)?),
        });
        wire::push_hashes(&mut message, asked.iter().map(|at| &self.chain[*at]));
        let answer = server.call(self.namespace.id(), &message, limit)?;
        round_of(&answer, asked.len()).map_err(|_| Lost::Away)
    }

    /// Copies the hits of a round; returns how many there are.
    fn copy(&mut self, server: &Attachment, asked: &[usize], round: &Round) -> usize {
        let bytes = usize::try_from(self.namespace.layout().block_bytes());
        let bytes = bytes.expect("64-bit addresses");
        let mut rows = round.rows.iter();
        for (at, outcome) in asked.iter().zip(&round.outcomes) {
            self.outcomes[*at] = *outcome;
            if !outcome.is_hit() {
                continue;
            }
            let row = *rows.next().expect("a row for each hit");
            if !server.copy(row, bytes, self.from, &mut self.out[*at]) {
                self.outcomes[*at] = Outcome::Lost(Cause::Recycled);
            }
        }
        round.rows.len()
    }

    /// Decides what is asked for next. `false` if nothing is.
    fn settle(&mut self, scope: Scope, asked: &[usize], outcomes: &[Outcome], hits: usize) -> bool {
        self.pending.drain(..asked.len());
        let throttled = |outcome: &Outcome| *outcome == Outcome::Lost(Cause::Throttled);
        // What was copied freed places, so that the others may find one.
        let again: Vec<usize> = asked
            .iter()
            .zip(outcomes)
            .filter(|(_, outcome)| hits > 0 && throttled(outcome))
            .map(|(at, _)| *at)
            .collect();
        for at in again.into_iter().rev() {
            self.pending.push_front(at);
        }
        let goes_on = |outcome: &Outcome| outcome.is_hit() || hits > 0 && throttled(outcome);
        scope == Scope::Each || outcomes.iter().all(goes_on)
    }
}

/// Reads an answer as a get of as many blocks as it says does. For fuzzing.
pub(crate) fn understand(answer: &[u8]) {
    if let Ok(round) = round_of(answer, MOST_HASHES) {
        let hits = round.outcomes.iter().filter(|outcome| outcome.is_hit()).count();
        assert_eq!(hits, round.rows.len(), "a row for each hit");
    }
}

fn round_of(answer: &[u8], asked: usize) -> std::result::Result<Round, Malformed> {
    let (Reply::Acquired { lease, outcomes }, tail) = wire::decode::<Reply>(answer)? else {
        return Err(Malformed("not what was asked for"));
    };
    let count = outcomes as usize;
    if count == 0 || count > asked {
        return Err(Malformed("the number of outcomes"));
    }
    let (bytes, rows) = tail.split_at_checked(count).ok_or(Malformed("the outcomes"))?;
    let outcomes: Vec<Outcome> =
        bytes.iter().map(|byte| wire::outcome_of(*byte)).collect::<std::result::Result<_, _>>()?;
    let rows = wire::rows_of(rows)?;
    if rows.len() != outcomes.iter().filter(|outcome| outcome.is_hit()).count() {
        return Err(Malformed("the number of places"));
    }
    Ok(Round { lease, outcomes, rows })
}
