//! The checks at the start of every exported call, and the state per thread.
//!
//! 1. A forked child gets `CUDA_ERROR_NOT_INITIALIZED` from every call and touches no lock of the parent.
//! 2. There is one context, and its handle is valid while it is retained. So a thread's stack of contexts is a depth.
//! 3. A call that may spoil a capture is refused last, when all other checks have passed. `captures` decides which.

use crate::abi::{
    CUDA_ERROR_CONTEXT_IS_DESTROYED, CUDA_ERROR_INVALID_CONTEXT, CUDA_ERROR_INVALID_VALUE,
    CUDA_ERROR_NOT_INITIALIZED, CUDA_SUCCESS, CUresult, CUstream,
};
use crate::captures;
use crate::environment;
use crate::plants;
use crate::streams::{self, Stream};
use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// The handle of the primary context.
const CONTEXT: usize = (0x0E << 51) | 0x10;

/// The process that called `cuInit`; 0 before that.
static OWNER: AtomicU32 = AtomicU32::new(0);
static RETAINED: AtomicU64 = AtomicU64::new(0);

thread_local! {
    /// How often the context is on the stack of this thread.
    static DEPTH: Cell<usize> = const { Cell::new(0) };
}

/// The precondition of a call.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Needs {
    /// Nothing at all.
    Nothing,
    /// `cuInit`
    Init,
    /// A context that is current on the thread.
    Context,
}

/// Runs a call.
pub(crate) fn call(
    name: &str,
    needs: Needs,
    body: impl FnOnce() -> Result<(), CUresult>,
) -> CUresult {
    match enter(name, needs).and_then(|_| body()) {
        Ok(()) => CUDA_SUCCESS,
        Err(error) => error,
    }
}

/// Runs a call that queues work on a stream. The body also gets the failure that is planted for the work.
pub(crate) fn call_on_stream(
    name: &str,
    stream: CUstream,
    body: impl FnOnce(&Arc<Stream>, Option<CUresult>) -> Result<(), CUresult>,
) -> CUresult {
    let result = enter(name, Needs::Context)
        .and_then(|later| body(&streams::find(stream.expose_provenance())?, later));
    match result {
        Ok(()) => CUDA_SUCCESS,
        Err(error) => error,
    }
}

fn enter(name: &str, needs: Needs) -> Result<Option<CUresult>, CUresult> {
    let owner = OWNER.load(Ordering::Acquire);
    if owner != 0 && owner != std::process::id() {
        return Err(CUDA_ERROR_NOT_INITIALIZED);
    }
    environment::ensure_loaded();
    let planted = plants::count(name);
    if let Some(error) = planted.now {
        return Err(error);
    }
    if needs != Needs::Nothing && owner == 0 {
        return Err(CUDA_ERROR_NOT_INITIALIZED);
    }
    if needs == Needs::Context {
        match DEPTH.get() {
            0 => return Err(CUDA_ERROR_INVALID_CONTEXT),
            _ if retained() == 0 => return Err(CUDA_ERROR_CONTEXT_IS_DESTROYED),
            _ => {}
        }
    }
    captures::check_call(name)?;
    Ok(planted.later)
}

/// Marks the driver as initialized by this process.
pub(crate) fn initialize() {
    OWNER.store(std::process::id(), Ordering::Release);
}

/// Retains the primary context and returns its handle.
pub(crate) fn retain_context() -> usize {
    RETAINED.fetch_add(1, Ordering::AcqRel);
    CONTEXT
}

/// Releases the primary context once.
pub(crate) fn release_context() -> Result<(), CUresult> {
    RETAINED
        .fetch_update(Ordering::AcqRel, Ordering::Acquire, |count| count.checked_sub(1))
        .map(drop)
        .map_err(|_| CUDA_ERROR_INVALID_CONTEXT)
}

/// Returns how often the context is retained.
pub(crate) fn retained() -> u64 {
    RETAINED.load(Ordering::Acquire)
}

fn check_context(context: usize) -> Result<(), CUresult> {
    if context == CONTEXT && retained() > 0 { Ok(()) } else { Err(CUDA_ERROR_INVALID_CONTEXT) }
}

/// Pushes a context on the stack of this thread.
pub(crate) fn push_context(context: usize) -> Result<(), CUresult> {
    if context == 0 {
        return Err(CUDA_ERROR_INVALID_VALUE);
    }
    check_context(context)?;
    DEPTH.set(DEPTH.get() + 1);
    Ok(())
}

/// Pops the current context of this thread and returns its handle.
pub(crate) fn pop_context() -> Result<usize, CUresult> {
    DEPTH.set(DEPTH.get().checked_sub(1).ok_or(CUDA_ERROR_INVALID_CONTEXT)?);
    Ok(CONTEXT)
}

/// Replaces the current context of this thread; 0 pops it.
pub(crate) fn set_current(context: usize) -> Result<(), CUresult> {
    if context == 0 {
        DEPTH.set(DEPTH.get().saturating_sub(1));
        return Ok(());
    }
    check_context(context)?;
    DEPTH.set(DEPTH.get().max(1));
    Ok(())
}

/// Returns the context of this thread, or 0.
pub(crate) fn current_context() -> usize {
    if DEPTH.get() == 0 { 0 } else { CONTEXT }
}

/// Stores what a call returns through a pointer. Nothing is made if the pointer is null.
///
/// # Safety
///
/// `out` is null or valid for writes.
pub(crate) unsafe fn store<T>(
    out: *mut T,
    make: impl FnOnce() -> Result<T, CUresult>,
) -> Result<(), CUresult> {
    if out.is_null() {
        return Err(CUDA_ERROR_INVALID_VALUE);
    }
    let value = make()?;
    // SAFETY: The caller guarantees that a pointer that is not null can be written.
    unsafe { out.write(value) };
    Ok(())
}
