//! Work of one direction on a stream of its own, and what happens when it has ended.
//!
//! 1. Work ends in the order in which it was queued. Marks number it in this order.
//! 2. The end of each work is called once, by the thread of the queue, after its event. What work uses is kept until
//!    then.
//! 3. Work that the driver refused in part still has an end after whatever it began.
//! 4. A wait that the driver refuses is no end: the thread tries again. If it cannot learn whether work has ended, what
//!    that uses is never released.
//! 5. The thread ends when the queue was dropped and all work has ended.

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;

use dalsegno_io::{CopyMark, spawn};
use parking_lot::{Condvar, Mutex};

use crate::device::Device;
use crate::driver::CudaError;
use crate::stream::{Event, Stream, StreamHandle};

/// How often, and at which intervals, a refused wait is tried again.
const MOST_WAITS: u32 = 1_000;
const BETWEEN_WAITS: Duration = Duration::from_millis(2);

/// How work has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WorkOutcome {
    Succeeded,
    Failed,
    /// The driver does not work any more. The GPU may still use the memory of the work.
    Unknown,
}

/// Is called when work has ended.
pub(crate) type WorkEnd = Box<dyn FnOnce(WorkOutcome) + Send>;

/// A stream, and the work that it has.
#[derive(Debug)]
pub(crate) struct Queue {
    shared: Arc<QueueShared>,
}

#[derive(Debug)]
struct QueueShared {
    stream: Stream,
    state: Mutex<QueueState>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct QueueState {
    /// The mark of the last work.
    last: u64,
    running: VecDeque<RunningWork>,
    /// The mark of the last work whose end is unknown, and why.
    abandoned: Option<(CopyMark, CudaError)>,
    is_closed: bool,
}

struct RunningWork {
    mark: CopyMark,
    /// Shared with what waits for it meanwhile. `None` if the driver could not record one.
    event: Option<Arc<Event>>,
    was_queued: bool,
    end: WorkEnd,
}

impl std::fmt::Debug for RunningWork {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "RunningWork({:?})", self.mark)
    }
}

impl Queue {
    /// A queue whose thread has this name.
    pub(crate) fn start(device: &Arc<Device>, name: &str) -> Result<Self, QueueError> {
        let shared = Arc::new(QueueShared {
            stream: Stream::create(device)?,
            state: Mutex::default(),
            changed: Condvar::new(),
        });
        let of_thread = Arc::clone(&shared);
        spawn(name, move || of_thread.end_all())?;
        Ok(Self { shared })
    }

    pub(crate) fn stream(&self) -> &Stream {
        &self.shared.stream
    }

    /// Queues work. `queue` makes the calls that do so on a stream, in which it comes after the event `after`.
    pub(crate) fn submit(
        &mut self,
        after: Option<&Event>,
        queue: impl FnOnce(&Stream) -> Result<(), CudaError>,
        end: WorkEnd,
    ) -> Submitted {
        let QueueShared { stream, state, changed } = &*self.shared;
        let queued = after.map_or(Ok(()), |after| stream.wait(after)).and_then(|()| queue(stream));
        // Also behind what was queued before an error.
        let event = Event::record(stream.device(), stream.handle()).map(Arc::new);
        let failed = queued.as_ref().err().or(event.as_ref().err());
        if let Some(error) = failed {
            tracing::warn!(%error, "a copy between memory and the GPU failed");
        }
        let was_queued = failed.is_none();
        let event = event.ok();
        let mut state = state.lock();
        state.last += 1;
        let mark = CopyMark(state.last);
        state.running.push_back(RunningWork { mark, event: event.clone(), was_queued, end });
        changed.notify_all();
        Submitted { mark: was_queued.then_some(mark), event }
    }

    /// The marks of its work.
    pub(crate) fn marks(&self) -> Marks {
        Marks(Arc::clone(&self.shared))
    }
}

/// Work that was queued.
#[derive(Debug)]
pub(crate) struct Submitted {
    /// Its number, if the stream has all of it.
    pub(crate) mark: Option<CopyMark>,
    /// Its end; `None` if the driver could not record one.
    pub(crate) event: Option<Arc<Event>>,
}

/// The marks of a queue.
#[derive(Debug)]
pub(crate) struct Marks(Arc<QueueShared>);

impl Marks {
    /// Lets later work of another stream wait for the work up to a mark.
    pub(crate) fn order(&self, stream: StreamHandle, mark: CopyMark) -> Result<(), CudaError> {
        let event = {
            let state = self.0.state.lock();
            match (state.running.iter().find(|work| work.mark >= mark), &state.abandoned) {
                (Some(work), _) => work.event.clone(),
                (None, Some((abandoned, error))) if mark <= *abandoned => return Err(error.clone()),
                (None, _) => None,
            }
        };
        // Without an event, it has ended.
        event.map_or(Ok(()), |event| event.order(stream))
    }
}

impl Drop for Queue {
    fn drop(&mut self) {
        if self.stream().device().is_here() {
            self.shared.state.lock().is_closed = true;
            self.shared.changed.notify_all();
        }
    }
}

impl QueueShared {
    /// Ends work after its event, until the queue is closed.
    fn end_all(&self) {
        loop {
            let event = {
                let mut state = self.state.lock();
                self.changed
                    .wait_while(&mut state, |state| state.running.is_empty() && !state.is_closed);
                let Some(first) = state.running.front() else { return };
                first.event.clone()
            };
            let waited = self.wait(event.as_deref());
            let ended = {
                let mut state = self.state.lock();
                let ended = state.running.pop_front().expect("only this thread ends work");
                if let Err(error) = &waited {
                    state.abandoned = Some((ended.mark, error.clone()));
                }
                ended
            };
            let outcome = match waited {
                Ok(()) if ended.was_queued => WorkOutcome::Succeeded,
                Ok(()) => WorkOutcome::Failed,
                Err(_) => WorkOutcome::Unknown,
            };
            // A panic must not keep all later work from ending.
            if catch_unwind(AssertUnwindSafe(|| (ended.end)(outcome))).is_err() {
                tracing::error!("the end of a copy panicked");
            }
        }
    }

    /// Waits for an event, or for all of the stream. Fails if the driver refuses that again and again.
    fn wait(&self, event: Option<&Event>) -> Result<(), CudaError> {
        let mut tries = 0;
        loop {
            let waited = event.map_or_else(|| self.stream.synchronize(), Event::synchronize);
            let Err(error) = waited else { return Ok(()) };
            tries += 1;
            if tries == 1 {
                tracing::warn!(%error, "the GPU cannot be waited for; trying again");
            }
            if tries == MOST_WAITS {
                return Err(error);
            }
            std::thread::sleep(BETWEEN_WAITS);
        }
    }
}

/// Why a queue could not be started.
#[derive(Debug, thiserror::Error)]
pub enum QueueError {
    /// The driver refused the stream.
    #[error(transparent)]
    Cuda(#[from] CudaError),
    /// The system refused the thread.
    #[error("cannot start a thread: {0}")]
    Thread(#[from] std::io::Error),
}
