//! Getting blocks into the caller's memory.

use dalsegno_core::{ChainHash, NamespaceId, Result};
use dalsegno_index::Scope;
use dalsegno_io::Memory;

use crate::read::blocks::GetBlock;
use crate::read::get;
use crate::read::get_call::GetCall;
use crate::read::loader::Loader;
use crate::read::outcome::{GetReport, count};
use crate::sizes::check_get;
use crate::terms::Terms;

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
    let _in_progress = loader.reads.begin();
    let wanted = GetCall::new(&loader.tiers, &namespace, chain, &call, None);
    let blocks = get::run(&wanted, out.into_iter().map(GetBlock::to_copy), scope);
    let report = GetReport { outcomes: blocks.iter().map(GetBlock::outcome).collect() };
    count(&loader.counters, &report, layout.block_bytes());
    Ok(report)
}
