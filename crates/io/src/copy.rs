//! Copies between the memory of a store and the KV cache of an engine.
//!
//! 1. A [`Copier`] calls `done` exactly once for each batch, after the last byte or after it failed.
//! 2. A copy fails only as a whole batch. Then the contents of all destinations are undefined.
//! 3. Work that waits for threads is bounded. Beyond the bound, the calling thread copies.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use crossbeam_channel::bounded;
use parking_lot::Mutex;

use crate::{Executor, JobLane, Memory, Region};

/// A batch of fewer bytes is copied by the calling thread: handing it to another one would take as long.
const INLINE_BYTES: usize = 256 << 10;
/// Bytes that one thread copies before it looks for the next job: about 100 us.
const PART_BYTES: usize = 1 << 20;
/// Parts that wait for a thread.
const QUEUE: usize = 256;

/// Bytes that are copied, in order, to one or several ranges of memory.
#[derive(Debug)]
pub struct SliceCopy {
    from: CopySource,
    to: Vec<Memory>,
    bytes: usize,
}

/// Where bytes are copied from.
#[derive(Debug)]
pub enum CopySource {
    /// Memory that nobody writes, in order.
    Memory(Vec<Memory>),
    /// Bytes of a region, from an offset on, that another process may be writing: see [`Region::copy_racing`].
    Racing(Arc<Region>, usize),
}

/// Is called when a batch of copies has ended, with whether all bytes were copied.
pub type CopyDone = Box<dyn FnOnce(bool) + Send>;

/// Copies batches of slices.
pub trait Copier: fmt::Debug + Send + Sync {
    /// Copies a batch. May return before the end, and may call `done` before it returns.
    fn copy(&self, batch: Vec<SliceCopy>, done: CopyDone);

    /// Bytes copied so far by the processor.
    fn copied_bytes(&self) -> u64;
}

/// Copies a batch and waits for its end. Returns whether all bytes were copied.
pub fn copy_all(copier: &dyn Copier, batch: Vec<SliceCopy>) -> bool {
    let (sender, receiver) = bounded(1);
    let done = move |is_copied| sender.send(is_copied).expect("the receiver waits below");
    copier.copy(batch, Box::new(done));
    receiver.recv().unwrap_or(false)
}

impl SliceCopy {
    /// A copy of all bytes of `from` to `to`.
    ///
    /// # Panics
    ///
    /// If memory to copy from has another number of bytes than `to`, or if `to` cannot be written.
    #[must_use]
    pub fn new(from: CopySource, to: Vec<Memory>) -> Self {
        let bytes_of = |memory: &[Memory]| memory.iter().map(Memory::len).sum::<usize>();
        let bytes = bytes_of(&to);
        if let CopySource::Memory(from) = &from {
            assert_eq!(bytes_of(from), bytes, "a copy has as many bytes as its source");
        }
        assert!(to.iter().all(Memory::is_writable), "a copy is written");
        Self { from, to, bytes }
    }

    /// Number of bytes.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    fn run(self) {
        let Self { from, mut to, .. } = self;
        match from {
            CopySource::Memory(from) => copy_between(&from, &mut to),
            CopySource::Racing(region, offset) => region.copy_racing(offset, &mut to),
        }
    }
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
    fn copy(&self, batch: Vec<SliceCopy>, done: CopyDone) {
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
        copies.into_iter().for_each(SliceCopy::run);
        end.is_copied = true;
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

    fn memory(bytes: &[u8]) -> Memory {
        Memory::owned(bytes.to_vec(), ())
    }

    #[test]
    fn pieces_of_any_sizes_are_copied_in_order() {
        let bytes: Vec<u8> = (0..100).collect();
        let from = [&bytes[..7], &bytes[7..7], &bytes[7..60], &bytes[60..]].map(memory);
        let mut out = vec![0; 100];
        lend_in_pieces(&mut out, |to| {
            let copier = CpuCopier::start(Executor::Inline, 1).unwrap();
            assert!(copy_all(&copier, vec![SliceCopy::new(CopySource::Memory(from.into()), to)]));
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
            let batch = pairs.map(|(from, to)| {
                let from = CopySource::Memory(vec![lender.shared(from)]);
                SliceCopy::new(from, vec![lender.exclusive(to)])
            });
            assert!(copy_all(&copier, batch.collect()));
        });
        assert_eq!(out, bytes);
    }

    #[test]
    #[should_panic(expected = "as many bytes as its source")]
    fn a_copy_of_another_size_is_refused_before_it_starts() {
        let _ = SliceCopy::new(CopySource::Memory(vec![memory(&[1; 10])]), vec![Memory::zeroed(9)]);
    }

    #[test]
    fn a_part_that_panics_fails_its_batch() {
        let region = Arc::new(Region::anonymous(4096, crate::Touch::AtUse, "a test").unwrap());
        let copier = CpuCopier::start(Executor::Threads, 2).unwrap();
        // Outside of the region.
        let bad =
            SliceCopy::new(CopySource::Racing(region, 4096), vec![Memory::zeroed(PART_BYTES)]);
        let from = CopySource::Memory(vec![memory(&vec![1; PART_BYTES])]);
        let good = SliceCopy::new(from, vec![Memory::zeroed(PART_BYTES)]);
        assert!(!copy_all(&copier, vec![good, bad]));
    }
}
