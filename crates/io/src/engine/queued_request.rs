//! One accepted request on its way through an engine.
//!
//! 1. A [`QueuedRequest`] answers its request exactly once, also when it is dropped by a panic.
//! 2. A direction's counts fall before the answer, so that the caller can submit again when it has it.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use dalsegno_core::Clock;

use super::OpenFile;
use crate::{IoError, Operation, Request};

/// Which of the two directions a request belongs to: reads, or writes and the syncs that wait for them.
pub(super) fn direction(operation: Operation) -> usize {
    match operation {
        Operation::Read => 0,
        Operation::Write | Operation::Sync => 1,
    }
}

/// What of a direction is not answered yet.
#[derive(Debug, Default)]
pub(super) struct DirectionCounts {
    /// All of it.
    accepted: AtomicUsize,
    /// What an engine has begun.
    begun: AtomicUsize,
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
    /// `None` once answered.
    request: Option<Request>,
    file: Arc<OpenFile>,
    /// Its place in the order of submission.
    number: u64,
    has_begun: bool,
    unanswered: Arc<DirectionCounts>,
}

impl QueuedRequest {
    /// Accepts a request; `number` is its place in the order of submission.
    pub(super) fn new(
        (request, file): (Request, Arc<OpenFile>),
        number: u64,
        unanswered: &Arc<DirectionCounts>,
    ) -> Self {
        unanswered.accepted.fetch_add(1, Ordering::Relaxed);
        let unanswered = Arc::clone(unanswered);
        Self { request: Some(request), file, number, has_begun: false, unanswered }
    }

    /// Gives it a place of the engine.
    pub(super) fn begin(&mut self) {
        self.unanswered.begun.fetch_add(1, Ordering::Relaxed);
        self.has_begun = true;
    }

    /// Takes its place away again.
    pub(super) fn put_off(&mut self) {
        if std::mem::take(&mut self.has_begun) {
            self.unanswered.begun.fetch_sub(1, Ordering::Relaxed);
        }
    }

    pub(super) fn number(&self) -> u64 {
        self.number
    }

    pub(super) fn request(&self) -> &Request {
        self.request.as_ref().expect("a job has its request until it is answered")
    }

    pub(super) fn parts(&mut self) -> (&mut Request, &OpenFile) {
        (self.request.as_mut().expect("a job has its request until it is answered"), &self.file)
    }

    pub(super) fn file(&self) -> &OpenFile {
        &self.file
    }

    /// Whether it is too late to start.
    pub(super) fn is_late(&self, clock: &dyn Clock) -> bool {
        // Most requests have no deadline: spare them the clock.
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

    /// Answers the request and hands its memory back.
    pub(super) fn finish(mut self, result: Result<(), IoError>) {
        if let Some(request) = self.take() {
            request.complete(result);
        }
    }

    /// Answers the request, and never gives its memory back: the kernel may still touch it.
    pub(super) fn abandon(mut self) {
        let error = self.os_error(io::Error::other("the I/O thread failed"));
        if let Some(request) = self.take() {
            // The file, too, may still be written.
            std::mem::forget(Arc::clone(&self.file));
            request.abandon(error);
        }
    }

    fn take(&mut self) -> Option<Request> {
        let request = self.request.take()?;
        // Before the answer, so that the caller can submit again when it has it.
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
            let error = self.os_error(io::Error::other("the I/O thread failed"));
            if let Some(request) = self.take() {
                request.complete(Err(error));
            }
        }
    }
}
