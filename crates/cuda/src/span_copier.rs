//! The ways in which the GPU copies spans of registered memory.

use std::sync::Arc;

use parking_lot::Mutex;

use crate::driver::{CudaError, Driver};
use crate::kernel::{Kernel, Launcher, Piece};
use crate::spans::{Direction, Span};
use crate::stream::Stream;

/// Copies of one batched call. The driver holds their lists until it has read them.
const BATCH_SPANS: usize = 8_192;

/// How spans are copied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CopyWays {
    /// Spans of fewer bytes are copied by the kernel, all others by the copy engines.
    pub kernel_below: usize,
    /// Whether the copy engines get them in batches.
    pub in_batches: bool,
}

/// Copies spans in one direction.
#[derive(Debug)]
pub(crate) struct SpanCopier {
    direction: Direction,
    ways: Arc<Mutex<CopyWays>>,
    launcher: Option<Launcher>,
}

impl SpanCopier {
    /// A copier that uses the kernel if there is one and the GPU gives memory for its lists. `ways` may change.
    pub(crate) fn new(
        direction: Direction,
        ways: &Arc<Mutex<CopyWays>>,
        kernel: Option<&Arc<Kernel>>,
    ) -> Self {
        let launcher = kernel.and_then(|kernel| match Launcher::new(kernel) {
            Ok(launcher) => Some(launcher),
            Err(error) => {
                tracing::warn!(%error, "small pieces are copied by the copy engines of the GPU");
                None
            }
        });
        Self { direction, ways: Arc::clone(ways), launcher }
    }

    /// Queues the copies of spans.
    ///
    /// # Safety
    ///
    /// Both sides of each span stay valid until its copy has ended, nobody writes the source, and nobody else uses the
    /// destination.
    pub(crate) unsafe fn copy(&mut self, spans: &[Span], stream: &Stream) -> Result<(), CudaError> {
        let (direction, driver) = (self.direction, stream.device().enter()?);
        let ways = *self.ways.lock();
        let below = if self.launcher.is_some() { ways.kernel_below } else { 0 };
        let is_small = |span: &&Span| span.bytes < below && span.host.address.is_some();
        let (small, others): (Vec<Span>, Vec<Span>) = spans.iter().partition(is_small);
        if let Some(launcher) = self.launcher.as_mut().filter(|_| !small.is_empty()) {
            let pieces: Vec<Piece> = small.iter().map(|span| piece(direction, span)).collect();
            // SAFETY: the caller's.
            unsafe { launcher.launch(&pieces, stream) }?;
        }
        let is_registered = others.iter().all(|span| span.host.address.is_some());
        if ways.in_batches && is_registered {
            // SAFETY: the caller's.
            return unsafe { copy_in_batches(&driver, direction, &others, stream) };
        }
        for span in &others {
            // SAFETY: the caller's.
            unsafe { copy_one(&driver, direction, span, stream) }?;
        }
        Ok(())
    }
}

/// A span between addresses as the GPU has them.
fn piece(direction: Direction, span: &Span) -> Piece {
    let (host, device) = (span.host.address.expect("registered"), span.device);
    let (from, to) = match direction {
        Direction::ToDevice => (host, device),
        Direction::ToHost => (device, host),
    };
    Piece { from, to, bytes: span.bytes as u64 }
}

unsafe fn copy_in_batches(
    driver: &Driver,
    direction: Direction,
    spans: &[Span],
    stream: &Stream,
) -> Result<(), CudaError> {
    for part in spans.chunks(BATCH_SPANS) {
        let pieces = part.iter().map(|span| piece(direction, span));
        let (mut to, mut from): (Vec<u64>, Vec<u64>) = pieces.map(|one| (one.to, one.from)).unzip();
        let mut bytes: Vec<usize> = part.iter().map(|span| span.bytes).collect();
        // SAFETY: the caller's.
        unsafe { driver.copy_batch(&mut to, &mut from, &mut bytes, stream.handle().0) }?;
    }
    Ok(())
}

unsafe fn copy_one(
    driver: &Driver,
    direction: Direction,
    span: &Span,
    stream: &Stream,
) -> Result<(), CudaError> {
    let (host, stream) = (span.host.start.as_ptr().cast(), stream.handle().0);
    match direction {
        // SAFETY: the caller's.
        Direction::ToDevice => unsafe {
            driver.copy_to_device(span.device, host, span.bytes, stream)
        },
        // SAFETY: the caller's.
        Direction::ToHost => unsafe { driver.copy_to_host(host, span.device, span.bytes, stream) },
    }
}
