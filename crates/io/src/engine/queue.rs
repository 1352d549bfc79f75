//! Requests on their way to an engine's threads: bounded, ordered by class, each answered exactly once.
//!
//! 1. At most `limit` requests are accepted and not yet answered; the rest of a batch is refused as busy.
//! 2. A [`Job`] answers its request exactly once, also when it is dropped by a panic.
//! 3. Foreground goes first; within a class the order of submission holds.
//! 4. Requests are answered outside of the lock: dropping a guard may run any code, even a new submit.
//! 5. `asleep` is set only together with finding the queue empty, so a push after it sees it: no wake-up is lost.

use std::collections::VecDeque;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use dalsegno_core::Clock;
use parking_lot::{Condvar, Mutex};

use super::OpenFile;
use crate::{Class, IoError, Request};

/// An accepted request with its file.
#[derive(Debug)]
pub(super) struct Job {
    /// `None` once answered.
    request: Option<Request>,
    file: Arc<OpenFile>,
    outstanding: Arc<AtomicUsize>,
}

impl Job {
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

    /// Answers the request, but keeps its memory from everybody for ever: the kernel may still touch it.
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
        // Before the answer, so that who got it can submit again at once.
        self.outstanding.fetch_sub(1, Ordering::Relaxed);
        Some(request)
    }
}

impl Drop for Job {
    fn drop(&mut self) {
        if self.request.is_some() {
            let error = self.os_error(io::Error::other("the I/O thread failed"));
            if let Some(request) = self.take() {
                request.complete(Err(error));
            }
        }
    }
}

#[derive(Debug)]
pub(super) struct Queue {
    limit: usize,
    outstanding: Arc<AtomicUsize>,
    state: Mutex<State>,
    arrived: Condvar,
}

#[derive(Debug, Default)]
struct State {
    foreground: VecDeque<Job>,
    background: VecDeque<Job>,
    closed: bool,
    /// Whether the consumer waits where only a wake-up reaches it.
    asleep: bool,
}

impl State {
    fn pop(&mut self) -> Option<Job> {
        self.foreground.pop_front().or_else(|| self.background.pop_front())
    }
}

impl Queue {
    pub(super) fn new(limit: usize) -> Self {
        Self {
            limit,
            outstanding: Arc::default(),
            state: Mutex::default(),
            arrived: Condvar::new(),
        }
    }

    /// Accepts as many requests as there is room for and answers the others. Returns whether the consumer must be
    /// woken.
    #[must_use]
    pub(super) fn push(&self, mut batch: Vec<(Request, Arc<OpenFile>)>) -> bool {
        let mut state = self.state.lock();
        let closed = state.closed;
        let room = self.limit.saturating_sub(self.outstanding.load(Ordering::Relaxed));
        let refused = batch.split_off(if closed { 0 } else { room.min(batch.len()) });
        let accepted = batch.len();
        self.outstanding.fetch_add(accepted, Ordering::Relaxed);
        for (request, file) in batch {
            let class = request.class;
            let outstanding = Arc::clone(&self.outstanding);
            let job = Job { request: Some(request), file, outstanding };
            match class {
                Class::Foreground => state.foreground.push_back(job),
                Class::Background => state.background.push_back(job),
            }
        }
        let wake = accepted > 0 && std::mem::take(&mut state.asleep);
        drop(state);
        for _ in 0..accepted {
            self.arrived.notify_one();
        }
        for (request, _) in refused {
            request.complete(Err(if closed { IoError::Closed } else { IoError::Busy }));
        }
        wake
    }

    /// Waits for a job; `None` when the queue is closed.
    pub(super) fn wait(&self) -> Option<Job> {
        let mut state = self.state.lock();
        loop {
            if state.closed {
                return None;
            }
            if let Some(job) = state.pop() {
                return Some(job);
            }
            self.arrived.wait(&mut state);
        }
    }

    /// Appends up to `room` jobs to `jobs`; if that empties the queue, the consumer counts as asleep from then on.
    /// Returns whether the queue is closed.
    pub(super) fn take(&self, room: usize, jobs: &mut Vec<Job>) -> bool {
        let mut state = self.state.lock();
        let before = jobs.len();
        jobs.extend(std::iter::from_fn(|| state.pop()).take(room));
        state.asleep = jobs.len() - before < room;
        state.closed
    }

    /// Refuses what waits and all that comes.
    pub(super) fn close(&self) {
        let mut state = self.state.lock();
        state.closed = true;
        let waiting = std::mem::take(&mut state.foreground);
        let waiting = waiting.into_iter().chain(std::mem::take(&mut state.background));
        drop(state);
        self.arrived.notify_all();
        waiting.for_each(|job| job.finish(Err(IoError::Closed)));
    }
}

#[cfg(test)]
mod tests {
    use crossbeam_channel::{Receiver, unbounded};
    use dalsegno_core::Deadline;

    use super::*;
    use crate::{Completion, FileId, Operation};

    fn file() -> Arc<OpenFile> {
        let flags = rustix::fs::OFlags::PATH;
        let descriptor = rustix::fs::open("/", flags, rustix::fs::Mode::empty()).unwrap();
        Arc::new(OpenFile { descriptor, name: "test".to_owned() })
    }

    /// Sync requests, tagged from 0, of the given classes.
    fn batch(classes: &[Class]) -> (Vec<(Request, Arc<OpenFile>)>, Receiver<Completion>) {
        let (reply, answers) = unbounded();
        let batch = classes.iter().zip(0..).map(|(&class, tag)| {
            let request = Request {
                operation: Operation::Sync,
                class,
                file: FileId(0),
                offset: 0,
                memory: Vec::new(),
                tag,
                deadline: Deadline::Never,
                guard: None,
                watch: None,
                reply: reply.clone(),
            };
            (request, file())
        });
        (batch.collect(), answers)
    }

    #[test]
    fn foreground_overtakes_background_but_not_its_own_class() {
        use Class::{Background, Foreground};
        let queue = Queue::new(16);
        let (requests, _answers) = batch(&[Background, Foreground, Background, Foreground]);
        let _ = queue.push(requests);
        let mut jobs = Vec::new();
        assert!(!queue.take(16, &mut jobs));
        let order: Vec<u64> = jobs.iter().map(|job| job.request().tag).collect();
        assert_eq!(order, [1, 3, 0, 2]);
    }

    #[test]
    fn the_limit_counts_what_is_not_answered_yet() {
        let queue = Queue::new(2);
        let (requests, answers) = batch(&[Class::Foreground; 3]);
        let _ = queue.push(requests);
        let busy = answers.try_recv().unwrap();
        assert!(busy.tag == 2 && matches!(busy.result, Err(IoError::Busy)));
        let mut jobs = Vec::new();
        queue.take(2, &mut jobs);
        let (requests, refused) = batch(&[Class::Foreground]);
        let _ = queue.push(requests);
        assert!(matches!(refused.try_recv().unwrap().result, Err(IoError::Busy)));
        jobs.pop().unwrap().finish(Ok(()));
        let (requests, accepted) = batch(&[Class::Foreground]);
        let _ = queue.push(requests);
        assert!(accepted.try_recv().is_err());
    }

    #[test]
    fn a_closed_queue_answers_what_waited_and_what_comes() {
        let queue = Queue::new(16);
        let (requests, waited) = batch(&[Class::Foreground, Class::Background]);
        let _ = queue.push(requests);
        queue.close();
        let (requests, late) = batch(&[Class::Foreground]);
        let _ = queue.push(requests);
        let answers: Vec<_> = waited.try_iter().chain(late.try_iter()).collect();
        assert_eq!(answers.len(), 3);
        assert!(answers.iter().all(|answer| matches!(answer.result, Err(IoError::Closed))));
        assert!(queue.wait().is_none());
    }

    #[test]
    fn a_job_lost_in_a_panic_is_answered_with_an_error() {
        let queue = Queue::new(16);
        let (requests, answers) = batch(&[Class::Foreground; 2]);
        let _ = queue.push(requests);
        let job = queue.wait().unwrap();
        let panicked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(move || {
            let _job = job;
            panic!("a bug");
        }));
        assert!(panicked.is_err());
        queue.wait().unwrap().abandon();
        let answers: Vec<_> = answers.try_iter().collect();
        assert_eq!(answers.len(), 2);
        assert!(answers.iter().all(|answer| matches!(answer.result, Err(IoError::Os { .. }))));
    }

    #[test]
    fn a_sleeping_consumer_is_woken_once() {
        let queue = Queue::new(16);
        assert!(!queue.take(4, &mut Vec::new()));
        let (requests, _answers) = batch(&[Class::Foreground]);
        assert!(queue.push(requests));
        let (requests, _answers) = batch(&[Class::Foreground]);
        assert!(!queue.push(requests));
    }
}
