//! Blocks that a process uses in their places in the pool of its server.
//!
//! 1. The server reuses their places only after the lease has ended, or if it thinks that this process has. So a user
//!    of a lease asks afterwards which blocks were [valid](ServedLease::valid_blocks).

use std::sync::Arc;

use dalsegno_core::{ChainHash, KvLayout, Namespace};
use dalsegno_io::Call;
use dalsegno_store::{Cause, GetReport, Outcome, PageTarget, PlaceCopies, Terms};

use super::attachment::Attachment;
use super::placed_blocks::ServedPlaces;
use crate::wire::{self, MOST_HASHES, PlaceRow, Reply, Request, timeout_ns};

/// Leading blocks of a chain in the pool of a server. Dropping it ends the lease.
#[derive(Debug)]
pub struct ServedLease {
    layout: KvLayout,
    server: Option<Arc<Attachment>>,
    numbers: Vec<u64>,
    rows: Vec<PlaceRow>,
    block_bytes: usize,
    is_truncated: bool,
}

impl ServedLease {
    /// No blocks, of a server that is away.
    pub(super) fn none(layout: KvLayout) -> Self {
        let (numbers, rows) = (Vec::new(), Vec::new());
        let block_bytes = usize::try_from(layout.block_bytes()).expect("64-bit addresses");
        Self { layout, server: None, numbers, rows, block_bytes, is_truncated: false }
    }

    /// The shape of its blocks.
    #[must_use]
    pub fn layout(&self) -> KvLayout {
        self.layout
    }

    /// How many leading blocks of the chain it has.
    #[must_use]
    pub fn len(&self) -> usize {
        self.rows.len()
    }

    /// Whether it has no blocks.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    /// Whether the store had further leading blocks, but this process may not lease more.
    #[must_use]
    pub fn is_truncated(&self) -> bool {
        self.is_truncated
    }

    /// How many leading blocks have been in their places without a break.
    #[must_use]
    pub fn valid_blocks(&self) -> usize {
        let Some(server) = &self.server else { return 0 };
        self.rows
            .iter()
            .take_while(|row| server.arena().is_current(**row, self.block_bytes))
            .count()
    }

    /// A copy of a block; `None` if it was overwritten.
    #[must_use]
    pub fn to_vec(&self, at: usize) -> Option<Vec<u8>> {
        let (server, row) = (self.server.as_ref()?, *self.rows.get(at)?);
        let mut bytes = vec![0; self.block_bytes];
        let is_current = dalsegno_io::lend(|lender| {
            server.arena().copy(row, self.block_bytes, 0, &mut [lender.exclusive(&mut bytes)])
        });
        is_current.then_some(bytes)
    }

    /// Address and length of a block.
    #[must_use]
    pub fn range(&self, at: usize) -> Option<(usize, usize)> {
        self.server.as_ref()?.arena().range(*self.rows.get(at)?, self.block_bytes)
    }

    /// Copies the first blocks to pages, and returns how each ended.
    pub(super) fn copy_to(
        &self,
        pages: &Arc<PageTarget>,
        count: usize,
        terms: &Terms,
    ) -> GetReport {
        let lost = |cause| GetReport { outcomes: vec![Outcome::Lost(cause); count] };
        let Some(server) = &self.server else { return lost(Cause::Recycled) };
        let (numbers, rows): (Vec<usize>, _) = ((0..count).collect(), self.rows[..count].to_vec());
        let places = ServedPlaces::new(server, &numbers, rows, self.block_bytes);
        let (clock, copies) = (server.reach().clock(), PlaceCopies::start(places, pages));
        let call = terms.call(clock);
        let are_copied = copies.finish(&call, clock);
        let cause = call.check(clock).err().map_or(Cause::Recycled, Cause::from);
        if !pages.close() {
            return lost(Cause::Device);
        }
        let outcome = |is_copied| if is_copied { Outcome::Dram } else { Outcome::Lost(cause) };
        GetReport { outcomes: are_copied.into_iter().map(outcome).collect() }
    }
}

impl Drop for ServedLease {
    fn drop(&mut self) {
        if let Some(server) = &self.server {
            for number in &self.numbers {
                server.end_lease(*number);
            }
        }
    }
}

/// Leases the longest present run of a chain.
pub(super) fn lease(
    server: &Arc<Attachment>,
    namespace: &Namespace,
    chain: &[ChainHash],
    call: &Call,
) -> ServedLease {
    let mut lease = ServedLease::none(namespace.layout());
    let block_bytes = lease.block_bytes;
    lease.server = Some(Arc::clone(server));
    for part in chain.chunks(MOST_HASHES) {
        let Ok(left) = server.reach().left(call) else { break };
        let timeout_ns = timeout_ns(left);
        let mut message = wire::encode(&Request::Lease { namespace: namespace.id().0, timeout_ns });
        wire::push_hashes(&mut message, part);
        let Ok(answer) = server.call(namespace.id(), &message, call) else { break };
        let Ok((Reply::Leased { lease: number, truncated }, tail)) = wire::decode(&answer) else {
            break;
        };
        lease.numbers.extend((number != 0).then_some(number));
        let Ok(rows) = wire::rows_of(tail) else { break };
        let are_inside = rows.iter().all(|row| server.arena().range(*row, block_bytes).is_some());
        if rows.len() > part.len() || !are_inside {
            break;
        }
        lease.is_truncated = truncated;
        let is_whole = rows.len() == part.len();
        lease.rows.extend(rows);
        if !is_whole {
            break;
        }
    }
    lease
}
