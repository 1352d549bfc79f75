//! A source or a device, and what every transfer needs next to it: clock, staging buffers, bounds and counters.

use std::any::Any;
use std::fmt;
use std::ops::Deref;
use std::sync::Arc;
use std::time::Duration;

use dalsegno_core::{Class, Clock};
use dalsegno_io::{BufferPool, Call, Device, FileId, Source};

use super::plan::{DirectUse, PlanRules};
use crate::stats::TransferStats;

/// Operations that no caller started fail after this long, so that no caller waits forever for a device that hangs.
const OWN_LIMIT: Duration = Duration::from_secs(60);

/// How much one call may have in flight.
#[derive(Clone, Copy, Debug)]
pub struct IoBounds {
    /// Requests of one call.
    pub depth: u32,
    /// Bytes of one request.
    pub request_bytes: u64,
}

/// A source of bytes with its clock, its staging buffers and the counters of transfers.
#[derive(Debug)]
pub struct SourceIo {
    /// The source.
    pub source: Arc<dyn Source>,
    /// The clock of deadlines.
    pub clock: Arc<dyn Clock>,
    /// Staging buffers.
    pub pool: BufferPool,
    /// How much one call may have in flight.
    pub bounds: IoBounds,
    /// The counters.
    pub stats: Arc<TransferStats>,
}

/// A device, and what moves bytes to and from its files.
#[derive(Debug)]
pub struct DeviceIo {
    /// The device.
    pub device: Arc<dyn Device>,
    /// The same device as a source.
    pub transfers: Arc<SourceIo>,
}

impl DeviceIo {
    /// A device with new counters.
    #[must_use]
    pub fn new(
        device: Arc<dyn Device>,
        clock: Arc<dyn Clock>,
        pool: BufferPool,
        bounds: IoBounds,
    ) -> Self {
        let source = Arc::clone(&device) as Arc<dyn Source>;
        let transfers = SourceIo { source, clock, pool, bounds, stats: Arc::default() };
        Self { device, transfers: Arc::new(transfers) }
    }
}

impl Deref for DeviceIo {
    type Target = SourceIo;

    fn deref(&self) -> &SourceIo {
        &self.transfers
    }
}

/// A file, and a guard that keeps the bytes at their place as long as a request holds it.
#[derive(Clone)]
pub struct PinnedFile {
    /// The file.
    pub file: FileId,
    /// Held by every request until the device is done with it.
    pub guard: Arc<dyn Any + Send + Sync>,
}

impl fmt::Debug for PinnedFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PinnedFile({:?})", self.file)
    }
}

impl SourceIo {
    /// How pieces become requests. Only a call that waits for its requests may `allow_direct` use of its memory.
    #[must_use]
    pub fn rules(&self, allow_direct: bool) -> PlanRules {
        self.rules_for(if allow_direct { DirectUse::All } else { DirectUse::Outliving })
    }

    /// How pieces become requests that use staging buffers only.
    pub(crate) fn staged_rules(&self) -> PlanRules {
        self.rules_for(DirectUse::Never)
    }

    fn rules_for(&self, direct: DirectUse) -> PlanRules {
        PlanRules {
            limit: usize::try_from(self.bounds.request_bytes).expect("64-bit addresses"),
            memory_align: self.source.geometry().memory_align,
            direct,
        }
    }

    /// The terms of small operations that no caller started, but that callers may wait for: at most [`OWN_LIMIT`].
    #[must_use]
    pub fn own_call(&self) -> Call {
        let call = Call::of(Class::Need);
        let limit = call.at_most(OWN_LIMIT, self.clock.as_ref());
        call.until(limit)
    }
}

/// Requests in flight of a store that is read offline.
const OFFLINE_DEPTH: u32 = 8;

/// The device of a store that nobody has open.
#[must_use]
pub fn offline_io(device: Arc<dyn Device>, clock: Arc<dyn Clock>, pool: BufferPool) -> DeviceIo {
    let bounds = IoBounds { depth: OFFLINE_DEPTH, request_bytes: pool.largest() as u64 };
    DeviceIo::new(device, clock, pool, bounds)
}
