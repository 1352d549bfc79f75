//! The one thread on which a tier does everything.
//!
//! 1. Nothing waits for it but the drop of the tier, and that for a bounded time.
//! 2. Calls are bounded in number. When the tier is dropped, those under way are dropped with their connections: each
//!    answers its caller when it is.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use dalsegno_core::Stopped;
use dalsegno_io::IoError;
use tokio::runtime::{Builder, Handle};
use tokio::sync::oneshot;
use tokio::time::Instant;

/// Names are resolved on threads of their own, because the system's call waits.
const NAME_THREADS: usize = 2;
/// How long dropping the tier waits for the thread.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(5);
const CLOSE_POLL: Duration = Duration::from_millis(1);

/// See the module.
#[derive(Debug)]
pub(crate) struct Network {
    handle: Handle,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
    calls: Arc<AtomicUsize>,
    most_calls: usize,
}

/// The place of a call among those that are bounded in number.
#[derive(Debug)]
pub(crate) struct CallPlace {
    calls: Arc<AtomicUsize>,
}

impl Drop for CallPlace {
    fn drop(&mut self) {
        self.calls.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Network {
    /// Starts the thread.
    pub(crate) fn start(most_calls: usize) -> Result<Self, IoError> {
        let failed = |source| {
            let file = "a thread for object stores".to_owned();
            IoError::Os { operation: "start", file, source }
        };
        let runtime = Builder::new_current_thread()
            .enable_io()
            .enable_time()
            .max_blocking_threads(NAME_THREADS)
            .thread_name("dalsegno-names")
            .build()
            .map_err(failed)?;
        let handle = runtime.handle().clone();
        let (stop, stopped) = oneshot::channel();
        let run = move || {
            // An error means that the tier is gone, which is the same.
            let _ = runtime.block_on(stopped);
            // A name that is still being resolved keeps nobody waiting.
            runtime.shutdown_background();
        };
        let thread = dalsegno_io::spawn("dalsegno-net", run).map_err(failed)?;
        let (stop, thread) = (Some(stop), Some(thread));
        Ok(Self { handle, stop, thread, calls: Arc::default(), most_calls })
    }

    /// A place for a call.
    pub(crate) fn keep_place(&self) -> Result<CallPlace, IoError> {
        let place = CallPlace { calls: Arc::clone(&self.calls) };
        let others = self.calls.fetch_add(1, Ordering::Relaxed);
        if others < self.most_calls { Ok(place) } else { Err(Stopped::Busy.into()) }
    }

    /// Runs a call. It is dropped if the tier is.
    pub(crate) fn run(&self, call: impl Future<Output = ()> + Send + 'static) {
        self.handle.spawn(call);
    }
}

impl Drop for Network {
    fn drop(&mut self) {
        drop(self.stop.take());
        let Some(thread) = self.thread.take() else { return };
        let until = Instant::now() + CLOSE_TIMEOUT;
        while !thread.is_finished() && Instant::now() < until {
            std::thread::sleep(CLOSE_POLL);
        }
    }
}
