//! Captures of streams, and the calls that spoil them.
//!
//! 1. A capture belongs to one stream. It has a mode, and the thread that began it.
//! 2. Only `cuStreamEndCapture` and a reset end a capture, also one that is invalidated.
//! 3. A capture is never invalidated without a violation, and stays invalidated until it ends.
//! 4. A call is potentially unsafe unless it is in `SAFE`. A thread whose mode forbids such a call gets an error, the
//!    call does nothing, and the captures that forbid it are invalidated.
//! 5. Work of a captured stream is checked and dropped. There are no graphs.
//! 6. The event of a captured record is never complete. Only the stream of its capture may wait for it. The real driver
//!    lets another stream join the capture, which an engine does not expect of a stream that is not its own.

use crate::abi::{
    CAPTURE_MODE_GLOBAL, CAPTURE_MODE_RELAXED, CAPTURE_MODE_THREAD_LOCAL, CAPTURE_STATUS_ACTIVE,
    CAPTURE_STATUS_INVALIDATED, CAPTURE_STATUS_NONE, CUDA_ERROR_ILLEGAL_STATE,
    CUDA_ERROR_INVALID_VALUE, CUDA_ERROR_STREAM_CAPTURE_INVALIDATED,
    CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD, CUresult,
};
use crate::violations::{self, Kind};
use parking_lot::Mutex;
use std::cell::Cell;
use std::collections::BTreeMap;
use std::ffi::c_int;
use std::fmt::Display;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::{ThreadId, current};

/// The calls that are allowed during every capture. Those of a stream have rules of their own if it is captured.
const SAFE: [&str; 26] = [
    "cuInit",
    "cuDriverGetVersion",
    "cuGetErrorName",
    "cuDeviceGetCount",
    "cuDeviceGet",
    "cuDeviceGetName",
    "cuDeviceGetAttribute",
    "cuDevicePrimaryCtxRetain",
    "cuDevicePrimaryCtxRelease_v2",
    "cuCtxPushCurrent_v2",
    "cuCtxPopCurrent_v2",
    "cuCtxSetCurrent",
    "cuCtxGetCurrent",
    "cuCtxGetStreamPriorityRange",
    "cuThreadExchangeStreamCaptureMode",
    "cuStreamBeginCapture_v2",
    "cuStreamEndCapture",
    "cuStreamIsCapturing",
    "cuStreamWaitEvent",
    "cuEventRecord",
    "cuMemcpyHtoDAsync_v2",
    "cuMemcpyDtoHAsync_v2",
    "cuMemcpyBatchAsync",
    "cuMemcpyBatchAsync_v2",
    "cuMemsetD8Async",
    "cuLaunchKernel",
];

/// The number of a capture. It is never used again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct CaptureId(u64);

struct Capture {
    id: CaptureId,
    mode: c_int,
    thread: ThreadId,
    is_invalidated: bool,
}

impl Capture {
    /// Returns whether the capture forbids potentially unsafe calls to a thread of that mode.
    fn forbids(&self, thread: ThreadId, mode: c_int) -> bool {
        let is_of_thread = self.thread == thread && self.mode != CAPTURE_MODE_RELAXED;
        match mode {
            CAPTURE_MODE_GLOBAL => is_of_thread || self.mode == CAPTURE_MODE_GLOBAL,
            CAPTURE_MODE_THREAD_LOCAL => is_of_thread,
            _ => false,
        }
    }
}

/// The captures by the handles of their streams.
static CAPTURES: Mutex<BTreeMap<usize, Capture>> = Mutex::new(BTreeMap::new());
static NEXT_ID: AtomicU64 = AtomicU64::new(1);

thread_local! {
    static THREAD_MODE: Cell<c_int> = const { Cell::new(CAPTURE_MODE_GLOBAL) };
}

fn check_mode(mode: c_int) -> Result<(), CUresult> {
    if (CAPTURE_MODE_GLOBAL..=CAPTURE_MODE_RELAXED).contains(&mode) {
        Ok(())
    } else {
        Err(CUDA_ERROR_INVALID_VALUE)
    }
}

/// Changes the mode of the calling thread and returns the one before.
pub(crate) fn exchange_mode(mode: c_int) -> Result<c_int, CUresult> {
    check_mode(mode)?;
    Ok(THREAD_MODE.replace(mode))
}

/// Begins the capture of a stream.
pub(crate) fn begin(stream: usize, mode: c_int) -> Result<(), CUresult> {
    check_mode(mode)?;
    let mut captures = CAPTURES.lock();
    if captures.contains_key(&stream) {
        return Err(CUDA_ERROR_ILLEGAL_STATE);
    }
    let id = CaptureId(NEXT_ID.fetch_add(1, Ordering::Relaxed));
    captures.insert(stream, Capture { id, mode, thread: current().id(), is_invalidated: false });
    Ok(())
}

/// Ends the capture of a stream.
pub(crate) fn end(stream: usize) -> Result<(), CUresult> {
    let mut captures = CAPTURES.lock();
    let capture = captures.get(&stream).ok_or(CUDA_ERROR_ILLEGAL_STATE)?;
    if capture.mode != CAPTURE_MODE_RELAXED && capture.thread != current().id() {
        return Err(CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD);
    }
    let is_invalidated = capture.is_invalidated;
    captures.remove(&stream);
    if is_invalidated { Err(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED) } else { Ok(()) }
}

/// Returns the status of a stream.
pub(crate) fn status(stream: usize) -> c_int {
    match CAPTURES.lock().get(&stream) {
        None => CAPTURE_STATUS_NONE,
        Some(capture) if capture.is_invalidated => CAPTURE_STATUS_INVALIDATED,
        Some(_) => CAPTURE_STATUS_ACTIVE,
    }
}

/// Returns the capture of a stream. A stream whose capture is invalidated takes no work.
pub(crate) fn of(stream: usize) -> Result<Option<CaptureId>, CUresult> {
    match CAPTURES.lock().get(&stream) {
        Some(capture) if capture.is_invalidated => Err(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED),
        capture => Ok(capture.map(|capture| capture.id)),
    }
}

/// Invalidates the captures that fulfill a condition. Returns whether there are any.
fn invalidate_where(is_spoiled: impl Fn(&Capture) -> bool) -> bool {
    let mut is_any = false;
    for capture in CAPTURES.lock().values_mut().filter(|capture| is_spoiled(capture)) {
        capture.is_invalidated = true;
        is_any = true;
    }
    is_any
}

/// Invalidates captures that have not ended, records a violation and returns the error of the call.
pub(crate) fn invalidate(ids: &[CaptureId], error: CUresult, text: impl Display) -> CUresult {
    invalidate_where(|capture| ids.contains(&capture.id));
    violations::record(Kind::Capture, text);
    error
}

/// Refuses a call that is not possible for a captured stream.
pub(crate) fn check_not_captured(call: &str, stream: usize) -> Result<(), CUresult> {
    let Some(capture) = of(stream)? else { return Ok(()) };
    let text = format_args!("{call} of stream {stream:#x}, which is captured");
    Err(invalidate(&[capture], CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, text))
}

/// Refuses a call that may spoil a capture of this or another thread.
pub(crate) fn check_call(call: &str) -> Result<(), CUresult> {
    if SAFE.contains(&call) {
        return Ok(());
    }
    let (thread, mode) = (current().id(), THREAD_MODE.get());
    if !invalidate_where(|capture| capture.forbids(thread, mode)) {
        return Ok(());
    }
    violations::record(Kind::Capture, format_args!("{call} while a stream is captured"));
    Err(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED)
}

/// Forgets all captures. Threads keep their modes.
pub(crate) fn clear() {
    CAPTURES.lock().clear();
}

#[cfg(test)]
mod tests {
    use super::SAFE;
    use crate::plants::NAMES;

    #[test]
    fn safe_calls_are_exported_calls() {
        assert!(SAFE.iter().all(|call| NAMES.contains(call)));
    }
}
