//! Threads for calls that may hang.
//!
//! 1. At most `workers` jobs of a lane run at a time, each on a thread of its own. A thread is started when a job may
//!    run and none is free; it stays until the end.
//! 2. The lanes do not take threads from each other: writes that hang leave all workers to reads.
//! 3. A queue is bounded. A job that is refused, late, or queued when the pool is dropped ends with an error, and is
//!    not run.
//! 4. Dropping the pool waits a bounded time for its threads. One that hangs is left behind.
//! 5. A forked child has no threads of the pool: it runs, waits for and drops nothing.

use std::collections::VecDeque;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;

use dalsegno_core::{Clock, Deadline};
use dalsegno_io::{IoError, Process, Workers};
use parking_lot::{Condvar, Mutex};

/// How long a pool that is dropped waits for its threads.
pub(super) const CLOSE_TIMEOUT: Duration = Duration::from_secs(5);

/// Which queue a job waits in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Lane {
    /// Reads of parts of objects, which an engine may wait for.
    Reads,
    /// Everything else.
    Other,
}

type JobBody = Box<dyn FnOnce(Result<(), IoError>) + Send>;

/// Something to run on a thread of the pool.
pub(super) struct Job {
    deadline: Deadline,
    work: JobBody,
}

impl Job {
    /// `work` is called exactly once: with success on a thread of the pool, or with the reason why it may not run.
    pub(super) fn new(
        deadline: Deadline,
        work: impl FnOnce(Result<(), IoError>) + Send + 'static,
    ) -> Self {
        Self { deadline, work: Box::new(work) }
    }

    fn end(self, permission: Result<(), IoError>) {
        // A panic of a job must not end a thread that other jobs wait for.
        if catch_unwind(AssertUnwindSafe(|| (self.work)(permission))).is_err() {
            tracing::error!("panic in a call to a far location; the thread continues");
        }
    }
}

/// How many threads and jobs a pool may have.
#[derive(Clone, Copy, Debug)]
pub(super) struct PoolBounds {
    /// Most jobs of each lane that run at a time.
    pub(super) workers: u32,
    /// Most jobs that wait in each queue.
    pub(super) queue: usize,
    /// How long dropping the pool waits for its threads.
    pub(super) close_timeout: Duration,
}

/// A bounded pool of threads that are started on demand.
#[derive(Debug)]
pub(super) struct WorkerPool {
    queues: Arc<JobQueues>,
    threads: Mutex<Workers>,
    process: Process,
}

/// What the threads share.
struct JobQueues {
    bounds: PoolBounds,
    clock: Arc<dyn Clock>,
    state: Mutex<PoolState>,
    changed: Condvar,
}

/// The jobs of a lane.
#[derive(Default)]
struct LaneJobs {
    queue: VecDeque<Job>,
    running: u32,
}

#[derive(Default)]
struct PoolState {
    reads: LaneJobs,
    others: LaneJobs,
    /// Threads that run or are being started.
    threads: u32,
    /// Threads that wait for a job, or that are being started.
    idle: u32,
    /// Whether the last job was a read. Then another job is next, so that reads do not starve the rest where threads
    /// cannot be started.
    last_was_read: bool,
    is_closed: bool,
}

impl WorkerPool {
    pub(super) fn new(bounds: PoolBounds, clock: Arc<dyn Clock>) -> Self {
        assert!(bounds.workers > 0 && bounds.queue > 0, "a pool without threads or queue");
        let (state, changed) = (Mutex::default(), Condvar::new());
        Self {
            queues: Arc::new(JobQueues { bounds, clock, state, changed }),
            threads: Mutex::new(Workers::new()),
            process: Process::this(),
        }
    }

    /// Queues a job, and starts a thread if none is free. Never waits.
    pub(super) fn submit(&self, lane: Lane, job: Job) {
        if !self.process.is_this() {
            return job.end(Err(IoError::Closed));
        }
        let needs_thread = match self.queues.push(lane, job) {
            Ok(needs_thread) => needs_thread,
            Err((job, error)) => return job.end(Err(error)),
        };
        if needs_thread {
            self.start_thread();
        }
    }

    fn start_thread(&self) {
        let queues = Arc::clone(&self.queues);
        let started = self.threads.lock().start("dalsegno-far", move || queues.work());
        if let Err(error) = started {
            tracing::warn!(%error, "cannot start a thread for far locations; jobs wait for others");
            for job in self.queues.without_thread() {
                let source = std::io::Error::new(error.kind(), error.to_string());
                let file = "a thread for far locations".to_owned();
                job.end(Err(IoError::Os { operation: "start", file, source }));
            }
        }
    }
}

impl Drop for WorkerPool {
    fn drop(&mut self) {
        let threads = self.threads.get_mut();
        if !threads.are_ours() {
            // The jobs and the locks are the parent's.
            std::mem::forget(Arc::clone(&self.queues));
            return;
        }
        for job in self.queues.close() {
            job.end(Err(IoError::Closed));
        }
        threads.join(self.queues.bounds.close_timeout);
    }
}

impl JobQueues {
    /// Queues a job. Returns whether a thread must be started, or the job and why it was refused.
    fn push(&self, lane: Lane, job: Job) -> Result<bool, (Job, IoError)> {
        let mut state = self.state.lock();
        if state.is_closed {
            return Err((job, IoError::Closed));
        }
        let queue = &mut state.lane(lane).queue;
        if queue.len() >= self.bounds.queue {
            return Err((job, IoError::Busy));
        }
        queue.push_back(job);
        let needs_thread = state.threads < 2 * self.bounds.workers
            && state.runnable(&self.bounds) > state.idle as usize;
        if needs_thread {
            state.threads += 1;
            state.idle += 1;
        } else {
            self.changed.notify_one();
        }
        Ok(needs_thread)
    }

    /// Counts a thread that could not be started. Returns the jobs that no thread will run.
    fn without_thread(&self) -> Vec<Job> {
        let mut state = self.state.lock();
        state.threads -= 1;
        state.idle -= 1;
        if state.threads > 0 { Vec::new() } else { state.take_all() }
    }

    fn close(&self) -> Vec<Job> {
        let mut state = self.state.lock();
        state.is_closed = true;
        self.changed.notify_all();
        state.take_all()
    }

    /// Runs jobs until the pool is closed.
    fn work(&self) {
        self.state.lock().idle -= 1;
        while let Some((lane, job)) = self.wait() {
            let is_late = job.deadline.is_bounded() && job.deadline.expired(self.clock.now());
            job.end(if is_late { Err(IoError::Deadline) } else { Ok(()) });
            self.state.lock().lane(lane).running -= 1;
        }
    }

    fn wait(&self) -> Option<(Lane, Job)> {
        let mut state = self.state.lock();
        loop {
            if state.is_closed {
                return None;
            }
            if let Some(job) = state.take_next(&self.bounds) {
                return Some(job);
            }
            state.idle += 1;
            self.changed.wait(&mut state);
            state.idle -= 1;
        }
    }
}

impl LaneJobs {
    /// Jobs that could run now if threads were free.
    fn runnable(&self, bounds: &PoolBounds) -> usize {
        let free = bounds.workers.saturating_sub(self.running);
        self.queue.len().min(free as usize)
    }
}

impl PoolState {
    fn lane(&mut self, lane: Lane) -> &mut LaneJobs {
        match lane {
            Lane::Reads => &mut self.reads,
            Lane::Other => &mut self.others,
        }
    }

    fn runnable(&self, bounds: &PoolBounds) -> usize {
        self.reads.runnable(bounds) + self.others.runnable(bounds)
    }

    fn take_next(&mut self, bounds: &PoolBounds) -> Option<(Lane, Job)> {
        let can_run = |jobs: &LaneJobs| jobs.runnable(bounds) > 0;
        let lane = match (can_run(&self.reads), can_run(&self.others)) {
            (true, true) if self.last_was_read => Lane::Other,
            (true, _) => Lane::Reads,
            (false, true) => Lane::Other,
            (false, false) => return None,
        };
        self.last_was_read = lane == Lane::Reads;
        let jobs = self.lane(lane);
        jobs.running += 1;
        Some((lane, jobs.queue.pop_front()?))
    }

    fn take_all(&mut self) -> Vec<Job> {
        self.reads.queue.drain(..).chain(self.others.queue.drain(..)).collect()
    }
}

impl fmt::Debug for JobQueues {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("JobQueues").field("bounds", &self.bounds).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crossbeam_channel::{Receiver, Sender, bounded, unbounded};
    use dalsegno_core::{ManualClock, Nanos};

    const WAIT: Duration = Duration::from_secs(30);

    fn pool(workers: u32, queue: usize) -> WorkerPool {
        let bounds = PoolBounds { workers, queue, close_timeout: WAIT };
        WorkerPool::new(bounds, Arc::new(ManualClock::default()))
    }

    /// Submits a job that reports its start and hangs until the test releases it.
    fn hang(pool: &WorkerPool, lane: Lane, held: &Receiver<()>, started: &Sender<Lane>) {
        let (held, started) = (held.clone(), started.clone());
        let work = move |permission: Result<(), IoError>| {
            if permission.is_ok() {
                started.send(lane).unwrap();
                assert!(held.recv().is_err());
            }
        };
        pool.submit(lane, Job::new(Deadline::Never, work));
    }

    /// Submits a job that reports how it ended.
    fn report(pool: &WorkerPool, lane: Lane, deadline: Deadline) -> Receiver<Result<(), IoError>> {
        let (reply, result) = bounded(1);
        let work = move |permission| drop(reply.send(permission));
        pool.submit(lane, Job::new(deadline, work));
        result
    }

    fn ended(result: &Receiver<Result<(), IoError>>) -> Result<(), IoError> {
        result.recv_timeout(WAIT).expect("every job ends")
    }

    #[test]
    fn threads_start_on_demand_up_to_the_bound() {
        let pool = pool(3, 100);
        assert_eq!(pool.queues.state.lock().threads, 0);
        for _ in 0..5 {
            ended(&report(&pool, Lane::Reads, Deadline::Never)).unwrap();
        }
        assert!(pool.queues.state.lock().threads <= 3);
        let (release, held) = bounded(0);
        let (starts, started) = unbounded();
        for _ in 0..5 {
            hang(&pool, Lane::Reads, &held, &starts);
        }
        for _ in 0..3 {
            started.recv_timeout(WAIT).unwrap();
        }
        assert!(started.recv_timeout(Duration::from_millis(50)).is_err());
        assert_eq!(pool.queues.state.lock().threads, 3);
        drop(release);
    }

    #[test]
    fn a_lane_that_hangs_leaves_all_workers_to_the_other_one() {
        for (hanging, other) in [(Lane::Other, Lane::Reads), (Lane::Reads, Lane::Other)] {
            for workers in [1, 2, 5] {
                let pool = pool(workers, 100);
                let (release, held) = bounded(0);
                let (starts, started) = unbounded();
                for _ in 0..20 {
                    hang(&pool, hanging, &held, &starts);
                }
                for _ in 0..workers {
                    started.recv_timeout(WAIT).unwrap();
                }
                assert!(started.recv_timeout(Duration::from_millis(20)).is_err());
                for _ in 0..20 {
                    ended(&report(&pool, other, Deadline::Never)).unwrap();
                }
                for _ in 0..workers {
                    hang(&pool, other, &held, &starts);
                }
                for _ in 0..workers {
                    assert_eq!(started.recv_timeout(WAIT), Ok(other));
                }
                assert_eq!(pool.queues.state.lock().threads, 2 * workers);
                drop(release);
                ended(&report(&pool, hanging, Deadline::Never)).unwrap();
            }
        }
    }

    #[test]
    fn a_free_thread_serves_both_lanes_in_turn() {
        let pool = pool(2, 100);
        let job = || Job::new(Deadline::Never, |_| ());
        let mut state = pool.queues.state.lock();
        for lane in [Lane::Reads, Lane::Reads, Lane::Other, Lane::Other] {
            state.lane(lane).queue.push_back(job());
        }
        let taken = std::iter::from_fn(|| state.take_next(&pool.queues.bounds));
        let order: Vec<Lane> = taken.map(|(lane, _)| lane).collect();
        assert_eq!(order, [Lane::Reads, Lane::Other, Lane::Reads, Lane::Other]);
    }

    #[test]
    fn a_full_queue_refuses_and_the_other_one_accepts() {
        let pool = pool(1, 2);
        let (release, held) = bounded(0);
        let (starts, started) = unbounded();
        hang(&pool, Lane::Reads, &held, &starts);
        started.recv_timeout(WAIT).unwrap();
        let queued: Vec<_> = (0..2).map(|_| report(&pool, Lane::Reads, Deadline::Never)).collect();
        let refused = report(&pool, Lane::Reads, Deadline::Never);
        assert!(matches!(refused.try_recv().unwrap(), Err(IoError::Busy)));
        ended(&report(&pool, Lane::Other, Deadline::Never)).unwrap();
        drop(release);
        assert!(queued.iter().all(|result| ended(result).is_ok()));
    }

    #[test]
    fn a_late_job_ends_with_its_deadline() {
        let pool = pool(2, 10);
        let late = report(&pool, Lane::Other, Deadline::At(Nanos::default()));
        assert!(matches!(ended(&late), Err(IoError::Deadline)));
    }

    #[test]
    fn a_panic_ends_one_job_and_no_thread() {
        let pool = pool(1, 10);
        for lane in [Lane::Reads, Lane::Other] {
            pool.submit(lane, Job::new(Deadline::Never, |_| panic!("a bug")));
            ended(&report(&pool, lane, Deadline::Never)).unwrap();
        }
    }

    #[test]
    fn a_dropped_pool_refuses_queued_jobs_and_leaves_a_hanging_one_behind() {
        let mut pool = pool(1, 10);
        Arc::get_mut(&mut pool.queues).unwrap().bounds.close_timeout = Duration::from_millis(20);
        let (release, held) = bounded(0);
        let (starts, started) = unbounded();
        for lane in [Lane::Reads, Lane::Other] {
            hang(&pool, lane, &held, &starts);
            started.recv_timeout(WAIT).unwrap();
        }
        let waiting = [Lane::Reads, Lane::Other].map(|lane| report(&pool, lane, Deadline::Never));
        let queues = Arc::clone(&pool.queues);
        drop(pool);
        assert!(waiting.iter().all(|result| matches!(ended(result), Err(IoError::Closed))));
        let after = Job::new(Deadline::Never, |_| ());
        assert!(matches!(queues.push(Lane::Reads, after), Err((_, IoError::Closed))));
        drop(release);
    }
}
