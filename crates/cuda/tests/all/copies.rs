//! Copies in both directions, by all ways: the same bytes as those that the processor copies.

use std::sync::Arc;

use dalsegno_cuda::GpuCopier;
use dalsegno_io::{
    Claim, Copier, CopySource, Memory, PagePart, PageShape, PageSlice, Region, SliceCopy, Touch,
    copy_all,
};
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};

use crate::fake::{Cache, Fake, Kind, batch, eventually, keys_and_values, noise, owned};

/// A registered region.
fn registered(gpu: &GpuCopier, bytes: usize) -> Arc<Region> {
    let region = Arc::new(Region::anonymous(bytes, Touch::AtUse, "a test").unwrap());
    gpu.register(&region);
    eventually("the region is registered", || gpu.facts().registration.registered_bytes > 0);
    region
}

/// Bytes in a region.
fn placed(region: &Arc<Region>, offset: usize, bytes: &[u8]) -> (Claim, Memory) {
    let mut claim = Claim::of(region, offset, bytes.len(), ());
    let mut memory = claim.memory();
    memory.as_mut_slice().copy_from_slice(bytes);
    (claim, memory)
}

/// A shape of pages, how many pages a block has, which pages a block takes, and where its bytes are in the region.
#[derive(Clone, Debug)]
struct Case {
    part_bytes: Vec<usize>,
    gap: usize,
    pages: usize,
    table: Vec<u32>,
    offset: usize,
    kernel: bool,
}

fn cases() -> impl Strategy<Value = Case> {
    let shape = (prop::collection::vec(1_usize..40_000, 1..3), 0_usize..50, 1_usize..6);
    (shape, 0_usize..20_000, any::<bool>()).prop_flat_map(
        |((part_bytes, gap, pages), offset, kernel)| {
            let all: Vec<u32> = (0..u32::try_from(pages).unwrap()).collect();
            let table = prop::sample::subsequence(all, 1..=pages).prop_shuffle();
            table.prop_map(move |table| Case {
                part_bytes: part_bytes.clone(),
                gap,
                pages,
                table,
                offset,
                kernel,
            })
        },
    )
}

impl Case {
    /// Parts of different sizes, each in a buffer of its own behind the others.
    fn shape(&self) -> PageShape {
        let stride = self.part_bytes.iter().max().unwrap() + self.gap;
        let parts = self.part_bytes.iter().enumerate();
        let parts = parts
            .map(|(at, bytes)| PagePart { offset: at * stride * self.pages, bytes: *bytes })
            .collect();
        PageShape { stride, parts, pages_per_block: self.table.len() }
    }
}

#[test]
fn any_shape_is_copied_to_the_gpu_and_back_by_any_way() {
    let mut runner = TestRunner::new(Config { cases: 60, ..Config::default() });
    let ran = runner.run(&cases(), |case| {
        let fake = Fake::new(3, 20);
        if !case.kernel {
            fake.set_ptx(7, 0);
        }
        // Many borders.
        let gpu = Arc::new(fake.open_with(Some(16 << 10)).unwrap());
        let shape = case.shape();
        let bytes = shape.slice_bytes();
        let region = registered(&gpu, (case.offset + 2 * bytes).next_multiple_of(4096));
        let cache = Cache::new(&fake, &gpu, 1, case.pages, shape);
        let content = noise(bytes as u64, bytes);
        let before = cache.all(0);
        let (claim, memory) = placed(&region, case.offset, &content);
        let blocks = cache.memory.blocks(case.table.clone()).unwrap();
        let to = blocks.take_slice(0, 0).unwrap();
        let copy = SliceCopy::new(CopySource::Memory(vec![memory]), to);
        prop_assert!(copy_all(gpu.as_ref(), batch([copy])));
        prop_assert_eq!(cache.slice(0, &case.table), content.clone());
        // Nothing else was written.
        cache.fill(0, &case.table, &vec![0; bytes]);
        prop_assert_eq!(cache.all(0), before);
        cache.fill(0, &case.table, &content);
        drop((claim, blocks));
        let blocks = cache.memory.blocks(case.table.clone()).unwrap();
        let mut claim = Claim::of(&region, case.offset + bytes, bytes, ());
        let from = blocks.read_slice(0, 0).unwrap();
        let copy = SliceCopy::new(from.into(), claim.memory().into());
        prop_assert!(copy_all(gpu.as_ref(), batch([copy])));
        let filled = claim.fill().expect("no copy has its memory");
        prop_assert_eq!(filled.as_slice(), &content[..]);
        prop_assert_eq!(gpu.copied_bytes(), 0);
        Ok(())
    });
    ran.unwrap();
}

#[test]
fn memory_that_is_not_registered_goes_through_the_buffer_in_parts() {
    const PAGE: usize = 3 << 20;
    let fake = Fake::new(5, 50);
    let gpu = Arc::new(fake.open().unwrap());
    // More than all slots.
    let cache = Cache::new(&fake, &gpu, 1, 8, keys_and_values(8, PAGE));
    let content: Vec<Vec<u8>> = (0..8).map(|page| noise(page + 1, 2 * PAGE)).collect();
    let blocks = cache.memory.blocks((0..8).collect()).unwrap();
    let copy = |at: usize| {
        let slice = blocks.take_slice(at, 0).unwrap();
        SliceCopy::new(CopySource::Memory(owned(&content[at])), slice)
    };
    assert!(copy_all(gpu.as_ref(), batch((0..8).map(copy))));
    for (page, content) in (0..8).zip(&content) {
        assert!(cache.slice(0, &[page]) == *content, "{page}");
    }
    drop(blocks);
    let blocks = cache.memory.blocks((0..8).collect()).unwrap();
    let mut out = vec![vec![0_u8; 2 * PAGE]; 8];
    let is_copied = dalsegno_io::lend(|lender| {
        let copies = out.iter_mut().enumerate().map(|(at, out)| {
            let from = blocks.read_slice(at, 0).unwrap();
            SliceCopy::new(from.into(), lender.exclusive(out).into())
        });
        copy_all(gpu.as_ref(), batch(copies))
    });
    assert!(is_copied && out == content);
    assert_eq!(gpu.copied_bytes(), 2 * 16 * PAGE as u64);
}

#[test]
fn a_batch_fails_if_the_driver_refuses_a_part_of_it_and_ends_after_the_rest() {
    for call in ["cuMemcpyHtoDAsync_v2", "cuEventRecord", "cuStreamWaitEvent"] {
        let fake = Fake::new(5, 200);
        fake.set_version(12_000);
        fake.set_ptx(7, 0);
        let gpu = Arc::new(fake.open().unwrap());
        let cache = Cache::new(&fake, &gpu, 1, 8, keys_and_values(8, 20_000));
        let blocks = cache.memory.blocks((0..8).collect()).unwrap();
        let content = noise(1, 40_000);
        let copies: Vec<SliceCopy> = (0..8)
            .map(|at| {
                let slice = blocks.take_slice(at, 0).unwrap();
                SliceCopy::new(CopySource::Memory(owned(&content)), slice)
            })
            .collect();
        let stream = crate::fake::EngineStream::new(&fake);
        let after = Some(gpu.point(stream.handle()).unwrap());
        fake.fail(call, if call == "cuMemcpyHtoDAsync_v2" { 5 } else { 0 }, 1, 700);
        assert!(!copy_all(gpu.as_ref(), dalsegno_io::CopyBatch { copies, after }), "{call}");
        // Nothing runs any more: what is written now stays.
        drop(blocks);
        let written: Vec<u8> = vec![9; 40_000];
        (0..8).for_each(|page| cache.fill(0, &[page], &written));
        std::thread::sleep(std::time::Duration::from_millis(5));
        assert!((0..8).all(|page| cache.slice(0, &[page]) == written), "{call}");
        // The next batch is copied.
        let blocks = cache.memory.blocks(vec![3]).unwrap();
        let slice = blocks.take_slice(0, 0).unwrap();
        let copy = SliceCopy::new(CopySource::Memory(owned(&content)), slice);
        assert!(copy_all(gpu.as_ref(), batch([copy])), "{call}");
        assert!(cache.slice(0, &[3]) == content, "{call}");
    }
}

#[test]
fn slices_of_both_directions_are_no_batch() {
    let fake = Fake::new(5, 0);
    let gpu = Arc::new(fake.open().unwrap());
    let cache = Cache::new(&fake, &gpu, 1, 2, keys_and_values(2, 100));
    let [read, filled] = [0, 1].map(|page| cache.memory.blocks(vec![page]).unwrap());
    let from = SliceCopy::new(
        read.read_slice(0, 0).unwrap().into(),
        PageSlice::Memory(vec![Memory::zeroed(200)]),
    );
    let to = SliceCopy::new(CopySource::Memory(owned(&[1; 200])), filled.take_slice(0, 0).unwrap());
    assert!(!copy_all(gpu.as_ref(), batch([from, to])));
    let of_memory = SliceCopy::new(CopySource::Memory(owned(&[1; 9])), Memory::zeroed(9).into());
    assert!(!copy_all(gpu.as_ref(), batch([of_memory])));
    assert!(copy_all(gpu.as_ref(), batch([])));
}

#[test]
fn the_way_of_small_pieces_is_measured_and_nothing_is_left() {
    let fake = Fake::new(5, 0);
    {
        let gpu = fake.open().unwrap();
        let before = [Kind::DeviceAllocations, Kind::HostAllocations, Kind::Streams]
            .map(|kind| fake.alive(kind));
        gpu.tune(4096);
        let after = [Kind::DeviceAllocations, Kind::HostAllocations, Kind::Streams]
            .map(|kind| fake.alive(kind));
        assert_eq!(before, after);
        assert!(fake.calls("cuLaunchKernel") > 0 && fake.calls("cuMemcpyBatchAsync") > 0);
        let below = gpu.facts().ways.kernel_below;
        assert!(below == 4096 || below == 4097, "{below}");
        // Without memory, what was assumed stays.
        fake.fail("cuMemAlloc_v2", 0, 1, 2);
        gpu.tune(1 << 20);
        assert_eq!(gpu.facts().ways.kernel_below, below);
    }
    // That of the test.
    eventually("everything else is given back", || fake.left() == [Kind::Contexts]);
    assert_eq!(fake.alive(Kind::Contexts), 1);
}
