//! An engine that captures graphs, and threads with contexts and capture modes: no call of the copier disturbs them.

use std::ffi::{c_int, c_void};
use std::ptr::{null_mut, with_exposed_provenance_mut};
use std::sync::Arc;
use std::thread;

use crossbeam_channel::{Receiver, bounded};
use dalsegno_cuda::GpuCopier;
use dalsegno_io::{
    Claim, Copier, CopyBatch, CopyMark, CopySource, Region, SliceCopy, StreamPoint, Touch, copy_all,
};

use crate::fake::{
    Cache, EngineStream, Fake, Kind, LIMIT, batch, eventually, keys_and_values, noise, owned,
};

/// Modes of a capture, and of a thread.
const GLOBAL: c_int = 0;
const THREAD_LOCAL: c_int = 1;
const RELAXED: c_int = 2;

const ACTIVE: c_int = 1;

/// Bytes of one part of a page.
const BYTES: usize = 50_000;

/// Changes the capture mode of this thread, and returns the one before.
fn exchange_mode(fake: &Fake, mode: c_int) -> c_int {
    type Exchange = unsafe extern "C" fn(*mut c_int) -> c_int;
    let mut mode = mode;
    // SAFETY: the type is that of `cuda.h`. The call reads and writes one number.
    let done =
        unsafe { fake.function::<Exchange>("cuThreadExchangeStreamCaptureMode")(&raw mut mode) };
    assert_eq!(done, 0);
    mode
}

/// Makes calls of the test itself that would spoil a capture.
fn relaxed<T>(fake: &Fake, calls: impl FnOnce() -> T) -> T {
    let before = exchange_mode(fake, RELAXED);
    let value = calls();
    exchange_mode(fake, before);
    value
}

/// The current context of this thread; 0 if there is none.
fn current_context(fake: &Fake) -> usize {
    type GetCurrent = unsafe extern "C" fn(*mut *mut c_void) -> c_int;
    let mut context = null_mut();
    // SAFETY: the type is that of `cuda.h`. The call writes one handle.
    let done = unsafe { fake.function::<GetCurrent>("cuCtxGetCurrent")(&raw mut context) };
    assert_eq!(done, 0);
    context.expose_provenance()
}

fn push_context(fake: &Fake, context: usize) {
    type Push = unsafe extern "C" fn(*mut c_void) -> c_int;
    let context = with_exposed_provenance_mut(context);
    // SAFETY: the type is that of `cuda.h`, and the fake has retained the context.
    assert_eq!(unsafe { fake.function::<Push>("cuCtxPushCurrent_v2")(context) }, 0);
}

fn pop_context(fake: &Fake) {
    type Pop = unsafe extern "C" fn(*mut *mut c_void) -> c_int;
    // SAFETY: the type is that of `cuda.h`, which permits null.
    assert_eq!(unsafe { fake.function::<Pop>("cuCtxPopCurrent_v2")(null_mut()) }, 0);
}

fn begin_capture(fake: &Fake, stream: &EngineStream<'_>, mode: c_int) {
    type Begin = unsafe extern "C" fn(*mut c_void, c_int) -> c_int;
    // SAFETY: the type is that of `cuda.h`, and the stream exists.
    let begun = unsafe { fake.function::<Begin>("cuStreamBeginCapture_v2")(stream.stream, mode) };
    assert_eq!(begun, 0);
}

fn capture_status(fake: &Fake, stream: &EngineStream<'_>) -> c_int {
    type IsCapturing = unsafe extern "C" fn(*mut c_void, *mut c_int) -> c_int;
    let mut status = -1;
    // SAFETY: the type is that of `cuda.h`, and the stream exists. The call writes one number.
    let done = unsafe {
        fake.function::<IsCapturing>("cuStreamIsCapturing")(stream.stream, &raw mut status)
    };
    assert_eq!(done, 0);
    status
}

/// Ends a capture, and returns its result.
fn end_capture(fake: &Fake, stream: &EngineStream<'_>) -> c_int {
    type End = unsafe extern "C" fn(*mut c_void, *mut *mut c_void) -> c_int;
    let mut graph = null_mut();
    // SAFETY: the type is that of `cuda.h`, and the stream exists. The call writes one handle.
    unsafe { fake.function::<End>("cuStreamEndCapture")(stream.stream, &raw mut graph) }
}

/// Runs a test while a thread of the engine captures its stream. Returns the result of the capture.
fn while_captured(fake: &Fake, test: impl FnOnce()) -> c_int {
    let context = current_context(fake);
    let (begun, has_begun) = bounded::<()>(0);
    let (finish, has_finished) = bounded::<()>(0);
    thread::scope(|scope| {
        let engine = scope.spawn(move || {
            push_context(fake, context);
            let stream = EngineStream::new(fake);
            begin_capture(fake, &stream, GLOBAL);
            drop(begun);
            // The end of the test, or its panic.
            let _ = has_finished.recv();
            end_capture(fake, &stream)
        });
        let _ = has_begun.recv();
        test();
        // A panic drops it as well.
        drop(finish);
        engine.join().unwrap()
    })
}

fn load(cache: &Cache<'_>, page: u32, from: CopySource) -> SliceCopy {
    SliceCopy::new(from, cache.memory.blocks(vec![page]).unwrap().take_slice(0, 0).unwrap())
}

/// Queues a copy. Returns where its end arrives, and its mark.
fn start(
    gpu: &GpuCopier,
    copy: SliceCopy,
    after: Option<StreamPoint>,
) -> (Receiver<bool>, Option<CopyMark>) {
    let (sender, ended) = bounded(1);
    let done = move |is_copied| sender.send(is_copied).unwrap();
    let mark = gpu.copy(CopyBatch { copies: vec![copy], after }, Box::new(done));
    (ended, mark)
}

/// Copies to all pages and back: to page 0 from a region and to the region, and to the others from plain memory.
fn copy_both_ways(gpu: &GpuCopier, cache: &Cache<'_>, pages: usize, region: &Arc<Region>) {
    let content: Vec<Vec<u8>> = (0..pages as u64).map(|page| noise(page, 2 * BYTES)).collect();
    let mut claim = Claim::of(region, 0, 2 * BYTES, ());
    let mut memory = claim.memory();
    memory.as_mut_slice().copy_from_slice(&content[0]);
    let mut sources = vec![CopySource::Memory(vec![memory])];
    sources.extend(content[1..].iter().map(|content| CopySource::Memory(owned(content))));
    let copies = (0..).zip(sources).map(|(page, from)| load(cache, page, from));
    assert!(copy_all(gpu, batch(copies)));
    for (page, content) in (0..).zip(&content) {
        assert!(cache.slice(0, &[page]) == *content, "page {page}");
    }
    drop(claim);
    let blocks = cache.memory.blocks((0..).take(pages).collect()).unwrap();
    let from = |page| CopySource::from(blocks.read_slice(page, 0).unwrap());
    let mut claim = Claim::of(region, 2 * BYTES, 2 * BYTES, ());
    let mut saved = vec![vec![0; 2 * BYTES]; pages - 1];
    let is_copied = dalsegno_io::lend(|lender| {
        let mut copies = vec![SliceCopy::new(from(0), claim.memory().into())];
        copies.extend(
            saved
                .iter_mut()
                .enumerate()
                .map(|(at, saved)| SliceCopy::new(from(at + 1), lender.exclusive(saved).into())),
        );
        copy_all(gpu, batch(copies))
    });
    assert!(is_copied && saved == content[1..]);
    assert!(claim.fill().unwrap().as_slice() == content[0]);
}

#[test]
fn a_copier_that_opens_copies_and_ends_spoils_no_capture() {
    const PAGES: usize = 4;
    let fake = Fake::new(31, 50);
    let result = while_captured(&fake, || {
        let gpu = Arc::new(fake.open().unwrap());
        let region = Region::anonymous(1 << 20, Touch::AtUse, "a test").unwrap();
        let region = Arc::new(region);
        gpu.register(&region);
        eventually("it is registered", || gpu.facts().registration.registered_bytes > 0);
        gpu.tune(4096);
        assert!(fake.calls("cuLaunchKernel") > 0, "it was measured");
        let (cache, stream) = relaxed(&fake, || {
            let shape = keys_and_values(PAGES, BYTES);
            (Cache::new(&fake, &gpu, 1, PAGES, shape), EngineStream::new(&fake))
        });
        copy_both_ways(&gpu, &cache, PAGES, &region);
        assert_eq!(gpu.copied_bytes(), 2 * 3 * 2 * BYTES as u64, "page 0 needs no buffer");
        // A stream of the engine that is not captured.
        let content = noise(9, 2 * BYTES);
        let copy = load(&cache, 1, CopySource::Memory(owned(&content)));
        let (ended, mark) = start(&gpu, copy, Some(gpu.point(stream.handle()).unwrap()));
        gpu.order(stream.handle(), mark.unwrap()).unwrap();
        assert!(ended.recv_timeout(LIMIT).unwrap() && cache.slice(0, &[1]) == content);
        drop(region);
        eventually("it is unregistered", || fake.alive(Kind::Registrations) == 0);
        relaxed(&fake, || drop((cache, stream)));
        drop(gpu);
        // The stream of the engine, and the context of the test.
        let left = [Kind::Streams, Kind::Contexts];
        eventually("all else is given back", || {
            fake.left() == left && left.iter().all(|kind| fake.alive(*kind) == 1)
        });
        assert_eq!(exchange_mode(&fake, GLOBAL), GLOBAL);
    });
    assert_eq!(result, 0, "{}", fake.violations());
}

#[test]
fn a_captured_stream_gives_no_point_and_waits_for_no_copy() {
    let fake = Fake::new(31, 50);
    let gpu = Arc::new(fake.open().unwrap());
    let cache = Cache::new(&fake, &gpu, 1, 2, keys_and_values(2, BYTES));
    let (engine, gate) = (EngineStream::new(&fake), EngineStream::new(&fake));
    let content = noise(1, 2 * BYTES);
    // A copy that does not end before the capture.
    gate.hold();
    gate.write(cache.pieces(0, &[0])[0].0, &[1]);
    let copy = load(&cache, 1, CopySource::Memory(owned(&content)));
    let (ended, mark) = start(&gpu, copy, Some(gpu.point(gate.handle()).unwrap()));
    let mark = mark.unwrap();
    begin_capture(&fake, &engine, GLOBAL);
    let refused = [gpu.point(engine.handle()).map(drop), gpu.order(engine.handle(), mark)];
    let status = capture_status(&fake, &engine);
    let result = end_capture(&fake, &engine);
    gate.release();
    assert!(ended.recv_timeout(LIMIT).unwrap());
    for refused in refused {
        let error = refused.unwrap_err().to_string();
        assert!(error.contains("CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED"), "{error}");
    }
    assert_eq!((status, result), (ACTIVE, 0));
    // Both work after the capture.
    let copy = load(&cache, 0, CopySource::Memory(owned(&content)));
    let (ended, mark) = start(&gpu, copy, Some(gpu.point(engine.handle()).unwrap()));
    gpu.order(engine.handle(), mark.unwrap()).unwrap();
    let pieces = cache.pieces(0, &[0]);
    let read: Vec<u8> = pieces.into_iter().flat_map(|(at, bytes)| engine.read(at, bytes)).collect();
    assert!(ended.recv_timeout(LIMIT).unwrap() && read == content);
}

#[test]
fn a_thread_has_the_context_and_capture_mode_of_before_after_each_call() {
    let fake = Fake::new(31, 50);
    let gpu = Arc::new(fake.open().unwrap());
    let cache = Cache::new(&fake, &gpu, 1, 2, keys_and_values(2, BYTES));
    let stream = EngineStream::new(&fake);
    let (handle, context) = (stream.handle(), current_context(&fake));
    assert_ne!(context, 0);
    let check = |expected| {
        let is_same = |what| {
            assert_eq!(current_context(&fake), expected, "after {what}");
            assert_eq!(exchange_mode(&fake, THREAD_LOCAL), THREAD_LOCAL, "after {what}");
        };
        exchange_mode(&fake, THREAD_LOCAL);
        let point = gpu.point(handle).unwrap();
        is_same("a point");
        let copy = load(&cache, 1, CopySource::Memory(owned(&noise(1, 2 * BYTES))));
        let (ended, mark) = start(&gpu, copy, Some(point));
        is_same("a copy");
        gpu.order(handle, mark.unwrap()).unwrap();
        is_same("an order");
        assert!(ended.recv_timeout(LIMIT).unwrap());
        // The call that sets the mode.
        fake.fail("cuThreadExchangeStreamCaptureMode", 0, 1, 999);
        assert!(gpu.point(handle).is_err());
        is_same("a call that was refused");
    };
    thread::scope(|scope| {
        scope.spawn(|| check(0)).join().unwrap();
        let with_context = || {
            push_context(&fake, context);
            check(context);
            pop_context(&fake);
            assert_eq!(current_context(&fake), 0, "nothing is left on its stack");
        };
        scope.spawn(with_context).join().unwrap();
    });
}
