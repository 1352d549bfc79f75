//! Registered host memory.

use crate::support::{
    Device, PAGE, Pages, Pinned, Session, Stream, ok, pattern, result, to_device, to_host,
};
use fake_cuda::{
    CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED, CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED,
    CUDA_ERROR_ILLEGAL_ADDRESS, CUDA_ERROR_INVALID_VALUE, CUDA_ERROR_NOT_SUPPORTED,
    CUDA_ERROR_OUT_OF_MEMORY, CUDA_SUCCESS, REGISTER_READ_ONLY, controls,
};
use std::ptr::null_mut;

#[test]
fn registrations_do_not_share_a_page() {
    let _session = Session::new();
    let alive = controls::fake_cuda_alive(2);
    let pages = Pages::new(4);
    ok!(cuMemHostRegister_v2(pages.at(PAGE), PAGE + 1, 0));
    assert_eq!(controls::fake_cuda_alive(2), alive + 1);
    for (start, bytes) in [(0, 4 * PAGE), (PAGE, 1), (0, PAGE + 1), (2 * PAGE + 8, 8)] {
        let result = result!(cuMemHostRegister_v2(pages.at(start), bytes, 0));
        assert_eq!(result, CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED, "{start} {bytes}");
    }
    ok!(cuMemHostRegister_v2(pages.at(0), PAGE, 0));
    ok!(cuMemHostRegister_v2(pages.at(3 * PAGE), PAGE, 0));
    for start in [0, PAGE, 3 * PAGE] {
        ok!(cuMemHostUnregister(pages.at(start)));
    }
    assert_eq!(controls::fake_cuda_alive(2), alive);
}

#[test]
fn only_the_start_of_a_registration_unregisters_it() {
    let _session = Session::new();
    let pages = Pages::new(2);
    assert_eq!(pages.register(0), CUDA_SUCCESS);
    for at in [1, PAGE] {
        let result = result!(cuMemHostUnregister(pages.at(at)));
        assert_eq!(result, CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED);
    }
    assert_eq!(pages.unregister(), CUDA_SUCCESS);
    assert_eq!(pages.unregister(), CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED);
    let mut host = null_mut();
    ok!(cuMemHostAlloc(&raw mut host, 1, 0));
    assert_eq!(result!(cuMemHostUnregister(host)), CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED);
    ok!(cuMemFreeHost(host));
}

#[test]
fn every_page_has_to_be_mapped_and_readable() {
    let _session = Session::new();
    let pages = Pages::new(3);
    pages.protect(1, 1, libc::PROT_NONE);
    assert_eq!(pages.register(0), CUDA_ERROR_INVALID_VALUE);
    pages.unmap(1);
    assert_eq!(pages.register(0), CUDA_ERROR_INVALID_VALUE);
    ok!(cuMemHostRegister_v2(pages.at(0), PAGE, 0));
    assert_eq!(pages.unregister(), CUDA_SUCCESS);
    assert_eq!(result!(cuMemHostRegister_v2(pages.at(0), 0, 0)), CUDA_ERROR_INVALID_VALUE);
    assert_eq!(result!(cuMemHostRegister_v2(null_mut(), 1, 0)), CUDA_ERROR_INVALID_VALUE);
    assert_eq!(result!(cuMemHostRegister_v2(pages.at(0), usize::MAX, 0)), CUDA_ERROR_INVALID_VALUE);
    assert_eq!(result!(cuMemHostRegister_v2(pages.at(0), 1, 16)), CUDA_ERROR_INVALID_VALUE);
}

#[test]
fn pages_behind_the_end_of_a_file_cannot_be_registered() {
    let _session = Session::new();
    let pages = Pages::new(2);
    let file = pages.map_file(1);
    assert_eq!(pages.register(0), CUDA_ERROR_INVALID_VALUE);
    file.set_len(2 * PAGE as u64).unwrap();
    assert_eq!(pages.register(0), CUDA_SUCCESS);
    assert_eq!(pages.unregister(), CUDA_SUCCESS);
}

#[test]
fn read_only_mappings_need_the_flag_and_the_attribute() {
    let _session = Session::new();
    let pages = Pages::with(&pattern(PAGE, 1));
    pages.protect(0, 1, libc::PROT_READ);
    assert_eq!(pages.register(0), CUDA_ERROR_INVALID_VALUE);
    controls::fake_cuda_set_attribute(113, 0);
    assert_eq!(pages.register(0), CUDA_ERROR_INVALID_VALUE);
    assert_eq!(pages.register(REGISTER_READ_ONLY), CUDA_ERROR_NOT_SUPPORTED);
    controls::fake_cuda_set_attribute(113, 1);
    assert_eq!(pages.register(REGISTER_READ_ONLY), CUDA_SUCCESS);
    let (device, stream) = (Device::new(PAGE), Stream::new());
    assert_eq!(to_device(&device, &pages, PAGE, &stream), CUDA_SUCCESS);
    stream.synchronize();
    assert_eq!(device.content(), pattern(PAGE, 1));
    assert_eq!(pages.unregister(), CUDA_SUCCESS);
    controls::fake_cuda_set_attribute(99, 0);
    assert_eq!(pages.register(REGISTER_READ_ONLY), CUDA_ERROR_NOT_SUPPORTED);
}

#[test]
fn writing_to_a_read_only_registration_is_a_violation() {
    let session = Session::new();
    let pages = Pages::new(1);
    assert_eq!(pages.register(REGISTER_READ_ONLY), CUDA_SUCCESS);
    let (device, stream) = (Device::new(100), Stream::new());
    assert_eq!(to_host(&pages, &device, 100, &stream), CUDA_ERROR_INVALID_VALUE);
    session.expect_violation("read-only");
    stream.synchronize();
    assert_eq!(pages.read(100), vec![0; 100]);
    assert_eq!(pages.unregister(), CUDA_SUCCESS);
}

#[test]
fn pinned_bytes_are_limited_in_whole_pages() {
    let _session = Session::new();
    assert_eq!(controls::fake_cuda_alive(2) + controls::fake_cuda_alive(3), 0);
    controls::fake_cuda_set_memlock(3 * PAGE);
    let (first, second) = (Pages::new(2), Pages::new(2));
    assert_eq!(first.register(0), CUDA_SUCCESS);
    assert_eq!(second.register(0), CUDA_ERROR_OUT_OF_MEMORY);
    let mut host = null_mut();
    assert_eq!(result!(cuMemHostAlloc(&raw mut host, PAGE + 1, 0)), CUDA_ERROR_OUT_OF_MEMORY);
    ok!(cuMemHostAlloc(&raw mut host, 1, 0));
    let one_more = result!(cuMemHostRegister_v2(second.at(0), 1, 0));
    assert_eq!(one_more, CUDA_ERROR_OUT_OF_MEMORY);
    assert_eq!(first.unregister(), CUDA_SUCCESS);
    assert_eq!(second.register(0), CUDA_SUCCESS);
    assert_eq!(second.unregister(), CUDA_SUCCESS);
    ok!(cuMemFreeHost(host));
}

#[test]
fn unregistering_memory_that_work_uses_is_a_violation() {
    let session = Session::new();
    let pages = Pages::with(&pattern(PAGE, 1));
    assert_eq!(pages.register(0), CUDA_SUCCESS);
    let (device, stream) = (Device::new(PAGE), Stream::held());
    assert_eq!(to_device(&device, &pages, PAGE, &stream), CUDA_SUCCESS);
    assert_eq!(pages.unregister(), CUDA_SUCCESS);
    session.expect_violation("in-use");
    stream.release();
    stream.synchronize();
}

#[test]
fn unregistering_after_a_synchronization_is_no_violation() {
    let _session = Session::with_delay(5, 50);
    let stream = Stream::new();
    for _ in 0..100 {
        let (pages, device) = (Pages::new(1), Device::new(PAGE));
        assert_eq!(pages.register(0), CUDA_SUCCESS);
        assert_eq!(to_device(&device, &pages, PAGE, &stream), CUDA_SUCCESS);
        stream.synchronize();
        assert_eq!(pages.unregister(), CUDA_SUCCESS);
    }
}

#[test]
fn unmapping_registered_memory_is_a_violation() {
    let session = Session::new();
    let pages = Pages::new(3);
    assert_eq!(pages.register(0), CUDA_SUCCESS);
    pages.unmap(1);
    assert_eq!(pages.unregister(), CUDA_SUCCESS);
    session.expect_violation("unmapped");
}

#[test]
fn replacing_registered_memory_by_another_file_is_a_violation() {
    let session = Session::new();
    let pages = Pages::new(2);
    drop(pages.map_file(2));
    assert_eq!(pages.register(0), CUDA_SUCCESS);
    pages.protect(0, 1, libc::PROT_READ);
    assert_eq!(pages.unregister(), CUDA_SUCCESS);
    pages.protect(0, 1, libc::PROT_READ | libc::PROT_WRITE);
    assert_eq!(pages.register(0), CUDA_SUCCESS);
    drop(pages.map_file(2));
    assert_eq!(pages.unregister(), CUDA_SUCCESS);
    session.expect_violation("unmapped");
}

#[test]
fn unmapping_memory_under_a_copy_is_a_violation_and_no_crash() {
    let session = Session::new();
    let bytes = pattern(3 * PAGE, 1);
    let (device, stream) = (Device::with(&bytes), Stream::held());
    let pages = Pages::new(3);
    assert_eq!(pages.register(0), CUDA_SUCCESS);
    assert_eq!(to_host(&pages, &device, 3 * PAGE, &stream), CUDA_SUCCESS);
    pages.unmap(1);
    stream.release();
    assert_eq!(result!(cuStreamSynchronize(stream.0)), CUDA_ERROR_ILLEGAL_ADDRESS);
    session.expect_violation("unmapped");
    assert_eq!(pages.unregister(), CUDA_SUCCESS);
    session.expect_violation("unmapped");
}

#[test]
fn the_device_pointer_of_host_memory_is_not_its_address() {
    let _session = Session::new();
    let pinned = Pinned::new(1);
    let start = pinned.0.start.expose_provenance() as u64;
    assert_ne!(pinned.device_pointer(), start);
    let mut inside = 0;
    ok!(cuMemHostGetDevicePointer_v2(&raw mut inside, pinned.0.at(10), 0));
    assert_eq!(inside, pinned.device_pointer() + 10);
    let flags = result!(cuMemHostGetDevicePointer_v2(&raw mut inside, pinned.0.at(0), 1));
    assert_eq!(flags, CUDA_ERROR_INVALID_VALUE);
    let pageable = Pages::new(1);
    let result = result!(cuMemHostGetDevicePointer_v2(&raw mut inside, pageable.at(0), 0));
    assert_eq!(result, CUDA_ERROR_INVALID_VALUE);
}
