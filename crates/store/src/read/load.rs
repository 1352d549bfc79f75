//! Gets into memory of the caller, and loads: gets in the background that deliver layers while they run.
//!
//! 1. Blocks on their way to pages of an engine are in places of DRAM. A load takes its places as a lease does, and at
//!    most half of what leases may hold: if its blocks would take more, it has several rounds, and no layer is ready
//!    before the last one.
//! 2. A load ends after its last copy. Then nothing touches the memory of the caller.

use std::sync::Arc;

use dalsegno_core::{ChainHash, NamespaceId, Result};
use dalsegno_extent::Cause;
use dalsegno_index::Scope;
use dalsegno_io::{Call, Copier, DueTimes, Memory, PagedBlocks, Purpose};

use crate::load::progress::LoadEnd;
use crate::load::target::PageTarget;
use crate::read::blocks::{GetBlock, report_of};
use crate::read::delivery::Delivery;
use crate::read::get;
use crate::read::get_call::GetCall;
use crate::read::lease::Lease;
use crate::read::loader::Loader;
use crate::read::outcome::{GetReport, Outcome, count};
use crate::read::served_blocks::OwnPlaces;
use crate::sizes::check_get;
use crate::terms::Terms;

/// A load that is to be run.
pub(crate) struct LoadWork {
    pub(crate) namespace: NamespaceId,
    pub(crate) chain: Vec<ChainHash>,
    pub(crate) copier: Arc<dyn Copier>,
    /// When its layers are needed; `None` for as soon as possible.
    pub(crate) due: Option<DueTimes>,
    /// Dropped when the load has ended.
    pub(crate) end: LoadEnd,
}

impl LoadWork {
    fn call(&self, loader: &Loader, terms: &Terms) -> Call {
        let call = terms.call(loader.tiers.clock.as_ref());
        Call { purpose: Purpose { due: self.due, ..call.purpose }, ..call }
    }

    /// Loads leading blocks into memory of the caller.
    pub(crate) fn into_blocks(
        self,
        loader: &Loader,
        out: Vec<Vec<Memory>>,
        terms: &Terms,
    ) -> Result<GetReport> {
        let namespace = loader.namespaces.get(self.namespace)?;
        let call = self.call(loader, terms);
        let delivery = Delivery::in_place(self.end.progress());
        let get = GetCall::new(&loader.tiers, &namespace, &self.chain, &call, Some(delivery));
        let wanted = out.into_iter().map(GetBlock::to_copy);
        let report = report_of(&get::run(&get, wanted, Scope::Prefix));
        count(&loader.counters, &report, namespace.layout().block_bytes());
        Ok(report)
    }

    /// Loads leading blocks into pages.
    pub(crate) fn into_pages(
        self,
        loader: &Loader,
        pages: PagedBlocks,
        terms: &Terms,
    ) -> Result<GetReport> {
        let namespace = loader.namespaces.get(self.namespace)?;
        let call = self.call(loader, terms);
        let block_bytes = usize::try_from(namespace.layout().block_bytes()).expect("64-bit");
        let pages = PageTarget::new(pages, Arc::clone(&self.copier), self.end.progress());
        let mut outcomes: Vec<Outcome> = Vec::with_capacity(self.chain.len());
        let share = loader.tiers.recent.dram.load_share(block_bytes, self.chain.len());
        let mut rest = Outcome::Lost(Cause::Throttled);
        while share.count() > 0 && outcomes.len() < self.chain.len() {
            let (before, after) = self.chain.split_at(outcomes.len());
            let part = &after[..share.count().min(after.len())];
            let delivery = Delivery::to_pages(self.end.progress(), &pages, before.len());
            let get = GetCall::new(&loader.tiers, &namespace, part, &call, Some(delivery));
            let wanted = part.iter().map(|_| GetBlock::to_lease());
            let report = report_of(&get::run(&get.behind(before), wanted, Scope::Prefix));
            rest = Outcome::Absent;
            outcomes.extend(&report.outcomes);
            if report.leading_blocks() < part.len() {
                break;
            }
        }
        outcomes.resize(self.chain.len(), rest);
        if !pages.close() {
            outcomes.fill(Outcome::Lost(Cause::Device));
        }
        let report = GetReport { outcomes };
        count(&loader.counters, &report, namespace.layout().block_bytes());
        Ok(report)
    }
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

/// A get: which blocks, and the memory for them.
pub(crate) struct GetRequest<'a> {
    pub(crate) chain: &'a [ChainHash],
    pub(crate) out: Vec<Vec<Memory>>,
    pub(crate) scope: Scope,
}

/// See [`Store::get_batch`](crate::Store::get_batch).
pub(crate) fn get(
    loader: &Loader,
    namespace: NamespaceId,
    request: GetRequest<'_>,
    terms: &Terms,
) -> Result<GetReport> {
    let GetRequest { chain, out, scope } = request;
    let namespace = loader.namespaces.get(namespace)?;
    let layout = namespace.layout();
    check_get(layout, chain, &out)?;
    let call = terms.call(loader.tiers.clock.as_ref());
    let wanted = GetCall::new(&loader.tiers, &namespace, chain, &call, None);
    let blocks = get::run(&wanted, out.into_iter().map(GetBlock::to_copy), scope);
    let report = report_of(&blocks);
    count(&loader.counters, &report, layout.block_bytes());
    Ok(report)
}
