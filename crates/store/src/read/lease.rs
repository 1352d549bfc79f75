//! Leases: blocks that stay in their places in DRAM while a caller reads them there, without a copy.
//!
//! 1. A lease has leading blocks of a chain, all verified. They stay readable and unchanged until it is dropped,
//!    whatever is evicted or removed meanwhile.
//! 2. All leases together hold at most half of DRAM. A lease that would exceed it has fewer blocks.

use std::sync::Arc;

use dalsegno_arena::Stamp;
use dalsegno_core::{ChainHash, KvLayout, Namespace, NamespaceId, Result};
use dalsegno_extent::Cause;
use dalsegno_index::Scope;

use crate::lookup::lookups::lookup_limit;
use crate::read::blocks::{GetBlock, report_of};
use crate::read::get;
use crate::read::get_call::GetCall;
use crate::read::loader::Loader;
use crate::read::outcome::{GetReport, Outcome, count};
use crate::state::arena::{Arena, PlacedBlock};
use crate::state::byte_share::ByteShare;
use crate::terms::Terms;

/// Leading blocks of a chain, to be read in their places. Dropping it ends the lease.
///
/// ```
/// use dalsegno_store::{ChainHash, Keep, Memory, Put, Terms};
/// # mod example { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/support/example.rs")); }
/// # let (_dir, store, id) = example::store();
///
/// let chain = [ChainHash([1; 32]), ChainHash([2; 32])];
/// let blocks = vec![vec![Memory::owned(vec![7; 8192], ())]];
/// let put = Put { chain: &chain[..1], first: 0, blocks, keep: Keep::Stored };
/// store.put_batch(id, put, &Terms::default())?;
/// let lease = store.lease(id, &chain, &Terms::default())?;
/// assert_eq!(lease.len(), 1);
/// assert!(lease.block(0).unwrap().as_slice().iter().all(|byte| *byte == 7));
/// # Ok::<(), dalsegno_store::Error>(())
/// ```
#[derive(Debug)]
pub struct Lease {
    layout: KvLayout,
    blocks: Vec<Arc<PlacedBlock>>,
    is_truncated: bool,
    _share: ByteShare,
}

/// One block of a [`Lease`]. It keeps the bytes, but not the share of memory, beyond the lease.
#[derive(Clone, Debug)]
pub struct LeasedBlock(Arc<PlacedBlock>);

impl Lease {
    /// How many leading blocks of the chain it has.
    #[must_use]
    pub fn len(&self) -> usize {
        self.blocks.len()
    }

    /// The shape of its blocks.
    #[must_use]
    pub fn layout(&self) -> KvLayout {
        self.layout
    }

    /// Whether it has no blocks.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.blocks.is_empty()
    }

    /// Whether the store had further leading blocks, but no memory to lease them.
    #[must_use]
    pub fn is_truncated(&self) -> bool {
        self.is_truncated
    }

    /// Where its blocks are in the arena, in order: see [`LeasedBlock::place`].
    pub fn places(&self) -> impl Iterator<Item = (u32, Stamp)> {
        self.blocks.iter().map(|block| block.at())
    }

    /// The first `count` blocks in their places.
    pub(crate) fn placed(&self, count: usize) -> Vec<Arc<PlacedBlock>> {
        self.blocks[..count].iter().map(Arc::clone).collect()
    }

    /// A block by its position in the chain.
    #[must_use]
    pub fn block(&self, at: usize) -> Option<LeasedBlock> {
        self.blocks.get(at).map(|block| LeasedBlock(Arc::clone(block)))
    }
}

impl LeasedBlock {
    pub(crate) fn of(block: Arc<PlacedBlock>) -> Self {
        Self(block)
    }

    pub(crate) fn into_inner(self) -> Arc<PlacedBlock> {
        self.0
    }

    /// The first unit of its place in the arena, and the place's stamp, by which a reader in another process finds out
    /// whether the place has ended.
    #[must_use]
    pub fn place(&self) -> (u32, Stamp) {
        self.0.at()
    }

    /// Bytes of its place, which has whole units.
    #[must_use]
    pub fn place_bytes(&self) -> u64 {
        Arena::place_bytes(self.0.len())
    }

    /// The bytes, layer after layer.
    #[must_use]
    pub fn as_slice(&self) -> &[u8] {
        self.0.as_slice()
    }
}

/// Blocks of a get that stay in their places until this is dropped. They do not count as leased, because
/// they are copied soon.
#[derive(Debug)]
pub struct Acquired {
    /// How the first blocks of the request ended. There are fewer than were requested if more would hold too many bytes
    /// at a time: ask for the rest when these were copied.
    pub outcomes: Vec<Outcome>,
    /// The hits, in order.
    pub blocks: Vec<LeasedBlock>,
}

/// Finds blocks, and keeps them in their places.
fn find(
    loader: &Loader,
    namespace: &Namespace,
    hashes: &[ChainHash],
    scope: Scope,
    terms: &Terms,
) -> (GetReport, Vec<GetBlock>) {
    let layout = namespace.layout();
    let call = terms.call(loader.tiers.clock.as_ref());
    let wanted = GetCall::new(&loader.tiers, namespace, hashes, &call, None);
    let blocks = get::run(&wanted, hashes.iter().map(|_| GetBlock::to_lease()), scope);
    let report = report_of(&blocks);
    count(&loader.counters, &report, layout.block_bytes());
    (report, blocks)
}

/// See [`Pool::acquire`](crate::Pool::acquire).
pub(crate) fn acquire(
    loader: &Loader,
    namespace: NamespaceId,
    hashes: &[ChainHash],
    scope: Scope,
    most_bytes: u64,
    terms: &Terms,
) -> Result<Acquired> {
    let namespace = loader.namespaces.get(namespace)?;
    let block_bytes = namespace.layout().block_bytes();
    let place_bytes = usize::try_from(block_bytes).map_or(u64::MAX, Arena::place_bytes);
    let most = usize::try_from(most_bytes / place_bytes).unwrap_or(usize::MAX).max(1);
    let hashes = &hashes[..hashes.len().min(most)];
    let (report, blocks) = find(loader, &namespace, hashes, scope, terms);
    let blocks = blocks.into_iter().filter_map(GetBlock::into_leased).map(LeasedBlock).collect();
    Ok(Acquired { blocks, outcomes: report.outcomes })
}

/// See [`Store::lease`](crate::Store::lease).
pub(crate) fn lease(
    loader: &Loader,
    namespace: NamespaceId,
    chain: &[ChainHash],
    terms: &Terms,
) -> Result<Lease> {
    let namespace = loader.namespaces.get(namespace)?;
    let bytes = usize::try_from(namespace.layout().block_bytes()).expect("64-bit addresses");
    let mut share = loader.tiers.recent.dram.lease_share(bytes, chain.len());
    let (asked, further) = chain.split_at(share.count());
    let (report, blocks) = find(loader, &namespace, asked, Scope::Prefix, terms);
    let hits = report.leading_blocks();
    let leased = |block: GetBlock| block.into_leased().expect("a hit");
    let blocks: Vec<_> = blocks.into_iter().take(hits).map(leased).collect();
    share.shrink(hits);
    let is_truncated = match report.outcomes.get(hits) {
        Some(outcome) => *outcome == Outcome::Lost(Cause::Throttled),
        None => further.first().is_some_and(|hash| {
            let limit = lookup_limit(loader.tiers.clock.as_ref());
            let (id, hash) = (namespace.id(), std::slice::from_ref(hash));
            loader.tiers.stored.index.probe(id, hash, limit) == 1
                || !loader.tiers.recent.dram.pool_only(id, hash, Scope::Prefix).is_empty()
        }),
    };
    Ok(Lease { layout: namespace.layout(), blocks, is_truncated, _share: share })
}
