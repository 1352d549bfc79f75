//! Getting blocks: the server finds them, and this process copies them out of the pool.
//!
//! 1. A copy counts only if the place of its block was the same after the last byte.
//! 2. The server keeps blocks for a copy as long as it takes, but only some at a time. So a large get has several
//!    rounds, each of which ends its lease. A load has ready layers before its end only if it has one round.

use std::collections::VecDeque;
use std::sync::Arc;

use dalsegno_core::{ChainHash, Namespace};
use dalsegno_io::Call;
use dalsegno_store::{
    Cause, GetReport, LoadProgress, Memory, Outcome, PageTarget, PlaceCopies, Scope,
};

use super::attachment::Attachment;
use super::lost::Lost;
use super::placed_blocks::ServedPlaces;
use crate::wire::{self, MOST_HASHES, Malformed, PlaceRow, Reply, Request, timeout_ns};

/// Bytes that are copied before the deadline is looked at again: a millisecond.
const PART_BYTES: usize = 4 << 20;

/// A get under way.
pub(super) struct BlockLoad<'a> {
    namespace: &'a Namespace,
    chain: &'a [ChainHash],
    to: Destination<'a>,
    outcomes: Vec<Outcome>,
    /// Positions in the chain that were not asked for yet, or that the server had no place for.
    pending: VecDeque<usize>,
}

/// Where blocks go.
pub(super) enum Destination<'a> {
    /// To memory of the caller; a load also has a progress.
    Memory(Vec<Vec<Memory>>, Option<&'a LoadProgress>),
    /// To pages of an engine, layer by layer.
    Pages(Arc<PageTarget>),
}

/// What one answer says.
struct Round {
    lease: u64,
    outcomes: Vec<Outcome>,
    /// Of the hits among them, in order.
    rows: Vec<PlaceRow>,
}

impl<'a> BlockLoad<'a> {
    /// A get of blocks whose sizes were checked.
    pub(super) fn new(
        namespace: &'a Namespace,
        chain: &'a [ChainHash],
        to: Destination<'a>,
    ) -> Self {
        let outcomes = vec![Outcome::Absent; chain.len()];
        Self { namespace, chain, to, outcomes, pending: (0..chain.len()).collect() }
    }

    /// Gets the blocks.
    pub(super) fn run(mut self, server: &Arc<Attachment>, scope: Scope, call: &Call) -> GetReport {
        while !self.pending.is_empty() {
            let asked: Vec<usize> = self.pending.iter().take(MOST_HASHES).copied().collect();
            let round = match self.ask(server, scope, &asked, call) {
                Ok(round) => round,
                Err(lost) => return self.lose(lost),
            };
            let copied = self.copy(server, &asked, &round, call);
            if round.lease != 0 {
                server.end_lease(round.lease);
            }
            if let Err(lost) = copied {
                return self.lose(lost);
            }
            let asked = &asked[..round.outcomes.len()];
            if !self.settle(scope, asked, &round.outcomes) {
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
        call: &Call,
    ) -> std::result::Result<Round, Lost> {
        let mut message = wire::encode(&Request::Acquire {
            namespace: self.namespace.id().0,
            each: scope == Scope::Each,
            timeout_ns: timeout_ns(server.reach().left(call)?),
        });
        wire::push_hashes(&mut message, asked.iter().map(|at| &self.chain[*at]));
        let answer = server.call(self.namespace.id(), &message, call)?;
        round_of(&answer, asked.len()).map_err(|_| Lost::Away)
    }

    /// Copies the hits of a round. If the call ends before the last one, those that were not copied are lost, and
    /// nothing more is asked for.
    fn copy(
        &mut self,
        server: &Arc<Attachment>,
        asked: &[usize],
        round: &Round,
        call: &Call,
    ) -> std::result::Result<(), Lost> {
        match &self.to {
            Destination::Memory(..) => self.copy_to_memory(server, asked, round, call),
            Destination::Pages(pages) => {
                let pages = Arc::clone(pages);
                self.copy_to_pages(server, &pages, asked, round, call)
            }
        }
    }

    fn copy_to_memory(
        &mut self,
        server: &Attachment,
        asked: &[usize],
        round: &Round,
        call: &Call,
    ) -> std::result::Result<(), Lost> {
        let mut rows = round.rows.iter();
        for (done, (at, outcome)) in asked.iter().zip(&round.outcomes).enumerate() {
            let mut found = *outcome;
            if outcome.is_hit() {
                let row = *rows.next().expect("a row for each hit");
                match self.copy_block(server, row, *at, call) {
                    Ok(true) => {}
                    Ok(false) => found = Outcome::Lost(Cause::Recycled),
                    Err(lost) => {
                        self.pending.drain(..done);
                        return Err(lost);
                    }
                }
            }
            self.outcomes[*at] = found;
        }
        Ok(())
    }

    /// Copies a block in parts, between which the call may end. `false` if its place ended meanwhile.
    fn copy_block(
        &mut self,
        server: &Attachment,
        row: PlaceRow,
        at: usize,
        call: &Call,
    ) -> std::result::Result<bool, Lost> {
        let Destination::Memory(out, progress) = &mut self.to else { unreachable!("to memory") };
        let bytes = block_bytes(self.namespace);
        let mut from = 0;
        for mut rest in std::mem::take(&mut out[at]) {
            while !rest.is_empty() {
                server.reach().check(call)?;
                let part = rest.split_to(rest.len().min(PART_BYTES));
                let len = part.len();
                if !server.arena().copy(row, bytes, from, &mut [part]) {
                    return Ok(false);
                }
                from += len;
            }
        }
        if let Some(progress) = progress {
            progress.deliver_blocks(1);
        }
        Ok(true)
    }

    fn copy_to_pages(
        &mut self,
        server: &Arc<Attachment>,
        pages: &Arc<PageTarget>,
        asked: &[usize],
        round: &Round,
        call: &Call,
    ) -> std::result::Result<(), Lost> {
        let bytes = block_bytes(self.namespace);
        let found = || asked.iter().zip(&round.outcomes);
        let hits = found().filter(|(_, outcome)| outcome.is_hit()).zip(&round.rows);
        // What the server says is not trusted.
        let is_inside = |row: &PlaceRow| server.arena().range(*row, bytes).is_some();
        let (numbers, rows): (Vec<usize>, Vec<PlaceRow>) =
            hits.filter(|(_, row)| is_inside(row)).map(|((at, _), row)| (*at, *row)).unzip();
        let places = ServedPlaces::new(server, &numbers, rows, bytes);
        let are_copied = PlaceCopies::start(places, pages).finish(call, server.reach().clock());
        let ended = server.reach().check(call);
        let cause = ended.as_ref().err().map_or(Cause::Recycled, |stopped| (*stopped).into());
        let mut copied =
            numbers.iter().zip(are_copied).filter(|(_, is_copied)| *is_copied).peekable();
        for (at, outcome) in found() {
            let is_copied = copied.next_if(|(number, _)| *number == at).is_some();
            let is_lost = outcome.is_hit() && !is_copied;
            self.outcomes[*at] = if is_lost { Outcome::Lost(cause) } else { *outcome };
        }
        ended.map_err(|stopped| {
            self.pending.drain(..round.outcomes.len());
            stopped.into()
        })
    }

    /// Decides what is asked for next. `false` if nothing is.
    fn settle(&mut self, scope: Scope, asked: &[usize], outcomes: &[Outcome]) -> bool {
        let hits = outcomes.iter().filter(|outcome| outcome.is_hit()).count();
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

fn block_bytes(namespace: &Namespace) -> usize {
    usize::try_from(namespace.layout().block_bytes()).expect("64-bit addresses")
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
