//! Machines without a GPU, or with a driver that lacks something.

use std::path::PathBuf;
use std::sync::Arc;

use dalsegno_cuda::{Absent, GpuCopier, GpuError, GpuOptions};
use dalsegno_io::{CopySource, SliceCopy, copy_all};

use crate::fake::{Cache, Fake, batch, keys_and_values, noise, owned, without};

fn refusal(library: &str) -> String {
    let options = GpuOptions { library: Some(PathBuf::from(library)), ..GpuOptions::default() };
    GpuCopier::open(&options).unwrap_err().to_string()
}

/// Copies to a page, with whatever way is left.
fn copies(fake: &Fake, gpu: &Arc<GpuCopier>) -> bool {
    let cache = Cache::new(fake, gpu, 1, 4, keys_and_values(4, 100));
    let bytes = noise(7, 200);
    let blocks = cache.memory.blocks(vec![2]).unwrap();
    let slice = blocks.take_slice(0, 0).unwrap();
    let copy = SliceCopy::new(CopySource::Memory(owned(&bytes)), slice);
    copy_all(gpu.as_ref(), batch([copy])) && cache.slice(0, &[2]) == bytes
}

#[test]
fn a_machine_without_a_driver_is_an_answer() {
    let refusal = refusal("libcuda-of-nobody.so.1");
    assert!(refusal.starts_with("no CUDA driver: libcuda-of-nobody.so.1: "), "{refusal}");
}

#[test]
fn a_library_that_is_no_driver_is_an_answer() {
    assert_eq!(refusal("libc.so.6"), "the CUDA driver is too old: it has no cuInit");
}

#[test]
fn a_stub_of_the_driver_is_an_answer() {
    let fake = Fake::new(1, 0);
    fake.fail("cuInit", 0, 1, 34);
    let GpuError::Absent(Absent::Failed(error)) = fake.open().unwrap_err() else { panic!() };
    assert_eq!(error.to_string(), "init returned CUDA_ERROR_STUB_LIBRARY (34)");
}

#[test]
fn a_driver_that_lacks_a_call_is_an_answer() {
    let folder = tempfile::tempdir().unwrap();
    let path = without("cuMemHostRegister_v2", folder.path());
    assert_eq!(
        refusal(path.to_str().unwrap()),
        "the CUDA driver is too old: it has no cuMemHostRegister_v2"
    );
}

#[test]
fn a_gpu_that_does_not_exist_is_an_answer() {
    let fake = Fake::new(1, 0);
    fake.fail("cuDeviceGet", 0, 1, 101);
    assert!(fake.open().unwrap_err().to_string().contains("CUDA_ERROR_INVALID_DEVICE (101)"));
}

#[test]
fn a_stream_that_is_refused_is_an_answer_and_leaves_nothing() {
    for call in ["cuStreamCreateWithPriority", "cuCtxGetStreamPriorityRange", "cuCtxPushCurrent_v2"]
    {
        let fake = Fake::new(1, 0);
        fake.fail(call, 0, 9, 2);
        let refused = fake.open();
        fake.fail(call, 0, 0, 0);
        assert!(refused.is_err(), "{call}");
    }
}

#[test]
fn a_driver_without_batched_copies_copies_one_by_one() {
    for version in [11_080, 12_020] {
        let fake = Fake::new(1, 0);
        fake.set_version(version);
        fake.set_ptx(7, 0);
        let gpu = Arc::new(fake.open().unwrap());
        assert!(!gpu.facts().device.copies_batches);
        assert!(copies(&fake, &gpu));
        assert!(fake.calls("cuMemcpyHtoDAsync_v2") > 0);
        assert_eq!(fake.calls("cuMemcpyBatchAsync") + fake.calls("cuMemcpyBatchAsync_v2"), 0);
    }
}

#[test]
fn both_signatures_of_batched_copies_are_known() {
    for (version, call) in [(12_080, "cuMemcpyBatchAsync"), (13_000, "cuMemcpyBatchAsync_v2")] {
        let fake = Fake::new(1, 0);
        fake.set_version(version);
        fake.set_ptx(7, 0);
        let gpu = Arc::new(fake.open().unwrap());
        assert!(copies(&fake, &gpu));
        assert_eq!(fake.calls(call), 1);
    }
}

#[test]
fn a_driver_that_refuses_the_kernel_copies_without_it() {
    let fake = Fake::new(1, 0);
    fake.set_ptx(7, 8);
    let gpu = Arc::new(fake.open().unwrap());
    assert!(gpu.facts().kernel_refusal.unwrap().contains("CUDA_ERROR_INVALID_PTX"));
    gpu.tune(4096);
    assert!(copies(&fake, &gpu));
    assert_eq!(fake.calls("cuLaunchKernel"), 0);
}

#[test]
fn a_gpu_that_gives_no_pinned_memory_copies_all_the_same() {
    let fake = Fake::new(1, 0);
    fake.set_memlock(0);
    let gpu = Arc::new(fake.open().unwrap());
    gpu.tune(4096);
    assert!(copies(&fake, &gpu));
}
