//! Copies against the work of an engine's stream: what comes first.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crossbeam_channel::bounded;
use dalsegno_cuda::GpuCopier;
use dalsegno_io::{
    Copier, CopyBatch, CopyMark, CopySource, Memory, PageSlice, SliceCopy, StreamPoint,
};

use crate::fake::{Cache, EngineStream, Fake, LIMIT, eventually, keys_and_values, noise, owned};

const BYTES: usize = 50_000;

struct Copied(crossbeam_channel::Receiver<bool>);

impl Copied {
    fn has_ended(&self) -> bool {
        !self.0.is_empty()
    }

    fn wait(&self) -> bool {
        self.0.recv_timeout(LIMIT).expect("the copy ends")
    }
}

fn start(
    gpu: &GpuCopier,
    copy: SliceCopy,
    after: Option<StreamPoint>,
) -> (Copied, Option<CopyMark>) {
    let (sender, receiver) = bounded(1);
    let done = move |is_copied| sender.send(is_copied).unwrap();
    let mark = gpu.copy(CopyBatch { copies: vec![copy], after }, Box::new(done));
    (Copied(receiver), mark)
}

fn load(cache: &Cache<'_>, page: u32, bytes: &[u8]) -> SliceCopy {
    let slice = cache.memory.blocks(vec![page]).unwrap().take_slice(0, 0).unwrap();
    SliceCopy::new(CopySource::Memory(owned(bytes)), slice)
}

#[test]
fn a_page_is_filled_after_what_the_engine_still_does_with_it() {
    let fake = Fake::new(11, 50);
    let gpu = Arc::new(fake.open().unwrap());
    let cache = Cache::new(&fake, &gpu, 1, 2, keys_and_values(2, BYTES));
    let (late, content) = (noise(1, BYTES), noise(2, 2 * BYTES));
    let stream = EngineStream::new(&fake);
    stream.hold();
    stream.write(cache.pieces(0, &[1])[0].0, &late);
    let point = gpu.point(stream.handle()).unwrap();
    let (copied, mark) = start(&gpu, load(&cache, 1, &content), Some(point));
    std::thread::sleep(std::time::Duration::from_millis(5));
    assert!(mark.is_some() && !copied.has_ended());
    assert_eq!(cache.slice(0, &[1]), vec![0; 2 * BYTES]);
    stream.release();
    assert!(copied.wait());
    assert!(cache.slice(0, &[1]) == content);
}

#[test]
fn a_stream_that_is_ordered_behind_a_copy_reads_what_it_brought() {
    for seed in 0..20 {
        let fake = Fake::new(seed, 300);
        let gpu = Arc::new(fake.open().unwrap());
        let cache = Cache::new(&fake, &gpu, 1, 4, keys_and_values(4, BYTES));
        let (engine, gate) = (EngineStream::new(&fake), EngineStream::new(&fake));
        gate.hold();
        gate.write(cache.pieces(0, &[0])[0].0, &[1]);
        let point = gpu.point(gate.handle()).unwrap();
        // The one that is waited for is not the last one.
        let content: Vec<Vec<u8>> = (1..4).map(|page| noise(seed + page, 2 * BYTES)).collect();
        let started: Vec<_> = (1..4)
            .zip(&content)
            .map(|(page, content)| start(&gpu, load(&cache, page, content), Some(point.clone())))
            .collect();
        gpu.order(engine.handle(), started[1].1.unwrap()).unwrap();
        gate.release();
        for page in [1, 2] {
            let pieces = cache.pieces(0, &[page]);
            let read: Vec<u8> =
                pieces.into_iter().flat_map(|(at, bytes)| engine.read(at, bytes)).collect();
            assert!(read == content[page as usize - 1], "seed {seed}, page {page}");
        }
        assert!(started.iter().all(|(copied, _)| copied.wait()));
        // Nothing to wait for any more.
        gpu.order(engine.handle(), started[2].1.unwrap()).unwrap();
        gpu.order(engine.handle(), CopyMark(0)).unwrap();
    }
}

#[test]
fn a_save_comes_after_the_point_that_it_names() {
    let fake = Fake::new(11, 50);
    let gpu = Arc::new(fake.open().unwrap());
    let cache = Cache::new(&fake, &gpu, 1, 2, keys_and_values(2, BYTES));
    let stream = EngineStream::new(&fake);
    let content = noise(3, 2 * BYTES);
    stream.hold();
    for ((at, bytes), part) in cache.pieces(0, &[1]).into_iter().zip(content.chunks(BYTES)) {
        assert_eq!(bytes, part.len());
        stream.write(at, part);
    }
    let point = gpu.point(stream.handle()).unwrap();
    let from = cache.memory.blocks(vec![1]).unwrap().read_slice(0, 0).unwrap();
    let mut saved = vec![0_u8; 2 * BYTES];
    dalsegno_io::lend(|lender| {
        let to = PageSlice::Memory(vec![lender.exclusive(&mut saved)]);
        let (copied, _) = start(&gpu, SliceCopy::new(from.into(), to), Some(point));
        std::thread::sleep(std::time::Duration::from_millis(5));
        assert!(!copied.has_ended());
        stream.release();
        assert!(copied.wait());
    });
    assert!(saved == content);
}

#[test]
fn the_pages_and_the_memory_of_a_copy_are_free_when_its_end_is_called() {
    let fake = Fake::new(11, 50);
    let gpu = Arc::new(fake.open().unwrap());
    let cache = Cache::new(&fake, &gpu, 1, 2, keys_and_values(2, BYTES));
    let alive = Arc::new(());
    let slice = cache.memory.blocks(vec![1]).unwrap().take_slice(0, 0).unwrap();
    let from = Memory::owned(noise(1, 2 * BYTES), Arc::clone(&alive));
    let copy = SliceCopy::new(CopySource::Memory(vec![from]), slice);
    let memory = Arc::clone(&cache.memory);
    let was_free = Arc::new(AtomicBool::new(false));
    let seen = Arc::clone(&was_free);
    let (sender, ended) = bounded(1);
    let done = move |is_copied| {
        let is_free = Arc::strong_count(&alive) == 1 && memory.blocks(vec![1]).is_ok();
        seen.store(is_free, Ordering::SeqCst);
        sender.send(is_copied).unwrap();
    };
    let batch = CopyBatch { copies: vec![copy], after: None };
    gpu.copy(batch, Box::new(done));
    assert!(ended.recv_timeout(LIMIT).unwrap() && was_free.load(Ordering::SeqCst));
}

#[test]
fn a_wait_that_is_refused_is_no_end() {
    // A capture of a graph elsewhere, one of this event, a lost context.
    for (call, times, result) in [
        ("cuEventSynchronize", 3, 900),
        ("cuEventSynchronize", 1, 907),
        ("cuCtxPushCurrent_v2", 2, 201),
    ] {
        let fake = Fake::new(11, 0);
        let gpu = Arc::new(fake.open().unwrap());
        let cache = Cache::new(&fake, &gpu, 1, 2, keys_and_values(2, BYTES));
        let stream = EngineStream::new(&fake);
        stream.hold();
        stream.write(cache.pieces(0, &[0])[0].0, &[1]);
        let point = gpu.point(stream.handle()).unwrap();
        let content = noise(1, 2 * BYTES);
        let copy = load(&cache, 1, &content);
        let before = fake.calls(call);
        fake.fail(call, if call == "cuCtxPushCurrent_v2" { 3 } else { 0 }, times, result);
        let (copied, mark) = start(&gpu, copy, Some(point));
        eventually("a wait was refused", || fake.calls(call) > before);
        std::thread::sleep(std::time::Duration::from_millis(20));
        assert!(!copied.has_ended(), "{call} {result}");
        assert!(cache.memory.blocks(vec![1]).is_err(), "its page is in use: {call} {result}");
        stream.release();
        let is_copied = copied.wait();
        assert_eq!(is_copied, mark.is_some(), "{call} {result}");
        assert!(!is_copied || cache.slice(0, &[1]) == content, "{call} {result}");
    }
}

#[test]
fn a_copier_that_is_dropped_ends_what_it_began() {
    let fake = Fake::new(11, 500);
    let gpu = Arc::new(fake.open().unwrap());
    let cache = Cache::new(&fake, &gpu, 1, 8, keys_and_values(8, BYTES));
    let content = noise(4, 2 * BYTES);
    let started: Vec<_> =
        (0..8).map(|page| start(&gpu, load(&cache, page, &content), None).0).collect();
    let (starts, shape) = (cache.starts.clone(), cache.shape.clone());
    assert_eq!((starts.len(), shape.pages_per_block), (1, 1));
    // The pages know the copier, too.
    let weak = Arc::downgrade(&gpu);
    drop(gpu);
    assert!(started.iter().all(Copied::wait));
    assert!((0..8).all(|page| cache.slice(0, &[page]) == content));
    drop(cache);
    eventually("the copier is gone", || weak.strong_count() == 0);
}

#[test]
fn a_point_of_another_copier_is_refused() {
    let fake = Fake::new(11, 0);
    let gpu = Arc::new(fake.open().unwrap());
    let cache = Cache::new(&fake, &gpu, 1, 2, keys_and_values(2, 100));
    let copy = load(&cache, 1, &[1; 200]);
    let (copied, mark) = start(&gpu, copy, Some(StreamPoint::new("another one")));
    assert!(!copied.wait() && mark.is_none());
}
