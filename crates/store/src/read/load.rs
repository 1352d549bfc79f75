//! Loads: gets in the background that deliver layers while they run.
//!
//! 1. Blocks on their way to pages of an engine are in places of DRAM. A load takes its places as a lease does: if all
//!    of its blocks would take more than leases may, it has several rounds, and no layer is ready before the last one.
//! 2. A load ends after its last copy. Then nothing touches the memory of the caller.

use std::sync::Arc;

use dalsegno_core::{ChainHash, Namespace, NamespaceId, Result};
use dalsegno_extent::Cause;
use dalsegno_index::Scope;
use dalsegno_io::{Copier, Memory, PagedBlocks};

use crate::load::progress::LoadEnd;
use crate::load::target::PageTarget;
use crate::read::blocks::GetBlock;
use crate::read::delivery::Delivery;
use crate::read::get;
use crate::read::get_call::GetCall;
use crate::read::lease::Lease;
use crate::read::loader::Loader;
use crate::read::outcome::{GetReport, Outcome, count};
use crate::read::served_blocks::OwnPlaces;
use crate::terms::Terms;

/// A load that is to be run.
pub(crate) struct LoadWork {
    pub(crate) namespace: NamespaceId,
    pub(crate) chain: Vec<ChainHash>,
    pub(crate) copier: Arc<dyn Copier>,
    /// Dropped when the load has ended.
    pub(crate) end: LoadEnd,
}

impl LoadWork {
    /// Loads leading blocks into memory of the caller.
    pub(crate) fn into_blocks(
        self,
        loader: &Loader,
        out: Vec<Vec<Memory>>,
        terms: &Terms,
    ) -> Result<GetReport> {
        let namespace = loader.namespaces.get(self.namespace)?;
        let delivery = Delivery::in_place(self.end.progress());
        let wanted = out.into_iter().map(GetBlock::to_copy);
        Ok(run(loader, &namespace, &self.chain, delivery, wanted, terms))
    }

    /// Loads leading blocks into pages.
    pub(crate) fn into_pages(
        self,
        loader: &Loader,
        pages: PagedBlocks,
        terms: &Terms,
    ) -> Result<GetReport> {
        let namespace = loader.namespaces.get(self.namespace)?;
        let call = terms.call(loader.tiers.clock.as_ref());
        let block_bytes = usize::try_from(namespace.layout().block_bytes()).expect("64-bit");
        let pages = PageTarget::new(pages, Arc::clone(&self.copier), self.end.progress());
        let mut outcomes: Vec<Outcome> = Vec::with_capacity(self.chain.len());
        let rest = loop {
            let rest = &self.chain[outcomes.len()..];
            let share = loader.tiers.recent.dram.lease_share(block_bytes, rest.len());
            if share.count() == 0 {
                break Outcome::Lost(Cause::Throttled);
            }
            let delivery = Delivery::to_pages(self.end.progress(), &pages, outcomes.len());
            let part = &rest[..share.count()];
            let timeout = call.deadline.remaining(loader.tiers.clock.now());
            let left = Terms { timeout, cancel: terms.cancel.clone() };
            let wanted = part.iter().map(|_| GetBlock::to_lease());
            let report = run(loader, &namespace, part, delivery, wanted, &left);
            let is_whole = report.leading_blocks() == part.len();
            outcomes.extend(report.outcomes);
            if !is_whole || outcomes.len() == self.chain.len() {
                break Outcome::Absent;
            }
        };
        outcomes.resize(self.chain.len(), rest);
        if !pages.close() {
            outcomes.fill(Outcome::Lost(Cause::Device));
        }
        Ok(GetReport { outcomes })
    }
}

/// Gets blocks, and delivers their slices meanwhile.
fn run(
    loader: &Loader,
    namespace: &Namespace,
    chain: &[ChainHash],
    delivery: Delivery,
    wanted: impl Iterator<Item = GetBlock>,
    terms: &Terms,
) -> GetReport {
    let call = terms.call(loader.tiers.clock.as_ref());
    let _in_progress = loader.reads.begin();
    let get = GetCall::new(&loader.tiers, namespace, chain, &call, Some(delivery));
    let blocks = get::run(&get, wanted, Scope::Prefix);
    let report = GetReport { outcomes: blocks.iter().map(GetBlock::outcome).collect() };
    count(&loader.counters, &report, namespace.layout().block_bytes());
    report
}

/// Copies the blocks of a lease into pages.
pub(crate) fn copy_lease(
    loader: &Loader,
    lease: &Lease,
    pages: PagedBlocks,
    copier: Arc<dyn Copier>,
    end: &LoadEnd,
    terms: &Terms,
) -> GetReport {
    let clock = loader.tiers.clock.as_ref();
    let call = terms.call(clock);
    let count = pages.len();
    let pages = PageTarget::new(pages, copier, end.progress());
    let are_copied = OwnPlaces::copy_all(lease.placed(count), &pages).finish(&call, clock);
    let cause = call.check(clock).err().map_or(Cause::Device, Cause::from);
    let is_written = pages.close();
    let outcome =
        |is_copied| if is_copied && is_written { Outcome::Dram } else { Outcome::Lost(cause) };
    GetReport { outcomes: are_copied.into_iter().map(outcome).collect() }
}
