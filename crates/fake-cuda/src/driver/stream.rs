//! Streams, events and host functions.

#![expect(clippy::missing_safety_doc, reason = "the contract is that of cuda.h")]

use crate::abi::{
    CUDA_ERROR_INVALID_VALUE, CUevent, CUhostFn, CUresult, CUstream, STREAM_NON_BLOCKING,
};
use crate::calls::{Needs, call, call_on_stream, in_host_function, store};
use crate::events;
use crate::handles::as_pointer;
use crate::streams::{self, Stream, Work};
use std::ffi::{c_int, c_uint, c_void};
use std::ptr::with_exposed_provenance_mut;

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
    call("cuStreamDestroy_v2", Needs::Context, || streams::destroy(stream.expose_provenance()))
}

/// Waits for all work of a stream.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuStreamSynchronize(stream: CUstream) -> CUresult {
    call_on_stream("cuStreamSynchronize", stream, |stream, _| stream.synchronize())
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

/// Returns the milliseconds between two events.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuEventElapsedTime(
    ms: *mut f32,
    start: CUevent,
    end: CUevent,
) -> CUresult {
    call("cuEventElapsedTime", Needs::Context, || {
        let elapsed = || events::elapsed_ms(start.expose_provenance(), end.expose_provenance());
        // SAFETY: As cuda.h requires.
        unsafe { store(ms, elapsed) }
    })
}

struct HostFunction {
    function: unsafe extern "C" fn(*mut c_void),
    user_data: usize,
}

impl Work for HostFunction {
    fn run(self: Box<Self>, stream: &Stream) -> Result<(), CUresult> {
        let user_data = with_exposed_provenance_mut(self.user_data);
        stream.step(|| {
            // SAFETY: As cuda.h requires, the function may be called with this argument on any thread.
            in_host_function(|| unsafe { (self.function)(user_data) });
        });
        Ok(())
    }
}

/// Queues a call of a host function.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuLaunchHostFunc(
    stream: CUstream,
    function: CUhostFn,
    user_data: *mut c_void,
) -> CUresult {
    call_on_stream("cuLaunchHostFunc", stream, |stream, _| {
        let function = function.ok_or(CUDA_ERROR_INVALID_VALUE)?;
        let user_data = user_data.expose_provenance();
        stream.push(Box::new(HostFunction { function, user_data }));
        Ok(())
    })
}
