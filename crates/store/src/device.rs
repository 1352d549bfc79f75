//! Watches the device, and stops using it while it hangs or fails.
//!
//! 1. Only requests with a deadline that somebody waits for are refused, and never a sync. A call without a deadline
//!    waits, and background work must not be left half-way.
//! 2. Every request is watched until the device has completed it, also when its caller left.
//! 3. No caller's read is spent on finding out whether the device works again: a single sector is read for that.
//! 4. The directory stays locked until every write and sync is complete, also one whose caller or store is gone. A late
//!    write could otherwise land where the next owner has written.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use dalsegno_core::{Clock, Deadline, Nanos, SECTOR_BYTES};
use dalsegno_io::{
    BufferPool, Call, CallRing, Class, Device, DirEntry, DirectoryLock, FileId, Geometry, IoError,
    OpenMode, Opened, Operation, Request, Source, Space, Watch,
};
use dalsegno_policy::breaker::{Breaker, BreakerRules, RequestKind, Response, Verdict};
use parking_lot::Mutex;
use serde::Serialize;

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

/// Reads, or writes and syncs.
#[derive(Debug)]
struct WatchedDirection {
    what: &'static str,
    breaker: Mutex<Breaker>,
    clock: Arc<dyn Clock>,
    refused: AtomicU64,
    /// Of writes (invariant 4); `None` where there is nothing to lock.
    _lock: Option<DirectoryLock>,
}

/// Reports to a side how a request ended.
#[derive(Debug)]
struct DirectionWatch {
    side: Arc<WatchedDirection>,
    kind: RequestKind,
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

/// A source that gets reads only as long as it responds. It has no file to try it with: requests of callers try it.
#[derive(Debug)]
pub(crate) struct WatchedSource {
    source: Arc<dyn Source>,
    reads: [Arc<DirectionWatch>; 2],
}

impl WatchedSource {
    pub(crate) fn new(source: Arc<dyn Source>, what: &'static str, clock: &Arc<dyn Clock>) -> Self {
        Self { source, reads: WatchedDirection::watches(what, BreakerRules::READS, clock, None) }
    }

    /// The request with its watch if it may be sent; otherwise it is completed with an error.
    fn admit(&self, mut request: Request) -> Option<Request> {
        let [usual, trial] = &self.reads;
        let may_refuse = is_refusable(request.operation, request.class, request.deadline);
        let verdict = usual.side.verdict(may_refuse);
        if verdict == Verdict::Refuse {
            usual.side.refused.fetch_add(1, Ordering::Relaxed);
            request.complete(Err(IoError::Suspended));
            return None;
        }
        let watch = if verdict == Verdict::Trial { trial } else { usual };
        request.add_watch(Arc::clone(watch) as Arc<dyn Watch>);
        Some(request)
    }

    /// Whether reads are refused now.
    pub(crate) fn is_suspended(&self) -> bool {
        self.reads[0].side.with(Breaker::refuses)
    }

    /// Notes how something else ended that shows whether the source responds.
    pub(crate) fn note(&self, result: Result<(), &IoError>) {
        let [usual, _] = &self.reads;
        usual.side.with(|breaker, now| breaker.begin(now, RequestKind::Regular));
        usual.ended(result);
    }

    /// How often reads were suspended, and how many were refused.
    pub(crate) fn counts(&self) -> (u64, u64) {
        let side = &self.reads[0].side;
        (side.with(|breaker, _| breaker.suspensions()), side.refused.load(Ordering::Relaxed))
    }
}

impl WatchedDirection {
    fn watches(
        what: &'static str,
        rules: BreakerRules,
        clock: &Arc<dyn Clock>,
        lock: Option<DirectoryLock>,
    ) -> [Arc<DirectionWatch>; 2] {
        let (breaker, clock) = (Mutex::new(Breaker::new(rules)), Arc::clone(clock));
        let refused = AtomicU64::new(0);
        let side = Arc::new(Self { what, breaker, clock, refused, _lock: lock });
        [RequestKind::Regular, RequestKind::Trial]
            .map(|kind| Arc::new(DirectionWatch { side: Arc::clone(&side), kind }))
    }

    /// Whether a request may be sent. It counts as sent unless it is refused.
    fn verdict(&self, may_refuse: bool) -> Verdict {
        self.with(|breaker, now| {
            let verdict = if may_refuse { breaker.admit(now) } else { Verdict::Admit };
            match verdict {
                Verdict::Admit => breaker.begin(now, RequestKind::Regular),
                Verdict::Trial => breaker.begin(now, RequestKind::Trial),
                Verdict::Refuse => {}
            }
            verdict
        })
    }

    /// Lets `update` use the breaker, and logs if that suspends the device.
    fn with<R>(&self, update: impl FnOnce(&mut Breaker, Nanos) -> R) -> R {
        let now = self.clock.now();
        let mut breaker = self.breaker.lock();
        let before = breaker.suspensions();
        let answer = update(&mut breaker, now);
        let is_new = breaker.suspensions() > before;
        drop(breaker);
        if is_new {
            tracing::warn!(
                direction = self.what,
                "device suspended; a trial request checks it periodically"
            );
        }
        answer
    }
}

impl Watch for DirectionWatch {
    fn ended(&self, result: Result<(), &IoError>) {
        let response = match result {
            // A short read says that the file ends there.
            Ok(()) | Err(IoError::Short { operation: "read", .. }) => Response::Good,
            Err(IoError::Stopped(_) | IoError::Closed | IoError::Suspended) => Response::NotSent,
            Err(error) if error.is_no_space() || error.is_not_found() || error.is_exists() => {
                Response::Good
            }
            Err(IoError::Os { .. } | IoError::Short { .. }) => Response::Bad,
        };
        let ended = self.side.with(|breaker, now| breaker.end(now, self.kind, response));
        if let Some(suspended) = ended {
            tracing::warn!(
                direction = self.side.what,
                seconds = suspended.as_secs_f64(),
                "device resumed"
            );
        }
    }
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
        is_refusable(operation, call.class, call.deadline)
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
        let refused = |ending: &Arc<DirectionWatch>| ending.side.refused.load(Ordering::Relaxed);
        DeviceStats {
            reads: reads.0,
            writes: writes.0,
            read_suspensions: reads.1,
            write_suspensions: writes.1,
            refused_requests: refused(&self.reads[0]) + refused(&self.writes[0]),
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

    /// The request with its watch if it may go to the device; otherwise it is completed with an error.
    fn admit(&self, mut request: Request) -> Option<Request> {
        let [usual, trial] = self.watches(request.operation);
        let side = &usual.side;
        let may_refuse = is_refusable(request.operation, request.class, request.deadline);
        let verdict = side.verdict(may_refuse);
        let ending = if verdict == Verdict::Admit { usual } else { trial };
        let watch = Arc::clone(ending) as Arc<dyn Watch>;
        let is_read = request.operation == Operation::Read;
        let tried = verdict == Verdict::Trial && is_read && self.read_a_sector(&watch);
        if verdict != Verdict::Refuse && !tried {
            request.add_watch(watch);
            return Some(request);
        }
        side.refused.fetch_add(1, Ordering::Relaxed);
        request.complete(Err(IoError::Suspended));
        None
    }

    /// Sends a read of one sector; `false` if that is not possible.
    fn read_a_sector(&self, watch: &Arc<dyn Watch>) -> bool {
        let Some((file, pool)) = self.trial.lock().clone() else { return false };
        let bytes = usize::try_from(SECTOR_BYTES).expect("64-bit addresses");
        let Some(memory) = pool.try_take(bytes) else { return false };
        self.device.submit(vec![Request {
            operation: Operation::Read,
            class: Class::Foreground,
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

fn is_refusable(operation: Operation, class: Class, deadline: Deadline) -> bool {
    operation != Operation::Sync && class == Class::Foreground && deadline.is_bounded()
}

impl Source for WatchedSource {
    fn submit(&self, requests: Vec<Request>) {
        let admitted: Vec<_> =
            requests.into_iter().filter_map(|request| self.admit(request)).collect();
        if !admitted.is_empty() {
            self.source.submit(admitted);
        }
    }

    fn geometry(&self) -> Geometry {
        self.source.geometry()
    }
}

impl Source for Watched {
    fn submit(&self, requests: Vec<Request>) {
        let admitted: Vec<_> =
            requests.into_iter().filter_map(|request| self.admit(request)).collect();
        if !admitted.is_empty() {
            self.device.submit(admitted);
        }
    }

    fn call_ring(&self) -> Option<CallRing> {
        self.device.call_ring()
    }

    fn submit_on(&self, ring: &mut CallRing, request: Request) {
        if let Some(admitted) = self.admit(request) {
            self.device.submit_on(ring, admitted);
        }
    }

    fn geometry(&self) -> Geometry {
        self.device.geometry()
    }
}

impl Device for Watched {
    fn open(&self, name: &str, mode: OpenMode) -> Result<Opened, IoError> {
        watching(self.watches_of(mode), || self.device.open(name, mode))
    }

    fn open_cached(&self, name: &str, mode: OpenMode) -> Result<Opened, IoError> {
        watching(self.watches_of(mode), || self.device.open_cached(name, mode))
    }

    fn read_at(&self, file: FileId, offset: u64, buffer: &mut [u8]) -> Result<(), IoError> {
        watching(&self.reads, || self.device.read_at(file, offset, buffer))
    }

    fn try_read_at(&self, file: FileId, offset: u64, buffer: &mut [u8]) -> Result<bool, IoError> {
        self.device.try_read_at(file, offset, buffer)
    }

    fn close(&self, file: FileId) {
        self.device.close(file);
    }

    fn remove(&self, name: &str) -> Result<(), IoError> {
        watching(&self.writes, || self.device.remove(name))
    }

    fn sync_names(&self) -> Result<(), IoError> {
        watching(&self.writes, || self.device.sync_names())
    }

    fn list(&self) -> Result<Vec<DirEntry>, IoError> {
        self.device.list()
    }

    fn space(&self) -> Result<Space, IoError> {
        self.device.space()
    }
}

#[cfg(test)]
mod tests {
    use dalsegno_io::{DirectoryOptions, LocalDirectory, SystemClock};

    use super::*;

    #[test]
    fn regression_a_watch_behind_another_one_is_notified_too() {
        let dir = tempfile::tempdir().unwrap();
        let clock: Arc<dyn Clock> = Arc::new(SystemClock::new());
        let pool = BufferPool::new(16 << 20, 1 << 20).unwrap();
        let files = LocalDirectory::open(
            dir.path(),
            DirectoryOptions::default(),
            &pool,
            Arc::clone(&clock),
        );
        let inner = Arc::new(Watched::new(Arc::new(files.unwrap()), &clock, None));
        let outer = Watched::new(Arc::<Watched>::clone(&inner), &clock, None);
        let opened = outer.open("file", OpenMode::Create { bytes: SECTOR_BYTES }).unwrap();
        let (reply, answers) = crossbeam_channel::bounded(1);
        outer.submit(vec![Request {
            operation: Operation::Sync,
            class: Class::Foreground,
            file: opened.file,
            offset: 0,
            memory: Vec::new(),
            tag: 0,
            deadline: Deadline::Never,
            guard: None,
            watch: None,
            reply,
        }]);
        answers.recv().unwrap().result.unwrap();
        for watched in [&outer, inner.as_ref()] {
            assert_eq!(watched.stats().owed_requests, 0);
        }
    }
}
