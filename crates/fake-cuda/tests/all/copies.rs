//! The ranges of copies and batches, and the times at which they read their sources.

use crate::support::{
    CHUNK, Device, Event, PAGE, Pages, Pinned, Session, Stream, ok, pattern, result, to_device,
    to_host,
};
use fake_cuda::{
    CUDA_ERROR_INVALID_VALUE, CUDA_ERROR_NOT_READY, CUDA_ERROR_NOT_SUPPORTED, CUDA_SUCCESS,
    CUdeviceptr, CUmemcpyAttributes, CUresult, SOURCE_ORDER_ANY, SOURCE_ORDER_DURING_API_CALL,
    SOURCE_ORDER_STREAM, controls,
};
use std::ptr::null_mut;
use std::thread;

pub(crate) fn address(pages: &Pages, offset: usize) -> CUdeviceptr {
    (pages.start.expose_provenance() + offset) as u64
}

/// The arrays of a batch: (destination, source, bytes), and (first copy, source order).
pub(crate) struct Batch {
    targets: Vec<CUdeviceptr>,
    sources: Vec<CUdeviceptr>,
    sizes: Vec<usize>,
    attributes: Vec<CUmemcpyAttributes>,
    first_copies: Vec<usize>,
}

impl Batch {
    pub(crate) fn new(
        copies: &[(CUdeviceptr, CUdeviceptr, usize)],
        orders: &[(usize, i32)],
    ) -> Self {
        let attribute =
            |order| CUmemcpyAttributes { source_access_order: order, ..Default::default() };
        Self {
            targets: copies.iter().map(|copy| copy.0).collect(),
            sources: copies.iter().map(|copy| copy.1).collect(),
            sizes: copies.iter().map(|copy| copy.2).collect(),
            attributes: orders.iter().map(|order| attribute(order.1)).collect(),
            first_copies: orders.iter().map(|order| order.0).collect(),
        }
    }

    /// Queues the batch. Returns the result and the number of the copy that was refused.
    pub(crate) fn queue(&mut self, stream: &Stream) -> (CUresult, usize) {
        let mut failed = 12_345;
        let result = result!(cuMemcpyBatchAsync(
            self.targets.as_mut_ptr(),
            self.sources.as_mut_ptr(),
            self.sizes.as_mut_ptr(),
            self.sizes.len(),
            self.attributes.as_mut_ptr(),
            self.first_copies.as_mut_ptr(),
            self.attributes.len(),
            &raw mut failed,
            stream.0,
        ));
        (result, failed)
    }

    fn queue_v2(&mut self, stream: &Stream) -> CUresult {
        result!(cuMemcpyBatchAsync_v2(
            self.targets.as_mut_ptr(),
            self.sources.as_mut_ptr(),
            self.sizes.as_mut_ptr(),
            self.sizes.len(),
            self.attributes.as_mut_ptr(),
            self.first_copies.as_mut_ptr(),
            self.attributes.len(),
            stream.0,
        ))
    }
}

const NO_COPY: usize = usize::MAX;

#[test]
fn bytes_arrive_through_every_kind_of_copy() {
    let _session = Session::with_delay(11, 50);
    let bytes = pattern(3 * CHUNK + 5, 1);
    let source = Pinned::with(&bytes);
    let target = Pinned::new(source.0.bytes / PAGE);
    let (first, second) = (Device::new(bytes.len()), Device::new(bytes.len()));
    let stream = Stream::new();
    assert_eq!(to_device(&first, &source.0, bytes.len(), &stream), CUDA_SUCCESS);
    let between = (second.address, first.address, bytes.len());
    let mut batch = Batch::new(&[between], &[(0, SOURCE_ORDER_STREAM)]);
    assert_eq!(batch.queue(&stream), (CUDA_SUCCESS, NO_COPY));
    ok!(cuMemsetD8Async(first.address + 1, 7, 3, stream.0));
    assert_eq!(to_host(&target.0, &second, bytes.len(), &stream), CUDA_SUCCESS);
    stream.synchronize();
    assert_eq!(target.0.read(bytes.len()), bytes);
    assert_eq!(first.content()[..5], [bytes[0], 7, 7, 7, bytes[4]]);
}

#[test]
fn copies_take_both_pointers_of_host_memory() {
    let _session = Session::new();
    let bytes = pattern(100, 1);
    let source = Pinned::with(&bytes);
    let device = Device::new(100);
    let stream = Stream::new();
    let pointer =
        std::ptr::with_exposed_provenance(usize::try_from(source.device_pointer()).unwrap());
    ok!(cuMemcpyHtoDAsync_v2(device.address, pointer, 100, stream.0));
    stream.synchronize();
    assert_eq!(device.content(), bytes);
}

#[test]
fn a_range_across_a_border_of_registrations_is_refused() {
    let session = Session::new();
    let pages = Pages::new(4);
    ok!(cuMemHostRegister_v2(pages.at(0), PAGE, 0));
    ok!(cuMemHostRegister_v2(pages.at(PAGE), PAGE, 0));
    let (device, stream) = (Device::new(4 * PAGE), Stream::new());
    for (start, bytes) in [(PAGE - 1, 2), (2 * PAGE - 1, 2), (0, 4 * PAGE)] {
        let result =
            result!(cuMemcpyHtoDAsync_v2(device.address, pages.at(start), bytes, stream.0));
        assert_eq!(result, CUDA_ERROR_INVALID_VALUE);
        session.expect_violation("border");
        let result =
            result!(cuMemcpyDtoHAsync_v2(pages.at(start), device.address, bytes, stream.0));
        assert_eq!(result, CUDA_ERROR_INVALID_VALUE);
        session.expect_violation("border");
        let copy = (device.address, address(&pages, start), bytes);
        let mut batch = Batch::new(&[copy], &[(0, SOURCE_ORDER_STREAM)]);
        assert_eq!(batch.queue(&stream), (CUDA_ERROR_INVALID_VALUE, 0));
        session.expect_violation("border");
    }
    ok!(cuMemcpyHtoDAsync_v2(device.address, pages.at(PAGE - 1), 1, stream.0));
    ok!(cuMemcpyHtoDAsync_v2(device.address, pages.at(PAGE), PAGE, stream.0));
    stream.synchronize();
    ok!(cuMemHostUnregister(pages.at(0)));
    ok!(cuMemHostUnregister(pages.at(PAGE)));
}

#[test]
fn a_range_outside_of_allocations_is_refused() {
    let session = Session::new();
    let host = Pinned::new(1);
    let freed = Device::new(PAGE).address;
    let (device, stream) = (Device::new(PAGE), Stream::new());
    let ranges = [
        (device.address, PAGE + 1),
        (device.address - 1, 1),
        (device.address + 4096, 1),
        (device.address, usize::MAX),
        (freed, 1),
        (0, 1),
        (address(&host.0, 0), 1),
        (host.device_pointer(), 1),
    ];
    for (at, bytes) in ranges {
        let results = [
            result!(cuMemcpyHtoDAsync_v2(at, host.0.at(0), bytes, stream.0)),
            result!(cuMemcpyDtoHAsync_v2(host.0.at(0), at, bytes, stream.0)),
            result!(cuMemsetD8Async(at, 0, bytes, stream.0)),
        ];
        assert_eq!(results, [CUDA_ERROR_INVALID_VALUE; 3], "{bytes} bytes at {at:#x}");
    }
    let violations = crate::support::violations();
    assert_eq!(violations.len(), 3 * ranges.len());
    assert!(violations.iter().all(|text| text.starts_with("outside: ")), "{violations:?}");
    controls::fake_cuda_reset(1, 0);
    let no_host = std::ptr::with_exposed_provenance(usize::try_from(device.address).unwrap());
    let result = result!(cuMemcpyHtoDAsync_v2(device.address, no_host, 1, stream.0));
    assert_eq!(result, CUDA_ERROR_INVALID_VALUE);
    session.expect_violation("outside");
}

#[test]
fn a_pageable_source_is_read_during_the_call() {
    let session = Session::new();
    let old = pattern(PAGE, 1);
    let pages = Pages::with(&old);
    let (device, stream) = (Device::with(&[0; PAGE]), Stream::held());
    assert_eq!(to_device(&device, &pages, PAGE, &stream), CUDA_SUCCESS);
    pages.write(&pattern(PAGE, 2));
    assert_eq!(device.content(), [0; PAGE], "the copy itself is in stream order");
    stream.release();
    stream.synchronize();
    assert_eq!(device.content(), old);
    pages.protect(0, 1, libc::PROT_NONE);
    assert_eq!(to_device(&device, &pages, PAGE, &stream), CUDA_ERROR_INVALID_VALUE);
    session.expect_violation("unmapped");
}

#[test]
fn a_pageable_destination_makes_the_call_wait() {
    let _session = Session::new();
    let bytes = pattern(PAGE, 1);
    let (device, stream, pages) = (Device::with(&bytes), Stream::held(), Pages::new(1));
    let handle = stream.0.expose_provenance();
    thread::scope(|scope| {
        scope.spawn(|| {
            thread::sleep(std::time::Duration::from_millis(20));
            let stream = std::ptr::with_exposed_provenance_mut(handle);
            assert_eq!(controls::fake_cuda_release(stream), CUDA_SUCCESS);
        });
        assert_eq!(to_host(&pages, &device, PAGE, &stream), CUDA_SUCCESS);
        assert_eq!(pages.read(PAGE), bytes);
    });
}

#[test]
fn a_pinned_source_is_read_in_stream_order() {
    let _session = Session::new();
    let pinned = Pinned::with(&pattern(PAGE, 1));
    let (device, stream) = (Device::new(PAGE), Stream::held());
    assert_eq!(to_device(&device, &pinned.0, PAGE, &stream), CUDA_SUCCESS);
    pinned.0.write(&pattern(PAGE, 2));
    stream.release();
    stream.synchronize();
    assert_eq!(device.content(), pattern(PAGE, 2));
}

#[test]
fn a_batch_reads_each_source_in_the_order_of_its_attributes() {
    let _session = Session::new();
    let old = pattern(5 * PAGE, 1);
    let new = pattern(5 * PAGE, 2);
    let pinned = Pinned::with(&old);
    let (device, stream) = (Device::new(5 * PAGE), Stream::held());
    let copies: Vec<_> = (0..5)
        .map(|page| (device.address + (page * PAGE) as u64, address(&pinned.0, page * PAGE), PAGE))
        .collect();
    let orders =
        [(0, SOURCE_ORDER_ANY), (1, SOURCE_ORDER_STREAM), (4, SOURCE_ORDER_DURING_API_CALL)];
    assert_eq!(Batch::new(&copies, &orders).queue(&stream), (CUDA_SUCCESS, NO_COPY));
    pinned.0.write(&new);
    stream.release();
    stream.synchronize();
    let content = device.content();
    for page in 0..5 {
        let expected = if (1..4).contains(&page) { &new } else { &old };
        let range = page * PAGE..(page + 1) * PAGE;
        assert_eq!(content[range.clone()], expected[range], "page {page}");
    }
}

#[test]
fn a_batch_copies_between_all_sides_in_random_order() {
    let _session = Session::new();
    let bytes = pattern(8 * PAGE, 1);
    let (source, target) = (Pinned::with(&bytes), Pinned::new(8));
    let (device, stream) = (Device::with(&vec![0; 8 * PAGE]), Stream::held());
    let copies: Vec<_> = (0..8)
        .map(|page| (device.address + (page * PAGE) as u64, address(&source.0, page * PAGE), PAGE))
        .collect();
    let order = [(0, SOURCE_ORDER_STREAM)];
    assert_eq!(Batch::new(&copies, &order).queue(&stream).0, CUDA_SUCCESS);
    let mut is_copied = [false; 8];
    let mut sequence = Vec::new();
    for _ in 0..8 {
        assert_eq!(stream.step(1), 1);
        let content = device.content();
        let page = (0..8).find(|page| !is_copied[*page] && content[page * PAGE] != 0).unwrap();
        is_copied[page] = true;
        sequence.push(page);
    }
    assert!(!sequence.is_sorted(), "{sequence:?}");
    stream.release();
    let to_host = [
        (address(&target.0, 0), device.address, 4 * PAGE),
        (
            target.device_pointer() + 4 * PAGE as u64,
            source.device_pointer() + 4 * PAGE as u64,
            4 * PAGE,
        ),
    ];
    assert_eq!(Batch::new(&to_host, &order).queue(&stream).0, CUDA_SUCCESS);
    stream.synchronize();
    assert_eq!(target.0.read(8 * PAGE), bytes);
}

#[test]
fn a_refused_batch_names_the_copy_and_copies_nothing() {
    let session = Session::new();
    let (pinned, pageable) = (Pinned::with(&pattern(PAGE, 1)), Pages::new(1));
    let (device, stream) = (Device::with(&[0; PAGE]), Stream::new());
    let good = (device.address, address(&pinned.0, 0), 10);
    let order = [(0, SOURCE_ORDER_STREAM)];
    let pageable = (device.address + 20, address(&pageable, 0), 10);
    let empty = (device.address + 20, address(&pinned.0, 0), 0);
    for bad in [pageable, empty] {
        let result = Batch::new(&[good, bad], &order).queue(&stream);
        assert_eq!(result, (CUDA_ERROR_INVALID_VALUE, 1));
    }
    let outside = (device.address + 4090, address(&pinned.0, 0), 10);
    assert_eq!(
        Batch::new(&[good, good, outside], &order).queue(&stream),
        (CUDA_ERROR_INVALID_VALUE, 2)
    );
    session.expect_violation("outside");
    for orders in [
        &[][..],
        &[(0, 0)],
        &[(0, 4)],
        &[(1, SOURCE_ORDER_ANY)],
        &[(0, SOURCE_ORDER_ANY), (0, SOURCE_ORDER_ANY)],
        &[(0, SOURCE_ORDER_ANY), (1, SOURCE_ORDER_ANY)],
    ] {
        let result = Batch::new(&[good], orders).queue(&stream);
        assert_eq!(result, (CUDA_ERROR_INVALID_VALUE, NO_COPY), "{orders:?}");
    }
    let mut flagged = Batch::new(&[good], &order);
    flagged.attributes[0].flags = 2;
    assert_eq!(flagged.queue(&stream).0, CUDA_ERROR_INVALID_VALUE);
    assert_eq!(Batch::new(&[], &order).queue(&stream).0, CUDA_ERROR_INVALID_VALUE);
    stream.synchronize();
    assert_eq!(device.content(), [0; PAGE]);
}

#[test]
fn overlapping_copies_of_a_batch_are_a_violation() {
    let session = Session::new();
    let pinned = Pinned::new(1);
    let (device, stream) = (Device::new(PAGE), Stream::new());
    let order = [(0, SOURCE_ORDER_STREAM)];
    let first = (device.address, address(&pinned.0, 0), 10);
    let same_target = (device.address + 9, address(&pinned.0, 20), 10);
    assert_eq!(Batch::new(&[first, same_target], &order).queue(&stream).0, CUDA_SUCCESS);
    session.expect_violation("overlap");
    let reads_target = (device.address + 100, device.address + 5, 10);
    assert_eq!(Batch::new(&[first, reads_target], &order).queue(&stream).0, CUDA_SUCCESS);
    session.expect_violation("overlap");
    stream.synchronize();
}

#[test]
fn the_two_batch_calls_need_their_driver_versions() {
    let session = Session::new();
    let bytes = pattern(100, 1);
    let pinned = Pinned::with(&bytes);
    let (device, stream) = (Device::new(100), Stream::new());
    let copy = (device.address, address(&pinned.0, 0), 100);
    let mut batch = Batch::new(&[copy], &[(0, SOURCE_ORDER_STREAM)]);
    assert_eq!(batch.queue_v2(&stream), CUDA_ERROR_NOT_SUPPORTED);
    session.expect_violation("version");
    controls::fake_cuda_set_driver_version(12_070);
    assert_eq!(batch.queue(&stream).0, CUDA_ERROR_NOT_SUPPORTED);
    session.expect_violation("version");
    controls::fake_cuda_set_driver_version(13_000);
    assert_eq!(batch.queue_v2(&stream), CUDA_SUCCESS);
    stream.synchronize();
    assert_eq!(device.content(), bytes);
}

#[test]
fn copies_of_no_bytes_do_nothing() {
    let _session = Session::new();
    let (stream, event) = (Stream::held(), Event::new());
    ok!(cuMemcpyHtoDAsync_v2(0, null_mut(), 0, stream.0));
    ok!(cuMemcpyDtoHAsync_v2(null_mut(), 0, 0, stream.0));
    ok!(cuMemsetD8Async(0, 0, 0, stream.0));
    event.record(&stream);
    assert_eq!(event.query(), CUDA_ERROR_NOT_READY);
    assert_eq!(stream.step(1), 1);
    assert_eq!(event.query(), CUDA_SUCCESS);
    stream.release();
}
