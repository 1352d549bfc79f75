//! The device of one log.

use std::sync::Arc;

use dalsegno_extent::DeviceIo;

use crate::stats::LogStats;
use crate::sync::Syncer;

/// What everything in a log that touches its device shares.
#[derive(Clone, Debug)]
pub(crate) struct LogDevice {
    pub(crate) io: Arc<DeviceIo>,
    pub(crate) syncer: Arc<Syncer>,
    pub(crate) stats: Arc<LogStats>,
}

impl LogDevice {
    /// A device that was not written yet. `read_only` refuses all writes.
    pub(crate) fn new(io: DeviceIo, read_only: bool) -> Self {
        let io = Arc::new(io);
        let stats = Arc::new(LogStats::of(Arc::clone(&io.stats)));
        let syncer = Arc::new(Syncer::new(Arc::clone(&io), Arc::clone(&stats), read_only));
        Self { io, syncer, stats }
    }
}
