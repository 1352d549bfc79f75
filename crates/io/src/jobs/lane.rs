//! Lanes of jobs: a bounded queue, and threads that run what is queued.
//!
//! 1. At most `threads` jobs of a lane run at a time, each on a thread of the lane. One thread is started with the
//!    lane, another one when a job finds none free. A thread stays until the end.
//! 2. Lanes share no threads: jobs that hang in one lane leave all threads of another lane to its own jobs.
//! 3. The queue is bounded. A job needs a place in it, and a caller waits for one as long as it says.
//! 4. A job is called exactly once: with permission to run, or with the reason why it may not. Jobs begin in the order
//!    in which they were queued. A panic of a job ends no thread.
//! 5. A closed lane gives no places. It still runs the queued jobs, and those of places that are kept; an aborted lane
//!    refuses queued jobs. Waiting for the end is bounded: a thread that hangs is left behind.
//! 6. With [`Executor::Inline`] a lane has no thread: the caller that starts a job runs it, one job at a time.
//! 7. In a forked child a lane gives no places, waits for nothing and drops nothing: its threads do not exist there,
//!    and its locks may stay taken.

use std::collections::VecDeque;
use std::fmt;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;

use crossbeam_channel::{Receiver, bounded};
use dalsegno_core::Stopped;
use parking_lot::{Condvar, Mutex, MutexGuard};

use super::{CLOSE_TIMEOUT, Executor};
use crate::{IoError, Process, Workers};

type Job = Box<dyn FnOnce(Result<(), IoError>) + Send>;

/// Threads that run jobs, and the queue in front of them.
pub struct JobLane {
    queue: Arc<JobQueue>,
    runner: JobRunner,
    process: Process,
}

enum JobRunner {
    Threads(Mutex<Workers>),
    /// Locked by the caller that runs a job.
    Inline(Mutex<()>),
}

/// What the threads of a lane share.
struct JobQueue {
    name: &'static str,
    most_threads: u32,
    most_jobs: usize,
    state: Mutex<LaneState>,
    /// Signals a job, or the end.
    arrived: Condvar,
    /// Signals a free place, or the end.
    left: Condvar,
}

#[derive(Default)]
struct LaneState {
    jobs: VecDeque<Job>,
    /// Places that are kept for jobs.
    kept: usize,
    /// Threads that run or are being started.
    threads: u32,
    /// Threads that wait for a job or are being started.
    idle: u32,
    is_closed: bool,
}

impl LaneState {
    /// Whether no more jobs are queued.
    fn has_ended(&self) -> bool {
        self.is_closed && self.kept == 0
    }
}

impl JobLane {
    /// A lane of at most `threads` threads with this name, and at most `queue` jobs that wait for them.
    ///
    /// # Errors
    ///
    /// The system's own if it refuses the first thread. If it refuses a later one, jobs wait for the others.
    ///
    /// # Panics
    ///
    /// If there may be no thread or no job.
    pub fn start(
        name: &'static str,
        executor: Executor,
        threads: u32,
        queue: usize,
    ) -> io::Result<Self> {
        assert!(threads > 0 && queue > 0, "a lane without threads or queue");
        let queue = JobQueue {
            name,
            most_threads: threads,
            most_jobs: queue,
            state: Mutex::default(),
            arrived: Condvar::new(),
            left: Condvar::new(),
        };
        let runner = match executor {
            Executor::Threads => JobRunner::Threads(Mutex::default()),
            Executor::Inline => JobRunner::Inline(Mutex::default()),
        };
        let lane = Self { queue: Arc::new(queue), runner, process: Process::this() };
        if let JobRunner::Threads(workers) = &lane.runner {
            lane.add_thread(workers)?;
        }
        Ok(lane)
    }

    /// Keeps a place in the queue for one job; waits for it, without `timeout` as long as it takes.
    ///
    /// # Errors
    ///
    /// [`Stopped::Busy`] if the queue stays full, [`IoError::Closed`] if the lane is closed or another process's.
    pub fn keep_place(&self, timeout: Option<Duration>) -> Result<JobPlace<'_>, IoError> {
        if !self.process.is_this() {
            return Err(IoError::Closed);
        }
        let queue = &self.queue;
        let mut state = queue.state.lock();
        let is_full = |state: &mut LaneState| {
            !state.is_closed && state.jobs.len() + state.kept >= queue.most_jobs
        };
        match timeout {
            None => queue.left.wait_while(&mut state, is_full),
            Some(timeout) => {
                queue.left.wait_while_for(&mut state, is_full, timeout);
            }
        }
        if state.is_closed {
            return Err(IoError::Closed);
        }
        if is_full(&mut state) {
            return Err(Stopped::Busy.into());
        }
        state.kept += 1;
        Ok(JobPlace(self))
    }

    /// Gives no more places. Queued jobs still run.
    pub fn close(&self) {
        if self.process.is_this() {
            self.queue.close();
        }
    }

    /// Gives no more places, and refuses queued jobs with [`IoError::Closed`].
    pub fn abort(&self) {
        if self.process.is_this() {
            self.queue.close();
            let refused = std::mem::take(&mut self.queue.state.lock().jobs);
            for job in refused {
                self.queue.call(job, Err(IoError::Closed));
            }
        }
    }

    /// Waits until the threads of a closed lane have ended, at most `timeout`.
    pub fn join(&self, timeout: Duration) {
        if let JobRunner::Threads(workers) = &self.runner
            && self.process.is_this()
        {
            // No other thread is started, because the lane is closed. The lock is free during the wait.
            let mut workers = std::mem::take(&mut *workers.lock());
            workers.join(timeout);
        }
    }

    /// Starts a thread, if one is needed still.
    fn add_thread(&self, workers: &Mutex<Workers>) -> io::Result<()> {
        let mut workers = workers.lock();
        let mut state = self.queue.state.lock();
        if !self.queue.needs_thread(&state) {
            return Ok(());
        }
        state.threads += 1;
        state.idle += 1;
        drop(state);
        let queue = Arc::clone(&self.queue);
        workers.start(queue.name, move || queue.work()).inspect_err(|_| {
            let mut state = self.queue.state.lock();
            state.threads -= 1;
            state.idle -= 1;
        })
    }
}

impl Drop for JobLane {
    /// A lane that was closed is not waited for again.
    fn drop(&mut self) {
        if !self.process.is_this() {
            std::mem::forget(Arc::clone(&self.queue));
        } else if !self.queue.close() {
            self.join(CLOSE_TIMEOUT);
        }
    }
}

impl fmt::Debug for JobLane {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("JobLane").field("name", &self.queue.name).finish_non_exhaustive()
    }
}

impl JobQueue {
    fn needs_thread(&self, state: &LaneState) -> bool {
        let is_short = state.threads == 0 || state.jobs.len() > state.idle as usize;
        is_short && state.threads < self.most_threads && !state.is_closed
    }

    /// Queues the job of a kept place. Returns whether a thread must be started for it.
    fn fill_place(&self, job: Job) -> bool {
        let mut state = self.state.lock();
        state.jobs.push_back(job);
        self.arrived.notify_one();
        self.free_place(&mut state);
        self.needs_thread(&state)
    }

    fn free_place(&self, state: &mut LaneState) {
        state.kept -= 1;
        if state.has_ended() {
            self.arrived.notify_all();
        }
    }

    /// Returns whether it was closed before.
    fn close(&self) -> bool {
        let was_closed = std::mem::replace(&mut self.state.lock().is_closed, true);
        self.arrived.notify_all();
        self.left.notify_all();
        was_closed
    }

    /// Runs jobs until the lane ends. The thread is counted as idle before.
    fn work(&self) {
        let mut state = self.state.lock();
        loop {
            self.arrived
                .wait_while(&mut state, |state| state.jobs.is_empty() && !state.has_ended());
            let Some(job) = state.jobs.pop_front() else { return };
            state.idle -= 1;
            self.left.notify_one();
            MutexGuard::unlocked(&mut state, || self.call(job, Ok(())));
            state.idle += 1;
        }
    }

    fn call(&self, job: Job, permission: Result<(), IoError>) {
        // A panic of a job must not end a thread that other jobs wait for.
        if catch_unwind(AssertUnwindSafe(|| job(permission))).is_err() {
            tracing::error!(thread = self.name, "panic in a job; its thread continues");
        }
    }
}

/// A place in the queue of a lane, kept for one job until it is dropped.
#[derive(Debug)]
pub struct JobPlace<'a>(&'a JobLane);

impl JobPlace<'_> {
    /// Queues a job, also if the lane was closed since. Without threads, runs it.
    pub fn start(self, job: impl FnOnce(Result<(), IoError>) + Send + 'static) {
        let lane = self.0;
        match &lane.runner {
            JobRunner::Inline(turn) => {
                drop(self);
                let _turn = turn.lock();
                job(Ok(()));
            }
            JobRunner::Threads(workers) => {
                // The job has the place now.
                std::mem::forget(self);
                if lane.queue.fill_place(Box::new(job))
                    && let Err(error) = lane.add_thread(workers)
                {
                    let thread = lane.queue.name;
                    tracing::warn!(thread, %error, "cannot start another thread; jobs wait for others");
                }
            }
        }
    }

    /// Queues `work`; returns the channel that receives its answer. The work continues if its caller leaves.
    pub fn ask<T, E>(
        self,
        work: impl FnOnce() -> Result<T, E> + Send + 'static,
    ) -> Receiver<Result<T, E>>
    where
        T: Send + 'static,
        E: From<IoError> + Send + 'static,
    {
        let (reply, answer) = bounded(1);
        self.start(move |permission| {
            // The work is dropped before its answer is sent: the caller may close what the work holds.
            let result = permission.map_err(E::from).and_then(|()| work());
            // The caller may have left.
            drop(reply.send(result));
        });
        answer
    }
}

impl Drop for JobPlace<'_> {
    fn drop(&mut self) {
        let queue = &self.0.queue;
        queue.free_place(&mut queue.state.lock());
        queue.left.notify_one();
    }
}

#[cfg(test)]
mod tests;
