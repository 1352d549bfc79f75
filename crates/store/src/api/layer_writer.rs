//! Putting blocks layer by layer, as a forward pass produces them: for a store of this process and for a served one.
//!
//! 1. Layers are copied into memory of the store. The commit puts the blocks like any other put.
//! 2. Before the commit nothing is written, so a put that is abandoned leaves nothing.
//! 3. Layers of one put are copied one at a time. A layer counts as stored when all of its bytes were copied.

use std::collections::BTreeSet;
use std::fmt;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use dalsegno_core::{ChainHash, Class, Clock, Error, ErrorKind, KvLayout, Result};
use dalsegno_io::{
    Call, Copier, CopyBatch, Memory, PageSlice, PagedBlocks, SliceCopy, StreamPoint, copy_all,
};
use parking_lot::{Mutex, MutexGuard};

use crate::error::to_error;
use crate::jobs::transfers::Transfer;
use crate::keep::Keep;
use crate::put::report::{PutOutcome, PutReport};
use crate::sizes::{check_layer, check_page_sizes, check_sizes};
use crate::terms::Terms;

/// Which blocks of a chain a writer puts.
#[derive(Clone, Copy, Debug)]
pub struct LayerSpan<'a> {
    /// Hashes of consecutive blocks of a prompt.
    pub chain: &'a [ChainHash],
    /// The position in `chain` of the first block.
    pub first: usize,
    /// The number of blocks.
    pub count: usize,
}

impl<'a> LayerSpan<'a> {
    /// The hashes of the blocks.
    ///
    /// # Errors
    ///
    /// `Invalid` if the chain has fewer.
    pub fn hashes(&self) -> Result<&'a [ChainHash]> {
        let Self { chain, first, count } = *self;
        let end = first.checked_add(count).filter(|end| *end <= chain.len());
        let Some(end) = end else {
            return Err(Error::invalid(format!(
                "first is {first} and count is {count}; together they must be at most the {} hashes of the chain",
                chain.len()
            )));
        };
        Ok(&chain[first..end])
    }
}

/// The store that a writer belongs to.
pub trait LayerHost: fmt::Debug + Send + Sync {
    /// Its clock. Fails with `Closed`, or `Unavailable` in a forked child.
    fn enter(&self) -> Result<Arc<dyn Clock>>;

    /// What copies layers.
    fn copier(&self) -> Arc<dyn Copier>;

    /// Starts work in the background; never waits. `refused` is the result if too much waits already.
    fn start(&self, work: LayerWork, timeout: Option<Duration>, refused: Error) -> Transfer<()>;
}

/// Work for [`LayerHost::start`].
pub type LayerWork = Box<dyn FnOnce(&Terms) -> Result<()> + Send>;

/// The memory in which a put by layer gathers its blocks.
pub trait GatheredBlocks: fmt::Debug + Send {
    /// Copies one layer of all blocks. Fails with `Unavailable` if there is no memory.
    fn fill(&mut self, layer: GatheredLayer, copier: &dyn Copier) -> Result<()>;

    /// Puts the blocks, once they are complete.
    fn put(self: Box<Self>, keep: Keep, terms: &Terms) -> Result<GatheredPut>;
}

/// One layer of gathered blocks.
#[derive(Debug)]
pub struct GatheredLayer {
    /// Where it starts in each block.
    pub offset: usize,
    /// Its bytes in each block.
    pub bytes: usize,
    /// Its bytes of all blocks.
    pub slices: LayerSlices,
}

/// One layer of blocks, wherever it is.
#[derive(Debug)]
pub struct LayerSlices {
    slices: Vec<PageSlice>,
    copier: Option<Arc<dyn Copier>>,
    after: Option<StreamPoint>,
}

impl FromIterator<Vec<Memory>> for LayerSlices {
    fn from_iter<T: IntoIterator<Item = Vec<Memory>>>(blocks: T) -> Self {
        let slices = blocks.into_iter().map(PageSlice::Memory).collect();
        Self { slices, copier: None, after: None }
    }
}

impl LayerSlices {
    /// Copies each slice to the memory at its position, and waits for that. `copier` copies those in memory of this
    /// machine.
    ///
    /// # Errors
    ///
    /// `Unavailable` if a copy failed.
    pub fn copy_to(self, to: impl Iterator<Item = Memory>, fallback: &dyn Copier) -> Result<()> {
        let Self { slices, copier: of_device, after } = self;
        let pairs = slices.into_iter().zip(to);
        let copies = pairs.map(|(from, to)| SliceCopy::new(from.into(), to.into())).collect();
        let is_copied =
            copy_all(of_device.as_deref().unwrap_or(fallback), CopyBatch { copies, after });
        let message = "a layer could not be copied; store it again";
        if is_copied { Ok(()) } else { Err(Error::new(ErrorKind::Unavailable, message)) }
    }
}

/// How a put of gathered blocks ended. Neither counts blocks that were declined or removed, or that another put is
/// writing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GatheredPut {
    /// How many blocks are visible.
    pub visible: usize,
    /// How many could not be stored.
    pub failed: usize,
}

impl From<&PutReport> for GatheredPut {
    fn from(report: &PutReport) -> Self {
        let visible = report.kept().iter().filter(|kept| **kept).count();
        let failed = report.outcomes.iter().filter(|one| **one == PutOutcome::Failed).count();
        Self { visible, failed }
    }
}

/// Blocks that are put one layer at a time; nothing is visible before [`LayerWriter::commit`].
#[derive(Clone, Debug)]
pub struct LayerWriter {
    host: Arc<dyn LayerHost>,
    layout: KvLayout,
    first: usize,
    count: usize,
    progress: Arc<Mutex<LayerProgress>>,
}

/// How far a put by layer is.
#[derive(Debug)]
enum LayerProgress {
    /// All blocks are present.
    Needless,
    /// Layers are missing, or the commit is.
    Gathering {
        blocks: Box<dyn GatheredBlocks>,
        layers: BTreeSet<u32>,
    },
    Committed,
}

impl LayerWriter {
    /// A writer of `count` blocks, the first of which is at `first` of its chain. `blocks` is `None` if all blocks are
    /// present.
    #[must_use]
    pub fn new(
        host: Arc<dyn LayerHost>,
        layout: KvLayout,
        first: usize,
        count: usize,
        blocks: Option<Box<dyn GatheredBlocks>>,
    ) -> Self {
        let progress = match blocks {
            Some(blocks) => LayerProgress::Gathering { blocks, layers: BTreeSet::new() },
            None => LayerProgress::Needless,
        };
        Self { host, layout, first, count, progress: Arc::new(Mutex::new(progress)) }
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

    /// Stores one layer, of the blocks from `first()` on. The bytes were copied when it returns. A
    /// layer that failed may be stored again.
    ///
    /// # Errors
    ///
    /// `Invalid` for a wrong layer, count or size, or after the commit; `Unavailable` if the time was up first;
    /// `Closed`.
    pub fn store_layer(&self, layer: u32, blocks: LayerSlices, terms: &Terms) -> Result<()> {
        check_layer(layer, self.layout.layers())?;
        let bytes = self.layout.slice_bytes() as usize;
        let filled = GatheredLayer { offset: layer as usize * bytes, bytes, slices: blocks };
        self.store(layer..layer + 1, filled, terms)
    }

    /// Stores all layers, of the blocks from `first()` on. Otherwise as [`LayerWriter::store_layer`].
    ///
    /// # Errors
    ///
    /// As [`LayerWriter::store_layer`]; `Invalid` also if a layer was stored before.
    pub fn store_blocks(&self, blocks: LayerSlices, terms: &Terms) -> Result<()> {
        let bytes = usize::try_from(self.layout.block_bytes()).expect("64-bit addresses");
        let filled = GatheredLayer { offset: 0, bytes, slices: blocks };
        self.store(0..self.layout.layers(), filled, terms)
    }

    fn store(&self, stored: Range<u32>, filled: GatheredLayer, terms: &Terms) -> Result<()> {
        let clock = self.host.enter()?;
        let call = terms.call_of(Class::Save, clock.as_ref());
        let given = &filled.slices.slices;
        if given.len() != self.count {
            let (given, count) = (given.len(), self.count);
            return Err(Error::invalid(format!("{given} slices for {count} blocks")));
        }
        check_sizes(given.iter().map(PageSlice::bytes), filled.bytes as u64)?;
        let mut progress = self.lock(&call, clock.as_ref())?;
        let (gathered, layers) = match &mut *progress {
            LayerProgress::Gathering { blocks, layers } => (blocks, layers),
            LayerProgress::Needless => return Ok(()),
            LayerProgress::Committed => return Err(committed_already()),
        };
        if let Some(layer) = stored.clone().find(|layer| layers.contains(layer)) {
            return Err(Error::invalid(format!("layer {layer} was stored already")));
        }
        call.check(clock.as_ref()).map_err(|stopped| to_error(stopped.into()))?;
        gathered.fill(filled, self.host.copier().as_ref())?;
        layers.extend(stored);
        Ok(())
    }

    /// The slices of one layer in the pages of an engine, for [`LayerWriter::store_layer`]. `pages` are those of all
    /// blocks of the writer, and `after` a point in the work of their device by which the layer is there.
    ///
    /// # Errors
    ///
    /// `Invalid` if the pages have another shape, if there is no such layer, or if a load fills the pages.
    pub fn slices_of(
        &self,
        pages: &PagedBlocks,
        layer: u32,
        after: Option<StreamPoint>,
    ) -> Result<LayerSlices> {
        check_layer(layer, self.layout.layers())?;
        self.read(pages, after, |block| pages.read_slice(block, layer))
    }

    /// All layers in the pages of an engine, for [`LayerWriter::store_blocks`]. Otherwise as
    /// [`LayerWriter::slices_of`].
    ///
    /// # Errors
    ///
    /// As [`LayerWriter::slices_of`].
    pub fn blocks_of(
        &self,
        pages: &PagedBlocks,
        after: Option<StreamPoint>,
    ) -> Result<LayerSlices> {
        self.read(pages, after, |block| pages.read_block(block))
    }

    fn read(
        &self,
        pages: &PagedBlocks,
        after: Option<StreamPoint>,
        read: impl Fn(usize) -> Option<PageSlice>,
    ) -> Result<LayerSlices> {
        check_page_sizes(self.layout, self.count, pages)?;
        let filled = || Error::invalid("a load fills these pages; wait for its end");
        let slices = (0..self.count).map(read).collect::<Option<_>>().ok_or_else(filled)?;
        Ok(LayerSlices { slices, copier: pages.copier().cloned(), after })
    }

    /// Starts [`LayerWriter::store_layer`] in the background; never waits. A full queue gives a transfer that has ended
    /// with an error, and the layer may be stored again.
    #[must_use]
    pub fn submit_store_layer(
        &self,
        layer: u32,
        blocks: LayerSlices,
        timeout: Option<Duration>,
    ) -> Transfer<()> {
        self.submit(timeout, move |writer, terms| writer.store_layer(layer, blocks, terms))
    }

    /// Starts [`LayerWriter::store_blocks`] in the background, as [`LayerWriter::submit_store_layer`] does.
    #[must_use]
    pub fn submit_store_blocks(
        &self,
        blocks: LayerSlices,
        timeout: Option<Duration>,
    ) -> Transfer<()> {
        self.submit(timeout, move |writer, terms| writer.store_blocks(blocks, terms))
    }

    fn submit(
        &self,
        timeout: Option<Duration>,
        work: impl FnOnce(&Self, &Terms) -> Result<()> + Send + 'static,
    ) -> Transfer<()> {
        let message =
            "too many transfers are waiting; wait for one of them and store the layer again";
        let refused = Error::new(ErrorKind::Unavailable, message);
        let writer = self.clone();
        self.host.start(Box::new(move |terms| work(&writer, terms)), timeout, refused)
    }

    /// Starts [`LayerWriter::commit`] in the background; never waits. A full queue gives a transfer that has ended with
    /// an error: then the blocks may be committed again.
    #[must_use]
    pub fn submit_commit(&self, keep: Keep, timeout: Option<Duration>) -> Transfer<()> {
        let message = "too many transfers are waiting; wait for one of them and commit again";
        let refused = Error::new(ErrorKind::Unavailable, message);
        let writer = self.clone();
        let work = move |terms: &Terms| writer.commit(keep, terms).map(drop);
        self.host.start(Box::new(work), timeout, refused)
    }

    /// Puts the blocks; returns how many are visible then: all of them, but for those that were removed since the
    /// writer was made, that were declined, or that another put is writing. Does not wait for a layer whose transfer
    /// has not started: wait for the transfers first.
    ///
    /// # Errors
    ///
    /// `Invalid` if a layer is missing (store it and commit again); `Unavailable` or `Poisoned` if blocks could not be
    /// stored, also for lack of time: what was gathered is gone then; `Closed`.
    pub fn commit(&self, keep: Keep, terms: &Terms) -> Result<usize> {
        let clock = self.host.enter()?;
        let call = terms.call_of(Class::Save, clock.as_ref());
        let mut progress = self.lock(&call, clock.as_ref())?;
        let missing: Vec<u32> = match &*progress {
            LayerProgress::Gathering { layers, .. } => {
                (0..self.layout.layers()).filter(|layer| !layers.contains(layer)).collect()
            }
            LayerProgress::Needless => Vec::new(),
            LayerProgress::Committed => return Err(committed_already()),
        };
        if let Some(layer) = missing.first() {
            return Err(Error::invalid(format!(
                "{} layers are missing, layer {layer} first; store them all before commit",
                missing.len()
            )));
        }
        let ended = std::mem::replace(&mut *progress, LayerProgress::Committed);
        // Another call on this writer does not wait for the put.
        drop(progress);
        let LayerProgress::Gathering { blocks, .. } = ended else { return Ok(0) };
        let timeout = call.deadline.remaining(clock.now());
        let GatheredPut { visible, failed } =
            blocks.put(keep, &Terms { timeout, cancel: call.cancel })?;
        if failed == 0 {
            return Ok(visible);
        }
        let count = self.count;
        let message = format!(
            "{failed} of the {count} blocks of this put could not be stored; put them again"
        );
        Err(Error::new(ErrorKind::Unavailable, message))
    }

    /// The put, once no other call copies a layer of it.
    fn lock(&self, call: &Call, clock: &dyn Clock) -> Result<MutexGuard<'_, LayerProgress>> {
        loop {
            let locked = match call.timeout(clock).map_err(|stopped| to_error(stopped.into()))? {
                None => Some(self.progress.lock()),
                Some(timeout) => self.progress.try_lock_for(timeout),
            };
            if let Some(locked) = locked {
                return Ok(locked);
            }
        }
    }
}

fn committed_already() -> Error {
    Error::invalid("the blocks were committed already")
}
