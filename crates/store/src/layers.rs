//! Putting blocks layer by layer, as a forward pass produces them.

use std::sync::Arc;

use dalsegno_core::{ChainHash, Error, ErrorKind, Namespace, NamespaceId, Result};
use dalsegno_io::Memory;
use dalsegno_log::LayerAppend;

use crate::put::{check_blocks, stretches};
use crate::stats::add;
use crate::store::{Store, to_error};
use crate::terms::Terms;

/// Blocks that are put one layer at a time; nothing is visible before [`LayerWriter::commit`].
#[derive(Debug)]
pub struct LayerWriter {
    store: Store,
    namespace: Arc<Namespace>,
    append: Option<LayerAppend>,
    first: usize,
    count: usize,
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
                "{count} blocks from position {first} do not fit a chain of {} hashes",
                chain.len()
            )));
        };
        let first = first + inner.index.probe(namespace.id(), &chain[first..end]);
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
            Some(inner.log.begin_layers(extent, place))
        };
        Ok(LayerWriter { store: self.clone(), namespace, append, first, count, committed: false })
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
    pub fn store_layer(
        &mut self,
        layer: u32,
        blocks: Vec<Vec<Memory>>,
        terms: &Terms,
    ) -> Result<()> {
        let inner = self.store.enter()?;
        if self.committed {
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
        let Some(append) = &mut self.append else {
            return if self.count == 0 { Ok(()) } else { Err(given_up()) };
        };
        if !append.missing_layers().contains(&layer) {
            return Err(Error::invalid(if layer < layout.layers() {
                format!("layer {layer} was stored already")
            } else {
                format!("layer {layer} does not exist; the namespace has {}", layout.layers())
            }));
        }
        let call = terms.call(inner.clock.as_ref());
        if let Err(error) = append.store_layer(layer, blocks, &call) {
            self.append = None;
            return Err(to_error(error));
        }
        Ok(())
    }

    /// Makes the blocks visible; returns how many.
    ///
    /// # Errors
    ///
    /// `Invalid` if a layer is missing (store it and commit again); `Unavailable` or `Poisoned` if it could not be made
    /// visible.
    pub fn commit(&mut self, terms: &Terms) -> Result<usize> {
        let inner = self.store.enter()?;
        if self.committed {
            return Err(Error::invalid("the blocks were committed already"));
        }
        if self.count == 0 {
            self.committed = true;
            return Ok(0);
        }
        let missing = self.append.as_ref().ok_or_else(given_up)?.missing_layers();
        if let Some(layer) = missing.first() {
            return Err(Error::invalid(format!(
                "{} layers are missing, layer {layer} first; store them all before commit",
                missing.len()
            )));
        }
        let append = self.append.take().ok_or_else(given_up)?;
        self.committed = true;
        let call = terms.call(inner.clock.as_ref());
        inner.publish(append.commit(&call).map_err(to_error)?, &call);
        let blocks = self.count as u64;
        add(&inner.counters.put_calls, 1);
        add(&inner.counters.put_stored_blocks, blocks);
        add(&inner.counters.put_bytes, blocks * self.namespace.layout().block_bytes());
        Ok(self.count)
    }
}

impl Drop for LayerWriter {
    /// In a forked child the put stays the parent's: giving it up would write to the log.
    fn drop(&mut self) {
        if !self.store.door.process.is_this() {
            std::mem::forget(self.append.take());
        }
    }
}

fn given_up() -> Error {
    Error::new(ErrorKind::Unavailable, "an earlier layer could not be written; start the put again")
}
