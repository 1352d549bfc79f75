//! Where a put by layer gathers its blocks.
//!
//! 1. All puts by layer of a store together hold at most [`MOST_GATHERED_BYTES`], the hashes included, and places in
//!    DRAM.
//! 2. If the DRAM tier admits what is put, blocks are gathered in places of it, in a quarter of it at most. A place is
//!    taken from blocks that were not requested since they entered. All other blocks are gathered in other memory.
//! 3. Blocks that are removed after the writer was made are not put.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use dalsegno_core::{
    ChainHash, Clock, DramAdmission, Error, ErrorKind, Namespace, NamespaceId, Result,
};
use dalsegno_io::{Copier, Memory, lend};

use crate::api::door::{Door, Start};
use crate::api::layer_writer::{
    GatheredBlocks, GatheredLayer, GatheredPut, LayerHost, LayerSpan, LayerWork, LayerWriter,
};
use crate::jobs::transfers::{Direction, Transfer, TransferLanes};
use crate::keep::Keep;
use crate::put::report::PutOutcome;
use crate::put::writer::{HeldPut, LayerStart};
use crate::state::arena::ReservedPlace;
use crate::state::byte_share::ByteShare;
use crate::state::dram::{Dram, Leaving, MOST_GATHERED_BYTES};
use crate::state::held_block::HeldBlock;
use crate::state::recent_removals::RemovalMark;
use crate::terms::Terms;

/// A store of this process, as its layer writers use it.
#[derive(Debug)]
pub(crate) struct StoreHost {
    pub(crate) door: Arc<Door>,
    pub(crate) lanes: Arc<TransferLanes>,
}

impl LayerHost for StoreHost {
    fn enter(&self) -> Result<Arc<dyn Clock>> {
        Ok(Arc::clone(&self.door.enter()?.workers.clock))
    }

    fn copier(&self) -> Arc<dyn Copier> {
        self.lanes.copier()
    }

    fn start(&self, work: LayerWork, timeout: Option<Duration>, refused: Error) -> Transfer<()> {
        let start =
            Start { door: &self.door, lanes: &self.lanes, direction: Direction::Store, timeout };
        start.run(Err(refused), work)
    }
}

/// Blocks of a put by layer, until its commit.
struct StoreBlocks {
    door: Arc<Door>,
    namespace: NamespaceId,
    /// Up to the last block.
    chain: Vec<ChainHash>,
    first: usize,
    /// From before the put.
    mark: RemovalMark,
    blocks: Vec<GatheredBlock>,
    _shares: [ByteShare; 3],
}

/// Memory for blocks, and the shares of the memory that they hold: places, other memory, hashes.
type Gathered = (Vec<GatheredBlock>, [ByteShare; 3]);

/// The memory of one block.
enum GatheredBlock {
    Place(ReservedPlace),
    Heap(Vec<u8>),
}

/// See [`Store::layer_writer`](crate::Store::layer_writer).
pub(crate) fn layer_writer(
    host: StoreHost,
    namespace: NamespaceId,
    span: LayerSpan<'_>,
    terms: &Terms,
) -> Result<LayerWriter> {
    let store = host.door.enter()?;
    let namespace = store.registrar.namespaces.get(namespace)?;
    let LayerStart { skipped, mark } =
        store.writer.begin_layers(&namespace, span.hashes()?, terms)?;
    let (first, count) = (span.first + skipped, span.count - skipped);
    let takes_places = host.door.limits().dram_admission == DramAdmission::Put;
    let chain = &span.chain[..first + count];
    let (blocks, shares) =
        gather(&store.recent.dram, &namespace, count, chain.len(), takes_places)?;
    let chain = chain.to_vec();
    let door = Arc::clone(&host.door);
    let gathered = StoreBlocks {
        door,
        namespace: namespace.id(),
        chain,
        first,
        mark,
        blocks,
        _shares: shares,
    };
    let gathered: Option<Box<dyn GatheredBlocks>> = (count > 0).then(|| Box::new(gathered) as _);
    Ok(LayerWriter::new(Arc::new(host), namespace.layout(), first, count, gathered))
}

/// Takes memory for `count` blocks, and for `hashes` hashes.
fn gather(
    dram: &Dram,
    namespace: &Namespace,
    count: usize,
    hashes: usize,
    takes_places: bool,
) -> Result<Gathered> {
    let block_bytes = namespace.layout().block_bytes();
    let bytes = usize::try_from(block_bytes).expect("64-bit addresses");
    let mut blocks = Vec::with_capacity(count);
    let mut places = dram.gather_places(bytes, if takes_places { count } else { 0 });
    let place = |_| dram.reserve(bytes, Leaving::Newcomers).map(GatheredBlock::Place);
    blocks.extend((0..places.count()).map_while(place));
    places.shrink(blocks.len());
    let others = dram.gather_share(block_bytes, count - blocks.len());
    let named = dram.gather_share(size_of::<ChainHash>() as u64, hashes);
    if blocks.len() + others.count() < count || named.count() < hashes {
        let message = format!(
            "puts by layer would gather more than {MOST_GATHERED_BYTES} bytes; commit or drop others first"
        );
        return Err(Error::new(ErrorKind::Unavailable, message));
    }
    blocks.extend((0..others.count()).map(|_| GatheredBlock::Heap(vec![0; bytes])));
    Ok((blocks, [places, others, named]))
}

impl GatheredBlocks for StoreBlocks {
    fn fill(&mut self, layer: GatheredLayer, copier: &dyn Copier) -> Result<()> {
        let GatheredLayer { offset, bytes, slices } = layer;
        lend(|lender| {
            let to = self.blocks.iter_mut().map(|block| match block {
                GatheredBlock::Place(place) => place.part(offset, bytes),
                GatheredBlock::Heap(block) => lender.exclusive(&mut block[offset..offset + bytes]),
            });
            slices.copy_to(to, copier)
        })
    }

    fn put(self: Box<Self>, keep: Keep, terms: &Terms) -> Result<GatheredPut> {
        let Self { door, namespace, chain, first, mark, blocks, _shares } = *self;
        let held = blocks.into_iter().map(|block| match block {
            GatheredBlock::Place(place) => {
                HeldBlock::Placed(Arc::new(place.complete().expect("nobody else has its memory")))
            }
            GatheredBlock::Heap(bytes) => HeldBlock::Elsewhere(Memory::owned(bytes, ())),
        });
        let store = door.enter()?;
        let put = HeldPut { chain: &chain, first, blocks: held.collect(), keep };
        let report = store.writer.put_held(namespace, put, mark, terms)?;
        let removed = store.recent.removals.removed_since(mark, namespace, &chain[first..]);
        let is_removed = |(outcome, hash): &(&PutOutcome, &ChainHash)| {
            **outcome == PutOutcome::Failed && removed.contains(*hash)
        };
        let gone = report.outcomes.iter().zip(&chain[first..]).filter(is_removed).count();
        let mut put = GatheredPut::from(&report);
        put.failed -= gone;
        Ok(put)
    }
}

impl fmt::Debug for StoreBlocks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let count = self.blocks.len();
        f.debug_struct("StoreBlocks").field("count", &count).finish_non_exhaustive()
    }
}
