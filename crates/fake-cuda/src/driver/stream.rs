//! Streams, their captures, and events.

#![expect(clippy::missing_safety_doc, reason = "the contract is that of cuda.h")]

use crate::abi::{
    CUDA_ERROR_INVALID_VALUE, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, CUevent, CUgraph, CUresult,
    CUstream, STREAM_NON_BLOCKING,
};
use crate::calls::{Needs, call, call_on_stream, store};
use crate::captures;
use crate::events;
use crate::handles::as_pointer;
use crate::streams;
use std::ffi::{c_int, c_uint};
use std::ptr::null_mut;

/// Creates a stream. All priorities are the same to the fake.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuStreamCreateWithPriority(
    stream: *mut CUstream,
    flags: c_uint,
    _priority: c_int,
) -> CUresult {
    call("cuStreamCreateWithPriority", Needs::Context, || {
        if flags & !STREAM_NON_BLOCKING != 0 {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        // SAFETY: As cuda.h requires.
        unsafe { store(stream, || streams::create().map(as_pointer)) }
    })
}

/// Destroys a stream. Its work is still done.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuStreamDestroy_v2(stream: CUstream) -> CUresult {
    const CALL: &str = "cuStreamDestroy_v2";
    call(CALL, Needs::Context, || {
        let stream = stream.expose_provenance();
        captures::check_not_captured(CALL, stream)?;
        streams::destroy(stream)
    })
}

/// Waits for all work of a stream.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuStreamSynchronize(stream: CUstream) -> CUresult {
    const CALL: &str = "cuStreamSynchronize";
    call_on_stream(CALL, stream, |stream, _| {
        captures::check_not_captured(CALL, stream.handle())?;
        stream.synchronize()
    })
}

/// Begins the capture of a stream. The legacy default stream cannot be captured.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuStreamBeginCapture_v2(stream: CUstream, mode: c_int) -> CUresult {
    call_on_stream("cuStreamBeginCapture_v2", stream, |stream, _| {
        if streams::is_legacy(stream.handle()) {
            return Err(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
        }
        captures::begin(stream.handle(), mode)
    })
}

/// Ends the capture of a stream. The graph is always null.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuStreamEndCapture(stream: CUstream, graph: *mut CUgraph) -> CUresult {
    call_on_stream("cuStreamEndCapture", stream, |stream, _| {
        // SAFETY: As cuda.h requires.
        unsafe { store(graph, || Ok(null_mut()))? };
        captures::end(stream.handle())
    })
}

/// Returns the capture status of a stream.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuStreamIsCapturing(stream: CUstream, status: *mut c_int) -> CUresult {
    call_on_stream("cuStreamIsCapturing", stream, |stream, _| {
        // SAFETY: As cuda.h requires.
        unsafe { store(status, || Ok(captures::status(stream.handle()))) }
    })
}

/// Changes the capture mode of the calling thread, and stores the one before.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuThreadExchangeStreamCaptureMode(mode: *mut c_int) -> CUresult {
    call("cuThreadExchangeStreamCaptureMode", Needs::Init, || {
        // SAFETY: As cuda.h requires. A null pointer is not read.
        unsafe { store(mode, || captures::exchange_mode(mode.read())) }
    })
}

/// Lets a stream wait for the latest record of an event.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuStreamWaitEvent(
    stream: CUstream,
    event: CUevent,
    flags: c_uint,
) -> CUresult {
    call_on_stream("cuStreamWaitEvent", stream, |stream, _| {
        if flags != 0 {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        events::stream_wait(event.expose_provenance(), stream)
    })
}

/// Creates an event.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuEventCreate(event: *mut CUevent, flags: c_uint) -> CUresult {
    call("cuEventCreate", Needs::Context, || {
        // SAFETY: As cuda.h requires.
        unsafe { store(event, || events::create(flags).map(as_pointer)) }
    })
}

/// Destroys an event, also with work pending.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuEventDestroy_v2(event: CUevent) -> CUresult {
    call("cuEventDestroy_v2", Needs::Context, || events::destroy(event.expose_provenance()))
}

/// Records an event on a stream.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuEventRecord(event: CUevent, stream: CUstream) -> CUresult {
    call_on_stream("cuEventRecord", stream, |stream, _| {
        events::record(event.expose_provenance(), stream)
    })
}

/// Returns whether an event is complete.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuEventQuery(event: CUevent) -> CUresult {
    call("cuEventQuery", Needs::Init, || events::query(event.expose_provenance()))
}

/// Waits for an event.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuEventSynchronize(event: CUevent) -> CUresult {
    call("cuEventSynchronize", Needs::Context, || events::synchronize(event.expose_provenance()))
}
