//! The copier of a GPU.

use std::path::PathBuf;
use std::sync::Arc;

use dalsegno_io::{Copier, CopyBatch, CopyDone, CopyMark, Region, StreamPoint};
use parking_lot::Mutex;

use crate::device::{Device, DeviceFacts};
use crate::driver::{Absent, CudaError};
use crate::kernel::Kernel;
use crate::lane::Lane;
use crate::queue::QueueError;
use crate::registration::{RegistrationFacts, Registry};
use crate::span_copier::CopyWays;
use crate::spans::{Direction, Plan};
use crate::stream::{Event, StreamHandle};
use crate::tuning;

/// Copies of this many bytes of one load may be queued: 5 ms on a link of 55 GB/s.
const WINDOW_BYTES: usize = 256 << 20;

/// Memory is registered in whole pages.
const PAGE_BYTES: usize = 4096;

/// How a GPU is to be used.
#[derive(Clone, Debug, Default)]
pub struct GpuOptions {
    /// A library that takes the place of the driver's own.
    pub library: Option<PathBuf>,
    /// The number of the GPU among those that the process sees.
    pub index: u32,
    /// Bytes of the pieces in which memory is registered; 1 GiB unless given.
    pub piece_bytes: Option<usize>,
}

/// Why a GPU cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum GpuError {
    /// The driver does not work here.
    #[error(transparent)]
    Absent(#[from] Absent),
    /// Memory cannot be registered in such pieces.
    #[error("memory is registered in whole pages of {PAGE_BYTES} bytes, not in pieces of {0}")]
    Pieces(usize),
    /// The driver refused what a GPU needs.
    #[error("the GPU cannot be used: {0}")]
    Refused(#[from] QueueError),
}

impl From<std::io::Error> for GpuError {
    fn from(error: std::io::Error) -> Self {
        Self::Refused(QueueError::Thread(error))
    }
}

/// How copies are made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GpuFacts {
    /// The GPU and its driver.
    pub device: DeviceFacts,
    /// The ways of copies.
    pub ways: CopyWays,
    /// Why there is no kernel.
    pub kernel_refusal: Option<String>,
    /// The memory that was registered.
    pub registration: RegistrationFacts,
    /// Bytes that the processor copied, as their memory was not registered.
    pub buffered_bytes: u64,
}

/// One GPU: copies between its memory and that of this machine, on streams of its own.
#[derive(Debug)]
pub struct GpuCopier {
    to_device: Lane,
    to_host: Lane,
    registry: Registry,
    kernel: Result<Arc<Kernel>, CudaError>,
    /// Those of both lanes.
    ways: Arc<Mutex<CopyWays>>,
    device: Arc<Device>,
}

impl GpuCopier {
    /// Opens a GPU.
    ///
    /// # Errors
    ///
    /// [`GpuError`] says why it cannot be used.
    pub fn open(options: &GpuOptions) -> Result<Self, GpuError> {
        let GpuOptions { library, index, piece_bytes } = options;
        if let Some(bytes) = piece_bytes.filter(|bytes| *bytes == 0 || bytes % PAGE_BYTES != 0) {
            return Err(GpuError::Pieces(bytes));
        }
        let device = Arc::new(Device::open(library.as_deref(), *index)?);
        let kernel = Kernel::load(&device).map(Arc::new);
        if let Err(refusal) = &kernel {
            tracing::warn!(%refusal, "small pieces are copied by the copy engines of the GPU");
        }
        let ways = Arc::new(Mutex::new(tuning::assumed(device.facts())));
        let lane = |direction| Lane::start(&device, direction, &ways, kernel.as_ref().ok());
        let (to_device, to_host) = (lane(Direction::ToDevice)?, lane(Direction::ToHost)?);
        let registry = match piece_bytes {
            None => Registry::start(&device)?,
            Some(bytes) => Registry::with_pieces(&device, *bytes)?,
        };
        Ok(Self { to_device, to_host, registry, kernel, ways, device })
    }

    /// Measures which way is the fastest for pieces of this many bytes, for at most 100 ms, and takes it.
    pub fn tune(&self, piece_bytes: usize) {
        let Some(kernel) = self.kernel.as_ref().ok().filter(|_| self.device.is_here()) else {
            return;
        };
        match tuning::measure(&self.device, kernel, piece_bytes) {
            Ok(ways) => *self.ways.lock() = ways,
            // For lack of memory: the engine has most of it.
            Err(error) => tracing::info!(%error, "the ways to copy to the GPU were not measured"),
        }
    }

    /// Has a region registered in the background, unless it was before. Until then, and if it is refused, its bytes go
    /// through a buffer.
    pub fn register(&self, region: &Arc<Region>) {
        if self.device.is_here() {
            self.registry.register(region);
        }
    }

    /// The point behind all work that a stream of the engine has now.
    ///
    /// # Errors
    ///
    /// That of the driver, and if the work of the stream is captured for a graph. No other thread may begin to capture
    /// it meanwhile.
    pub fn point(&self, stream: StreamHandle) -> Result<StreamPoint, CudaError> {
        stream.check(&self.device)?;
        Ok(StreamPoint::new(Event::record(&self.device, stream)?))
    }

    /// Lets later work of a stream of the engine wait for the copies to the GPU up to a mark.
    ///
    /// # Errors
    ///
    /// That of the driver, and if the work of the stream is captured for a graph. No other thread may begin to capture
    /// it meanwhile.
    pub fn order(&self, stream: StreamHandle, mark: CopyMark) -> Result<(), CudaError> {
        stream.check(&self.device)?;
        self.to_device.marks().order(stream, mark)
    }

    /// How copies are made.
    #[must_use]
    pub fn facts(&self) -> GpuFacts {
        GpuFacts {
            device: self.device.facts().clone(),
            ways: *self.ways.lock(),
            kernel_refusal: self.kernel.as_ref().err().map(ToString::to_string),
            registration: self.registry.facts(),
            buffered_bytes: self.copied_bytes(),
        }
    }
}

impl Copier for GpuCopier {
    fn copy(&self, batch: CopyBatch, done: CopyDone) -> Option<CopyMark> {
        let CopyBatch { copies, after } = batch;
        if copies.is_empty() || !self.device.is_here() {
            done(copies.is_empty());
            return None;
        }
        let Some(plan) = Plan::of(copies, &self.registry) else {
            done(false);
            return None;
        };
        // A point of another copier says nothing about this GPU.
        let after = match after.as_ref().map(StreamPoint::get::<Event>) {
            None => None,
            Some(Some(event)) => Some(event),
            Some(None) => {
                drop(plan);
                done(false);
                return None;
            }
        };
        let lane = match plan.direction {
            Direction::ToDevice => &self.to_device,
            Direction::ToHost => &self.to_host,
        };
        lane.copy(plan, after, done)
    }

    fn copied_bytes(&self) -> u64 {
        self.to_device.buffered_bytes() + self.to_host.buffered_bytes()
    }

    fn window_bytes(&self) -> usize {
        WINDOW_BYTES
    }
}
