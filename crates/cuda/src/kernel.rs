//! The kernel that copies many small pieces: `kernel/copy.cu`, as PTX.

use std::ffi::c_void;
use std::sync::Arc;

use crate::device::Device;
use crate::driver::{CudaError, DevicePointer, Handle};
use crate::pinned::Pinned;
use crate::slots::{Slot, SlotMemory, SlotUse, Slots};
use crate::stream::{Event, Stream};

const PTX: &str = include_str!("../kernel/copy.ptx");
const NAME: &std::ffi::CStr = c"dalsegno_copy_pieces";

/// Blocks of threads. Measured on an H200: 8 reach the limit of the link from 16 KiB on, and slow a GEMM by 6%.
const BLOCKS: u32 = 8;
const THREADS: u32 = 512;
/// A longer piece would keep one block busy while the others have none left.
const MOST_PIECE_BYTES: usize = 64 << 10;

/// Pieces of one launch, and how many launches may be queued.
const LIST_PIECES: usize = 2_048;
const LISTS: usize = 16;

/// One contiguous copy, as the kernel reads it. Both addresses are as the GPU has them.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Piece {
    pub(crate) from: DevicePointer,
    pub(crate) to: DevicePointer,
    pub(crate) bytes: u64,
}

/// The kernel, loaded for one GPU.
#[derive(Debug)]
pub(crate) struct Kernel {
    device: Arc<Device>,
    module: Handle,
    function: Handle,
}

// SAFETY: the driver's handles may be used by any thread.
unsafe impl Send for Kernel {}
// SAFETY: as above.
unsafe impl Sync for Kernel {}

impl Kernel {
    /// Loads it. Fails if the driver does not know this version of PTX.
    pub(crate) fn load(device: &Arc<Device>) -> Result<Self, CudaError> {
        let driver = device.enter()?;
        let module = driver.load_module(PTX)?;
        let mut kernel =
            Self { device: Arc::clone(device), module, function: std::ptr::null_mut() };
        // SAFETY: the module was loaded above.
        kernel.function = unsafe { driver.function(module, NAME) }?;
        Ok(kernel)
    }
}

impl Drop for Kernel {
    fn drop(&mut self) {
        if self.device.is_here()
            && let Ok(driver) = self.device.enter()
        {
            // SAFETY: what launches it holds it until all launches have ended.
            let _ = unsafe { driver.unload_module(self.module) };
        }
    }
}

/// The kernel, and memory for the lists of pieces that it reads.
#[derive(Debug)]
pub(crate) struct Launcher {
    kernel: Arc<Kernel>,
    lists: Slots,
}

impl Launcher {
    pub(crate) fn new(kernel: &Arc<Kernel>) -> Result<Self, CudaError> {
        let list_bytes = LIST_PIECES * size_of::<Piece>();
        let memory = SlotMemory::Pinned(Pinned::allocate(&kernel.device, LISTS * list_bytes)?);
        Ok(Self { kernel: Arc::clone(kernel), lists: Slots::new(memory, list_bytes, LISTS) })
    }

    /// Queues the copies of all pieces.
    ///
    /// # Safety
    ///
    /// Both sides of each piece stay valid until the kernel has ended, nobody writes the source, and nobody else uses
    /// the destination.
    pub(crate) unsafe fn launch(
        &mut self,
        pieces: &[Piece],
        stream: &Stream,
    ) -> Result<(), CudaError> {
        let short: Vec<Piece> = pieces.iter().flat_map(|piece| piece.cut()).collect();
        for list in short.chunks(LIST_PIECES) {
            let slot = self.lists.take(stream)?;
            // SAFETY: the slot has bytes for so many pieces and their alignment, and its last reader has ended.
            unsafe {
                std::ptr::copy_nonoverlapping(
                    list.as_ptr(),
                    slot.start.as_ptr().cast(),
                    list.len(),
                );
            }
            // SAFETY: the caller's; the list stays as it is until the event below.
            let launched = unsafe { self.launch_list(slot, list.len(), stream) };
            let reader = Event::record(stream.device(), stream.handle()).map(Arc::new);
            let last_use = reader.clone().map_or(SlotUse::Unknown, SlotUse::Read);
            self.lists.give(slot, last_use);
            launched.and(reader.map(drop))?;
        }
        Ok(())
    }

    unsafe fn launch_list(
        &self,
        slot: Slot,
        count: usize,
        stream: &Stream,
    ) -> Result<(), CudaError> {
        let driver = self.kernel.device.enter()?;
        let address = slot.address.expect("lists are in pinned memory");
        let (mut list, mut count) = (address, u32::try_from(count).expect("bounded"));
        let mut arguments = [(&raw mut list).cast::<c_void>(), (&raw mut count).cast::<c_void>()];
        let (function, stream) = (self.kernel.function, stream.handle().0);
        // SAFETY: the function takes an address and a 32-bit number. The rest is the caller's.
        unsafe { driver.launch(function, BLOCKS, THREADS, &mut arguments, stream) }
    }
}

impl Piece {
    /// The same copy in pieces of at most [`MOST_PIECE_BYTES`].
    fn cut(self) -> impl Iterator<Item = Self> {
        let Self { from, to, bytes } = self;
        (0..bytes).step_by(MOST_PIECE_BYTES).map(move |offset| Self {
            from: from + offset,
            to: to + offset,
            bytes: (bytes - offset).min(MOST_PIECE_BYTES as u64),
        })
    }
}
