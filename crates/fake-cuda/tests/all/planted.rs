//! Planted failures, counts, and the changeable properties.

use crate::support::{
    Device, Event, Pinned, Session, Stream, calls, fail, ok, pattern, result, to_device,
};
use fake_cuda::{
    CUDA_ERROR_INVALID_VALUE, CUDA_ERROR_LAUNCH_FAILED, CUDA_ERROR_OUT_OF_MEMORY,
    CUDA_ERROR_UNKNOWN, CUDA_SUCCESS, controls,
};
use std::ffi::CStr;
use std::ptr::{null, null_mut};

#[test]
fn the_planted_calls_fail_and_do_nothing() {
    let _session = Session::new();
    let alive = controls::fake_cuda_alive(4);
    assert_eq!(fail("cuMemAlloc_v2", 1, 2, CUDA_ERROR_OUT_OF_MEMORY), CUDA_SUCCESS);
    let mut address = 0;
    let results: Vec<_> = (0..4).map(|_| result!(cuMemAlloc_v2(&raw mut address, 1))).collect();
    let failed = CUDA_ERROR_OUT_OF_MEMORY;
    assert_eq!(results, [CUDA_SUCCESS, failed, failed, CUDA_SUCCESS]);
    assert_eq!(controls::fake_cuda_alive(4), alive + 2);
    assert_eq!(calls("cuMemAlloc_v2"), 4);
    ok!(cuMemFree_v2(address));
    // Counted from the moment it was planted.
    assert_eq!(fail("cuMemAlloc_v2", 0, 1, CUDA_ERROR_UNKNOWN), CUDA_SUCCESS);
    assert_eq!(result!(cuMemAlloc_v2(&raw mut address, 1)), CUDA_ERROR_UNKNOWN);
    controls::fake_cuda_reset(1, 0);
    assert_eq!(calls("cuMemAlloc_v2"), 0);
}

#[test]
fn a_reset_forgets_planted_failures_and_settings_but_keeps_objects() {
    let _session = Session::new();
    let alive = controls::fake_cuda_alive(4);
    let device = Device::with(&[1, 2, 3]);
    assert_eq!(fail("cuMemAlloc_v2", 0, 9, CUDA_ERROR_UNKNOWN), CUDA_SUCCESS);
    controls::fake_cuda_set_attribute(16, 1);
    controls::fake_cuda_set_driver_version(11_000);
    controls::fake_cuda_set_memlock(0);
    let held = Stream::held();
    ok!(cuMemsetD8Async(device.address, 9, 1, held.0));
    // A reset also releases held streams.
    controls::fake_cuda_reset(1, 0);
    assert_eq!(device.content(), [9, 2, 3]);
    assert_eq!(controls::fake_cuda_alive(4), alive + 1);
    drop(Device::new(1));
    drop(Pinned::new(1));
    let (mut value, mut version) = (0, 0);
    ok!(cuDeviceGetAttribute(&raw mut value, 16, 0));
    ok!(cuDriverGetVersion(&raw mut version));
    assert_eq!((value, version), (132, 12_080));
}

#[test]
fn work_that_fails_later_shows_at_the_next_event() {
    let _session = Session::new();
    let pinned = Pinned::with(&pattern(100, 1));
    let (device, stream) = (Device::with(&[0; 100]), Stream::new());
    let name = c"cuMemcpyHtoDAsync_v2".as_ptr();
    ok!(fake_cuda_fail_later(name, 0, 1, CUDA_ERROR_LAUNCH_FAILED));
    assert_eq!(to_device(&device, &pinned.0, 100, &stream), CUDA_SUCCESS);
    let (first, second) = (Event::new(), Event::new());
    first.record(&stream);
    second.record(&stream);
    assert_eq!(result!(cuEventSynchronize(first.0)), CUDA_ERROR_LAUNCH_FAILED);
    assert_eq!(first.query(), CUDA_ERROR_LAUNCH_FAILED);
    ok!(cuEventSynchronize(second.0));
    assert_eq!(device.content(), [0; 100]);
    stream.synchronize();
    assert_eq!(to_device(&device, &pinned.0, 100, &stream), CUDA_SUCCESS);
    stream.synchronize();
    assert_eq!(device.content(), pattern(100, 1));
}

#[test]
fn unknown_names_are_refused() {
    let _session = Session::new();
    assert_eq!(fail("cuMemAlloc", 0, 1, CUDA_ERROR_UNKNOWN), CUDA_ERROR_INVALID_VALUE);
    let name = c"cuMemAlloc_v2".as_ptr();
    let not_later = result!(fake_cuda_fail_later(name, 0, 1, CUDA_ERROR_UNKNOWN));
    assert_eq!(not_later, CUDA_ERROR_INVALID_VALUE);
    assert_eq!(calls("cuMemAlloc"), u64::MAX);
    assert_eq!(controls::fake_cuda_alive(7), u64::MAX);
}

#[test]
fn the_device_is_an_h100_by_its_attributes() {
    let _session = Session::new();
    let attribute = |number| {
        let mut value = -1;
        ok!(cuDeviceGetAttribute(&raw mut value, number, 0));
        value
    };
    let numbers = [16, 40, 41, 75, 76, 88, 91, 99, 113, 10];
    assert_eq!(numbers.map(attribute), [132, 3, 1, 9, 0, 0, 0, 1, 1, 0]);
    let mut value = 0;
    assert_eq!(result!(cuDeviceGetAttribute(&raw mut value, 16, 1)), 101);
    assert_eq!(result!(cuDeviceGetAttribute(&raw mut value, 0, 0)), CUDA_ERROR_INVALID_VALUE);
    let mut name = [b'x'; 9];
    ok!(cuDeviceGetName(name.as_mut_ptr().cast(), 5, 0));
    assert_eq!(&name, b"Fake\0xxxx");
    ok!(cuDeviceGetName(name.as_mut_ptr().cast(), 9, 0));
    assert_eq!(&name, b"FakeCuda\0");
    let (mut count, mut device) = (0, -1);
    ok!(cuDeviceGetCount(&raw mut count));
    ok!(cuDeviceGet(&raw mut device, 0));
    assert_eq!((count, device), (1, 0));
    assert_eq!(result!(cuDeviceGet(&raw mut device, 1)), 101);
}

#[test]
fn errors_have_the_names_of_cuda() {
    let _session = Session::new();
    let name_of = |error| {
        let mut name = null();
        ok!(cuGetErrorName(error, &raw mut name));
        // SAFETY: The names are static C strings.
        unsafe { CStr::from_ptr(name) }
    };
    assert_eq!(name_of(0), c"CUDA_SUCCESS");
    assert_eq!(name_of(2), c"CUDA_ERROR_OUT_OF_MEMORY");
    assert_eq!(name_of(713), c"CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED");
    let mut name = c"old".as_ptr();
    assert_eq!(result!(cuGetErrorName(12_345, &raw mut name)), CUDA_ERROR_INVALID_VALUE);
    assert!(name.is_null());
    assert_eq!(result!(cuGetErrorName(0, null_mut())), CUDA_ERROR_INVALID_VALUE);
}
