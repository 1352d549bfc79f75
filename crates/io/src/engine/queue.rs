//! Requests on their way to an engine's threads: bounded, ordered by class, each answered exactly once.
//!
//! 1. Of each direction at most `limit` requests are accepted and not yet answered; the rest of a batch is refused as
//!    busy.
//! 2. A [`QueuedRequest`] answers its request exactly once, also when it is dropped by a panic.
//! 3. Foreground goes first; within a class the order of submission holds, but for a direction that has its share.
//! 4. Requests are answered outside of the lock: dropping a guard may run any code, even a new submit.
//! 5. `asleep` is set only together with finding no job that may start, so a push after it sees it: no wake-up is lost.
//! 6. A direction never has all places of the engine, if there are two or more. So reads find one while all writes and
//!    syncs hang, and the other way round.
//! 7. A job that waits for a place needs no wake-up if an engine's thread returns it: that thread takes the next job. A
//!    call that returns a place wakes the consumer if it sleeps while jobs wait.

use std::collections::VecDeque;
use std::sync::Arc;

use parking_lot::{Condvar, Mutex};

use super::OpenFile;
use super::queued_request::{DirectionCounts, QueuedRequest, direction};
use crate::{IoError, Request};

/// This part of an engine's places, but at least one of several, is kept for each direction.
const RESERVED_PART: usize = 4;

#[derive(Debug)]
pub(super) struct Queue {
    limit: usize,
    /// Most requests that an engine may have begun.
    places: usize,
    /// Most requests of one direction that an engine may have begun.
    share: usize,
    /// By direction.
    unanswered: [Arc<DirectionCounts>; 2],
    state: Mutex<QueueState>,
    arrived: Condvar,
}

#[derive(Debug, Default)]
struct QueueState {
    /// By class, then by direction.
    waiting: [[VecDeque<QueuedRequest>; 2]; 2],
    next_number: u64,
    closed: bool,
    /// Whether the consumer waits where only a wake-up reaches it.
    asleep: bool,
}

/// Whether a call may carry out a request itself.
#[derive(Debug)]
pub(super) enum CallStart {
    Here(QueuedRequest),
    /// It is for the queue.
    NotYet((Request, Arc<OpenFile>)),
}

impl QueueState {
    /// Whether any job waits.
    fn is_waited(&self) -> bool {
        self.waiting.iter().flatten().any(|jobs| !jobs.is_empty())
    }
}

impl Queue {
    /// For an engine that works on `places` requests at a time.
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

    /// What is begun of each direction; `None` if all places are taken.
    fn begun(&self) -> Option<[usize; 2]> {
        let begun = self.unanswered.each_ref().map(|of| of.begun());
        (begun.iter().sum::<usize>() < self.places).then_some(begun)
    }

    /// The next job that may start.
    fn pop(&self, state: &mut QueueState) -> Option<QueuedRequest> {
        let begun = self.begun()?;
        let mut job = state.waiting.iter_mut().find_map(|queues| {
            let first = |at: usize| Some((queues[at].front()?.number(), at));
            let may_start = (0..queues.len()).filter(|at| begun[*at] < self.share);
            let (_, at) = may_start.filter_map(first).min()?;
            queues[at].pop_front()
        })?;
        job.begin();
        Some(job)
    }

    /// Accepts as many requests of each direction as the limit allows and answers the others. Returns whether the
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
            let class = request.class as usize;
            let job = QueuedRequest::new((request, file), state.next_number, unanswered);
            state.next_number += 1;
            state.waiting[class][direction].push_back(job);
        }
        let wake = accepted > 0 && std::mem::take(&mut state.asleep);
        drop(state);
        for _ in 0..accepted {
            self.arrived.notify_one();
        }
        for request in refused {
            request.complete(Err(if closed { IoError::Closed } else { IoError::Busy }));
        }
        wake
    }

    /// Accepts a request and begins it, so that its call carries it out; not where anything waits, no place is free for
    /// it, or the queue is closed. After its answer comes [`Self::end_here`].
    pub(super) fn begin_here(&self, request: (Request, Arc<OpenFile>)) -> CallStart {
        let direction = direction(request.0.operation);
        let unanswered = &self.unanswered[direction];
        let mut state = self.state.lock();
        let is_free = self.begun().is_some_and(|begun| begun[direction] < self.share);
        if state.closed || state.is_waited() || !is_free || unanswered.accepted() >= self.limit {
            return CallStart::NotYet(request);
        }
        let mut job = QueuedRequest::new(request, state.next_number, unanswered);
        state.next_number += 1;
        job.begin();
        CallStart::Here(job)
    }

    /// Leaves to the engine's threads what was begun here. Returns whether the consumer must be woken.
    #[must_use]
    pub(super) fn hand_over(&self, mut job: QueuedRequest) -> bool {
        let (class, direction) = (job.request().class as usize, direction(job.request().operation));
        let mut state = self.state.lock();
        if state.closed {
            drop(state);
            job.finish(Err(IoError::Closed));
            return false;
        }
        job.put_off();
        state.waiting[class][direction].push_front(job);
        let wake = std::mem::take(&mut state.asleep);
        drop(state);
        self.arrived.notify_one();
        wake
    }

    /// A call returned a place of [`Self::begin_here`]. Returns whether the consumer must be woken.
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

    /// Waits for a job; `None` when the queue is closed.
    pub(super) fn wait(&self) -> Option<QueuedRequest> {
        let mut state = self.state.lock();
        loop {
            if state.closed {
                return None;
            }
            if let Some(job) = self.pop(&mut state) {
                return Some(job);
            }
            self.arrived.wait(&mut state);
        }
    }

    /// Appends up to `room` jobs to `jobs`; if no more may start, the consumer counts as asleep from then on. Returns
    /// whether the queue is closed.
    pub(super) fn take(&self, room: usize, jobs: &mut Vec<QueuedRequest>) -> bool {
        let mut state = self.state.lock();
        let before = jobs.len();
        jobs.extend(std::iter::from_fn(|| self.pop(&mut state)).take(room));
        state.asleep = jobs.len() - before < room;
        state.closed
    }

    /// Refuses what waits and all that comes.
    pub(super) fn close(&self) {
        let mut state = self.state.lock();
        state.closed = true;
        let waiting = std::mem::take(&mut state.waiting);
        drop(state);
        self.arrived.notify_all();
        let jobs = waiting.into_iter().flatten().flatten();
        jobs.for_each(|job| job.finish(Err(IoError::Closed)));
    }
}

#[cfg(test)]
mod tests {
    use crossbeam_channel::{Receiver, unbounded};
    use dalsegno_core::Deadline;

    use super::*;
    use crate::{Class, Completion, FileId, Operation};

    fn file() -> Arc<OpenFile> {
        let flags = rustix::fs::OFlags::PATH;
        let descriptor = rustix::fs::open("/", flags, rustix::fs::Mode::empty()).unwrap();
        Arc::new(OpenFile { descriptor, name: "test".to_owned() })
    }

    type Batch = (Vec<(Request, Arc<OpenFile>)>, Receiver<Completion>);

    /// Sync requests, tagged from 0, of the given classes.
    fn batch(classes: &[Class]) -> Batch {
        batch_of(classes.iter().map(|class| (Operation::Sync, *class)))
    }

    /// Requests, tagged from 0.
    fn batch_of(kinds: impl IntoIterator<Item = (Operation, Class)>) -> Batch {
        let (reply, answers) = unbounded();
        let batch = kinds.into_iter().zip(0..).map(|((operation, class), tag)| {
            let request = Request {
                operation,
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
        let queue = Queue::new(16, 16);
        let (requests, _answers) = batch(&[Background, Foreground, Background, Foreground]);
        let _ = queue.push(requests);
        let mut jobs = Vec::new();
        assert!(!queue.take(16, &mut jobs));
        let order: Vec<u64> = jobs.iter().map(|job| job.request().tag).collect();
        assert_eq!(order, [1, 3, 0, 2]);
    }

    #[test]
    fn regression_a_direction_never_has_all_places() {
        let operations = [Operation::Write, Operation::Read];
        for (first, second) in [operations, [operations[1], operations[0]]].map(Into::into) {
            let queue = Queue::new(16, 4);
            let kinds = [first, first, first, first, second].map(|of| (of, Class::Foreground));
            let (requests, _answers) = batch_of(kinds);
            let _ = queue.push(requests);
            let mut begun = Vec::new();
            queue.take(4, &mut begun);
            let tags = |jobs: &[QueuedRequest]| {
                jobs.iter().map(|job| job.request().tag).collect::<Vec<_>>()
            };
            assert_eq!(tags(&begun), [0, 1, 2, 4]);
            // The last of them waits for its direction, not for its turn.
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
    fn an_engine_with_one_place_serves_both_directions() {
        let queue = Queue::new(16, 1);
        let kinds = [Operation::Write, Operation::Read].map(|of| (of, Class::Foreground));
        let (requests, _answers) = batch_of(kinds);
        let _ = queue.push(requests);
        for _ in 0..2 {
            queue.wait().unwrap().finish(Ok(()));
        }
    }

    #[test]
    fn regression_writes_that_are_not_answered_leave_reads_their_queue() {
        let queue = Queue::new(2, 16);
        let (requests, _answers) = batch(&[Class::Foreground; 2]);
        let _ = queue.push(requests);
        let (requests, answers) = batch_of([(Operation::Read, Class::Foreground)]);
        let _ = queue.push(requests);
        assert!(answers.try_recv().is_err(), "it was refused");
    }

    #[test]
    fn the_limit_counts_what_is_not_answered_yet() {
        let queue = Queue::new(2, 16);
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
        let queue = Queue::new(16, 16);
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
        let queue = Queue::new(16, 16);
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
        let queue = Queue::new(16, 16);
        assert!(!queue.take(4, &mut Vec::new()));
        let (requests, _answers) = batch(&[Class::Foreground]);
        assert!(queue.push(requests));
        let (requests, _answers) = batch(&[Class::Foreground]);
        assert!(!queue.push(requests));
    }
    fn begun(begun: CallStart) -> Option<QueuedRequest> {
        match begun {
            CallStart::Here(job) => Some(job),
            CallStart::NotYet(_) => None,
        }
    }

    #[test]
    fn a_call_begins_a_request_only_where_it_overtakes_nobody() {
        let queue = Queue::new(16, 4);
        let begin = |operation| {
            let request = batch_of([(operation, Class::Foreground)]).0.remove(0);
            begun(queue.begin_here(request))
        };
        let writes: Vec<_> = (0..3).map(|_| begin(Operation::Write).unwrap()).collect();
        assert!(begin(Operation::Write).is_none(), "beyond its direction's share");
        let read = begin(Operation::Read).unwrap();
        assert!(begin(Operation::Read).is_none(), "no place is left");
        assert!(!queue.end_here(), "nothing waits");
        assert!(!queue.take(4, &mut Vec::new()), "it sleeps");
        let (requests, _answers) = batch(&[Class::Background]);
        assert!(queue.push(requests), "it is woken, and finds no place");
        assert!(!queue.take(4, &mut Vec::new()));
        read.finish(Ok(()));
        assert!(begin(Operation::Read).is_none(), "others wait");
        for write in writes {
            write.finish(Ok(()));
        }
        assert!(queue.end_here(), "who sleeps while others wait is woken");
        let mut jobs = Vec::new();
        queue.take(4, &mut jobs);
        assert_eq!(jobs.len(), 1);
    }

    #[test]
    fn what_a_call_hands_over_goes_first_and_is_answered_once() {
        let queue = Queue::new(16, 4);
        let (mut requests, answers) = batch(&[Class::Foreground]);
        let job = begun(queue.begin_here(requests.remove(0))).unwrap();
        assert!(!queue.take(4, &mut Vec::new()));
        let (requests, _later) = batch(&[Class::Foreground]);
        let _ = queue.push(requests);
        assert!(!queue.hand_over(job), "the push woke the consumer");
        let mut jobs = Vec::new();
        queue.take(1, &mut jobs);
        jobs.remove(0).finish(Ok(()));
        assert!(answers.try_recv().unwrap().result.is_ok() && answers.try_recv().is_err());
    }

    #[test]
    fn a_closed_queue_begins_nothing_and_answers_what_is_handed_over() {
        let queue = Queue::new(16, 4);
        let (mut requests, answers) = batch(&[Class::Foreground; 2]);
        let job = begun(queue.begin_here(requests.remove(0))).unwrap();
        queue.close();
        assert!(!queue.hand_over(job));
        assert!(matches!(answers.try_recv().unwrap().result, Err(IoError::Closed)));
        assert!(begun(queue.begin_here(requests.remove(0))).is_none());
    }
}
