//! Events.
//!
//! 1. A record captures a position of a stream. Recording an event again replaces its record.
//! 2. A wait is for the record that was the latest when the wait was called.
//! 3. An event without a record is complete.
//! 4. A destroyed event's record lives on for the streams that wait for it.
//! 5. A record on a captured stream makes the event a captured one. The host and other streams cannot wait for it.

use crate::abi::{
    CUDA_ERROR_CAPTURED_EVENT, CUDA_ERROR_INVALID_VALUE, CUDA_ERROR_NOT_READY,
    CUDA_ERROR_STREAM_CAPTURE_ISOLATION, CUDA_ERROR_STREAM_CAPTURE_MERGE, CUresult,
    EVENT_BLOCKING_SYNC, EVENT_DISABLE_TIMING,
};
use crate::captures::{self, CaptureId, invalidate};
use crate::handles::Handles;
use crate::streams::{Stream, Work};
use parking_lot::{Condvar, Mutex};
use std::sync::Arc;

#[derive(Default)]
struct Record {
    /// What became of the work before the record, once its stream gets there.
    outcome: Mutex<Option<Result<(), CUresult>>>,
    completed: Condvar,
}

impl Record {
    fn complete(&self, outcome: Result<(), CUresult>) {
        *self.outcome.lock() = Some(outcome);
        self.completed.notify_all();
    }

    fn wait(&self) -> Result<(), CUresult> {
        let mut outcome = self.outcome.lock();
        loop {
            if let Some(outcome) = *outcome {
                return outcome;
            }
            self.completed.wait(&mut outcome);
        }
    }

    fn now(&self) -> Option<Result<(), CUresult>> {
        *self.outcome.lock()
    }
}

struct Mark(Arc<Record>);

impl Work for Mark {
    fn run(self: Box<Self>, stream: &Stream) -> Result<(), CUresult> {
        stream.step(|| self.0.complete(stream.take_failure().map_or(Ok(()), Err)));
        Ok(())
    }
}

struct Wait(Arc<Record>);

impl Work for Wait {
    fn run(self: Box<Self>, _: &Stream) -> Result<(), CUresult> {
        // A failure shows at the event, not at the streams that wait for it.
        let _ = self.0.wait();
        Ok(())
    }
}

/// The latest record of an event.
#[derive(Clone)]
enum Latest {
    /// In the queue of a stream.
    Ordinary(Arc<Record>),
    /// In a capture.
    Captured(CaptureId),
}

#[derive(Default)]
struct Event {
    latest: Mutex<Option<Latest>>,
}

static EVENTS: Handles<Event> = Handles::new("event", 2);

/// Creates an event and returns its handle.
pub(crate) fn create(flags: u32) -> Result<usize, CUresult> {
    if flags & !(EVENT_BLOCKING_SYNC | EVENT_DISABLE_TIMING) != 0 {
        return Err(CUDA_ERROR_INVALID_VALUE);
    }
    Ok(EVENTS.insert(Event::default()))
}

/// Destroys an event.
pub(crate) fn destroy(event: usize) -> Result<(), CUresult> {
    EVENTS.remove(event).map(drop)
}

/// Records an event at the end of a stream's queue, or in its capture.
pub(crate) fn record(event: usize, stream: &Stream) -> Result<(), CUresult> {
    let event = EVENTS.get(event)?;
    // Two threads that record the event leave the record that was queued last.
    let mut latest = event.latest.lock();
    let record = if let Some(capture) = captures::of(stream.handle())? {
        Latest::Captured(capture)
    } else {
        let record = Arc::new(Record::default());
        stream.push(Box::new(Mark(Arc::clone(&record))));
        Latest::Ordinary(record)
    };
    *latest = Some(record);
    Ok(())
}

/// Lets a stream wait for the latest record of an event.
pub(crate) fn stream_wait(event: usize, stream: &Stream) -> Result<(), CUresult> {
    let latest = EVENTS.get(event)?.latest.lock().clone();
    let own = captures::of(stream.handle())?;
    let refuse = |captures: &[CaptureId], error, why| {
        let text =
            format_args!("a wait of stream {:#x} for event {event:#x}: {why}", stream.handle());
        Err(invalidate(captures, error, text))
    };
    match (own, latest) {
        (None, Some(Latest::Ordinary(record))) => {
            stream.push(Box::new(Wait(record)));
            Ok(())
        }
        (Some(own), Some(Latest::Ordinary(_))) => {
            refuse(&[own], CUDA_ERROR_STREAM_CAPTURE_ISOLATION, "only the stream is captured")
        }
        (None, Some(Latest::Captured(other))) => {
            refuse(&[other], CUDA_ERROR_STREAM_CAPTURE_ISOLATION, "only the event is captured")
        }
        (Some(own), Some(Latest::Captured(other))) if own != other => {
            refuse(&[own, other], CUDA_ERROR_STREAM_CAPTURE_MERGE, "they are of two captures")
        }
        (_, None) | (Some(_), Some(Latest::Captured(_))) => Ok(()),
    }
}

/// Returns the latest record of an event that is not a captured one.
fn ordinary(event: usize) -> Result<Option<Arc<Record>>, CUresult> {
    let latest = EVENTS.get(event)?.latest.lock().clone();
    match latest {
        None => Ok(None),
        Some(Latest::Ordinary(record)) => Ok(Some(record)),
        Some(Latest::Captured(capture)) => {
            let text = format_args!("a wait of the host for event {event:#x}, which is captured");
            Err(invalidate(&[capture], CUDA_ERROR_CAPTURED_EVENT, text))
        }
    }
}

/// Returns whether the latest record of an event is complete, without waiting.
pub(crate) fn query(event: usize) -> Result<(), CUresult> {
    ordinary(event)?.map_or(Ok(()), |record| record.now().unwrap_or(Err(CUDA_ERROR_NOT_READY)))
}

/// Waits for the latest record of an event.
pub(crate) fn synchronize(event: usize) -> Result<(), CUresult> {
    ordinary(event)?.map_or(Ok(()), |record| record.wait())
}

/// Returns the number of events.
pub(crate) fn count() -> usize {
    EVENTS.all().len()
}
