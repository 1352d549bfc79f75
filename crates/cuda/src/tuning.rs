//! Which way copies of one size are fastest: measured, as it depends on the GPU, its link and the driver.

use std::sync::Arc;
use std::time::Duration;

use dalsegno_core::Clock;
use dalsegno_io::SystemClock;
use parking_lot::Mutex;

use crate::device::{Device, DeviceFacts};
use crate::driver::{CudaError, DevicePointer};
use crate::kernel::Kernel;
use crate::pinned::Pinned;
use crate::span_copier::{CopyWays, SpanCopier};
use crate::spans::{Direction, HostSide, Span};
use crate::stream::Stream;

/// Below this size a batched copy becomes one copy per piece, on an H200.
const BATCH_FROM: usize = 32 << 10;
/// The kernel must be so much faster: it slows other kernels by 6%, the copy engines by 3%.
const KERNEL_GAIN: f64 = 1.25;
const SAMPLE_BYTES: usize = 8 << 20;
const MOST_PIECES: usize = 2_048;
/// Each way is measured so often, the first time to warm up.
const ROUNDS: u32 = 4;
const MOST_TIME: Duration = Duration::from_millis(100);

/// What is assumed before it was measured.
pub(crate) fn assumed(facts: &DeviceFacts) -> CopyWays {
    CopyWays { kernel_below: BATCH_FROM, in_batches: facts.copies_batches }
}

/// Measures the kernel against the copy engines for pieces of one size.
pub(crate) fn measure(
    device: &Arc<Device>,
    kernel: &Arc<Kernel>,
    piece_bytes: usize,
) -> Result<CopyWays, CudaError> {
    let assumed = assumed(device.facts());
    let sample = Sample::new(device, piece_bytes)?;
    let clock = SystemClock::new();
    let until = clock.now().after(MOST_TIME);
    let speed = |kernel_below| {
        let ways = Arc::new(Mutex::new(CopyWays { kernel_below, ..assumed }));
        let mut copier = SpanCopier::new(Direction::ToDevice, &ways, Some(kernel));
        let mut best = Duration::MAX;
        for _ in 0..ROUNDS {
            let began = clock.now();
            if let Err(error) = sample.copy(&mut copier) {
                // The GPU may still read its lists.
                std::mem::forget(copier);
                return Err(error);
            }
            best = best.min(clock.now().since(began));
            if clock.now() > until {
                break;
            }
        }
        Ok(sample.bytes() / best.as_secs_f64().max(1e-9) / 1e9)
    };
    let (by_kernel, by_engines): (f64, f64) = (speed(usize::MAX)?, speed(0)?);
    let takes_kernel = by_kernel > KERNEL_GAIN * by_engines;
    let kernel_below = if takes_kernel { piece_bytes + 1 } else { piece_bytes.min(BATCH_FROM) };
    tracing::info!(
        piece_bytes,
        kernel_gb_per_s = format!("{by_kernel:.1}"),
        engines_gb_per_s = format!("{by_engines:.1}"),
        way = if takes_kernel { "kernel" } else { "copy engines" },
        "copies to the GPU were measured"
    );
    Ok(CopyWays { kernel_below, ..assumed })
}

/// Memory on both sides, and pieces in it.
struct Sample {
    device: Arc<Device>,
    stream: Stream,
    /// Never read. Keeps one side; `None` only while it is dropped.
    host: Option<Pinned>,
    scratch: DevicePointer,
    spans: Vec<Span>,
}

impl Sample {
    fn new(device: &Arc<Device>, piece_bytes: usize) -> Result<Self, CudaError> {
        let count = (SAMPLE_BYTES / piece_bytes.max(1)).clamp(1, MOST_PIECES);
        let bytes = count * piece_bytes;
        let host = Pinned::allocate(device, bytes)?;
        let stream = Stream::create(device)?;
        let scratch = device.enter()?.allocate(bytes)?;
        // Odd steps through the sources: neighbours do not follow each other.
        let source = |at: usize| at * 641 % count * piece_bytes;
        let span = |at: usize| Span {
            host: HostSide {
                start: host.part(source(at), piece_bytes),
                address: Some(host.address(source(at))),
            },
            device: scratch + (at * piece_bytes) as u64,
            bytes: piece_bytes,
        };
        let spans = (0..count).map(span).collect();
        Ok(Self { device: Arc::clone(device), stream, host: Some(host), scratch, spans })
    }

    #[expect(clippy::cast_precision_loss, reason = "a few megabytes")]
    fn bytes(&self) -> f64 {
        self.spans.iter().map(|span| span.bytes).sum::<usize>() as f64
    }

    fn copy(&self, copier: &mut SpanCopier) -> Result<(), CudaError> {
        // SAFETY: both sides belong to the sample, which waits for the copies below, or when it is dropped.
        unsafe { copier.copy(&self.spans, &self.stream) }?;
        self.stream.synchronize()
    }
}

impl Drop for Sample {
    fn drop(&mut self) {
        if self.stream.synchronize().is_err() {
            // The GPU may still use both sides.
            std::mem::forget(self.host.take());
        } else if let Ok(driver) = self.device.enter() {
            // SAFETY: all copies have ended.
            let _ = unsafe { driver.free(self.scratch) };
        }
    }
}
