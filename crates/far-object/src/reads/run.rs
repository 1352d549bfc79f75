//! Requests that are read as one, and their bytes.
//!
//! 1. Every request is completed once: by its bytes, by a failure, by its deadline, or when it is dropped.
//! 2. Bytes are summed as they are copied to their places, while they are in the processor's cache.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use dalsegno_core::{Stopped, crc32c_append};
use dalsegno_far::ObjectName;
use dalsegno_io::{IoError, Request};
use tokio::time::{Instant, timeout_at};

use crate::failure::Failure;
use crate::network::CallPlace;

/// A request that is not completed.
#[derive(Debug)]
pub(super) struct Open {
    pub(super) request: Option<Request>,
    pub(super) until: Instant,
    /// Bytes that arrived, and how many of them are in the first piece of memory that is not full.
    pub(super) filled: u64,
    filled_of_piece: usize,
    /// The checksums of the full pieces, and that of the bytes in the next one.
    crcs: Vec<u32>,
    crc: u32,
    /// How often it failed.
    pub(super) tries: u32,
    _wanted: Wanted,
    _place: CallPlace,
}

/// Bytes among those that are to arrive.
#[derive(Debug)]
pub(super) struct Wanted {
    sum: Arc<AtomicU64>,
    bytes: u64,
}

impl Wanted {
    pub(super) fn new(sum: &Arc<AtomicU64>, bytes: u64) -> Self {
        sum.fetch_add(bytes, Ordering::Relaxed);
        Self { sum: Arc::clone(sum), bytes }
    }
}

impl Drop for Wanted {
    fn drop(&mut self) {
        self.sum.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

impl Open {
    pub(super) fn new(request: Request, until: Instant, wanted: Wanted, place: CallPlace) -> Self {
        Self {
            request: Some(request),
            until,
            filled: 0,
            filled_of_piece: 0,
            crcs: Vec::new(),
            crc: 0,
            tries: 0,
            _wanted: wanted,
            _place: place,
        }
    }

    pub(super) fn request(&self) -> &Request {
        self.request.as_ref().expect("it is completed when it is dropped")
    }

    pub(super) fn start(&self) -> u64 {
        self.request().offset
    }

    pub(super) fn end(&self) -> u64 {
        self.request().offset + self.request().bytes()
    }

    pub(super) fn complete(mut self, result: Result<(), IoError>) {
        let Some(request) = self.request.take() else { return };
        match result {
            Ok(()) => request.complete_summed(std::mem::take(&mut self.crcs)),
            Err(error) => request.complete(Err(error)),
        }
    }

    /// Copies bytes to where they belong, and sums them while they are in the processor's cache.
    pub(super) fn fill(&mut self, mut bytes: &[u8]) {
        let request = self.request.as_mut().expect("it is completed when it is dropped");
        while let Some(memory) = request.memory.get_mut(self.crcs.len()) {
            let place = &mut memory.as_mut_slice()[self.filled_of_piece..];
            let (now, later) = bytes.split_at(place.len().min(bytes.len()));
            place[..now.len()].copy_from_slice(now);
            self.crc = crc32c_append(self.crc, now);
            self.filled += now.len() as u64;
            self.filled_of_piece += now.len();
            if self.filled_of_piece < memory.len() {
                break;
            }
            self.crcs.push(std::mem::take(&mut self.crc));
            (self.filled_of_piece, bytes) = (0, later);
        }
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        if let Some(request) = self.request.take() {
            request.complete(Err(IoError::Closed));
        }
    }
}

/// Requests that are read as one, by offset.
#[derive(Debug)]
pub(super) struct Run {
    pub(super) name: ObjectName,
    pub(super) requests: VecDeque<Open>,
}

impl Run {
    /// What is still to be read.
    pub(super) fn range(&self) -> Option<std::ops::Range<u64>> {
        let start = self.requests.iter().map(|open| open.start() + open.filled).min()?;
        let end = self.requests.iter().map(Open::end).max()?;
        Some(start..end)
    }

    pub(super) fn first_deadline(&self) -> Option<Instant> {
        self.requests.iter().map(|open| open.until).min()
    }

    pub(super) fn last_deadline(&self) -> Option<Instant> {
        self.requests.iter().map(|open| open.until).max()
    }

    /// Takes bytes that lie at `at`, and completes the requests that have all of theirs.
    pub(super) fn fill(&mut self, at: u64, bytes: &[u8]) {
        let end = at + bytes.len() as u64;
        for open in &mut self.requests {
            let next = open.start() + open.filled;
            if next >= end || open.end() <= at || next < at {
                continue;
            }
            let skip = usize::try_from(next - at).expect("within the bytes");
            open.fill(&bytes[skip..]);
        }
        self.complete_if(|open| open.start() + open.filled == open.end(), || Ok(()));
    }

    pub(super) fn complete_late(&mut self, now: Instant) {
        self.complete_if(|open| open.until <= now, || Err(Stopped::Deadline.into()));
    }

    pub(super) fn complete_if(
        &mut self,
        is_over: impl Fn(&Open) -> bool,
        result: impl Fn() -> Result<(), IoError>,
    ) {
        for _ in 0..self.requests.len() {
            let open = self.requests.pop_front().expect("counted");
            if is_over(&open) {
                open.complete(result());
            } else {
                self.requests.push_back(open);
            }
        }
    }

    /// Waits for something, and completes requests whose deadline passes meanwhile. `None` if none is left.
    pub(super) async fn wait<T>(&mut self, what: impl Future<Output = T>) -> Option<T> {
        let mut what = std::pin::pin!(what);
        while let Some(first) = self.first_deadline() {
            match timeout_at(first, &mut what).await {
                Ok(ended) => return Some(ended),
                Err(_) => self.complete_late(Instant::now()),
            }
        }
        None
    }

    /// Counts a try that failed. Returns how many there were.
    pub(super) fn note_try(&mut self) -> u32 {
        self.requests.iter_mut().for_each(|open| open.tries += 1);
        self.requests.iter().map(|open| open.tries).max().unwrap_or(u32::MAX)
    }

    /// The object ends before all bytes were read.
    pub(super) fn end_short(&mut self, file: &str) {
        for open in self.requests.drain(..) {
            let (expected, got) = (open.request().bytes(), open.filled);
            let (operation, file) = ("read", file.to_owned());
            open.complete(Err(IoError::Short { operation, file, expected, got }));
        }
    }

    pub(super) fn fail(&mut self, failure: &Failure, file: &str) {
        for open in self.requests.drain(..) {
            open.complete(Err(failure.to_io("read", file)));
        }
    }
}
