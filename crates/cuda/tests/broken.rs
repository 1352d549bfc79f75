//! A driver that stops to work in the middle: a process of its own, as what the GPU may use is never released.
#![expect(clippy::disallowed_methods, reason = "plays the world outside of the crate")]
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

#[expect(dead_code, reason = "the other tests use the rest")]
#[path = "all/fake.rs"]
mod fake;

use std::sync::Arc;

use crossbeam_channel::bounded;
use dalsegno_io::{Copier, CopySource, SliceCopy};
// Builds the library next to this program.
use fake_cuda as _;

use crate::fake::{Cache, EngineStream, Fake, LIMIT, batch, keys_and_values, noise, owned};

const BYTES: usize = 50_000;

#[test]
fn memory_of_a_copy_whose_end_is_unknown_is_never_released() {
    let fake = Fake::new(11, 0);
    let gpu = Arc::new(fake.open().unwrap());
    let cache = Cache::new(&fake, &gpu, 1, 3, keys_and_values(3, BYTES));
    let engine = EngineStream::new(&fake);
    let start = |page| {
        let slice = cache.memory.blocks(vec![page]).unwrap().take_slice(0, 0).unwrap();
        let copy = SliceCopy::new(CopySource::Memory(owned(&noise(1, 2 * BYTES))), slice);
        let (sender, ended) = bounded(1);
        let done = move |is_copied| sender.send(is_copied).unwrap();
        let mark = gpu.copy(batch([copy]), Box::new(done));
        assert!(!ended.recv_timeout(LIMIT).expect("it ends"));
        assert!(cache.memory.blocks(vec![page]).is_err(), "its page stays in use");
        // The engine must not take the page for ready either.
        assert!(gpu.order(engine.handle(), mark.unwrap()).is_err());
    };
    for page in [1, 2] {
        fake.fail("cuEventSynchronize", 0, u32::MAX, 700);
        start(page);
    }
    assert!(cache.memory.blocks(vec![0]).is_ok());
}
