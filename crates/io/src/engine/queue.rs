//! The queue between submitters and an engine's threads: bounded, and in the order of submission.
//!
//! 1. Each direction has at most `limit` accepted requests that are not completed. The rest of a batch is refused as
//!    busy.
//! 2. A [`QueuedRequest`] completes its request exactly once, even when a panic drops it.
//! 3. Requests start in the order of submission, except those of a direction that has used its share. Who goes first is
//!    decided before they come here.
//! 4. Requests are completed outside of the lock: dropping a guard may run any code, even a new submit.
//! 5. `asleep` is set only in the same lock as finding no request that may start. So a later push sees it, and no
//!    wake-up is lost.
//! 6. With two or more places, no direction ever has all of them. So reads find a place while all writes and syncs
//!    hang, and the other way round.
//! 7. If an engine's thread returns a place, no wake-up is needed: that thread takes the next request. If a call
//!    returns a place, it wakes the consumer if the consumer sleeps while requests wait.

use std::collections::VecDeque;
use std::sync::Arc;

use dalsegno_core::Stopped;
use parking_lot::{Condvar, Mutex};

use super::OpenFile;
use super::queued_request::{DirectionCounts, QueuedRequest, direction};
use crate::{IoError, Request};

/// One in this many places of an engine, but at least one of several, is reserved for each direction.
const RESERVED_PART: usize = 4;

#[derive(Debug)]
pub(super) struct Queue {
    limit: usize,
    /// Most requests that an engine may have started.
    places: usize,
    /// Most requests of one direction that an engine may have started.
    share: usize,
    /// By direction.
    unanswered: [Arc<DirectionCounts>; 2],
    state: Mutex<QueueState>,
    arrived: Condvar,
}

#[derive(Debug, Default)]
struct QueueState {
    /// By direction.
    waiting: [VecDeque<QueuedRequest>; 2],
    next_number: u64,
    closed: bool,
    /// Whether the consumer sleeps until it is woken.
    asleep: bool,
}

/// Whether a call may execute a request on its own ring.
#[derive(Debug)]
pub(super) enum CallStart {
    Here(QueuedRequest),
    /// It belongs in the queue.
    NotYet((Request, Arc<OpenFile>)),
}

impl QueueState {
    /// Whether any request waits.
    fn is_waited(&self) -> bool {
        self.waiting.iter().any(|queue| !queue.is_empty())
    }
}

impl Queue {
    /// For an engine that executes `places` requests at a time.
    pub(super) fn new(limit: usize, places: u32) -> Self {
        let places = places as usize;
        let reserved = if places > 1 { (places / RESERVED_PART).max(1) } else { 0 };
        Self {
            limit,
            places,
            share: places - reserved,
            unanswered: Default::default(),
            state: Mutex::default(),
            arrived: Condvar::new(),
        }
    }

    /// Most requests of one direction that an engine may have started.
    pub(super) fn share(&self) -> usize {
        self.share
    }

    /// How many requests of each direction have started; `None` if all places are taken.
    fn begun(&self) -> Option<[usize; 2]> {
        let begun = self.unanswered.each_ref().map(|of| of.begun());
        (begun.iter().sum::<usize>() < self.places).then_some(begun)
    }

    /// The next request that may start.
    fn pop(&self, state: &mut QueueState) -> Option<QueuedRequest> {
        let begun = self.begun()?;
        let first = |at: usize| Some((state.waiting[at].front()?.number(), at));
        let may_start = (0..state.waiting.len()).filter(|at| begun[*at] < self.share);
        let (_, at) = may_start.filter_map(first).min()?;
        let mut queued = state.waiting[at].pop_front()?;
        queued.begin();
        Some(queued)
    }

    /// Accepts as many requests of each direction as the limit allows, and refuses the others. Returns whether the
    /// consumer must be woken.
    #[must_use]
    pub(super) fn push(&self, batch: Vec<(Request, Arc<OpenFile>)>) -> bool {
        let mut state = self.state.lock();
        let closed = state.closed;
        let mut refused = Vec::new();
        let mut accepted = 0;
        for (request, file) in batch {
            let direction = direction(request.operation);
            let unanswered = &self.unanswered[direction];
            if closed || unanswered.accepted() >= self.limit {
                refused.push(request);
                continue;
            }
            accepted += 1;
            let queued = QueuedRequest::new(request, file, state.next_number, unanswered);
            state.next_number += 1;
            state.waiting[direction].push_back(queued);
        }
        let wake = accepted > 0 && std::mem::take(&mut state.asleep);
        drop(state);
        for _ in 0..accepted {
            self.arrived.notify_one();
        }
        for request in refused {
            request.complete(Err(if closed {
                IoError::Closed
            } else {
                IoError::Stopped(Stopped::Busy)
            }));
        }
        wake
    }

    /// Accepts and starts a request, so that its call executes it. Does neither if any request waits, no place is free
    /// for it, or the queue is closed. After its completion, the call must use [`Self::end_here`].
    pub(super) fn begin_here(&self, request: (Request, Arc<OpenFile>)) -> CallStart {
        let direction = direction(request.0.operation);
        let unanswered = &self.unanswered[direction];
        let mut state = self.state.lock();
        let is_free = self.begun().is_some_and(|begun| begun[direction] < self.share);
        if state.closed || state.is_waited() || !is_free || unanswered.accepted() >= self.limit {
            return CallStart::NotYet(request);
        }
        let (request, file) = request;
        let mut queued = QueuedRequest::new(request, file, state.next_number, unanswered);
        state.next_number += 1;
        queued.begin();
        CallStart::Here(queued)
    }

    /// Passes a request that a call started to the engine's threads. Returns whether the consumer must be woken.
    #[must_use]
    pub(super) fn hand_over(&self, mut queued: QueuedRequest) -> bool {
        let direction = direction(queued.request().operation);
        let mut state = self.state.lock();
        if state.closed {
            drop(state);
            queued.finish(Err(IoError::Closed));
            return false;
        }
        queued.put_off();
        state.waiting[direction].push_front(queued);
        let wake = std::mem::take(&mut state.asleep);
        drop(state);
        self.arrived.notify_one();
        wake
    }

    /// Notes that a call returned a place of [`Self::begin_here`]. Returns whether the consumer must be woken.
    #[must_use]
    pub(super) fn end_here(&self) -> bool {
        let mut state = self.state.lock();
        if !state.is_waited() {
            return false;
        }
        let wake = std::mem::take(&mut state.asleep);
        drop(state);
        self.arrived.notify_one();
        wake
    }

    /// Waits for a request; `None` when the queue is closed.
    pub(super) fn wait(&self) -> Option<QueuedRequest> {
        let mut state = self.state.lock();
        loop {
            if state.closed {
                return None;
            }
            if let Some(queued) = self.pop(&mut state) {
                return Some(queued);
            }
            self.arrived.wait(&mut state);
        }
    }

    /// Appends up to `limit` requests to `started`. If it found fewer, the consumer counts as asleep from then on.
    /// Returns whether the queue is closed.
    pub(super) fn take(&self, limit: usize, started: &mut Vec<QueuedRequest>) -> bool {
        let mut state = self.state.lock();
        let before = started.len();
        started.extend(std::iter::from_fn(|| self.pop(&mut state)).take(limit));
        state.asleep = started.len() - before < limit;
        state.closed
    }

    /// Refuses all waiting and all future requests.
    pub(super) fn close(&self) {
        let mut state = self.state.lock();
        state.closed = true;
        let waiting = std::mem::take(&mut state.waiting);
        drop(state);
        self.arrived.notify_all();
        let started = waiting.into_iter().flatten();
        started.for_each(|queued| queued.finish(Err(IoError::Closed)));
    }
}

#[cfg(test)]
mod tests {
    use crossbeam_channel::{Receiver, unbounded};
    use dalsegno_core::{Class, Deadline};

    use super::*;
    use crate::{Completion, FileId, Operation, Purpose};

    fn file() -> Arc<OpenFile> {
        let flags = rustix::fs::OFlags::PATH;
        let descriptor = rustix::fs::open("/", flags, rustix::fs::Mode::empty()).unwrap();
        Arc::new(OpenFile { descriptor, name: "test".to_owned() })
    }

    type Batch = (Vec<(Request, Arc<OpenFile>)>, Receiver<Completion>);

    /// Sync requests, tagged from 0.
    fn batch(count: usize) -> Batch {
        batch_of([Operation::Sync; 8].into_iter().take(count))
    }

    /// Requests, tagged from 0.
    fn batch_of(operations: impl IntoIterator<Item = Operation>) -> Batch {
        let (reply, completions) = unbounded();
        let batch = operations.into_iter().zip(0..).map(|(operation, tag)| {
            let request = Request {
                operation,
                purpose: Purpose::of(Class::Need),
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
        (batch.collect(), completions)
    }

    #[test]
    fn regression_a_direction_never_has_all_places() {
        let operations = [Operation::Write, Operation::Read];
        for (first, second) in [operations, [operations[1], operations[0]]].map(Into::into) {
            let queue = Queue::new(16, 4);
            let kinds = [first, first, first, first, second];
            let (requests, _answers) = batch_of(kinds);
            let _ = queue.push(requests);
            let mut begun = Vec::new();
            queue.take(4, &mut begun);
            let tags = |started: &[QueuedRequest]| {
                started.iter().map(|queued| queued.request().tag).collect::<Vec<_>>()
            };
            assert_eq!(tags(&begun), [0, 1, 2, 4]);
            // The last one waits for its direction's share, not for its position.
            begun.pop().unwrap().finish(Ok(()));
            let mut more = Vec::new();
            queue.take(4, &mut more);
            assert!(more.is_empty());
            begun.pop().unwrap().finish(Ok(()));
            queue.take(4, &mut begun);
            assert_eq!(tags(&begun), [0, 1, 3]);
        }
    }

    #[test]
    fn no_sync_succeeds_after_a_durable_write_failed() {
        let queue = Queue::new(16, 16);
        let kinds = [Operation::Write, Operation::Sync];
        let run = |is_durable: bool, errno: i32| {
            let (mut requests, answers) = batch_of(kinds);
            requests[0].0.purpose.is_durable = is_durable;
            let _ = queue.push(requests);
            let failure = std::io::Error::from_raw_os_error(errno);
            queue.wait().unwrap().finish(Err(IoError::os("write", "test", failure)));
            queue.wait().unwrap().finish(Ok(()));
            answers.iter().take(2).last().unwrap().result
        };
        // These mean nothing but the write itself.
        assert!(run(false, libc::EIO).is_ok());
        assert!(run(true, libc::ENOSPC).is_ok());
        assert!(matches!(run(true, libc::EIO), Err(IoError::Os { operation: "sync", .. })));
        assert!(run(false, libc::ENOSPC).is_err(), "it stays so");
    }

    #[test]
    fn an_engine_with_one_place_serves_both_directions() {
        let queue = Queue::new(16, 1);
        let kinds = [Operation::Write, Operation::Read];
        let (requests, _answers) = batch_of(kinds);
        let _ = queue.push(requests);
        for _ in 0..2 {
            queue.wait().unwrap().finish(Ok(()));
        }
    }

    #[test]
    fn regression_pending_writes_leave_reads_their_queue() {
        let queue = Queue::new(2, 16);
        let (requests, _answers) = batch(2);
        let _ = queue.push(requests);
        let (requests, completions) = batch_of([Operation::Read]);
        let _ = queue.push(requests);
        assert!(completions.try_recv().is_err(), "it was refused");
    }

    #[test]
    fn the_limit_counts_requests_that_are_not_completed() {
        let queue = Queue::new(2, 16);
        let (requests, completions) = batch(3);
        let _ = queue.push(requests);
        let busy = completions.try_recv().unwrap();
        assert!(busy.tag == 2 && matches!(busy.result, Err(IoError::Stopped(Stopped::Busy))));
        let mut started = Vec::new();
        queue.take(2, &mut started);
        let (requests, refused) = batch(1);
        let _ = queue.push(requests);
        assert!(matches!(refused.try_recv().unwrap().result, Err(IoError::Stopped(Stopped::Busy))));
        started.pop().unwrap().finish(Ok(()));
        let (requests, accepted) = batch(1);
        let _ = queue.push(requests);
        assert!(accepted.try_recv().is_err());
    }

    #[test]
    fn a_closed_queue_refuses_waiting_and_new_requests() {
        let queue = Queue::new(16, 16);
        let (requests, waited) = batch(2);
        let _ = queue.push(requests);
        queue.close();
        let (requests, late) = batch(1);
        let _ = queue.push(requests);
        let completions: Vec<_> = waited.try_iter().chain(late.try_iter()).collect();
        assert_eq!(completions.len(), 3);
        assert!(completions.iter().all(|done| matches!(done.result, Err(IoError::Closed))));
        assert!(queue.wait().is_none());
    }

    #[test]
    fn a_request_lost_in_a_panic_completes_with_an_error() {
        let queue = Queue::new(16, 16);
        let (requests, completions) = batch(2);
        let _ = queue.push(requests);
        let queued = queue.wait().unwrap();
        let panicked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(move || {
            let _job = queued;
            panic!("a bug");
        }));
        assert!(panicked.is_err());
        queue.wait().unwrap().abandon();
        let completions: Vec<_> = completions.try_iter().collect();
        assert_eq!(completions.len(), 2);
        assert!(completions.iter().all(|done| matches!(done.result, Err(IoError::Os { .. }))));
    }

    #[test]
    fn a_sleeping_consumer_is_woken_once() {
        let queue = Queue::new(16, 16);
        assert!(!queue.take(4, &mut Vec::new()));
        let (requests, _answers) = batch(1);
        assert!(queue.push(requests));
        let (requests, _answers) = batch(1);
        assert!(!queue.push(requests));
    }
    fn begun(begun: CallStart) -> Option<QueuedRequest> {
        match begun {
            CallStart::Here(queued) => Some(queued),
            CallStart::NotYet(_) => None,
        }
    }

    #[test]
    fn a_call_starts_a_request_only_if_no_other_one_waits() {
        let queue = Queue::new(16, 4);
        let begin = |operation| {
            let request = batch_of([operation]).0.remove(0);
            begun(queue.begin_here(request))
        };
        let writes: Vec<_> = (0..3).map(|_| begin(Operation::Write).unwrap()).collect();
        assert!(begin(Operation::Write).is_none(), "beyond its direction's share");
        let read = begin(Operation::Read).unwrap();
        assert!(begin(Operation::Read).is_none(), "no place is left");
        assert!(!queue.end_here(), "nothing waits");
        assert!(!queue.take(4, &mut Vec::new()), "it sleeps");
        let (requests, _answers) = batch(1);
        assert!(queue.push(requests), "it is woken, and finds no place");
        assert!(!queue.take(4, &mut Vec::new()));
        read.finish(Ok(()));
        assert!(begin(Operation::Read).is_none(), "others wait");
        for write in writes {
            write.finish(Ok(()));
        }
        assert!(queue.end_here(), "a consumer that sleeps while requests wait is woken");
        let mut started = Vec::new();
        queue.take(4, &mut started);
        assert_eq!(started.len(), 1);
    }

    #[test]
    fn a_request_that_a_call_hands_over_goes_first_and_completes_once() {
        let queue = Queue::new(16, 4);
        let (mut requests, completions) = batch(1);
        let queued = begun(queue.begin_here(requests.remove(0))).unwrap();
        assert!(!queue.take(4, &mut Vec::new()));
        let (requests, _later) = batch(1);
        let _ = queue.push(requests);
        assert!(!queue.hand_over(queued), "the push woke the consumer");
        let mut started = Vec::new();
        queue.take(1, &mut started);
        started.remove(0).finish(Ok(()));
        assert!(completions.try_recv().unwrap().result.is_ok() && completions.try_recv().is_err());
    }

    #[test]
    fn a_closed_queue_starts_nothing_and_refuses_handed_over_requests() {
        let queue = Queue::new(16, 4);
        let (mut requests, completions) = batch(2);
        let queued = begun(queue.begin_here(requests.remove(0))).unwrap();
        queue.close();
        assert!(!queue.hand_over(queued));
        assert!(matches!(completions.try_recv().unwrap().result, Err(IoError::Closed)));
        assert!(begun(queue.begin_here(requests.remove(0))).is_none());
    }
}
