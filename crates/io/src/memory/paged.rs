//! The KV cache of an engine: a buffer of pages for each layer, and which pages hold which blocks.
//!
//! 1. All bytes of all pages are inside the buffers, and no two pages overlap. Both are checked when the memory is
//!    described.
//! 2. A page belongs to at most one [`PagedBlocks`] at a time. These are either filled, and then each slice is taken at
//!    most once, or only read. So no two pieces of memory overlap of which one is written.
//! 3. A page is free again when its [`PagedBlocks`] and all memory that was taken of it are gone.

use std::any::Any;
use std::fmt;
use std::ptr::NonNull;
use std::sync::Arc;

use dalsegno_core::{Error, ErrorKind, Result};
use parking_lot::Mutex;

use super::copies::Copier;
use super::handle::Memory;
use super::page_shape::PageShape;
use super::page_slice::{DevicePiece, DeviceSlice, PageSlice, StreamPoint};
use crate::Process;

/// The memory of an engine. The engine keeps using it. It must be described once: two descriptions of one buffer do not
/// know which pages the other one has given away.
pub struct PagedMemory {
    buffers: PageBuffers,
    shape: PageShape,
    /// For each page whether it belongs to some [`PagedBlocks`].
    used: Mutex<Vec<bool>>,
    process: Process,
    /// Never read. Keeps the buffers.
    _owner: Arc<dyn Any + Send + Sync>,
}

// SAFETY: the buffers are plain memory that `_owner` keeps, for any thread. Access is ruled by invariant 2.
unsafe impl Send for PagedMemory {}
// SAFETY: as above; `&PagedMemory` gives no access by itself.
unsafe impl Sync for PagedMemory {}

/// The buffers of the layers.
enum PageBuffers {
    /// In memory of this machine.
    Memory(Vec<NonNull<u8>>),
    /// In memory of a device, by their addresses there.
    Device { starts: Vec<u64>, copier: Arc<dyn Copier> },
}

/// Blocks of a chain in pages of an engine. Nobody else has their memory.
pub struct PagedBlocks {
    pages: Arc<UsedPages>,
    after: Option<StreamPoint>,
}

/// The pages of some blocks, in use until this is dropped.
struct UsedPages {
    memory: Arc<PagedMemory>,
    /// The pages of each block, one block after the other.
    table: Vec<u32>,
    slices: Mutex<SliceUse>,
}

/// What the slices of some blocks are used for.
enum SliceUse {
    Unused,
    /// Filled: for each slice, layer-major, whether its memory was taken.
    Filled(Vec<bool>),
    /// Read.
    Read,
}

impl PagedMemory {
    /// Describes a KV cache of `pages` pages: one buffer of `buffer_bytes` bytes for each layer.
    ///
    /// # Errors
    ///
    /// `Invalid` if there is no layer, or if the pages are not inside the buffers or overlap.
    ///
    /// # Safety
    ///
    /// `owner` keeps every buffer valid for reads and writes, and buffers of two layers do not overlap. From the moment
    /// when [`PagedMemory::blocks`] gives pages until the last memory of them is dropped, nobody else writes these
    /// pages, and nobody else reads those that are written.
    pub unsafe fn new(
        layers: Vec<NonNull<u8>>,
        buffer_bytes: usize,
        pages: usize,
        shape: PageShape,
        owner: Arc<dyn Any + Send + Sync>,
    ) -> Result<Self> {
        Self::of(PageBuffers::Memory(layers), buffer_bytes, pages, shape, owner)
    }

    /// As [`PagedMemory::new`], for buffers in the memory of a device: `starts` has the address there of each. `copier`
    /// alone reads and writes them.
    ///
    /// # Errors
    ///
    /// As [`PagedMemory::new`]; also if an address is zero, or so high that a buffer has no end, or if buffers overlap.
    ///
    /// # Safety
    ///
    /// As [`PagedMemory::new`], for what the device reads and writes.
    pub unsafe fn on_device(
        starts: Vec<u64>,
        buffer_bytes: usize,
        pages: usize,
        shape: PageShape,
        copier: Arc<dyn Copier>,
        owner: Arc<dyn Any + Send + Sync>,
    ) -> Result<Self> {
        let is_address =
            |start: &u64| *start > 0 && start.checked_add(buffer_bytes as u64).is_some();
        if let Some(start) = starts.iter().find(|start| !is_address(start)) {
            let message = format!("no buffer of {buffer_bytes} bytes is at address {start}");
            return Err(Error::invalid(message));
        }
        let mut sorted = starts.clone();
        sorted.sort_unstable();
        if sorted.windows(2).any(|pair| pair[1] - pair[0] < buffer_bytes as u64) {
            return Err(Error::invalid("the buffers of two layers overlap"));
        }
        Self::of(PageBuffers::Device { starts, copier }, buffer_bytes, pages, shape, owner)
    }

    fn of(
        buffers: PageBuffers,
        buffer_bytes: usize,
        pages: usize,
        shape: PageShape,
        owner: Arc<dyn Any + Send + Sync>,
    ) -> Result<Self> {
        if buffers.len() == 0 || pages == 0 {
            return Err(Error::invalid("a KV cache needs at least one layer and one page"));
        }
        shape.check(pages, buffer_bytes)?;
        let (used, process) = (Mutex::new(vec![false; pages]), Process::this());
        Ok(Self { buffers, shape, used, process, _owner: owner })
    }

    /// Pages of zeros in memory of its own, to be read through [`PagedBlocks::take_slice`]. For programs without an
    /// engine.
    ///
    /// # Errors
    ///
    /// As [`PagedMemory::new`].
    pub fn zeroed(
        layers: usize,
        buffer_bytes: usize,
        pages: usize,
        shape: PageShape,
    ) -> Result<Arc<Self>> {
        if buffer_bytes == 0 {
            return Err(Error::invalid("a buffer of no bytes has no pages"));
        }
        let mut buffers: Vec<Memory> = (0..layers).map(|_| Memory::zeroed(buffer_bytes)).collect();
        let start = |buffer: &mut Memory| NonNull::from(buffer.as_mut_slice()).cast();
        let starts = buffers.iter_mut().map(start).collect();
        // SAFETY: the owner keeps the buffers, which do not overlap, and gives nobody access to them.
        unsafe { Self::new(starts, buffer_bytes, pages, shape, Arc::new(buffers)) }.map(Arc::new)
    }

    /// Number of layers.
    #[must_use]
    pub fn layers(&self) -> usize {
        self.buffers.len()
    }

    /// The shape of its pages.
    #[must_use]
    pub fn shape(&self) -> &PageShape {
        &self.shape
    }

    /// The blocks whose pages `table` lists, one block after the other. Their pages are in use until the blocks and all
    /// memory of them are gone.
    ///
    /// # Errors
    ///
    /// `Invalid` if a page does not exist, is in use or is listed twice, or if the last block has too few pages.
    /// `Unavailable` in a forked child.
    pub fn blocks(self: &Arc<Self>, table: Vec<u32>) -> Result<PagedBlocks> {
        if !self.process.is_this() {
            let message = "the pages belong to the process that forked this one";
            return Err(Error::new(ErrorKind::Unavailable, message));
        }
        let per_block = self.shape.pages_per_block;
        if !table.len().is_multiple_of(per_block) {
            let count = table.len();
            return Err(Error::invalid(format!("{count} pages, but each block has {per_block}")));
        }
        let mut used = self.used.lock();
        for (at, page) in table.iter().enumerate() {
            let fault = match used.get_mut(*page as usize) {
                None => "does not exist",
                Some(true) => "is listed twice, or another load or store uses it",
                Some(is_used) => {
                    *is_used = true;
                    continue;
                }
            };
            table[..at].iter().for_each(|page| used[*page as usize] = false);
            return Err(Error::invalid(format!("page {page} {fault}")));
        }
        drop(used);
        let slices = Mutex::new(SliceUse::Unused);
        let pages = UsedPages { memory: Arc::clone(self), table, slices };
        Ok(PagedBlocks { pages: Arc::new(pages), after: None })
    }
}

impl PageBuffers {
    fn len(&self) -> usize {
        match self {
            Self::Memory(starts) => starts.len(),
            Self::Device { starts, .. } => starts.len(),
        }
    }
}

impl PagedBlocks {
    /// The same pages, which their device still uses up to `point`: they are filled after that.
    #[must_use]
    pub fn used_until(self, point: StreamPoint) -> Self {
        Self { after: Some(point), ..self }
    }

    /// What their device does before they are filled.
    #[must_use]
    pub fn after(&self) -> Option<&StreamPoint> {
        self.after.as_ref()
    }

    /// What copies their bytes, if they are in memory of a device.
    #[must_use]
    pub fn copier(&self) -> Option<&Arc<dyn Copier>> {
        match &self.pages.memory.buffers {
            PageBuffers::Memory(_) => None,
            PageBuffers::Device { copier, .. } => Some(copier),
        }
    }

    /// Number of blocks.
    #[must_use]
    pub fn len(&self) -> usize {
        self.pages.table.len() / self.pages.memory.shape.pages_per_block
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.pages.table.is_empty()
    }

    /// Number of layers.
    #[must_use]
    pub fn layers(&self) -> usize {
        self.pages.memory.layers()
    }

    /// Bytes of one layer of one block.
    #[must_use]
    pub fn slice_bytes(&self) -> usize {
        self.pages.memory.shape.slice_bytes()
    }

    /// Whether nothing was filled or read yet.
    #[must_use]
    pub fn is_unused(&self) -> bool {
        matches!(*self.pages.slices.lock(), SliceUse::Unused)
    }

    /// Takes the memory of one layer of one block, to be filled, in the order of its bytes; `None` if it was taken
    /// before, or if the pages are read.
    ///
    /// # Panics
    ///
    /// If the block or the layer does not exist.
    #[must_use]
    pub fn take_slice(&self, block: usize, layer: u32) -> Option<PageSlice> {
        let (blocks, layers) = (self.len(), self.layers());
        assert!(block < blocks && (layer as usize) < layers, "no layer {layer} of block {block}");
        let mut slices = self.pages.slices.lock();
        if matches!(*slices, SliceUse::Unused) {
            *slices = SliceUse::Filled(vec![false; blocks * layers]);
        }
        let SliceUse::Filled(taken) = &mut *slices else { return None };
        if std::mem::replace(&mut taken[layer as usize * blocks + block], true) {
            return None;
        }
        Some(self.slice(block, layer, true))
    }

    /// The memory of one layer of one block, to be read, in the order of its bytes; `None` if the pages are filled.
    ///
    /// # Panics
    ///
    /// As [`PagedBlocks::take_slice`].
    #[must_use]
    pub fn read_slice(&self, block: usize, layer: u32) -> Option<PageSlice> {
        let mut slices = self.pages.slices.lock();
        if matches!(*slices, SliceUse::Filled(_)) {
            return None;
        }
        *slices = SliceUse::Read;
        Some(self.slice(block, layer, false))
    }

    /// The memory of all layers of one block, to be read, one layer after the other; `None` if the pages are filled.
    ///
    /// # Panics
    ///
    /// If the block does not exist.
    #[must_use]
    pub fn read_block(&self, block: usize) -> Option<PageSlice> {
        let layers = u32::try_from(self.layers()).expect("bounded by the namespace");
        let slices = (0..layers).map(|layer| self.read_slice(block, layer));
        slices.collect::<Option<Vec<_>>>().map(PageSlice::join)
    }

    fn slice(&self, block: usize, layer: u32, writable: bool) -> PageSlice {
        let UsedPages { memory, table, .. } = &*self.pages;
        let PageShape { stride, parts, pages_per_block } = &memory.shape;
        let pages = &table[block * pages_per_block..(block + 1) * pages_per_block];
        let ranges = pages.iter().flat_map(|page| {
            parts.iter().map(|part| (*page as usize * stride + part.offset, part.bytes))
        });
        let owner = || -> Arc<dyn Any + Send + Sync> { Arc::clone(&self.pages) as _ };
        match &memory.buffers {
            PageBuffers::Device { starts, .. } => {
                let start = starts[layer as usize];
                let piece = |(at, bytes)| DevicePiece { address: start + at as u64, bytes };
                PageSlice::Device(DeviceSlice::new(ranges.map(piece).collect(), owner()))
            }
            PageBuffers::Memory(starts) => {
                let start = starts[layer as usize];
                let piece = |(at, bytes)| {
                    // SAFETY: the part is inside the buffer of the layer (invariant 1), which the owner keeps. Nobody
                    // else has memory of it that one of both writes (invariant 2), and the engine does not use it: the
                    // promise of `PagedMemory::new`.
                    unsafe { Memory::from_raw(start.add(at), bytes, writable, owner()) }
                };
                PageSlice::Memory(ranges.map(piece).collect())
            }
        }
    }
}

impl Drop for UsedPages {
    fn drop(&mut self) {
        // In a forked child, a thread of the parent may hold the lock forever.
        if self.memory.process.is_this() {
            let mut used = self.memory.used.lock();
            self.table.iter().for_each(|page| used[*page as usize] = false);
        }
    }
}

impl fmt::Debug for PagedMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PagedMemory({} layers, {:?})", self.layers(), self.shape)
    }
}

impl fmt::Debug for PagedBlocks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PagedBlocks({} blocks)", self.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    use super::super::page_shape::PagePart;
    use PagedMemory as Paged;

    fn shape(stride: usize, parts: &[(usize, usize)], pages_per_block: usize) -> PageShape {
        let parts = parts.iter().map(|(offset, bytes)| PagePart { offset: *offset, bytes: *bytes });
        PageShape { stride, parts: parts.collect(), pages_per_block }
    }

    proptest! {
        #[test]
        fn accepted_pages_are_inside_their_buffer_and_disjoint(
            stride in 1_usize..40,
            pages in 1_usize..6,
            parts in prop::collection::vec((0_usize..100, 1_usize..30), 1..4),
        ) {
            let buffer = 160;
            let covered: Vec<usize> = parts
                .iter()
                .flat_map(|(offset, bytes)| {
                    (0..pages).flat_map(move |page| page * stride + offset..page * stride + offset + bytes)
                })
                .collect();
            let is_inside = covered.iter().all(|byte| *byte < buffer);
            let distinct: std::collections::BTreeSet<_> = covered.iter().collect();
            // One page may be longer than the stride; such shapes are refused all the same.
            let is_short = parts.iter().all(|(_, bytes)| *bytes <= stride);
            let expected = is_inside && distinct.len() == covered.len() && is_short;
            prop_assert_eq!(Paged::zeroed(1, buffer, pages, shape(stride, &parts, 1)).is_ok(), expected);
        }
    }

    #[test]
    fn a_slice_has_the_parts_of_its_pages_in_order_and_is_taken_once() {
        // Keys of four pages, then values of four pages, with gaps between the pages.
        let memory = Paged::zeroed(2, 96, 4, shape(12, &[(0, 10), (48, 10)], 2)).unwrap();
        let PageBuffers::Memory(starts) = &memory.buffers else { unreachable!("in memory") };
        let start = starts[1].as_ptr() as usize;
        let blocks = memory.blocks(vec![3, 0, 1, 2]).unwrap();
        assert_eq!((blocks.len(), blocks.slice_bytes()), (2, 40));
        let slice = blocks.take_slice(0, 1).unwrap().into_memory();
        let offsets: Vec<_> = slice.iter().map(|piece| piece.address() - start).collect();
        assert_eq!(offsets, [36, 84, 0, 48]);
        assert!(blocks.take_slice(0, 1).is_none() && blocks.take_slice(0, 0).is_some());
        assert!(blocks.read_slice(0, 1).is_none(), "the pages are filled");
        drop((slice, blocks));
        let blocks = memory.blocks(vec![3, 0]).unwrap();
        assert!(blocks.is_unused());
        let reads = [(); 2].map(|()| blocks.read_slice(0, 1).unwrap().into_memory());
        assert!(reads.iter().flatten().all(|piece| !piece.is_writable()));
        assert!(blocks.take_slice(0, 0).is_none() && !blocks.is_unused());
    }

    #[test]
    fn a_page_is_in_use_until_the_last_memory_of_it_is_gone() {
        let memory = Paged::zeroed(1, 40, 4, shape(10, &[(0, 10)], 1)).unwrap();
        let refused = |table: &[u32]| memory.blocks(table.to_vec()).unwrap_err().to_string();
        assert!(refused(&[4]).contains("page 4 does not exist"));
        assert!(refused(&[1, 2, 1]).contains("page 1 is listed twice"));
        let blocks = memory.blocks(vec![1, 2]).unwrap();
        let slice = blocks.take_slice(1, 0).unwrap();
        drop(blocks);
        assert!(refused(&[0, 2]).contains("another load or store uses it"));
        drop(slice);
        assert_eq!(memory.blocks(vec![0, 2]).unwrap().len(), 2);
    }

    #[test]
    fn shapes_without_pages_parts_or_layers_are_refused() {
        let part = [(0, 10)];
        assert!(Paged::zeroed(1, 40, 4, shape(10, &part, 0)).is_err());
        assert!(Paged::zeroed(1, 40, 4, shape(10, &[], 1)).is_err());
        assert!(Paged::zeroed(0, 40, 4, shape(10, &part, 1)).is_err());
        assert!(Paged::zeroed(1, 40, 0, shape(10, &part, 1)).is_err());
        assert!(Paged::zeroed(1, 40, 4, shape(usize::MAX, &part, 1)).is_err());
        let three = Paged::zeroed(1, 40, 4, shape(10, &part, 3)).unwrap();
        assert!(three.blocks(vec![0, 1]).unwrap_err().to_string().contains("each block has 3"));
    }
}
