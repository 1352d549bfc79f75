//! Watches the device, and stops using it while it hangs or fails.
//!
//! 1. Only requests with a deadline that somebody waits for are refused, and never a sync. A call without a deadline
//!    waits, and background work must not be left half-way.
//! 2. Every request is watched until the device has completed it, also when its caller left.
//! 3. No caller's read is spent on finding out whether the device works again: a single sector is read for that.
//! 4. The directory stays locked until every write and sync is complete, also one whose caller or store is gone. A late
//!    write could otherwise land where the next owner has written.

use std::sync::Arc;

use dalsegno_core::{Class, Clock, Deadline, SECTOR_BYTES};
use dalsegno_io::{
    BufferPool, Call, Device, DirEntry, DirectoryLock, FileId, Geometry, IoError, OpenMode, Opened,
    Operation, Purpose, Request, Source, Space, Watch,
};
use dalsegno_policy::breaker::{Breaker, BreakerRules, RequestKind, Verdict};
use parking_lot::Mutex;
use serde::Serialize;

use super::direction::{DirectionWatch, WatchedDirection};
use super::guarded::{Admission, Guarded};

/// Whether the device responds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct DeviceStats {
    /// Reads: `"working"`; `"suspended"` while the device hangs or fails, so that no reads are sent; or `"trying"`,
    /// while a read finds out whether it works again.
    pub reads: &'static str,
    /// The same of writes and syncs.
    pub writes: &'static str,
    /// How often reads were suspended.
    pub read_suspensions: u64,
    /// How often writes were suspended.
    pub write_suspensions: u64,
    /// Requests that were refused meanwhile.
    pub refused_requests: u64,
    /// Requests that are in flight.
    pub owed_requests: u64,
}

/// A device that gets requests only as long as it responds. Its directory is ours as long as it may be written.
#[derive(Debug)]
pub(crate) struct Watched {
    /// The first field: its engine completes waiting requests before the lock is released.
    device: Arc<dyn Device>,
    reads: [Arc<DirectionWatch>; 2],
    writes: [Arc<DirectionWatch>; 2],
    /// What is read to find out whether the device works again.
    trial: Mutex<Option<(FileId, BufferPool)>>,
}

impl Watched {
    /// Watches a device; `lock` is released when nothing can use the device any more and every write is complete.
    pub(crate) fn new(
        device: Arc<dyn Device>,
        clock: &Arc<dyn Clock>,
        lock: Option<DirectoryLock>,
    ) -> Self {
        Self {
            device,
            reads: WatchedDirection::watches("reads", BreakerRules::READS, clock, None),
            writes: WatchedDirection::watches("writes", BreakerRules::WRITES, clock, lock),
            trial: Mutex::default(),
        }
    }

    /// What the device requires of memory, and which engine serves it.
    pub(crate) fn geometry(&self) -> Geometry {
        self.device.geometry()
    }

    /// Sets the file whose first sector trial reads read, and the pool that gives them memory.
    pub(crate) fn try_with(&self, file: &str, pool: BufferPool) {
        match self.device.open(file, OpenMode::Read) {
            Ok(opened) => *self.trial.lock() = Some((opened.file, pool)),
            Err(error) => {
                tracing::debug!(%error, "no trial reads; requests of callers try the device");
            }
        }
    }

    /// Whether a request of such a call would be refused.
    pub(crate) fn refuses(&self, operation: Operation, call: &Call) -> bool {
        call.purpose.is_refusable
            && call.deadline.is_bounded()
            && self.watches(operation)[0].side.with(Breaker::refuses)
    }

    /// Whether reads are suspended. Sends a trial read periodically, because no caller reads any more.
    pub(crate) fn is_suspended(&self) -> bool {
        let [usual, trial] = &self.reads;
        match usual.side.with(Breaker::admit) {
            Verdict::Admit => false,
            Verdict::Refuse => true,
            Verdict::Trial => {
                usual.side.with(|breaker, now| breaker.begin(now, RequestKind::Trial));
                let watch = Arc::clone(trial) as Arc<dyn Watch>;
                if !self.read_a_sector(&watch) {
                    watch.ended(Err(&IoError::Suspended));
                }
                usual.side.with(Breaker::refuses)
            }
        }
    }

    pub(crate) fn stats(&self) -> DeviceStats {
        self.is_suspended();
        let look = |[usual, _]: &[Arc<DirectionWatch>; 2]| {
            let view = |breaker: &mut Breaker, now| {
                (breaker.state(now).name(), breaker.suspensions(), breaker.in_flight())
            };
            usual.side.with(view)
        };
        let (reads, writes) = (look(&self.reads), look(&self.writes));
        DeviceStats {
            reads: reads.0,
            writes: writes.0,
            read_suspensions: reads.1,
            write_suspensions: writes.1,
            refused_requests: self.reads[0].side.refused() + self.writes[0].side.refused(),
            owed_requests: reads.2 + writes.2,
        }
    }

    fn watches(&self, operation: Operation) -> &[Arc<DirectionWatch>; 2] {
        match operation {
            Operation::Read => &self.reads,
            Operation::Write | Operation::Sync => &self.writes,
        }
    }

    fn watches_of(&self, mode: OpenMode) -> &[Arc<DirectionWatch>; 2] {
        if matches!(mode, OpenMode::Create { .. }) { &self.writes } else { &self.reads }
    }

    /// Sends a read of one sector; `false` if that is not possible.
    fn read_a_sector(&self, watch: &Arc<dyn Watch>) -> bool {
        let Some((file, pool)) = self.trial.lock().clone() else { return false };
        let bytes = usize::try_from(SECTOR_BYTES).expect("64-bit addresses");
        let Some(memory) = pool.try_take(bytes) else { return false };
        self.device.submit(vec![Request {
            operation: Operation::Read,
            purpose: Purpose::of(Class::Need),
            file,
            offset: 0,
            memory: vec![memory],
            tag: 0,
            deadline: Deadline::Never,
            guard: None,
            watch: Some(Arc::clone(watch)),
            reply: crossbeam_channel::bounded(1).0,
        }]);
        true
    }
}

impl Guarded for Watched {
    fn admit(&self, request: Request) -> Option<(Request, Admission)> {
        let watches = self.watches(request.operation);
        DirectionWatch::admit(watches, request, |request, watch| {
            request.operation == Operation::Read && self.read_a_sector(watch)
        })
    }

    fn begin(&self, request: &mut Request) {
        self.watches(request.operation)[0].begin(request);
    }

    fn source(&self) -> &dyn Source {
        self.device.as_ref()
    }
}

/// Watches a request that the caller's thread carries out.
fn watching<R>(
    [usual, _]: &[Arc<DirectionWatch>; 2],
    work: impl FnOnce() -> Result<R, IoError>,
) -> Result<R, IoError> {
    usual.side.with(|breaker, now| breaker.begin(now, RequestKind::Regular));
    let done = work();
    usual.ended(done.as_ref().map(|_| ()));
    done
}

impl Watched {
    pub(super) fn open(&self, name: &str, mode: OpenMode) -> Result<Opened, IoError> {
        watching(self.watches_of(mode), || self.device.open(name, mode))
    }

    pub(super) fn open_cached(&self, name: &str, mode: OpenMode) -> Result<Opened, IoError> {
        watching(self.watches_of(mode), || self.device.open_cached(name, mode))
    }

    pub(super) fn read_at(
        &self,
        file: FileId,
        offset: u64,
        buffer: &mut [u8],
    ) -> Result<(), IoError> {
        watching(&self.reads, || self.device.read_at(file, offset, buffer))
    }

    pub(super) fn try_read_at(
        &self,
        file: FileId,
        offset: u64,
        buffer: &mut [u8],
    ) -> Result<bool, IoError> {
        self.device.try_read_at(file, offset, buffer)
    }

    pub(super) fn close(&self, file: FileId) {
        self.device.close(file);
    }

    pub(crate) fn remove(&self, name: &str) -> Result<(), IoError> {
        watching(&self.writes, || self.device.remove(name))
    }

    pub(super) fn sync_names(&self) -> Result<(), IoError> {
        watching(&self.writes, || self.device.sync_names())
    }

    pub(super) fn list(&self) -> Result<Vec<DirEntry>, IoError> {
        self.device.list()
    }

    pub(super) fn space(&self) -> Result<Space, IoError> {
        self.device.space()
    }
}
