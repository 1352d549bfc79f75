//! Putting blocks layer by layer, as a forward pass produces them.
//!
//! 1. Layers of one put are written one at a time. Other calls wait meanwhile, within their terms.
//! 2. A put is abandoned if a layer could not be written, or if its writer and all its transfers are dropped.

use std::sync::Arc;
use std::time::Duration;

use dalsegno_core::{ChainHash, Clock, Error, ErrorKind, Namespace, NamespaceId, Result};
use dalsegno_extent::Call;
use dalsegno_io::{IoError, Memory, Operation};
use dalsegno_log::LayerAppend;
use parking_lot::{Mutex, MutexGuard};

use crate::api::door::Door;
use crate::api::door::Start;
use crate::counters::add;
use crate::error::to_error;
use crate::jobs::transfers::{Direction, Transfer, TransferLanes};
use crate::sizes::check_blocks;
use crate::state::recent_removals::RemovalMark;
use crate::terms::Terms;
use crate::write::publish::{new_extent, publish};
use crate::write::stretch::stretches;

/// Blocks that are put one layer at a time; nothing is visible before [`LayerWriter::commit`].
#[derive(Debug)]
pub struct LayerWriter {
    door: Arc<Door>,
    lanes: Arc<TransferLanes>,
    namespace: Arc<Namespace>,
    first: usize,
    count: usize,
    /// From before the put.
    mark: RemovalMark,
    work: Arc<Mutex<LayeredPut>>,
}

/// The put that a writer shares with its transfers.
#[derive(Debug)]
struct LayeredPut {
    door: Arc<Door>,
    progress: LayerProgress,
}

/// How far the put of a writer is.
#[derive(Debug)]
enum LayerProgress {
    /// All blocks are present.
    Needless,
    /// Layers are missing, or the commit is.
    Writing(Box<LayerAppend>),
    /// A layer could not be written.
    Abandoned,
    Committed,
}

/// Which blocks a writer puts.
#[derive(Clone, Copy)]
pub(crate) struct LayerSpan<'a> {
    pub(crate) chain: &'a [ChainHash],
    pub(crate) first: usize,
    pub(crate) count: usize,
}

impl LayerWriter {
    /// See [`Store::layer_writer`](crate::Store::layer_writer).
    pub(crate) fn open(
        (door, lanes): (&Arc<Door>, &Arc<TransferLanes>),
        namespace: NamespaceId,
        span: LayerSpan<'_>,
        terms: &Terms,
    ) -> Result<Self> {
        let LayerSpan { chain, first, count } = span;
        let store = door.enter()?;
        let engine = store.engine.as_ref();
        let call = terms.call(engine.clock.as_ref());
        let namespace = engine.namespaces.get(namespace)?;
        let end = first.checked_add(count).filter(|end| *end <= chain.len());
        let Some(end) = end else {
            return Err(Error::invalid(format!(
                "first is {first} and count is {count}; together they must be at most the {} hashes of the chain",
                chain.len()
            )));
        };
        if engine.device.refuses(Operation::Write, &call) {
            return Err(to_error(IoError::Suspended.into()));
        }
        let wait = engine.wait_limit(&call);
        let mark = engine.front.removals.mark();
        let present = engine.index.probe(namespace.id(), &chain[first..end], wait);
        let present = &chain[first..first + present];
        let failed = engine.front.failed_reads.among(namespace.id(), present);
        let first = first + present.iter().take_while(|hash| failed.first() != Some(hash)).count();
        let count = end - first;
        let parts = stretches(&vec![true; count], &namespace, &engine.limits);
        if parts.len() > 1 {
            return Err(Error::invalid(format!(
                "{count} blocks do not fit into one extent; write at most {} at a time",
                parts[0].count
            )));
        }
        let progress = if parts.is_empty() {
            LayerProgress::Needless
        } else {
            let hashes = chain[first..end].to_vec();
            let extent = new_extent(engine, &namespace, chain, first, hashes, wait);
            let place = store.space.reserve(extent.total_bytes(), &call).map_err(to_error)?;
            // The log takes blocks that were removed before the reservation for newer ones.
            let removals = &engine.front.removals;
            if !removals.removed_since(mark, extent.namespace, &extent.hashes).is_empty() {
                let message = "blocks of this put were removed meanwhile; start the put again";
                return Err(Error::new(ErrorKind::Unavailable, message));
            }
            LayerProgress::Writing(Box::new(LayerAppend::begin(engine.log.writer(), extent, place)))
        };
        let (door, lanes) = (Arc::clone(door), Arc::clone(lanes));
        let work = LayeredPut { door: Arc::clone(&door), progress };
        Ok(Self { door, lanes, namespace, first, count, mark, work: Arc::new(Mutex::new(work)) })
    }

    /// The position in the chain of the first block to write.
    #[must_use]
    pub fn first(&self) -> usize {
        self.first
    }

    /// The number of blocks in each layer; zero if all are present.
    #[must_use]
    pub fn count(&self) -> usize {
        self.count
    }

    /// Writes one layer: `blocks[b]` holds the slice of block `first() + b`.
    ///
    /// # Errors
    ///
    /// `Invalid` for a wrong layer, count or size; `Unavailable` if it could not be written: then nothing of this put
    /// becomes visible.
    pub fn store_layer(&self, layer: u32, blocks: Vec<Vec<Memory>>, terms: &Terms) -> Result<()> {
        let store = self.door.enter()?;
        let clock = store.engine.clock.as_ref();
        let call = terms.call(clock);
        let mut work = self.lock(&call, clock)?;
        if matches!(work.progress, LayerProgress::Committed) {
            return Err(committed_already());
        }
        let layout = self.namespace.layout();
        if blocks.len() != self.count {
            return Err(Error::invalid(format!(
                "{} slices for {} blocks",
                blocks.len(),
                self.count
            )));
        }
        check_blocks(&blocks, u64::from(layout.slice_bytes()))?;
        let append = match &mut work.progress {
            LayerProgress::Writing(append) => append,
            LayerProgress::Needless => return Ok(()),
            LayerProgress::Abandoned | LayerProgress::Committed => return Err(abandoned()),
        };
        if !append.missing_layers().contains(&layer) {
            return Err(Error::invalid(if layer < layout.layers() {
                format!("layer {layer} was stored already")
            } else {
                format!("layer {layer} does not exist; the namespace has {}", layout.layers())
            }));
        }
        if let Err(error) = append.store_layer(layer, blocks, &call) {
            work.progress = LayerProgress::Abandoned;
            return Err(to_error(error));
        }
        Ok(())
    }

    /// Starts [`LayerWriter::store_layer`] in the background; never waits. A full queue gives a transfer that has ended
    /// with an error, and the layer may be stored again. Cancelling the transfer abandons the put.
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
        let writer = self.another();
        let (door, lanes) = (&self.door, &self.lanes);
        let start = Start { door, lanes, direction: Direction::Store, timeout };
        start.run(refused, move |terms| writer.store_layer(layer, blocks, terms))
    }

    /// The same writer once more, for a transfer.
    fn another(&self) -> Self {
        Self {
            door: Arc::clone(&self.door),
            lanes: Arc::clone(&self.lanes),
            namespace: Arc::clone(&self.namespace),
            first: self.first,
            count: self.count,
            mark: self.mark,
            work: Arc::clone(&self.work),
        }
    }

    /// Makes the blocks visible; returns how many. Does not wait for a layer whose transfer has not started: wait for
    /// the transfers first.
    ///
    /// # Errors
    ///
    /// `Invalid` if a layer is missing (store it and commit again); `Unavailable` or `Poisoned` if it could not be made
    /// visible.
    pub fn commit(&self, terms: &Terms) -> Result<usize> {
        let store = self.door.enter()?;
        let engine = store.engine.as_ref();
        let call = terms.call(engine.clock.as_ref());
        let mut work = self.lock(&call, engine.clock.as_ref())?;
        let missing = match &work.progress {
            LayerProgress::Writing(append) => append.missing_layers(),
            LayerProgress::Needless => {
                work.progress = LayerProgress::Committed;
                return Ok(0);
            }
            LayerProgress::Abandoned => return Err(abandoned()),
            LayerProgress::Committed => return Err(committed_already()),
        };
        if let Some(layer) = missing.first() {
            return Err(Error::invalid(format!(
                "{} layers are missing, layer {layer} first; store them all before commit",
                missing.len()
            )));
        }
        let progress = std::mem::replace(&mut work.progress, LayerProgress::Committed);
        let LayerProgress::Writing(append) = progress else { return Err(abandoned()) };
        let appended = append.commit(&call).map_err(to_error)?;
        if !publish(engine, &store.merger, appended, (&call, self.mark)) {
            let message = "the index accepts no more entries, so the blocks are not kept";
            return Err(Error::new(ErrorKind::Unavailable, message));
        }
        store.merger.after_put();
        let blocks = self.count as u64;
        add(&engine.counters.put_calls, 1);
        add(&engine.counters.put_stored_blocks, blocks);
        add(&engine.counters.put_bytes, blocks * self.namespace.layout().block_bytes());
        Ok(self.count)
    }

    /// The put, once no other call writes a layer of it. To be called only in the process that opened the store.
    fn lock(&self, call: &Call, clock: &dyn Clock) -> Result<MutexGuard<'_, LayeredPut>> {
        loop {
            let locked = match call.timeout(clock).map_err(|late| to_error(late.into())) {
                Ok(None) => Some(self.work.lock()),
                Ok(Some(timeout)) => self.work.try_lock_for(timeout),
                // Without time left the layer fails, not the wait for a put that no other call uses.
                Err(late) => return self.work.try_lock().ok_or(late),
            };
            if let Some(work) = locked {
                return Ok(work);
            }
        }
    }
}

impl Drop for LayeredPut {
    /// In a forked child the put stays the parent's: abandoning it would write to the log.
    fn drop(&mut self) {
        let progress = std::mem::replace(&mut self.progress, LayerProgress::Abandoned);
        let LayerProgress::Writing(append) = progress else { return };
        if self.door.check_process().is_err() {
            std::mem::forget(append);
        } else if let Ok(_store) = self.door.enter() {
            // Closing waits for it, as for any call.
            drop(append);
        } else {
            append.leave();
        }
    }
}

fn committed_already() -> Error {
    Error::invalid("the blocks were committed already")
}

fn abandoned() -> Error {
    Error::new(ErrorKind::Unavailable, "an earlier layer could not be written; start the put again")
}
