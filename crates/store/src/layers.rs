//! Putting blocks layer by layer, as a forward pass produces them.
//!
//! 1. Layers of one put are written one at a time; whoever comes meanwhile waits within its terms.
//! 2. A put whose layer could not be written is given up, and so is one whose writer and transfers are all gone.

use std::sync::Arc;
use std::time::Duration;

use dalsegno_core::{ChainHash, Clock, Error, ErrorKind, Namespace, NamespaceId, Result};
use dalsegno_io::{IoError, Memory, Operation, patiently};
use dalsegno_log::{Call, LayerAppend};
use parking_lot::{Mutex, MutexGuard};

use crate::put::{check_blocks, stretches};
use crate::stats::add;
use crate::store::{Store, to_error};
use crate::terms::Terms;
use crate::transfer::{Direction, Transfer};

/// Blocks that are put one layer at a time; nothing is visible before [`LayerWriter::commit`].
#[derive(Debug)]
pub struct LayerWriter {
    store: Store,
    namespace: Arc<Namespace>,
    first: usize,
    count: usize,
    work: Arc<Mutex<Work>>,
}

/// What the transfers of a writer share with it.
#[derive(Debug)]
struct Work {
    store: Store,
    /// None if there is nothing to write, or the put was given up.
    append: Option<LayerAppend>,
    committed: bool,
}

impl Store {
    /// Starts a put of `chain[first..first + count]` whose layers follow. Leading blocks that are present are left out.
    /// Room is found within `terms`.
    ///
    /// # Errors
    ///
    /// `Invalid` if the blocks do not fit into one extent or into the chain; `Full`, `Poisoned`, `Unavailable`,
    /// `Closed`.
    pub fn layer_writer(
        &self,
        namespace: NamespaceId,
        chain: &[ChainHash],
        first: usize,
        count: usize,
        terms: &Terms,
    ) -> Result<LayerWriter> {
        let inner = self.enter()?;
        let call = terms.call(inner.clock.as_ref());
        let namespace = inner.namespace(namespace)?;
        let end = first.checked_add(count).filter(|end| *end <= chain.len());
        let Some(end) = end else {
            return Err(Error::invalid(format!(
                "first is {first} and count is {count}; together they must be at most the {} hashes of the chain",
                chain.len()
            )));
        };
        if inner.watch.refuses(Operation::Write, &call) {
            return Err(to_error(IoError::Suspended.into()));
        }
        let present = || inner.index.probe(namespace.id(), &chain[first..end]);
        let present = patiently(call.deadline, inner.clock.as_ref(), present);
        let present = &chain[first..first + present];
        let failed = inner.failed_reads.among(namespace.id(), present);
        let first = first + present.iter().take_while(|hash| failed.first() != Some(hash)).count();
        let count = end - first;
        let parts = stretches(&vec![true; count], &namespace, &inner.limits);
        if parts.len() > 1 {
            return Err(Error::invalid(format!(
                "{count} blocks do not fit into one extent; write at most {} at a time",
                parts[0].count
            )));
        }
        let append = if parts.is_empty() {
            None
        } else {
            let extent = inner.new_extent(&namespace, chain, first, chain[first..end].to_vec());
            let place = inner.reserve(extent.total_bytes(), &call).map_err(to_error)?;
            Some(LayerAppend::begin(inner.log.writer(), extent, place))
        };
        let work = Work { store: self.clone(), append, committed: false };
        let work = Arc::new(Mutex::new(work));
        Ok(LayerWriter { store: self.clone(), namespace, first, count, work })
    }
}

impl LayerWriter {
    /// Position in the chain of the first block that is wanted.
    #[must_use]
    pub fn first(&self) -> usize {
        self.first
    }

    /// Blocks that every layer must bring; zero if all are present.
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
        let inner = self.store.enter()?;
        let call = terms.call(inner.clock.as_ref());
        let mut work = self.lock(&call, inner.clock.as_ref())?;
        if work.committed {
            return Err(Error::invalid("the blocks were committed already"));
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
        let Some(append) = &mut work.append else {
            return if self.count == 0 { Ok(()) } else { Err(given_up()) };
        };
        if !append.missing_layers().contains(&layer) {
            return Err(Error::invalid(if layer < layout.layers() {
                format!("layer {layer} was stored already")
            } else {
                format!("layer {layer} does not exist; the namespace has {}", layout.layers())
            }));
        }
        if let Err(error) = append.store_layer(layer, blocks, &call) {
            work.append = None;
            return Err(to_error(error));
        }
        Ok(())
    }

    /// Starts [`LayerWriter::store_layer`] in the background; never waits. A full queue gives a transfer that has ended
    /// with an error, and the layer may be stored again. One that is called off gives the put up.
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
        let (store, work) = (self.store.clone(), Arc::clone(&self.work));
        let (namespace, first, count) = (Arc::clone(&self.namespace), self.first, self.count);
        let writer = Self { store, namespace, first, count, work };
        self.store.start(Direction::Store, refused, timeout, move |_, terms| {
            writer.store_layer(layer, blocks, terms)
        })
    }

    /// Makes the blocks visible; returns how many. Waits for no layer whose transfer has not begun: end them first.
    ///
    /// # Errors
    ///
    /// `Invalid` if a layer is missing (store it and commit again); `Unavailable` or `Poisoned` if it could not be made
    /// visible.
    pub fn commit(&self, terms: &Terms) -> Result<usize> {
        let inner = self.store.enter()?;
        let call = terms.call(inner.clock.as_ref());
        let mut work = self.lock(&call, inner.clock.as_ref())?;
        if work.committed {
            return Err(Error::invalid("the blocks were committed already"));
        }
        if self.count == 0 {
            work.committed = true;
            return Ok(0);
        }
        let missing = work.append.as_ref().ok_or_else(given_up)?.missing_layers();
        if let Some(layer) = missing.first() {
            return Err(Error::invalid(format!(
                "{} layers are missing, layer {layer} first; store them all before commit",
                missing.len()
            )));
        }
        let append = work.append.take().ok_or_else(given_up)?;
        work.committed = true;
        let appended = append.commit(&call).map_err(to_error)?;
        if !patiently(call.deadline, inner.clock.as_ref(), || inner.publish(appended, &call)) {
            let message = "the index takes nothing in, so the blocks are not kept";
            return Err(Error::new(ErrorKind::Unavailable, message));
        }
        inner.merge_inline();
        let blocks = self.count as u64;
        add(&inner.counters.put_calls, 1);
        add(&inner.counters.put_stored_blocks, blocks);
        add(&inner.counters.put_bytes, blocks * self.namespace.layout().block_bytes());
        Ok(self.count)
    }

    /// The put, once nobody else writes a layer of it. To be asked only in the process that opened the store.
    fn lock(&self, call: &Call, clock: &dyn Clock) -> Result<MutexGuard<'_, Work>> {
        loop {
            let locked = match call.timeout(clock).map_err(to_error) {
                Ok(None) => Some(self.work.lock()),
                Ok(Some(patience)) => self.work.try_lock_for(patience),
                // Without time left it is the layer that fails, not the wait for a put that nobody else uses.
                Err(late) => return self.work.try_lock().ok_or(late),
            };
            if let Some(work) = locked {
                return Ok(work);
            }
        }
    }
}

impl Drop for Work {
    /// In a forked child the put stays the parent's: giving it up would write to the log.
    fn drop(&mut self) {
        let Some(append) = self.append.take() else { return };
        if self.store.check_process().is_err() {
            std::mem::forget(append);
        } else if let Ok(_inner) = self.store.enter() {
            // As any call: closing waits for it.
            drop(append);
        } else {
            append.leave();
        }
    }
}

fn given_up() -> Error {
    Error::new(ErrorKind::Unavailable, "an earlier layer could not be written; start the put again")
}
