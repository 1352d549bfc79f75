//! Device memory and allocated host memory.

use crate::process::signal_of_child;
use crate::support::{Device, Pinned, Session, Stream, ok, pattern, result, to_device};
use fake_cuda::{
    CUDA_ERROR_INVALID_VALUE, CUDA_ERROR_OUT_OF_MEMORY, CUDA_SUCCESS, CUdeviceptr, controls,
};
use std::ffi::c_void;
use std::ptr::{null, null_mut, with_exposed_provenance};

fn read_byte(address: CUdeviceptr) {
    let address = usize::try_from(address).expect("64 bits");
    // SAFETY: None; the caller wants to see the fault in a child process.
    unsafe { with_exposed_provenance::<u8>(address).read_volatile() };
}

#[test]
fn a_cpu_that_touches_device_memory_faults() {
    let _session = Session::new();
    let device = Device::new(100);
    let freed = Device::new(100).address;
    let pinned = Pinned::new(1);
    let pointer = pinned.device_pointer();
    assert_eq!(signal_of_child(|| read_byte(pinned.0.start.expose_provenance() as u64)), 0);
    for address in [device.address, freed, pointer] {
        assert_eq!(signal_of_child(|| read_byte(address)), libc::SIGSEGV, "{address:#x}");
    }
}

#[test]
fn device_addresses_are_not_used_again_and_not_adjacent() {
    let _session = Session::new();
    let mut addresses: Vec<_> = (0..50).map(|_| Device::new(4096).address).collect();
    assert!(addresses.iter().all(|address| address % 512 == 0));
    assert!(addresses.iter().any(|address| address % 4096 != 0));
    addresses.sort_unstable();
    assert!(addresses.windows(2).all(|pair| pair[1] - pair[0] >= 2 * 4096));
}

#[test]
fn new_device_memory_does_not_hold_zeros() {
    let _session = Session::new();
    assert!(Device::new(5000).content().iter().all(|byte| *byte != 0));
}

/// More than half of what the device has.
const MOST: usize = 12 << 30;

#[test]
fn device_memory_is_counted() {
    let _session = Session::new();
    let alive = controls::fake_cuda_alive(4);
    let device = Device::new(MOST);
    assert_eq!(controls::fake_cuda_alive(4), alive + 1);
    let mut address = 0;
    let too_large = result!(cuMemAlloc_v2(&raw mut address, MOST));
    assert_eq!(too_large, CUDA_ERROR_OUT_OF_MEMORY);
    assert_eq!(result!(cuMemAlloc_v2(&raw mut address, 0)), CUDA_ERROR_INVALID_VALUE);
    assert_eq!(result!(cuMemAlloc_v2(null_mut(), 1)), CUDA_ERROR_INVALID_VALUE);
    assert_eq!(result!(cuMemFree_v2(device.address + 1)), CUDA_ERROR_INVALID_VALUE);
    drop(device);
    assert_eq!(controls::fake_cuda_alive(4), alive);
    drop(Device::new(MOST));
}

#[test]
fn freeing_device_memory_that_work_uses_is_a_violation() {
    let session = Session::new();
    let source = Pinned::with(&pattern(100, 1));
    let device = Device::new(100);
    let stream = Stream::held();
    assert_eq!(to_device(&device, &source.0, 100, &stream), CUDA_SUCCESS);
    drop(device);
    session.expect_violation("in-use");
    stream.release();
    stream.synchronize();
}

#[test]
fn allocated_host_memory_is_pinned() {
    let session = Session::new();
    let alive = controls::fake_cuda_alive(3);
    let mut host: *mut c_void = null_mut();
    ok!(cuMemHostAlloc(&raw mut host, 5000, 2));
    assert_eq!(controls::fake_cuda_alive(3), alive + 1);
    let bytes = pattern(5000, 1);
    // SAFETY: The allocation has 5000 bytes.
    unsafe { host.cast::<u8>().copy_from(bytes.as_ptr(), bytes.len()) };
    let device = Device::new(5000);
    let stream = Stream::held();
    ok!(cuMemcpyHtoDAsync_v2(device.address, host, 5000, stream.0));
    ok!(cuMemFreeHost(host));
    session.expect_violation("in-use");
    assert_eq!(controls::fake_cuda_alive(3), alive);
    // The fake keeps the memory for its work.
    stream.release();
    stream.synchronize();
    assert_eq!(device.content(), bytes);
    assert_eq!(result!(cuMemFreeHost(host)), CUDA_ERROR_INVALID_VALUE);
    assert_eq!(result!(cuMemHostAlloc(&raw mut host, 0, 0)), CUDA_ERROR_INVALID_VALUE);
    assert_eq!(result!(cuMemHostAlloc(&raw mut host, 1, 8)), CUDA_ERROR_INVALID_VALUE);
}

#[test]
fn direct_access_is_confined_to_allocations() {
    let _session = Session::new();
    let device = Device::new(100);
    let mut byte = 0_u8;
    let buffer: *mut c_void = (&raw mut byte).cast();
    ok!(fake_cuda_read(device.address + 99, buffer, 1));
    let behind = result!(fake_cuda_read(device.address + 100, buffer, 1));
    assert_eq!(behind, CUDA_ERROR_INVALID_VALUE);
    assert_eq!(result!(fake_cuda_write(device.address - 1, buffer, 1)), CUDA_ERROR_INVALID_VALUE);
    assert_eq!(result!(fake_cuda_violations(null_mut(), 0)), 0);
    assert_eq!(result!(cuModuleLoadData(null_mut(), null())), CUDA_ERROR_INVALID_VALUE);
}
