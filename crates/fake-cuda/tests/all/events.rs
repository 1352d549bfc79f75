//! Records and waits of events.

use crate::support::{Event, Session, Stream, ok, result};
use fake_cuda::{
    CUDA_ERROR_INVALID_HANDLE, CUDA_ERROR_INVALID_VALUE, CUDA_ERROR_NOT_READY, CUDA_SUCCESS,
};
use std::ptr::null_mut;

#[test]
fn an_event_without_a_record_is_complete() {
    let _session = Session::new();
    let event = Event::new();
    assert_eq!(event.query(), CUDA_SUCCESS);
    ok!(cuEventSynchronize(event.0));
    let stream = Stream::new();
    ok!(cuStreamWaitEvent(stream.0, event.0, 0));
    stream.synchronize();
}

#[test]
fn an_event_is_complete_when_its_stream_gets_there() {
    let _session = Session::new();
    let stream = Stream::held();
    let event = Event::new();
    event.record(&stream);
    assert_eq!(event.query(), CUDA_ERROR_NOT_READY);
    stream.release();
    ok!(cuEventSynchronize(event.0));
    assert_eq!(event.query(), CUDA_SUCCESS);
}

#[test]
fn a_wait_before_the_first_record_does_not_wait() {
    let _session = Session::new();
    let (held, waiting) = (Stream::held(), Stream::new());
    let event = Event::new();
    ok!(cuStreamWaitEvent(waiting.0, event.0, 0));
    event.record(&held);
    waiting.synchronize();
    held.release();
    held.synchronize();
}

#[test]
fn a_wait_is_for_the_record_that_was_the_latest_at_the_call() {
    let _session = Session::new();
    let (first, second) = (Stream::held(), Stream::held());
    let (early, late) = (Stream::new(), Stream::new());
    let (event, early_passed, late_passed) = (Event::new(), Event::new(), Event::new());
    event.record(&first);
    ok!(cuStreamWaitEvent(early.0, event.0, 0));
    event.record(&second);
    ok!(cuStreamWaitEvent(late.0, event.0, 0));
    early_passed.record(&early);
    late_passed.record(&late);
    // The first record is complete; the event itself is now the second one.
    first.release();
    ok!(cuEventSynchronize(early_passed.0));
    assert_eq!(event.query(), CUDA_ERROR_NOT_READY);
    assert_eq!(late_passed.query(), CUDA_ERROR_NOT_READY);
    second.release();
    ok!(cuEventSynchronize(event.0));
    ok!(cuEventSynchronize(late_passed.0));
}

#[test]
fn a_new_record_on_an_idle_stream_replaces_one_that_is_not_complete() {
    let _session = Session::new();
    let (held, idle) = (Stream::held(), Stream::new());
    let event = Event::new();
    event.record(&held);
    event.record(&idle);
    ok!(cuEventSynchronize(event.0));
    held.release();
    held.synchronize();
}

#[test]
fn a_destroyed_event_still_orders_the_streams() {
    let session = Session::new();
    let (held, waiting) = (Stream::held(), Stream::new());
    let (event, passed) = (Event::new(), Event::new());
    event.record(&held);
    ok!(cuStreamWaitEvent(waiting.0, event.0, 0));
    let handle = event.0;
    drop(event);
    passed.record(&waiting);
    assert_eq!(passed.query(), CUDA_ERROR_NOT_READY);
    assert_eq!(result!(cuEventQuery(handle)), CUDA_ERROR_INVALID_HANDLE);
    session.expect_violation("handle");
    held.release();
    ok!(cuEventSynchronize(passed.0));
}

#[test]
fn invalid_flags_and_handles_are_refused() {
    let session = Session::new();
    let mut event = null_mut();
    assert_eq!(result!(cuEventCreate(&raw mut event, 4)), CUDA_ERROR_INVALID_VALUE);
    // Blocking waits, and times, which nothing measures.
    (0..4).for_each(|flags| drop(Event::with_flags(flags)));
    assert_eq!(result!(cuEventRecord(null_mut(), null_mut())), CUDA_ERROR_INVALID_HANDLE);
    session.expect_violation("handle");
    let stream = Stream::new();
    // A stream's handle is no event's handle.
    assert_eq!(result!(cuEventQuery(stream.0)), CUDA_ERROR_INVALID_HANDLE);
    session.expect_violation("handle");
    let event = Event::new();
    assert_eq!(result!(cuStreamWaitEvent(stream.0, event.0, 1)), CUDA_ERROR_INVALID_VALUE);
}
