//! Copies within the memory of this machine.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use parking_lot::Mutex;

use crate::{
    Copier, CopyBatch, CopyDone, CopyMark, CopySource, Executor, JobLane, Memory, PageSlice,
    SliceCopy,
};

/// A batch of fewer bytes is copied by the calling thread: handing it to another one would take as long.
const INLINE_BYTES: usize = 256 << 10;
/// Bytes that one thread copies before it looks for the next job: about 100 us.
const PART_BYTES: usize = 1 << 20;
/// Parts that wait for a thread.
const QUEUE: usize = 256;

/// Copies a slice. `false` if it is of a device.
fn run(copy: SliceCopy) -> bool {
    let (from, PageSlice::Memory(mut to)) = copy.into_sides() else { return false };
    match from {
        CopySource::Memory(from) => copy_between(&from, &mut to),
        CopySource::Racing(region, offset) => region.copy_racing(offset, &mut to),
        CopySource::Device(_) => return false,
    }
    true
}

/// Copies pieces to other pieces that together have as many bytes.
fn copy_between(from: &[Memory], to: &mut [Memory]) {
    let mut sources = from.iter().map(Memory::as_slice);
    let mut source: &[u8] = &[];
    for piece in to {
        let mut rest = piece.as_mut_slice();
        while !rest.is_empty() {
            if source.is_empty() {
                source = sources.next().expect("as many bytes as are written");
                continue;
            }
            let count = rest.len().min(source.len());
            let (now, later) = rest.split_at_mut(count);
            now.copy_from_slice(&source[..count]);
            (rest, source) = (later, &source[count..]);
        }
    }
}

/// Copies with threads of this process.
#[derive(Debug)]
pub struct CpuCopier {
    lane: JobLane,
    copied_bytes: AtomicU64,
}

impl CpuCopier {
    /// A copier with up to `threads` threads. They are started when they are needed.
    ///
    /// # Errors
    ///
    /// The system's own if it refuses the first thread.
    pub fn start(executor: Executor, threads: u32) -> std::io::Result<Self> {
        let lane = JobLane::start("dalsegno-copy", executor, threads, QUEUE)?;
        Ok(Self { lane, copied_bytes: AtomicU64::new(0) })
    }

    /// Ends the threads, and waits for that at most `timeout`. What is copied later is copied by the calling thread.
    pub fn stop(&self, timeout: Duration) {
        self.lane.close();
        self.lane.join(timeout);
    }
}

impl Copier for CpuCopier {
    fn copy(&self, batch: CopyBatch, done: CopyDone) -> Option<CopyMark> {
        let batch = batch.copies;
        let bytes: usize = batch.iter().map(SliceCopy::bytes).sum();
        self.copied_bytes.fetch_add(bytes as u64, Ordering::Relaxed);
        let is_small = bytes < INLINE_BYTES;
        let parts = if is_small { vec![batch] } else { parts_of(batch) };
        let end = Arc::new(BatchEnd {
            left: AtomicUsize::new(parts.len()),
            has_failed: AtomicBool::new(false),
            done: Mutex::new(Some(done)),
        });
        for copies in parts {
            let part =
                BatchPart { copies, end: PartEnd { batch: Arc::clone(&end), is_copied: false } };
            let place =
                if is_small { None } else { self.lane.keep_place(Some(Duration::ZERO)).ok() };
            match place {
                // A lane that ends copies as well: somebody waits for these bytes.
                Some(place) => place.start(|_| part.run()),
                None => part.run(),
            }
        }
        None
    }

    fn copied_bytes(&self) -> u64 {
        self.copied_bytes.load(Ordering::Relaxed)
    }
}

/// Cuts a batch into parts of about [`PART_BYTES`].
fn parts_of(batch: Vec<SliceCopy>) -> Vec<Vec<SliceCopy>> {
    let mut parts: Vec<Vec<SliceCopy>> = Vec::new();
    let mut bytes = PART_BYTES;
    for copy in batch {
        if bytes >= PART_BYTES {
            parts.push(Vec::new());
            bytes = 0;
        }
        bytes += copy.bytes();
        parts.last_mut().expect("one was begun").push(copy);
    }
    parts
}

/// The end of a batch, which its last part brings about.
struct BatchEnd {
    left: AtomicUsize,
    has_failed: AtomicBool,
    done: Mutex<Option<CopyDone>>,
}

/// A part of a batch.
struct BatchPart {
    copies: Vec<SliceCopy>,
    end: PartEnd,
}

/// Ends a part even if copying panics.
struct PartEnd {
    batch: Arc<BatchEnd>,
    is_copied: bool,
}

impl BatchPart {
    fn run(self) {
        let Self { copies, mut end } = self;
        end.is_copied = copies.into_iter().all(run);
    }
}

impl Drop for PartEnd {
    fn drop(&mut self) {
        let batch = &self.batch;
        if !self.is_copied {
            batch.has_failed.store(true, Ordering::Relaxed);
        }
        // The last part sees what the others wrote.
        if batch.left.fetch_sub(1, Ordering::AcqRel) == 1
            && let Some(done) = batch.done.lock().take()
        {
            done(!batch.has_failed.load(Ordering::Relaxed));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Region, copy_all};

    fn memory(bytes: &[u8]) -> Memory {
        Memory::owned(bytes.to_vec(), ())
    }

    fn batch(copies: impl IntoIterator<Item = SliceCopy>) -> CopyBatch {
        CopyBatch { copies: copies.into_iter().collect(), after: None }
    }

    #[test]
    fn pieces_of_any_sizes_are_copied_in_order() {
        let bytes: Vec<u8> = (0..100).collect();
        let from = [&bytes[..7], &bytes[7..7], &bytes[7..60], &bytes[60..]].map(memory);
        let mut out = vec![0; 100];
        lend_in_pieces(&mut out, |to| {
            let copier = CpuCopier::start(Executor::Inline, 1).unwrap();
            let copy = SliceCopy::new(CopySource::Memory(from.into()), PageSlice::Memory(to));
            assert!(copy_all(&copier, batch([copy])));
            assert_eq!(copier.copied_bytes(), 100);
        });
        assert_eq!(out, bytes);
    }

    /// Lends a vector in pieces of 0, 1, 49 and the other bytes.
    fn lend_in_pieces(out: &mut [u8], use_it: impl FnOnce(Vec<Memory>)) {
        crate::lend(|lender| {
            let mut rest = lender.exclusive(out);
            let mut pieces: Vec<Memory> = [0, 1, 49].map(|len| rest.split_to(len)).into();
            pieces.push(rest);
            use_it(pieces);
        });
    }

    #[test]
    fn a_large_batch_is_copied_by_several_threads() {
        const BYTES: usize = 300_000;
        let copier = CpuCopier::start(Executor::Threads, 3).unwrap();
        let bytes: Vec<u8> = (0..251_u8).cycle().take(20 * BYTES).collect();
        let mut out = vec![0; bytes.len()];
        crate::lend(|lender| {
            let pairs = bytes.chunks(BYTES).zip(out.chunks_mut(BYTES));
            let all = pairs.map(|(from, to)| {
                let from = CopySource::Memory(vec![lender.shared(from)]);
                SliceCopy::new(from, lender.exclusive(to).into())
            });
            assert!(copy_all(&copier, batch(all)));
        });
        assert_eq!(out, bytes);
    }

    #[test]
    #[should_panic(expected = "as many bytes as its source")]
    fn a_copy_of_another_size_is_refused_before_it_starts() {
        let _ =
            SliceCopy::new(CopySource::Memory(vec![memory(&[1; 10])]), Memory::zeroed(9).into());
    }

    #[test]
    fn a_part_that_panics_fails_its_batch() {
        let region = Arc::new(Region::anonymous(4096, crate::Touch::AtUse, "a test").unwrap());
        let copier = CpuCopier::start(Executor::Threads, 2).unwrap();
        // Outside of the region.
        let bad =
            SliceCopy::new(CopySource::Racing(region, 4096), Memory::zeroed(PART_BYTES).into());
        let from = CopySource::Memory(vec![memory(&vec![1; PART_BYTES])]);
        let good = SliceCopy::new(from, Memory::zeroed(PART_BYTES).into());
        assert!(!copy_all(&copier, batch([good, bad])));
    }
}
