//! Events.
//!
//! 1. A record captures a position of a stream. Recording an event again replaces its record.
//! 2. A wait is for the record that was the latest when the wait was called.
//! 3. An event without a record is complete.
//! 4. A destroyed event's record lives on for the streams that wait for it.

use crate::abi::{
    CUDA_ERROR_INVALID_HANDLE, CUDA_ERROR_INVALID_VALUE, CUDA_ERROR_NOT_READY, CUresult,
    EVENT_BLOCKING_SYNC, EVENT_DISABLE_TIMING,
};
use crate::handles::Handles;
use crate::streams::{Stream, Work};
use parking_lot::{Condvar, Mutex};
use std::sync::Arc;
use std::time::Instant;

/// A stream got to the position of a record.
#[derive(Clone, Copy)]
struct Completion {
    at: Instant,
    failure: Option<CUresult>,
}

impl Completion {
    fn result(self) -> Result<(), CUresult> {
        self.failure.map_or(Ok(()), Err)
    }
}

#[derive(Default)]
struct Record {
    completion: Mutex<Option<Completion>>,
    completed: Condvar,
}

impl Record {
    fn complete(&self, failure: Option<CUresult>) {
        #[expect(clippy::disallowed_methods, reason = "a fake device has the real time")]
        let at = Instant::now();
        *self.completion.lock() = Some(Completion { at, failure });
        self.completed.notify_all();
    }

    fn wait(&self) -> Completion {
        let mut completion = self.completion.lock();
        loop {
            if let Some(completion) = *completion {
                return completion;
            }
            self.completed.wait(&mut completion);
        }
    }

    fn now(&self) -> Option<Completion> {
        *self.completion.lock()
    }
}

struct Mark(Arc<Record>);

impl Work for Mark {
    fn run(self: Box<Self>, stream: &Stream) -> Result<(), CUresult> {
        stream.step(|| self.0.complete(stream.take_failure()));
        Ok(())
    }
}

struct Wait(Arc<Record>);

impl Work for Wait {
    fn run(self: Box<Self>, _: &Stream) -> Result<(), CUresult> {
        self.0.wait();
        Ok(())
    }
}

struct Event {
    has_timing: bool,
    latest: Mutex<Option<Arc<Record>>>,
}

static EVENTS: Handles<Event> = Handles::new("event", 2);

/// Creates an event and returns its handle.
pub(crate) fn create(flags: u32) -> Result<usize, CUresult> {
    if flags & !(EVENT_BLOCKING_SYNC | EVENT_DISABLE_TIMING) != 0 {
        return Err(CUDA_ERROR_INVALID_VALUE);
    }
    let has_timing = flags & EVENT_DISABLE_TIMING == 0;
    Ok(EVENTS.insert(Event { has_timing, latest: Mutex::new(None) }))
}

/// Destroys an event.
pub(crate) fn destroy(event: usize) -> Result<(), CUresult> {
    EVENTS.remove(event).map(drop)
}

/// Records an event at the end of a stream's queue.
pub(crate) fn record(event: usize, stream: &Stream) -> Result<(), CUresult> {
    let event = EVENTS.get(event)?;
    // Two threads that record the event leave the record that was queued last.
    let mut latest = event.latest.lock();
    let record = Arc::new(Record::default());
    stream.push(Box::new(Mark(Arc::clone(&record))));
    *latest = Some(record);
    Ok(())
}

/// Lets a stream wait for the latest record of an event.
pub(crate) fn stream_wait(event: usize, stream: &Stream) -> Result<(), CUresult> {
    if let Some(record) = EVENTS.get(event)?.latest.lock().clone() {
        stream.push(Box::new(Wait(record)));
    }
    Ok(())
}

/// Returns whether the latest record of an event is complete, without waiting.
pub(crate) fn query(event: usize) -> Result<(), CUresult> {
    let Some(record) = EVENTS.get(event)?.latest.lock().clone() else { return Ok(()) };
    record.now().ok_or(CUDA_ERROR_NOT_READY)?.result()
}

/// Waits for the latest record of an event.
pub(crate) fn synchronize(event: usize) -> Result<(), CUresult> {
    let Some(record) = EVENTS.get(event)?.latest.lock().clone() else { return Ok(()) };
    record.wait().result()
}

fn timed(event: usize) -> Result<Instant, CUresult> {
    let event = EVENTS.get(event)?;
    let record = event.latest.lock().clone().filter(|_| event.has_timing);
    let completion = record.ok_or(CUDA_ERROR_INVALID_HANDLE)?.now();
    Ok(completion.ok_or(CUDA_ERROR_NOT_READY)?.at)
}

/// Returns the milliseconds between two complete events.
pub(crate) fn elapsed_ms(start: usize, end: usize) -> Result<f32, CUresult> {
    let (start, end) = (timed(start)?, timed(end)?);
    let ms = match end.checked_duration_since(start) {
        Some(later) => later.as_secs_f32(),
        None => -start.duration_since(end).as_secs_f32(),
    };
    Ok(ms * 1000.0)
}

/// Returns the number of events.
pub(crate) fn count() -> usize {
    EVENTS.all().len()
}
