//! Putting blocks layer by layer to a server: this process gathers them in a window, and the commit puts them.

use std::sync::Arc;
use std::time::Duration;

use dalsegno_core::{ChainHash, Clock, Error, Namespace, Result};
use dalsegno_io::Copier;
use dalsegno_store::{
    Direction, GatheredBlocks, GatheredLayer, GatheredPut, Keep, LayerHost, LayerSpan, LayerWork,
    LayerWriter, Terms, Transfer,
};

use super::inner::Inner;
use super::save::{Allocation, AllocationPut};
use crate::wire::Look;

/// Most bytes that one put gathers.
const MOST_BYTES: u64 = 1 << 30;

/// Blocks of a put by layer, until its commit.
#[derive(Debug)]
struct ClientBlocks {
    client: Arc<Inner>,
    allocation: Allocation,
    /// Up to the last block.
    chain: Vec<ChainHash>,
    first: usize,
}

/// See [`Client::layer_writer`](super::Client::layer_writer).
pub(super) fn layer_writer(
    client: Arc<Inner>,
    namespace: &Namespace,
    span: LayerSpan<'_>,
    terms: &Terms,
) -> Result<LayerWriter> {
    let hashes = span.hashes()?;
    let layout = namespace.layout();
    let most = usize::try_from(MOST_BYTES / layout.block_bytes()).unwrap_or(usize::MAX).max(1);
    let present = client.count_leading(namespace.id(), hashes, Look::Stored, terms)?;
    let (first, count) = (span.first + present, span.count - present);
    if count > most {
        return Err(Error::invalid(format!(
            "{count} blocks are too many to gather; write at most {most} at a time"
        )));
    }
    let blocks: Option<Box<dyn GatheredBlocks>> = if count == 0 {
        None
    } else {
        let (client, allocation) = (Arc::clone(&client), Allocation::empty(namespace, count)?);
        let chain = span.chain[..first + count].to_vec();
        Some(Box::new(ClientBlocks { client, allocation, chain, first }))
    };
    Ok(LayerWriter::new(client, layout, first, count, blocks))
}

impl GatheredBlocks for ClientBlocks {
    fn fill(&mut self, layer: GatheredLayer, copier: &dyn Copier) -> Result<()> {
        let GatheredLayer { offset, bytes, slices } = layer;
        slices.copy_to(self.allocation.slices(offset, bytes)?.into_iter(), copier)
    }

    fn put(self: Box<Self>, keep: Keep, terms: &Terms) -> Result<GatheredPut> {
        let put = AllocationPut { chain: &self.chain, first: self.first, keep };
        let report = self.client.commit(&self.allocation, put, terms)?;
        Ok(GatheredPut::from(&report))
    }
}

impl LayerHost for Inner {
    fn enter(&self) -> Result<Arc<dyn Clock>> {
        Ok(Arc::new(self.enter()?.clock))
    }

    fn copier(&self) -> Arc<dyn Copier> {
        self.parts().lanes.copier()
    }

    fn start(&self, work: LayerWork, timeout: Option<Duration>, refused: Error) -> Transfer<()> {
        self.start(Direction::Store, timeout, Err(refused), work)
    }
}
