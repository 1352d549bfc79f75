//! Streams: threads that run queued work in order.
//!
//! 1. Work of one stream runs in the order of the calls. Nothing orders two streams but events.
//! 2. Before each work the thread sleeps for a random time, from 0 to the maximal delay.
//! 3. A held stream begins no step, also not the next step of work that is half done.
//! 4. A failure of work shows at the next event recorded on the stream, or at the next synchronization of it, once.
//! 5. Work is dropped before it counts as done, so that a synchronized caller may give its memory back.
//! 6. A destroyed stream runs all its work first.
//! 7. Work that is submitted to a captured stream is dropped.

use crate::abi::{CUDA_ERROR_OUT_OF_MEMORY, CUresult};
use crate::captures;
use crate::handles::Handles;
use crate::settings::{self, Random};
use parking_lot::{Condvar, Mutex, MutexGuard};
use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

/// The handle `CU_STREAM_LEGACY`, which is the same stream as null.
const LEGACY: usize = 1;
/// The handle of the legacy default stream. The others have those of the table.
const LEGACY_HANDLE: usize = 0;

/// A piece of work for a stream.
pub(crate) trait Work: Send {
    /// Runs on the stream's thread, in calls of `stream.step`.
    fn run(self: Box<Self>, stream: &Stream) -> Result<(), CUresult>;
}

#[derive(Default)]
struct Queue {
    waiting: VecDeque<Box<dyn Work>>,
    submitted: u64,
    finished: u64,
    is_held: bool,
    is_stepping: bool,
    is_destroyed: bool,
    /// The number of steps that may run although the stream is held.
    allowance: u64,
    failure: Option<CUresult>,
}

/// A stream.
pub(crate) struct Stream {
    handle: usize,
    queue: Mutex<Queue>,
    changed: Condvar,
}

static STREAMS: Handles<Stream> = Handles::new("stream", 1);

/// Whether all streams are held. It is locked while a stream is created, so that `hold_all` misses none.
static ALL_HELD: Mutex<bool> = Mutex::new(false);

impl Stream {
    fn start(handle: usize, is_held: bool) -> Result<Arc<Self>, CUresult> {
        let queue = Mutex::new(Queue { is_held, ..Queue::default() });
        let stream = Arc::new(Self { handle, queue, changed: Condvar::new() });
        let runner = Arc::clone(&stream);
        std::thread::Builder::new()
            .name("fake-cuda".to_owned())
            .spawn(move || runner.run())
            .map_err(|_| CUDA_ERROR_OUT_OF_MEMORY)?;
        Ok(stream)
    }

    fn run(&self) {
        // After a panic, callers would wait for this stream forever.
        let result = catch_unwind(AssertUnwindSafe(|| {
            while let Some(work) = self.take() {
                let max_delay_us = u64::from(settings::current().max_delay_us);
                let delay_us = self.random().below(max_delay_us + 1);
                std::thread::sleep(Duration::from_micros(delay_us));
                let result = work.run(self);
                self.finish(result);
            }
            STREAMS.retain(|stream| !std::ptr::eq(stream, self));
        }));
        if result.is_err() {
            std::process::abort();
        }
    }

    fn take(&self) -> Option<Box<dyn Work>> {
        let mut queue = self.queue.lock();
        loop {
            if let Some(work) = queue.waiting.pop_front() {
                return Some(work);
            }
            if queue.is_destroyed {
                return None;
            }
            self.changed.wait(&mut queue);
        }
    }

    fn finish(&self, result: Result<(), CUresult>) {
        let mut queue = self.queue.lock();
        queue.finished += 1;
        if let Err(error) = result {
            queue.failure.get_or_insert(error);
        }
        drop(queue);
        self.changed.notify_all();
    }

    /// Returns random numbers for the work that runs. They depend on the seed, the stream and the number of the work.
    pub(crate) fn random(&self) -> Random {
        let number = self.queue.lock().finished;
        Random::new(settings::current().seed, self.handle as u64, number)
    }

    /// Returns the handle; that of the legacy default stream is 0.
    pub(crate) fn handle(&self) -> usize {
        self.handle
    }

    /// Queues work and returns its number. Returns `None` if the stream is captured.
    pub(crate) fn submit(&self, work: Box<dyn Work>) -> Result<Option<u64>, CUresult> {
        let capture = captures::of(self.handle)?;
        Ok(capture.is_none().then(|| self.push(work)))
    }

    /// Queues work and returns its number, for `wait_for`. A capture does not matter.
    pub(crate) fn push(&self, work: Box<dyn Work>) -> u64 {
        let mut queue = self.queue.lock();
        queue.waiting.push_back(work);
        queue.submitted += 1;
        let number = queue.submitted;
        drop(queue);
        self.changed.notify_all();
        number
    }

    fn wait_until(&self, condition: impl Fn(&Queue) -> bool) -> MutexGuard<'_, Queue> {
        let mut queue = self.queue.lock();
        while !condition(&queue) {
            self.changed.wait(&mut queue);
        }
        queue
    }

    /// Waits until the work of that number is done.
    pub(crate) fn wait_for(&self, number: u64) {
        drop(self.wait_until(|queue| queue.finished >= number));
    }

    /// Waits for all work queued so far, and returns a failure that no event has shown.
    pub(crate) fn synchronize(&self) -> Result<(), CUresult> {
        let submitted = self.queue.lock().submitted;
        let failure = self.wait_until(|queue| queue.finished >= submitted).failure.take();
        failure.map_or(Ok(()), Err)
    }

    /// Runs a step of work on the stream's thread, unless the stream is held.
    pub(crate) fn step<T>(&self, body: impl FnOnce() -> T) -> T {
        let mut queue = self.wait_until(|queue| !queue.is_held || queue.allowance > 0);
        queue.allowance = queue.allowance.saturating_sub(1);
        queue.is_stepping = true;
        drop(queue);
        let value = body();
        self.queue.lock().is_stepping = false;
        self.changed.notify_all();
        value
    }

    /// Takes the failure of earlier work.
    pub(crate) fn take_failure(&self) -> Option<CUresult> {
        self.queue.lock().failure.take()
    }

    /// Holds the stream and waits until no step runs.
    pub(crate) fn hold(&self) {
        self.queue.lock().is_held = true;
        drop(self.wait_until(|queue| !queue.is_stepping));
    }

    /// Lets a held stream continue.
    pub(crate) fn release(&self) {
        let mut queue = self.queue.lock();
        queue.is_held = false;
        queue.allowance = 0;
        drop(queue);
        self.changed.notify_all();
    }

    /// Lets a held stream run some steps, and waits until they or all queued work are done. Returns how many ran.
    pub(crate) fn run_steps(&self, count: u64) -> u64 {
        let mut queue = self.queue.lock();
        if !queue.is_held {
            return 0;
        }
        queue.allowance = count;
        drop(queue);
        self.changed.notify_all();
        let mut queue = self.wait_until(|queue| {
            let is_spent = queue.allowance == 0 && !queue.is_stepping;
            is_spent || queue.finished == queue.submitted || !queue.is_held
        });
        count - std::mem::take(&mut queue.allowance)
    }

    fn is_destroyed(&self) -> bool {
        self.queue.lock().is_destroyed
    }
}

fn legacy() -> Result<Arc<Stream>, CUresult> {
    static STREAM: OnceLock<Result<Arc<Stream>, CUresult>> = OnceLock::new();
    // `hold_all` makes it, so it is never made while all streams are held.
    STREAM.get_or_init(|| Stream::start(LEGACY_HANDLE, false)).clone()
}

/// Returns whether a handle is that of the legacy default stream.
pub(crate) fn is_legacy(handle: usize) -> bool {
    handle == LEGACY_HANDLE || handle == LEGACY
}

/// Returns a stream that is not destroyed.
pub(crate) fn find(handle: usize) -> Result<Arc<Stream>, CUresult> {
    if is_legacy(handle) {
        return legacy();
    }
    let stream = STREAMS.get(handle)?;
    if stream.is_destroyed() {
        return Err(STREAMS.refuse(handle));
    }
    Ok(stream)
}

/// Returns a stream that may be destroyed, as long as it has work.
pub(crate) fn find_running(handle: usize) -> Option<Arc<Stream>> {
    if is_legacy(handle) { legacy().ok() } else { STREAMS.find(handle) }
}

/// Creates a stream and returns its handle.
pub(crate) fn create() -> Result<usize, CUresult> {
    let all_held = ALL_HELD.lock();
    STREAMS.try_insert(|handle| Stream::start(handle, *all_held))
}

/// Destroys a stream. Its thread ends when its work is done.
pub(crate) fn destroy(handle: usize) -> Result<(), CUresult> {
    if is_legacy(handle) {
        return Err(STREAMS.refuse(handle));
    }
    let stream = find(handle)?;
    stream.queue.lock().is_destroyed = true;
    stream.changed.notify_all();
    Ok(())
}

fn every() -> Vec<Arc<Stream>> {
    let mut streams = STREAMS.all();
    streams.extend(legacy());
    streams
}

/// Holds all streams, also those created until `release_all`, and waits until no step runs.
pub(crate) fn hold_all() {
    let mut all_held = ALL_HELD.lock();
    *all_held = true;
    let streams = every();
    for stream in &streams {
        stream.queue.lock().is_held = true;
    }
    // A running step may take long. A stream that is created during the wait starts held.
    drop(all_held);
    for stream in &streams {
        drop(stream.wait_until(|queue| !queue.is_stepping));
    }
}

/// Lets all held streams continue, whatever held them.
pub(crate) fn release_all() {
    let mut all_held = ALL_HELD.lock();
    *all_held = false;
    for stream in every() {
        stream.release();
    }
}

/// Releases all held streams, and waits until all work is done.
pub(crate) fn drain_all() {
    release_all();
    for stream in every() {
        // A failure that no event has shown is forgotten.
        let _ = stream.synchronize();
    }
}

/// Returns the number of streams that are not destroyed.
pub(crate) fn count() -> usize {
    STREAMS.all().iter().filter(|stream| !stream.is_destroyed()).count()
}
