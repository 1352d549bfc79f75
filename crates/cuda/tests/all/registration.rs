//! Memory that the GPU uses directly: its pieces, its refusals, its end.

use std::sync::Arc;

use dalsegno_cuda::GpuCopier;
use dalsegno_io::{Access, Backing, Copier, CopySource, Region, SliceCopy, Touch, copy_all};

use crate::fake::{Cache, Fake, Kind, batch, eventually, keys_and_values, noise};

const REGION: usize = 1 << 20;

/// A region of another process, mapped for reading, with these bytes.
fn served(content: &[u8]) -> (Region, Arc<Region>) {
    let own = Arc::new(Region::shared(&Backing::MemoryFile, REGION, "a test").unwrap());
    let mut claim = dalsegno_io::Claim::of(&own, 0, content.len(), ());
    claim.memory().as_mut_slice().copy_from_slice(content);
    drop(claim);
    let file = own.reader_file().unwrap();
    let mapped = Region::map(file, REGION, Access::Read, "a test").unwrap();
    (Arc::into_inner(own).unwrap(), Arc::new(mapped))
}

/// Copies bytes of a region to a page. Returns whether they came.
fn copies(fake: &Fake, gpu: &Arc<GpuCopier>, region: &Arc<Region>, content: &[u8]) -> bool {
    let bytes = content.len() / 2;
    let cache = Cache::new(fake, gpu, 1, 4, keys_and_values(4, bytes));
    let slice = cache.memory.blocks(vec![2]).unwrap().take_slice(0, 0).unwrap();
    let copy = SliceCopy::new(CopySource::Racing(Arc::clone(region), 0), slice);
    copy_all(gpu.as_ref(), batch([copy])) && cache.slice(0, &[2]) == content
}

#[test]
fn memory_of_another_process_is_registered_for_reading_in_pieces() {
    let content = noise(1, 300_000);
    let (_own, region) = served(&content);
    let fake = Fake::new(21, 20);
    let gpu = Arc::new(fake.open_with(Some(64 << 10)).unwrap());
    gpu.register(&region);
    eventually("it is registered", || gpu.facts().registration.registered_bytes == REGION as u64);
    assert_eq!(fake.alive(Kind::Registrations), 16);
    assert!(copies(&fake, &gpu, &region, &content));
    assert_eq!(gpu.copied_bytes(), 0);
    gpu.register(&region);
    assert_eq!(gpu.facts().registration.pending, 0);
}

#[test]
fn a_region_is_unregistered_before_it_is_unmapped_and_after_its_last_copy() {
    let content = noise(1, 300_000);
    let fake = Fake::new(21, 500);
    let gpu = Arc::new(fake.open_with(Some(64 << 10)).unwrap());
    for _ in 0..3 {
        let (_own, region) = served(&content);
        gpu.register(&region);
        eventually("it is registered", || gpu.facts().registration.registered_bytes > 0);
        let cache = Cache::new(&fake, &gpu, 1, 2, keys_and_values(2, 150_000));
        let slice = cache.memory.blocks(vec![1]).unwrap().take_slice(0, 0).unwrap();
        let copy = SliceCopy::new(CopySource::Racing(region, 0), slice);
        // The last one that holds the region is the copy.
        let (sender, ended) = crossbeam_channel::bounded(1);
        gpu.copy(batch([copy]), Box::new(move |is_copied| sender.send(is_copied).unwrap()));
        assert!(ended.recv().unwrap() && cache.slice(0, &[1]) == content);
        eventually("nothing is registered", || fake.alive(Kind::Registrations) == 0);
        assert_eq!(gpu.facts().registration.registered_bytes, 0);
    }
}

#[test]
fn a_region_that_outlives_its_copier_is_unregistered_at_its_end() {
    let fake = Fake::new(21, 0);
    let region = Arc::new(Region::anonymous(REGION, Touch::AtUse, "a test").unwrap());
    {
        let gpu = fake.open().unwrap();
        gpu.register(&region);
        eventually("it is registered", || gpu.facts().registration.registered_bytes > 0);
        let other = fake.open().unwrap();
        other.register(&region);
        let refusal = other.facts().registration.refusal.unwrap();
        assert_eq!(refusal, "the memory is registered with another GPU");
    }
    assert_eq!(fake.alive(Kind::Registrations), 1);
    drop(region);
    eventually("it is unregistered", || fake.alive(Kind::Registrations) == 0);
}

#[test]
fn a_gpu_that_cannot_register_memory_for_reading_copies_through_the_buffer() {
    for (attribute, expected) in [
        (113, "the GPU cannot register memory that this process may only read"),
        (99, "the GPU cannot register memory"),
    ] {
        let content = noise(2, 300_000);
        let (_own, region) = served(&content);
        let fake = Fake::new(21, 20);
        fake.set_attribute(attribute, 0);
        let gpu = Arc::new(fake.open().unwrap());
        gpu.register(&region);
        let facts = gpu.facts().registration;
        assert_eq!((facts.pending, facts.refusal.as_deref()), (0, Some(expected)));
        assert!(copies(&fake, &gpu, &region, &content));
        assert_eq!(gpu.copied_bytes(), 300_000);
        assert_eq!(fake.calls("cuMemHostRegister_v2"), 0);
    }
}

#[test]
fn a_refusal_in_the_middle_undoes_all_pieces() {
    // The limit of locked memory, a failed registration, and a failed address.
    for call in ["memlock", "cuMemHostRegister_v2", "cuMemHostGetDevicePointer_v2"] {
        let content = noise(2, 300_000);
        let (_own, region) = served(&content);
        let fake = Fake::new(21, 20);
        let gpu = Arc::new(fake.open_with(Some(64 << 10)).unwrap());
        match call {
            "memlock" => fake.set_memlock(500 << 10),
            call => fake.fail(call, 5, 1, 2),
        }
        gpu.register(&region);
        eventually("it is refused", || gpu.facts().registration.refusal.is_some());
        assert_eq!(fake.alive(Kind::Registrations), 0, "{call}");
        assert!(copies(&fake, &gpu, &region, &content), "{call}");
        assert_eq!(gpu.copied_bytes(), 300_000);
    }
}

#[test]
fn memory_that_goes_back_to_the_system_in_between_is_never_registered() {
    let fake = Fake::new(21, 0);
    let gpu = fake.open().unwrap();
    let region = Arc::new(Region::lent(REGION, "a test").unwrap());
    gpu.register(&region);
    assert!(gpu.facts().registration.refusal.is_some());
    assert_eq!(fake.calls("cuMemHostRegister_v2"), 0);
}
