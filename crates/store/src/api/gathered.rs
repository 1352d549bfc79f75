//! Where a put by layer gathers its blocks: in places of the DRAM tier, as far as there are free ones.
//!
//! 1. All puts by layer of a store together gather at most [`MOST_GATHERED_BYTES`].
//! 2. A place is taken from blocks that were not requested since they entered. Blocks without a place are gathered in
//!    other memory, and enter the DRAM tier by a copy.
//! 3. Blocks that are removed after the writer was made are not put.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use dalsegno_core::{ChainHash, Clock, Error, ErrorKind, Namespace, NamespaceId, Result};
use dalsegno_io::{Memory, copy_pieces};

use crate::api::door::{Door, Start};
use crate::api::layer_writer::{GatheredBlocks, LayerHost, LayerSpan, LayerWork, LayerWriter};
use crate::jobs::transfers::{Direction, Transfer, TransferLanes};
use crate::put::report::PutReport;
use crate::put::writer::{HeldBlock, LayerStart};
use crate::state::arena::ReservedPlace;
use crate::state::byte_share::ByteShare;
use crate::state::dram::{Dram, Leaving, MOST_GATHERED_BYTES};
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
    _share: ByteShare,
}

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
    let (share, blocks) = gather(&store.recent.dram, &namespace, count)?;
    let chain = span.chain[..first + count].to_vec();
    let door = Arc::clone(&host.door);
    let gathered =
        StoreBlocks { door, namespace: namespace.id(), chain, first, mark, blocks, _share: share };
    let gathered: Option<Box<dyn GatheredBlocks>> = (count > 0).then(|| Box::new(gathered) as _);
    Ok(LayerWriter::new(Arc::new(host), namespace.layout(), first, count, gathered))
}

/// Memory for `count` blocks.
fn gather(
    dram: &Dram,
    namespace: &Namespace,
    count: usize,
) -> Result<(ByteShare, Vec<GatheredBlock>)> {
    let block_bytes = namespace.layout().block_bytes();
    let share = dram.gather_share(block_bytes, count);
    if share.count() < count {
        let message = format!(
            "puts by layer would gather more than {MOST_GATHERED_BYTES} bytes; commit or drop others first"
        );
        return Err(Error::new(ErrorKind::Unavailable, message));
    }
    let bytes = usize::try_from(block_bytes).expect("64-bit addresses");
    let block = |_| match dram.reserve(bytes, Leaving::Newcomers) {
        Some(place) => GatheredBlock::Place(place),
        None => GatheredBlock::Heap(vec![0; bytes]),
    };
    Ok((share, (0..count).map(block).collect()))
}

impl GatheredBlocks for StoreBlocks {
    fn fill(&mut self, block: usize, offset: usize, pieces: &[Memory]) {
        match &mut self.blocks[block] {
            GatheredBlock::Place(place) => place.fill(offset, pieces),
            GatheredBlock::Heap(bytes) => copy_pieces(pieces, &mut bytes[offset..]),
        }
    }

    fn put(self: Box<Self>, terms: &Terms) -> Result<PutReport> {
        let Self { door, namespace, chain, first, mark, blocks, _share } = *self;
        let held = blocks.into_iter().map(|block| match block {
            GatheredBlock::Place(place) => {
                HeldBlock::Placed(Arc::new(place.complete().expect("nobody else has its memory")))
            }
            GatheredBlock::Heap(bytes) => HeldBlock::Elsewhere(Memory::owned(bytes, ())),
        });
        door.enter()?.writer.put_held(namespace, &chain, first, held.collect(), mark, terms)
    }
}

impl fmt::Debug for StoreBlocks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let count = self.blocks.len();
        f.debug_struct("StoreBlocks").field("count", &count).finish_non_exhaustive()
    }
}
