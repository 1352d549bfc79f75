//! An accepted request, with its file and its position in the order of submission.
//!
//! 1. A [`QueuedRequest`] completes its request exactly once, even when a panic drops it.
//! 2. After a write failed that should have been durable, every sync fails.
//! 3. A direction's counts decrease before the completion is sent, so that its receiver can submit again.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use dalsegno_core::Clock;

use super::OpenFile;
use crate::{IoError, Operation, Request};

/// Which direction a request belongs to: 0 for reads, 1 for writes and the syncs that wait for them.
pub(super) fn direction(operation: Operation) -> usize {
    match operation {
        Operation::Read => 0,
        Operation::Write | Operation::Sync => 1,
    }
}

/// Requests of one direction that are not completed yet.
#[derive(Debug, Default)]
pub(super) struct DirectionCounts {
    /// Accepted ones.
    accepted: AtomicUsize,
    /// Those that an engine has started, a part of the accepted ones.
    begun: AtomicUsize,
    /// Whether a write failed that should have been durable. Earlier bytes may be lost, too: the kernel reports that
    /// once, and not to a later sync.
    has_lost: AtomicBool,
}

impl DirectionCounts {
    pub(super) fn accepted(&self) -> usize {
        self.accepted.load(Ordering::Relaxed)
    }

    pub(super) fn begun(&self) -> usize {
        self.begun.load(Ordering::Relaxed)
    }
}

/// An accepted request with its file.
#[derive(Debug)]
pub(super) struct QueuedRequest {
    /// `None` once completed.
    request: Option<Request>,
    file: Arc<OpenFile>,
    /// Its position in the order of submission.
    number: u64,
    has_begun: bool,
    unanswered: Arc<DirectionCounts>,
}

impl QueuedRequest {
    /// Accepts a request; `number` is its position in the order of submission.
    pub(super) fn new(
        request: Request,
        file: Arc<OpenFile>,
        number: u64,
        unanswered: &Arc<DirectionCounts>,
    ) -> Self {
        unanswered.accepted.fetch_add(1, Ordering::Relaxed);
        let unanswered = Arc::clone(unanswered);
        Self { request: Some(request), file, number, has_begun: false, unanswered }
    }

    /// Gives it one of the engine's places.
    pub(super) fn begin(&mut self) {
        self.unanswered.begun.fetch_add(1, Ordering::Relaxed);
        self.has_begun = true;
    }

    /// Takes its place back.
    pub(super) fn put_off(&mut self) {
        if std::mem::take(&mut self.has_begun) {
            self.unanswered.begun.fetch_sub(1, Ordering::Relaxed);
        }
    }

    pub(super) fn number(&self) -> u64 {
        self.number
    }

    pub(super) fn request(&self) -> &Request {
        self.request.as_ref().expect("a queued request has its request until completion")
    }

    pub(super) fn parts(&mut self) -> (&mut Request, &OpenFile) {
        (
            self.request.as_mut().expect("a queued request has its request until completion"),
            &self.file,
        )
    }

    pub(super) fn file(&self) -> &OpenFile {
        &self.file
    }

    /// Whether its deadline has passed.
    pub(super) fn is_late(&self, clock: &dyn Clock) -> bool {
        // Most requests have no deadline and need not read the clock.
        let deadline = self.request().deadline;
        deadline.is_bounded() && deadline.expired(clock.now())
    }

    /// Success if every byte moved.
    pub(super) fn check_count(&self, got: u64) -> Result<(), IoError> {
        let expected = self.request().bytes();
        if got == expected {
            return Ok(());
        }
        let operation = self.request().operation.name();
        Err(IoError::Short { operation, file: self.file.name.clone(), expected, got })
    }

    pub(super) fn os_error(&self, source: io::Error) -> IoError {
        IoError::os(self.request().operation.name(), &self.file.name, source)
    }

    fn panicked(&self) -> IoError {
        IoError::panicked(self.request().operation.name(), &self.file.name)
    }

    /// Completes the request and returns its memory. After a durable write has failed, no sync succeeds.
    pub(super) fn finish(mut self, mut result: Result<(), IoError>) {
        let Request { operation, purpose, .. } = self.request();
        let has_lost = &self.unanswered.has_lost;
        match &result {
            Err(error @ IoError::Os { .. }) if purpose.is_durable && !error.is_no_space() => {
                has_lost.store(true, Ordering::Relaxed);
            }
            Ok(()) if *operation == Operation::Sync && has_lost.load(Ordering::Relaxed) => {
                let what = "a write before it was not durable";
                result = Err(self.os_error(io::Error::other(what)));
            }
            _ => {}
        }
        if let Some(request) = self.take() {
            request.complete(result);
        }
    }

    /// Completes the request but never returns its memory: the kernel may still touch it.
    pub(super) fn abandon(mut self) {
        let error = self.panicked();
        if let Some(request) = self.take() {
            // The file may still be written, too.
            std::mem::forget(Arc::clone(&self.file));
            request.abandon(error);
        }
    }

    fn take(&mut self) -> Option<Request> {
        let request = self.request.take()?;
        // Before the completion is sent (invariant 2).
        self.unanswered.accepted.fetch_sub(1, Ordering::Relaxed);
        if self.has_begun {
            self.unanswered.begun.fetch_sub(1, Ordering::Relaxed);
        }
        Some(request)
    }
}

impl Drop for QueuedRequest {
    fn drop(&mut self) {
        if self.request.is_some() {
            let error = self.panicked();
            if let Some(request) = self.take() {
                request.complete(Err(error));
            }
        }
    }
}
