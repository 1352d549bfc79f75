//! Order within a stream and between streams.

use crate::support::{
    CHUNK, Device, Event, Pinned, Session, Stream, ok, pattern, result, to_device, to_host,
};
use fake_cuda::{
    CUDA_ERROR_INVALID_HANDLE, CUDA_ERROR_INVALID_VALUE, CUDA_ERROR_NOT_READY, CUDA_SUCCESS,
    controls,
};
use std::ptr::{null_mut, with_exposed_provenance_mut};

#[test]
fn a_missing_wait_between_two_streams_shows_wrong_bytes() {
    let _session = Session::new();
    let new = pattern(3 * CHUNK, 1);
    let old = pattern(3 * CHUNK, 2);
    let (source, target) = (Pinned::with(&new), Pinned::new(new.len() / 4096));
    let device = Device::with(&old);
    let (loads, stores) = (Stream::held(), Stream::new());
    assert_eq!(to_device(&device, &source.0, new.len(), &loads), CUDA_SUCCESS);
    assert_eq!(to_host(&target.0, &device, new.len(), &stores), CUDA_SUCCESS);
    stores.synchronize();
    assert_eq!(target.0.read(new.len()), old);
    loads.release();
    loads.synchronize();
    assert_eq!(device.content(), new);
}

#[test]
fn a_wait_between_two_streams_orders_them() {
    let _session = Session::new();
    let new = pattern(3 * CHUNK, 1);
    let (source, target) = (Pinned::with(&new), Pinned::new(new.len() / 4096));
    let device = Device::new(new.len());
    let (first, second) = (Stream::held(), Stream::new());
    let (loaded, stored) = (Event::new(), Event::new());
    assert_eq!(to_device(&device, &source.0, new.len(), &first), CUDA_SUCCESS);
    loaded.record(&first);
    ok!(cuStreamWaitEvent(second.0, loaded.0, 0));
    assert_eq!(to_host(&target.0, &device, new.len(), &second), CUDA_SUCCESS);
    stored.record(&second);
    assert_eq!(first.step(2), 2);
    assert_eq!(stored.query(), CUDA_ERROR_NOT_READY);
    assert_eq!(target.0.read(new.len()), vec![0; new.len()]);
    first.release();
    second.synchronize();
    assert_eq!(target.0.read(new.len()), new);
}

#[test]
fn a_held_stream_freezes_a_copy_midway() {
    let _session = Session::new();
    let new = pattern(5 * CHUNK - 7, 1);
    let source = Pinned::with(&new);
    let device = Device::with(&vec![0; new.len()]);
    let stream = Stream::held();
    assert_eq!(to_device(&device, &source.0, new.len(), &stream), CUDA_SUCCESS);
    for steps in 1..=5 {
        assert_eq!(stream.step(1), 1);
        let content = device.content();
        let copied: Vec<_> = content
            .chunks(CHUNK)
            .zip(new.chunks(CHUNK))
            .map(
                |(now, new)| {
                    if now == new { 1 } else { i32::from(now.iter().any(|b| *b != 0)) * 9 }
                },
            )
            .collect();
        assert_eq!(copied.iter().sum::<i32>(), steps, "whole chunks only: {copied:?}");
    }
    assert_eq!(stream.step(10), 0, "nothing is left");
    assert_eq!(device.content(), new);
    stream.synchronize();
}

#[test]
fn all_streams_are_held_and_released_together() {
    let _session = Session::new();
    let device = Device::with(&[0; 4]);
    let fill = |at, stream| ok!(cuMemsetD8Async(device.address + at, 1, 1, stream));
    let early = Stream::new();
    controls::fake_cuda_hold_all();
    let late = Stream::new();
    for (at, stream) in [(0, early.0), (1, late.0), (2, null_mut())] {
        fill(at, stream);
    }
    // Only a held stream runs single steps.
    assert_eq!(late.step(1), 1);
    assert_eq!(device.content(), [0, 1, 0, 0]);
    early.release();
    early.synchronize();
    assert_eq!(device.content(), [1, 1, 0, 0], "the default stream is still held");
    controls::fake_cuda_release_all();
    ok!(cuStreamSynchronize(null_mut()));
    assert_eq!(device.content(), [1, 1, 1, 0]);
    let free = Stream::new();
    fill(3, free.0);
    free.synchronize();
    assert_eq!(device.content(), [1; 4]);
    // A step may be over before its work counts as done.
    late.synchronize();
}

#[test]
fn a_reset_ends_the_hold_of_all_streams() {
    let _session = Session::new();
    let device = Device::with(&[0; 2]);
    controls::fake_cuda_hold_all();
    let held = Stream::new();
    ok!(cuMemsetD8Async(device.address, 1, 1, held.0));
    controls::fake_cuda_reset(1, 0);
    let later = Stream::new();
    ok!(cuMemsetD8Async(device.address + 1, 1, 1, later.0));
    later.synchronize();
    assert_eq!(device.content(), [1, 1]);
}

#[test]
fn chunks_of_a_copy_are_not_in_order() {
    let _session = Session::new();
    let new = pattern(16 * CHUNK, 1);
    let source = Pinned::with(&new);
    let device = Device::with(&vec![0; new.len()]);
    let stream = Stream::held();
    assert_eq!(to_device(&device, &source.0, new.len(), &stream), CUDA_SUCCESS);
    assert_eq!(stream.step(8), 8);
    let content = device.content();
    assert_ne!(content[..8 * CHUNK], new[..8 * CHUNK]);
    stream.release();
    stream.synchronize();
}

#[test]
fn work_of_one_stream_is_in_order() {
    let _session = Session::with_delay(7, 200);
    let stream = Stream::new();
    let device = Device::new(4096);
    let target = Pinned::new(20);
    for byte in 0..20 {
        ok!(cuMemsetD8Async(device.address, byte, 4096, stream.0));
        let to = target.0.at(usize::from(byte) * 4096);
        ok!(cuMemcpyDtoHAsync_v2(to, device.address, 4096, stream.0));
    }
    stream.synchronize();
    let content = target.0.read(20 * 4096);
    assert!(
        (0..20).all(|byte| content[byte * 4096..][..4096].iter().all(|b| usize::from(*b) == byte))
    );
}

#[test]
fn two_streams_run_in_both_orders() {
    let _session = Session::with_delay(3, 300);
    let streams = [Stream::new(), Stream::new()];
    let device = Device::new(1);
    let mut is_seen = [false; 2];
    for _ in 0..500 {
        for (byte, stream) in (0..).zip(&streams) {
            ok!(cuMemsetD8Async(device.address, byte, 1, stream.0));
        }
        streams.iter().for_each(Stream::synchronize);
        let last = usize::from(device.content()[0]);
        is_seen[last] = true;
        if is_seen == [true; 2] {
            return;
        }
    }
    panic!("500 times in the same order");
}

#[test]
fn the_null_stream_copies_but_takes_no_batch() {
    let _session = Session::new();
    let bytes = pattern(100, 1);
    let source = Pinned::with(&bytes);
    let device = Device::new(100);
    ok!(cuMemcpyHtoDAsync_v2(device.address, source.0.at(0), 100, null_mut()));
    ok!(cuStreamSynchronize(null_mut()));
    assert_eq!(device.content(), bytes);
    let (mut to, mut from, mut size) =
        (device.address, source.0.start.expose_provenance() as u64, 100);
    let mut attributes =
        fake_cuda::CUmemcpyAttributes { source_access_order: 1, ..Default::default() };
    let mut first = 0;
    for stream in [null_mut(), with_exposed_provenance_mut(1)] {
        let result = result!(cuMemcpyBatchAsync(
            &raw mut to,
            &raw mut from,
            &raw mut size,
            1,
            &raw mut attributes,
            &raw mut first,
            1,
            null_mut(),
            stream,
        ));
        assert_eq!(result, CUDA_ERROR_INVALID_VALUE);
    }
}

#[test]
fn a_destroyed_stream_finishes_its_work() {
    let session = Session::new();
    let bytes = pattern(100, 1);
    let source = Pinned::with(&bytes);
    let device = Device::new(100);
    let event = Event::new();
    let before = controls::fake_cuda_alive(0);
    let stream = Stream::held();
    assert_eq!(controls::fake_cuda_alive(0), before + 1);
    assert_eq!(to_device(&device, &source.0, 100, &stream), CUDA_SUCCESS);
    event.record(&stream);
    let handle = stream.0;
    drop(stream);
    assert_eq!(controls::fake_cuda_alive(0), before);
    assert_eq!(result!(cuStreamSynchronize(handle)), CUDA_ERROR_INVALID_HANDLE);
    session.expect_violation("handle");
    assert_eq!(event.query(), CUDA_ERROR_NOT_READY);
    assert_eq!(controls::fake_cuda_release(handle), CUDA_SUCCESS);
    ok!(cuEventSynchronize(event.0));
    assert_eq!(device.content(), bytes);
}

#[test]
fn a_delay_keeps_a_stream_busy() {
    let _session = Session::new();
    let stream = Stream::new();
    let event = Event::new();
    assert_eq!(controls::fake_cuda_delay(stream.0, 20_000), CUDA_SUCCESS);
    event.record(&stream);
    assert_eq!(event.query(), CUDA_ERROR_NOT_READY);
    stream.synchronize();
    assert_eq!(event.query(), CUDA_SUCCESS);
}

#[test]
fn stream_flags_and_priorities_are_those_of_cuda() {
    let _session = Session::new();
    let mut stream = null_mut();
    let result = result!(cuStreamCreateWithPriority(&raw mut stream, 2, 0));
    assert_eq!(result, CUDA_ERROR_INVALID_VALUE);
    let result = result!(cuStreamCreateWithPriority(null_mut(), 0, 0));
    assert_eq!(result, CUDA_ERROR_INVALID_VALUE);
    let (mut least, mut greatest) = (1, 1);
    ok!(cuCtxGetStreamPriorityRange(&raw mut least, &raw mut greatest));
    assert!(greatest < least);
    ok!(cuCtxGetStreamPriorityRange(null_mut(), null_mut()));
}
