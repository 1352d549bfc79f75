//! Putting blocks layer by layer to a server: this process gathers them, and the commit puts them.
//!
//! 1. Nothing reaches the server before the commit, so a put that is abandoned leaves nothing there.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use dalsegno_core::{ChainHash, Clock, Error, ErrorKind, Namespace, Result};
use dalsegno_store::{Direction, Memory, Put, Terms, Transfer, check_blocks};
use parking_lot::{Mutex, MutexGuard};

use super::inner::Inner;
use super::save;
use crate::wire::Look;

/// Most bytes that one put gathers.
const MOST_BYTES: u64 = 1 << 30;

/// Blocks that are put one layer at a time; nothing is visible before [`LayerPut::commit`].
#[derive(Clone, Debug)]
pub struct LayerPut {
    client: Arc<Inner>,
    namespace: Arc<Namespace>,
    /// The hash before the first block, if there is one, and those of the blocks.
    chain: Arc<[ChainHash]>,
    first: usize,
    count: usize,
    progress: Arc<Mutex<Progress>>,
}

#[derive(Debug)]
enum Progress {
    Gathering { blocks: Vec<Vec<u8>>, layers: BTreeSet<u32> },
    Committed,
}

impl LayerPut {
    pub(super) fn open(
        client: Arc<Inner>,
        namespace: Arc<Namespace>,
        (chain, (first, count)): (&[ChainHash], (usize, usize)),
        terms: &Terms,
    ) -> Result<Self> {
        let Some(end) = first.checked_add(count).filter(|end| *end <= chain.len()) else {
            return Err(Error::invalid(format!(
                "first is {first} and count is {count}; together they must be at most the {} hashes of the chain",
                chain.len()
            )));
        };
        let layout = namespace.layout();
        let most = usize::try_from(MOST_BYTES / layout.block_bytes()).unwrap_or(usize::MAX).max(1);
        let present =
            client.count_leading(namespace.id(), (&chain[first..end], Look::Probe), terms)?;
        let first = first + present;
        let count = end - first;
        if count > most {
            return Err(Error::invalid(format!(
                "{count} blocks are too many to gather; write at most {most} at a time"
            )));
        }
        let progress =
            Progress::Gathering { blocks: save::gathered(count, layout), layers: BTreeSet::new() };
        Ok(Self {
            client,
            namespace,
            chain: chain[..end].into(),
            first,
            count,
            progress: Arc::new(Mutex::new(progress)),
        })
    }

    /// See [`LayerWriter::first`](dalsegno_store::LayerWriter::first).
    #[must_use]
    pub fn first(&self) -> usize {
        self.first
    }

    /// See [`LayerWriter::count`](dalsegno_store::LayerWriter::count).
    #[must_use]
    pub fn count(&self) -> usize {
        self.count
    }

    /// See [`LayerWriter::store_layer`](dalsegno_store::LayerWriter::store_layer).
    pub fn store_layer(&self, layer: u32, blocks: &[Vec<Memory>], terms: &Terms) -> Result<()> {
        self.client.enter()?;
        let layout = self.namespace.layout();
        if blocks.len() != self.count {
            let (given, count) = (blocks.len(), self.count);
            return Err(Error::invalid(format!("{given} slices for {count} blocks")));
        }
        check_blocks(blocks, u64::from(layout.slice_bytes()))?;
        if layer >= layout.layers() {
            let layers = layout.layers();
            return Err(Error::invalid(format!(
                "layer {layer} does not exist; the namespace has {layers}"
            )));
        }
        let mut progress = self.progress(terms)?;
        let Progress::Gathering { blocks: gathered, layers } = &mut *progress else {
            return Err(committed_already());
        };
        if self.count > 0 && !layers.insert(layer) {
            return Err(Error::invalid(format!("layer {layer} was stored already")));
        }
        let slice = layout.slice_bytes() as usize;
        for (block, pieces) in gathered.iter_mut().zip(blocks) {
            let mut to = &mut block[layer as usize * slice..][..slice];
            for piece in pieces {
                let (now, rest) = to.split_at_mut(piece.len());
                now.copy_from_slice(piece.as_slice());
                to = rest;
            }
        }
        Ok(())
    }

    fn progress(&self, terms: &Terms) -> Result<MutexGuard<'_, Progress>> {
        match terms.timeout {
            None => Ok(self.progress.lock()),
            Some(timeout) => self.progress.try_lock_for(timeout).ok_or_else(late),
        }
    }

    /// See [`LayerWriter::submit_store_layer`](dalsegno_store::LayerWriter::submit_store_layer).
    #[must_use]
    pub fn submit_store_layer(
        &self,
        layer: u32,
        blocks: Vec<Vec<Memory>>,
        timeout: Option<Duration>,
    ) -> Transfer<()> {
        let message =
            "too many transfers are waiting; wait for one of them and store the layer again";
        let refused = Err(Error::new(ErrorKind::Unavailable, message));
        let put = self.clone();
        let work = move |terms: &Terms| put.store_layer(layer, &blocks, terms);
        self.client.start((Direction::Store, timeout), refused, work)
    }

    /// See [`LayerWriter::commit`](dalsegno_store::LayerWriter::commit).
    pub fn commit(&self, terms: &Terms) -> Result<usize> {
        let parts = self.client.enter()?;
        let limit = parts.limit(terms);
        let mut progress = self.progress(terms)?;
        let Progress::Gathering { blocks, layers } = &mut *progress else {
            return Err(committed_already());
        };
        let all = self.namespace.layout().layers();
        if self.count > 0
            && let Some(layer) = (0..all).find(|layer| !layers.contains(layer))
        {
            let missing = all as usize - layers.len();
            return Err(Error::invalid(format!(
                "{missing} layers are missing, layer {layer} first; store them all before commit"
            )));
        }
        let blocks = save::as_memory(std::mem::take(blocks));
        *progress = Progress::Committed;
        // Another commit need not wait for the server.
        drop(progress);
        let put = Put { chain: &self.chain, first: self.first, blocks };
        let left = limit.deadline.remaining(parts.clock.now());
        let terms = Terms { timeout: left, cancel: limit.cancel };
        let report = self.client.put_batch(self.namespace.id(), &put, &terms)?;
        if report.kept().iter().all(|kept| *kept) {
            return Ok(self.count);
        }
        let message = "the server did not store all blocks of this put";
        Err(Error::new(ErrorKind::Unavailable, message))
    }
}

fn committed_already() -> Error {
    Error::invalid("the blocks were committed already")
}

fn late() -> Error {
    Error::new(ErrorKind::Unavailable, "another layer is being stored; the time for this one is up")
}
