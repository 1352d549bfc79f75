//! Captured streams: what they refuse, and which calls spoil them.

use crate::copies::{Batch, address};
use crate::kernels::{Kernel, list_of};
use crate::support::{
    Device, Event, Pages, Pinned, Session, Stream, ok, pattern, result, to_device, to_host,
};
use fake_cuda::{
    CAPTURE_MODE_GLOBAL, CAPTURE_MODE_RELAXED, CAPTURE_MODE_THREAD_LOCAL, CAPTURE_STATUS_ACTIVE,
    CAPTURE_STATUS_INVALIDATED, CAPTURE_STATUS_NONE, CUDA_ERROR_CAPTURED_EVENT,
    CUDA_ERROR_ILLEGAL_STATE, CUDA_ERROR_INVALID_VALUE, CUDA_ERROR_STREAM_CAPTURE_INVALIDATED,
    CUDA_ERROR_STREAM_CAPTURE_ISOLATION, CUDA_ERROR_STREAM_CAPTURE_MERGE,
    CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD, CUDA_SUCCESS,
    CUresult, SOURCE_ORDER_STREAM, controls,
};
use std::ptr::{null, null_mut, with_exposed_provenance_mut};
use std::thread;

const MODES: [i32; 3] = [CAPTURE_MODE_GLOBAL, CAPTURE_MODE_THREAD_LOCAL, CAPTURE_MODE_RELAXED];

/// The capture of a stream. It ends with this, so that a failed test can destroy its stream.
struct Capture<'a>(&'a Stream);

impl<'a> Capture<'a> {
    fn begin(stream: &'a Stream, mode: i32) -> Self {
        ok!(cuStreamBeginCapture_v2(stream.0, mode));
        Self(stream)
    }

    fn status(&self) -> i32 {
        status(self.0)
    }

    fn end(&self) -> CUresult {
        end(self.0)
    }

    /// Asserts that the capture was spoiled, and ends it.
    fn expect_invalidated(&self) {
        assert_eq!(self.status(), CAPTURE_STATUS_INVALIDATED);
        assert_eq!(self.end(), CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
        assert_eq!(self.status(), CAPTURE_STATUS_NONE);
    }
}

impl Drop for Capture<'_> {
    fn drop(&mut self) {
        let mut graph = null_mut();
        // An error if the test has ended it.
        result!(cuStreamEndCapture(self.0.0, &raw mut graph));
    }
}

fn status(stream: &Stream) -> i32 {
    let mut status = -1;
    ok!(cuStreamIsCapturing(stream.0, &raw mut status));
    status
}

fn end(stream: &Stream) -> CUresult {
    let mut graph = with_exposed_provenance_mut(1);
    let result = result!(cuStreamEndCapture(stream.0, &raw mut graph));
    assert!(graph.is_null());
    result
}

/// Changes the mode of this thread and returns the one before.
fn exchange(mode: i32) -> i32 {
    let mut mode = mode;
    ok!(cuThreadExchangeStreamCaptureMode(&raw mut mode));
    mode
}

/// Runs a closure on a new thread with the context of this one.
fn on_another_thread<T: Send>(body: impl FnOnce() -> T + Send) -> T {
    let mut context = null_mut();
    ok!(cuCtxGetCurrent(&raw mut context));
    let context = context.expose_provenance();
    let with_context = || {
        ok!(cuCtxSetCurrent(with_exposed_provenance_mut(context)));
        body()
    };
    thread::scope(|scope| scope.spawn(with_context).join().expect("it does not panic"))
}

/// A potentially unsafe call that fails anyway.
fn unsafe_call() -> CUresult {
    result!(cuMemAlloc_v2(null_mut(), 1))
}

#[test]
fn work_of_a_captured_stream_succeeds_and_does_not_run() {
    let _session = Session::new();
    let (old, new) = (pattern(100, 1), pattern(100, 2));
    let device = Device::with(&old);
    let (pinned, pageable) = (Pinned::with(&new), Pages::with(&new));
    let (kernel, early) = (Kernel::new(), Device::with(&[0]));
    let list = [(pinned.device_pointer(), device.address, 100)];
    let list = Device::with(&list_of(&list));
    let stream = Stream::new();
    assert_eq!(controls::fake_cuda_delay(stream.0, 5_000), CUDA_SUCCESS);
    ok!(cuMemsetD8Async(early.address, 1, 1, stream.0));
    let capture = Capture::begin(&stream, CAPTURE_MODE_GLOBAL);
    for source in [&pinned.0, &pageable] {
        assert_eq!(to_device(&device, source, 100, &stream), CUDA_SUCCESS);
        assert_eq!(to_host(source, &device, 100, &stream), CUDA_SUCCESS);
    }
    ok!(cuMemsetD8Async(device.address, 9, 100, stream.0));
    let copy = (device.address, address(&pinned.0, 0), 100);
    let mut batch = Batch::new(&[copy], &[(0, SOURCE_ORDER_STREAM)]);
    assert_eq!(batch.queue(&stream).0, CUDA_SUCCESS);
    kernel.launch(list.address, 1, &stream);
    assert_eq!((capture.status(), capture.end()), (CAPTURE_STATUS_ACTIVE, CUDA_SUCCESS));
    assert_eq!(status(&stream), CAPTURE_STATUS_NONE);
    stream.synchronize();
    assert_eq!(device.content(), old);
    assert_eq!((pinned.0.read(100), pageable.read(100)), (new.clone(), new));
    assert_eq!(early.content(), [1], "work before the capture runs");
    ok!(cuMemsetD8Async(device.address, 9, 100, stream.0));
    stream.synchronize();
    assert_eq!(device.content(), [9; 100], "the stream works as before");
}

type UnsafeCall = (&'static str, fn() -> CUresult);

/// Each call that may spoil a capture, with arguments that it would refuse.
const UNSAFE_CALLS: [UnsafeCall; 17] = [
    ("cuStreamCreateWithPriority", || result!(cuStreamCreateWithPriority(null_mut(), 0, 0))),
    ("cuStreamDestroy_v2", || result!(cuStreamDestroy_v2(null_mut()))),
    ("cuStreamSynchronize", || result!(cuStreamSynchronize(null_mut()))),
    ("cuEventCreate", || result!(cuEventCreate(null_mut(), 0))),
    ("cuEventDestroy_v2", || result!(cuEventDestroy_v2(null_mut()))),
    ("cuEventQuery", || result!(cuEventQuery(null_mut()))),
    ("cuEventSynchronize", || result!(cuEventSynchronize(null_mut()))),
    ("cuMemHostRegister_v2", || result!(cuMemHostRegister_v2(null_mut(), 1, 0))),
    ("cuMemHostUnregister", || result!(cuMemHostUnregister(null_mut()))),
    ("cuMemHostGetDevicePointer_v2", || {
        result!(cuMemHostGetDevicePointer_v2(null_mut(), null_mut(), 0))
    }),
    ("cuMemHostAlloc", || result!(cuMemHostAlloc(null_mut(), 1, 0))),
    ("cuMemFreeHost", || result!(cuMemFreeHost(null_mut()))),
    ("cuMemAlloc_v2", || result!(cuMemAlloc_v2(null_mut(), 1))),
    ("cuMemFree_v2", || result!(cuMemFree_v2(0))),
    ("cuModuleLoadData", || result!(cuModuleLoadData(null_mut(), null()))),
    ("cuModuleUnload", || result!(cuModuleUnload(null_mut()))),
    ("cuModuleGetFunction", || result!(cuModuleGetFunction(null_mut(), null_mut(), null()))),
];

#[test]
fn a_potentially_unsafe_call_of_another_thread_invalidates_a_global_capture() {
    let session = Session::new();
    let stream = Stream::new();
    for (name, call) in UNSAFE_CALLS {
        let capture = Capture::begin(&stream, CAPTURE_MODE_GLOBAL);
        let result = on_another_thread(call);
        assert_eq!(result, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, "{name}");
        session.expect_violation("capture");
        capture.expect_invalidated();
    }
}

#[test]
fn an_unsafe_call_does_nothing() {
    let session = Session::new();
    let device = Device::with(&[7]);
    let stream = Stream::new();
    let alive = controls::fake_cuda_alive(4);
    let capture = Capture::begin(&stream, CAPTURE_MODE_GLOBAL);
    let mut other = 0;
    let results =
        [result!(cuMemAlloc_v2(&raw mut other, 1)), result!(cuMemFree_v2(device.address))];
    assert_eq!(results, [CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED; 2]);
    session.expect_violations("capture", 2);
    capture.expect_invalidated();
    assert_eq!((other, controls::fake_cuda_alive(4)), (0, alive));
    assert_eq!(device.content(), [7]);
}

#[test]
fn the_modes_of_thread_and_capture_decide_which_calls_are_unsafe() {
    let session = Session::new();
    let stream = Stream::new();
    for (of_capture, of_thread, is_local) in MODES.into_iter().flat_map(|of_capture| {
        MODES.into_iter().flat_map(move |of_thread| {
            [true, false].map(move |is_local| (of_capture, of_thread, is_local))
        })
    }) {
        let capture = Capture::begin(&stream, of_capture);
        let call = || {
            let before = exchange(of_thread);
            let result = unsafe_call();
            exchange(before);
            result
        };
        let result = if is_local { call() } else { on_another_thread(call) };
        let is_refused = match (of_capture, of_thread) {
            (_, CAPTURE_MODE_RELAXED) | (CAPTURE_MODE_RELAXED, _) => false,
            (CAPTURE_MODE_GLOBAL, CAPTURE_MODE_GLOBAL) => true,
            _ => is_local,
        };
        let case = format!("capture {of_capture}, thread {of_thread}, local {is_local}");
        if is_refused {
            assert_eq!(result, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, "{case}");
            session.expect_violation("capture");
            capture.expect_invalidated();
        } else {
            assert_eq!(result, CUDA_ERROR_INVALID_VALUE, "{case}");
            assert_eq!(capture.end(), CUDA_SUCCESS, "{case}");
        }
    }
}

#[test]
fn work_on_other_streams_and_context_calls_do_not_spoil_a_capture() {
    let _session = Session::new();
    let (captured, first, second) = (Stream::new(), Stream::new(), Stream::new());
    let (pinned, device) = (Pinned::with(&[5]), Device::with(&[0; 3]));
    let (kernel, event) = (Kernel::new(), Event::new());
    let capture = Capture::begin(&captured, CAPTURE_MODE_GLOBAL);
    ok!(cuMemsetD8Async(device.address, 4, 1, first.0));
    event.record(&first);
    ok!(cuStreamWaitEvent(second.0, event.0, 0));
    ok!(cuMemcpyHtoDAsync_v2(device.address + 1, pinned.0.at(0), 1, second.0));
    ok!(cuMemcpyHtoDAsync_v2(device.address + 2, pinned.0.at(0), 1, null_mut()));
    kernel.launch(0, 0, &second);
    let (mut value, mut context) = (0, null_mut());
    ok!(cuInit(0));
    ok!(cuDriverGetVersion(&raw mut value));
    ok!(cuDeviceGet(&raw mut value, 0));
    ok!(cuDeviceGetAttribute(&raw mut value, 16, 0));
    ok!(cuDevicePrimaryCtxRetain(&raw mut context, 0));
    ok!(cuCtxPushCurrent_v2(context));
    ok!(cuCtxPopCurrent_v2(null_mut()));
    ok!(cuDevicePrimaryCtxRelease_v2(0));
    ok!(cuCtxGetStreamPriorityRange(null_mut(), null_mut()));
    assert_eq!(status(&second), CAPTURE_STATUS_NONE);
    assert_eq!((capture.status(), capture.end()), (CAPTURE_STATUS_ACTIVE, CUDA_SUCCESS));
    second.synchronize();
    ok!(cuStreamSynchronize(null_mut()));
    assert_eq!(device.content(), [4, 5, 5]);
}

#[test]
fn the_host_cannot_wait_for_a_captured_event() {
    let session = Session::new();
    let (captured, free) = (Stream::new(), Stream::new());
    let event = Event::new();
    exchange(CAPTURE_MODE_RELAXED);
    let waits: [fn(&Event) -> CUresult; 2] =
        [Event::query, |event| result!(cuEventSynchronize(event.0))];
    for wait in waits {
        let capture = Capture::begin(&captured, CAPTURE_MODE_GLOBAL);
        event.record(&captured);
        assert_eq!(wait(&event), CUDA_ERROR_CAPTURED_EVENT);
        session.expect_violation("capture");
        capture.expect_invalidated();
        // The record remains captured when its capture has ended.
        assert_eq!(wait(&event), CUDA_ERROR_CAPTURED_EVENT);
        session.expect_violation("capture");
        event.record(&free);
        ok!(cuEventSynchronize(event.0));
    }
}

#[test]
fn another_stream_cannot_wait_for_a_captured_event() {
    let session = Session::new();
    let (captured, free) = (Stream::new(), Stream::new());
    let event = Event::new();
    let capture = Capture::begin(&captured, CAPTURE_MODE_GLOBAL);
    event.record(&captured);
    let result = result!(cuStreamWaitEvent(free.0, event.0, 0));
    assert_eq!(result, CUDA_ERROR_STREAM_CAPTURE_ISOLATION);
    session.expect_violation("capture");
    capture.expect_invalidated();
    free.synchronize();
}

#[test]
fn a_captured_stream_waits_only_for_events_of_its_capture() {
    let session = Session::new();
    let (stream, other, free) = (Stream::new(), Stream::new(), Stream::new());
    let (outside, inside, unrecorded) = (Event::new(), Event::new(), Event::new());
    outside.record(&free);
    let wait = |event: &Event| result!(cuStreamWaitEvent(stream.0, event.0, 0));
    let capture = Capture::begin(&stream, CAPTURE_MODE_GLOBAL);
    inside.record(&stream);
    assert_eq!([wait(&inside), wait(&unrecorded)], [CUDA_SUCCESS; 2]);
    assert_eq!(capture.status(), CAPTURE_STATUS_ACTIVE);
    assert_eq!(wait(&outside), CUDA_ERROR_STREAM_CAPTURE_ISOLATION);
    session.expect_violation("capture");
    capture.expect_invalidated();
    let both = [&stream, &other].map(|stream| Capture::begin(stream, CAPTURE_MODE_GLOBAL));
    inside.record(&other);
    assert_eq!(wait(&inside), CUDA_ERROR_STREAM_CAPTURE_MERGE);
    session.expect_violation("capture");
    both.iter().for_each(Capture::expect_invalidated);
}

#[test]
fn a_captured_stream_is_neither_synchronized_nor_destroyed() {
    let session = Session::new();
    let stream = Stream::new();
    exchange(CAPTURE_MODE_RELAXED);
    let calls: [fn(&Stream) -> CUresult; 2] = [
        |stream| result!(cuStreamSynchronize(stream.0)),
        |stream| result!(cuStreamDestroy_v2(stream.0)),
    ];
    for call in calls {
        let capture = Capture::begin(&stream, CAPTURE_MODE_RELAXED);
        assert_eq!(call(&stream), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
        session.expect_violation("capture");
        capture.expect_invalidated();
    }
    stream.synchronize();
}

#[test]
fn a_stream_whose_capture_is_invalidated_takes_no_work() {
    let session = Session::new();
    let (stream, device, event) = (Stream::new(), Device::with(&[0]), Event::new());
    exchange(CAPTURE_MODE_RELAXED);
    let capture = Capture::begin(&stream, CAPTURE_MODE_GLOBAL);
    assert_eq!(result!(cuStreamSynchronize(stream.0)), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
    session.expect_violation("capture");
    let results = [
        result!(cuMemsetD8Async(device.address, 1, 1, stream.0)),
        result!(cuEventRecord(event.0, stream.0)),
        result!(cuStreamWaitEvent(stream.0, event.0, 0)),
        result!(cuStreamSynchronize(stream.0)),
    ];
    assert_eq!(results, [CUDA_ERROR_STREAM_CAPTURE_INVALIDATED; 4]);
    assert_eq!(event.query(), CUDA_SUCCESS, "it has no record");
    capture.expect_invalidated();
    stream.synchronize();
    assert_eq!(device.content(), [0]);
}

#[test]
fn a_capture_ends_on_its_stream_and_thread() {
    let _session = Session::new();
    let (stream, other) = (Stream::new(), Stream::new());
    let begin = |stream: &Stream, mode| result!(cuStreamBeginCapture_v2(stream.0, mode));
    for mode in [-1, 3] {
        assert_eq!(begin(&stream, mode), CUDA_ERROR_INVALID_VALUE);
    }
    for legacy in [null_mut(), with_exposed_provenance_mut(1)] {
        let result = result!(cuStreamBeginCapture_v2(legacy, CAPTURE_MODE_GLOBAL));
        assert_eq!(result, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
    }
    assert_eq!(end(&stream), CUDA_ERROR_ILLEGAL_STATE);
    let handle = stream.0.expose_provenance();
    let end_elsewhere = || {
        on_another_thread(|| {
            let mut graph = null_mut();
            result!(cuStreamEndCapture(with_exposed_provenance_mut(handle), &raw mut graph))
        })
    };
    for mode in MODES {
        let capture = Capture::begin(&stream, mode);
        assert_eq!(begin(&stream, mode), CUDA_ERROR_ILLEGAL_STATE);
        assert_eq!(end(&other), CUDA_ERROR_ILLEGAL_STATE);
        assert_eq!(result!(cuStreamEndCapture(stream.0, null_mut())), CUDA_ERROR_INVALID_VALUE);
        assert_eq!(capture.status(), CAPTURE_STATUS_ACTIVE);
        if mode == CAPTURE_MODE_RELAXED {
            assert_eq!(end_elsewhere(), CUDA_SUCCESS);
        } else {
            assert_eq!(end_elsewhere(), CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD);
            assert_eq!(capture.end(), CUDA_SUCCESS);
        }
        assert_eq!(status(&stream), CAPTURE_STATUS_NONE);
    }
    assert_eq!(result!(cuStreamIsCapturing(stream.0, null_mut())), CUDA_ERROR_INVALID_VALUE);
}

#[test]
fn the_capture_mode_is_per_thread() {
    let _session = Session::new();
    assert_eq!(exchange(CAPTURE_MODE_RELAXED), CAPTURE_MODE_GLOBAL);
    assert_eq!(on_another_thread(|| exchange(CAPTURE_MODE_THREAD_LOCAL)), CAPTURE_MODE_GLOBAL);
    for bad in [-1, 3] {
        let mut mode = bad;
        let result = result!(cuThreadExchangeStreamCaptureMode(&raw mut mode));
        assert_eq!((result, mode), (CUDA_ERROR_INVALID_VALUE, bad));
    }
    let result = result!(cuThreadExchangeStreamCaptureMode(null_mut()));
    assert_eq!(result, CUDA_ERROR_INVALID_VALUE);
    assert_eq!(exchange(CAPTURE_MODE_GLOBAL), CAPTURE_MODE_RELAXED);
}

#[test]
fn a_reset_forgets_captures() {
    let _session = Session::new();
    let stream = Stream::new();
    ok!(cuStreamBeginCapture_v2(stream.0, CAPTURE_MODE_GLOBAL));
    controls::fake_cuda_reset(1, 0);
    assert_eq!(status(&stream), CAPTURE_STATUS_NONE);
    drop(Device::new(1));
    stream.synchronize();
}
