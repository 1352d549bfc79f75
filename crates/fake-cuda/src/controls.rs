//! Exported functions for tests. `lib.rs` describes them.

#![expect(
    clippy::missing_safety_doc,
    reason = "the contract is the one of each C string and buffer"
)]

use crate::abi::{
    CUDA_ERROR_INVALID_HANDLE, CUDA_ERROR_INVALID_VALUE, CUDA_SUCCESS, CUdeviceptr, CUresult,
    CUstream,
};
use crate::calls;
use crate::captures;
use crate::copies::{Site, site};
use crate::device_memory;
use crate::driver::memory::address;
use crate::environment::ensure_loaded;
use crate::events;
use crate::host_memory;
use crate::kernels;
use crate::plants::{self, Plant, Shows};
use crate::regions::Place;
use crate::settings;
use crate::streams::{self, Stream, Work};
use crate::violations;
use std::ffi::{CStr, c_char, c_int, c_void};
use std::time::Duration;

fn result_of(is_done: bool, otherwise: CUresult) -> CUresult {
    if is_done { CUDA_SUCCESS } else { otherwise }
}

/// Releases all held streams, waits for all streams, and forgets captures, planted failures, counts, violations and
/// changed settings. Contexts, streams, memory and modules stay, and so do the contexts and capture modes of threads.
#[unsafe(no_mangle)]
pub extern "C" fn fake_cuda_reset(seed: u64, max_delay_us: u32) {
    ensure_loaded();
    captures::clear();
    streams::drain_all();
    plants::clear();
    violations::clear();
    settings::reset(seed, max_delay_us);
}

unsafe fn plant(name: *const c_char, plant: Plant) -> CUresult {
    ensure_loaded();
    // SAFETY: The caller passes a C string.
    let name = unsafe { CStr::from_ptr(name) };
    let is_done = name.to_str().is_ok_and(|name| plants::plant(name, plant));
    result_of(is_done, CUDA_ERROR_INVALID_VALUE)
}

/// Lets calls fail: of the calls of `name` from now on, those numbered `after` + 1 to `after` + `times` return
/// `result` and do nothing. Returns 1 if there is no such call.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fake_cuda_fail(
    name: *const c_char,
    after: u32,
    times: u32,
    result: CUresult,
) -> CUresult {
    // SAFETY: As the caller guarantees.
    unsafe { plant(name, Plant { after, times, result, shows: Shows::Now }) }
}

/// Lets the work of copies, memsets and launches fail: the call succeeds, nothing is copied, and the next event that is
/// recorded on the stream has `result`. Returns 1 if there is no such call.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fake_cuda_fail_later(
    name: *const c_char,
    after: u32,
    times: u32,
    result: CUresult,
) -> CUresult {
    // SAFETY: As the caller guarantees.
    unsafe { plant(name, Plant { after, times, result, shows: Shows::Later }) }
}

/// Sets a device attribute.
#[unsafe(no_mangle)]
pub extern "C" fn fake_cuda_set_attribute(attribute: c_int, value: c_int) {
    ensure_loaded();
    settings::change(|settings| {
        settings.attributes.insert(attribute, value);
    });
}

/// Sets the version of the driver, 1000 * major + 10 * minor.
#[unsafe(no_mangle)]
pub extern "C" fn fake_cuda_set_driver_version(version: c_int) {
    ensure_loaded();
    settings::change(|settings| settings.driver_version = version);
}

/// Sets the newest PTX version that is accepted.
#[unsafe(no_mangle)]
pub extern "C" fn fake_cuda_set_ptx(major: u32, minor: u32) {
    ensure_loaded();
    settings::change(|settings| settings.ptx = (major, minor));
}

/// Sets how many bytes of host memory may be pinned.
#[unsafe(no_mangle)]
pub extern "C" fn fake_cuda_set_memlock(bytes: usize) {
    ensure_loaded();
    settings::change(|settings| settings.memlock = bytes);
}

/// Returns how often a call was made since the reset, or `u64::MAX` if there is no such call.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fake_cuda_calls(name: *const c_char) -> u64 {
    // SAFETY: The caller passes a C string.
    let name = unsafe { CStr::from_ptr(name) };
    name.to_str().ok().and_then(plants::calls).unwrap_or(u64::MAX)
}

/// Returns the number of violations since the reset. Writes their texts to a buffer of `bytes` bytes, one per line, cut
/// if necessary, with a zero byte at the end. The buffer may be null.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fake_cuda_violations(buffer: *mut c_char, bytes: usize) -> usize {
    let (count, text) = violations::listed();
    if !buffer.is_null() && bytes > 0 {
        let written = text.len().min(bytes - 1);
        // SAFETY: The caller guarantees that the buffer has `bytes` bytes, and `written` is less.
        unsafe {
            buffer.cast::<u8>().copy_from_nonoverlapping(text.as_ptr(), written);
            buffer.add(written).write(0);
        }
    }
    count
}

/// Returns how many objects exist: 0 streams, 1 events, 2 registrations, 3 host allocations, 4 device allocations,
/// 5 modules, 6 retained contexts. Other kinds give `u64::MAX`.
#[unsafe(no_mangle)]
pub extern "C" fn fake_cuda_alive(kind: u32) -> u64 {
    let count = match kind {
        0 => streams::count(),
        1 => events::count(),
        2 => host_memory::counts().0,
        3 => host_memory::counts().1,
        4 => device_memory::count(),
        5 => kernels::count(),
        6 => return calls::retained(),
        _ => return u64::MAX,
    };
    count as u64
}

fn device_place(device: CUdeviceptr, bytes: usize) -> Option<Place> {
    match site(address(device), bytes) {
        Site::Device(place) => Some(place),
        _ => None,
    }
}

/// Reads device memory as it is now, whatever is queued. Returns 1 if the range is not in an allocation.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fake_cuda_read(
    device: CUdeviceptr,
    buffer: *mut c_void,
    bytes: usize,
) -> CUresult {
    let Some(place) = device_place(device, bytes) else { return CUDA_ERROR_INVALID_VALUE };
    // SAFETY: The caller guarantees that the buffer has `bytes` initialized bytes.
    let buffer = unsafe { std::slice::from_raw_parts_mut(buffer.cast::<u8>(), bytes) };
    result_of(place.read(0, buffer).is_ok(), CUDA_ERROR_INVALID_VALUE)
}

/// Writes device memory now, whatever is queued. Returns 1 if the range is not in an allocation.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fake_cuda_write(
    device: CUdeviceptr,
    buffer: *const c_void,
    bytes: usize,
) -> CUresult {
    let Some(place) = device_place(device, bytes) else { return CUDA_ERROR_INVALID_VALUE };
    // SAFETY: The caller guarantees that the buffer has `bytes` bytes.
    let buffer = unsafe { std::slice::from_raw_parts(buffer.cast::<u8>(), bytes) };
    result_of(place.write(0, buffer).is_ok(), CUDA_ERROR_INVALID_VALUE)
}

struct Delay(Duration);

impl Work for Delay {
    fn run(self: Box<Self>, _: &Stream) -> Result<(), CUresult> {
        std::thread::sleep(self.0);
        Ok(())
    }
}

/// Queues a delay on a stream. Returns 400 if there is no such stream.
#[unsafe(no_mangle)]
pub extern "C" fn fake_cuda_delay(stream: CUstream, us: u64) -> CUresult {
    ensure_loaded();
    let found = streams::find_running(stream.expose_provenance());
    if let Some(stream) = &found {
        stream.push(Box::new(Delay(Duration::from_micros(us))));
    }
    result_of(found.is_some(), CUDA_ERROR_INVALID_HANDLE)
}

/// Holds a stream: it begins no step until it is released. Returns when no step runs. Returns 400 if there is no such
/// stream.
#[unsafe(no_mangle)]
pub extern "C" fn fake_cuda_hold(stream: CUstream) -> CUresult {
    ensure_loaded();
    let found = streams::find_running(stream.expose_provenance());
    if let Some(stream) = &found {
        stream.hold();
    }
    result_of(found.is_some(), CUDA_ERROR_INVALID_HANDLE)
}

/// Lets a held stream run `count` steps, and waits until they or all of its work are done. A step is a chunk of 16 KiB
/// of a copy, the reading of a kernel's list or an event's record. Returns how many steps ran.
#[unsafe(no_mangle)]
pub extern "C" fn fake_cuda_step(stream: CUstream, count: u64) -> u64 {
    ensure_loaded();
    streams::find_running(stream.expose_provenance()).map_or(0, |stream| stream.run_steps(count))
}

/// Lets a held stream continue. Returns 400 if there is no such stream.
#[unsafe(no_mangle)]
pub extern "C" fn fake_cuda_release(stream: CUstream) -> CUresult {
    ensure_loaded();
    let found = streams::find_running(stream.expose_provenance());
    if let Some(stream) = &found {
        stream.release();
    }
    result_of(found.is_some(), CUDA_ERROR_INVALID_HANDLE)
}

/// Holds all streams, the legacy default stream and those created later included. `fake_cuda_release` still releases a
/// single one. Returns when no step runs.
#[unsafe(no_mangle)]
pub extern "C" fn fake_cuda_hold_all() {
    ensure_loaded();
    streams::hold_all();
}

/// Lets all held streams continue, also those held by `fake_cuda_hold`. A reset does the same.
#[unsafe(no_mangle)]
pub extern "C" fn fake_cuda_release_all() {
    ensure_loaded();
    streams::release_all();
}
