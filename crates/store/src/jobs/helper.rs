//! Background work: a queue of tasks, the threads that do them, and what replaces the threads in a simulation.
//!
//! 1. A helper does queued tasks in their order. Between tasks it does steps of its own, when they are due.
//! 2. The queue is bounded: a caller that finds it full waits as long as it says, or gets its task back.
//! 3. Closing refuses new tasks. Queued ones are still done, then [`Duty::finish`] runs. Waiting for that is bounded: a
//!    thread that hangs in the device is left behind.
//! 4. With [`Executor::Inline`] there is no thread. The caller that submits a task does it, and steps are done where
//!    the store calls [`Helper::step_inline`]. A simulation that replays its calls replays this work too. Dropping such
//!    a helper does nothing more, because a simulation ends a process by dropping its store.
//! 5. In a forked child a helper is left as it is: its threads do not exist there, and its locks may stay taken.

use std::fmt;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use crossbeam_channel::{Receiver, bounded};
use dalsegno_core::Clock;
use dalsegno_extent::Call;
use dalsegno_io::{IoError, Process, Workers};
use dalsegno_log::LogError;
use parking_lot::Mutex;

use crate::jobs::task_queue::{Next, QueuePlace, Refused, TaskQueue, Turn};

/// How long dropping a helper waits for its threads.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(10);

/// What carries out background work.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Executor {
    /// Threads of the store.
    #[default]
    Threads,
    /// The threads that call the store, so that a simulation replays.
    Inline,
}

/// The work of a helper.
pub(crate) trait Duty: Send + 'static {
    /// What is queued for it.
    type Task: Send + 'static;

    /// Does a queued task.
    fn run(&mut self, task: Self::Task);

    /// Does one step of work that nobody queued. A long step looks at the queue between two pieces of I/O: it ends
    /// early if that is closed.
    fn step(&mut self, _queue: &TaskQueue<Self::Task>) -> Next {
        Next::OnTask
    }

    /// Runs once, when the queue is closed and empty.
    fn finish(&mut self) {}
}

/// The task of a helper for which nothing is queued.
#[derive(Debug)]
pub(crate) enum NoTask {}

/// Work in the background: its queue, and what carries it out.
pub(crate) struct Helper<D: Duty> {
    queue: Arc<TaskQueue<D::Task>>,
    runner: Runner<D>,
    process: Process,
}

enum Runner<D> {
    Threads(Mutex<Workers>),
    /// None once the helper is closed.
    Inline(Mutex<Option<D>>),
}

impl<D: Duty<Task = NoTask>> Helper<D> {
    /// Starts one thread that does steps; `first` says when the first one is due.
    ///
    /// # Errors
    ///
    /// The system's own if it refuses the thread.
    pub(crate) fn start(
        name: &str,
        executor: Executor,
        mut duty: D,
        first: Next,
    ) -> io::Result<Self> {
        let queue = Arc::new(TaskQueue::new(0));
        if executor == Executor::Inline {
            return Ok(Self::of(queue, Runner::Inline(Mutex::new(Some(duty)))));
        }
        let mut workers = Workers::new();
        let of_thread = Arc::clone(&queue);
        workers.start(name, move || serve(&of_thread, &mut duty, first))?;
        Ok(Self::of(queue, Runner::Threads(Mutex::new(workers))))
    }

    /// Makes a thread do its next step now. Does nothing without a thread.
    pub(crate) fn wake(&self) {
        if matches!(self.runner, Runner::Threads(_)) {
            self.queue.wake();
        }
    }

    /// Does one step on the caller's thread. Does nothing if the helper has a thread.
    pub(crate) fn step_inline(&self) {
        if let Runner::Inline(duty) = &self.runner
            && let Some(duty) = &mut *duty.lock()
        {
            duty.step(&self.queue);
        }
    }
}

impl<D: Duty> Helper<D> {
    fn of(queue: Arc<TaskQueue<D::Task>>, runner: Runner<D>) -> Self {
        Self { queue, runner, process: Process::this() }
    }

    /// Whether the callers do the work.
    pub(crate) fn is_inline(&self) -> bool {
        matches!(self.runner, Runner::Inline(_))
    }

    /// Whether it has threads in this process.
    pub(crate) fn is_ours(&self) -> bool {
        !self.is_inline() && self.process.is_this()
    }

    /// Queues a task; waits for a free place, without `timeout` as long as it takes.
    ///
    /// # Errors
    ///
    /// The task if the queue stays full or the helper is closed.
    pub(crate) fn submit(
        &self,
        task: D::Task,
        timeout: Option<Duration>,
    ) -> Result<(), Refused<D::Task>> {
        match &self.runner {
            Runner::Threads(_) => self.queue.push(task, timeout),
            Runner::Inline(duty) => match &mut *duty.lock() {
                Some(duty) => {
                    duty.run(task);
                    Ok(())
                }
                None => Err(Refused::Closed(task)),
            },
        }
    }

    /// Refuses new tasks and ends after those that are queued. Calling it again does nothing.
    pub(crate) fn close(&self) {
        self.queue.close();
        if let Runner::Inline(duty) = &self.runner
            && let Some(mut duty) = duty.lock().take()
        {
            duty.finish();
        }
    }

    /// Waits until a closed helper has ended, at most `timeout`.
    pub(crate) fn join(&self, timeout: Duration) {
        if let Runner::Threads(workers) = &self.runner {
            workers.lock().join(timeout);
        }
    }
}

impl<D: Duty> fmt::Debug for Helper<D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Helper").field("is_inline", &self.is_inline()).finish_non_exhaustive()
    }
}

impl<D: Duty> Drop for Helper<D> {
    /// A helper that was closed is not waited for again.
    fn drop(&mut self) {
        if !self.process.is_this() {
            std::mem::forget(Arc::clone(&self.queue));
        } else if let Runner::Threads(workers) = &mut self.runner
            && !self.queue.close()
        {
            workers.get_mut().join(CLOSE_TIMEOUT);
        }
    }
}

fn serve<D: Duty>(queue: &TaskQueue<D::Task>, duty: &mut D, first: Next) {
    let mut next = first;
    loop {
        match queue.turn(next) {
            Turn::Task(task) => duty.run(task),
            Turn::Step => next = duty.step(queue),
            Turn::End => break,
        }
    }
    duty.finish();
}

/// A task that is a function.
pub(crate) type Job = Box<dyn FnOnce() + Send>;

/// Runs functions that are queued.
#[derive(Clone, Copy, Debug)]
pub(crate) struct JobRunner;

/// Threads that run functions, and the queue in front of them. Slow jobs of one lane do not delay another lane.
pub(crate) type JobLane = Helper<JobRunner>;

/// How a job with an answer ended.
pub(crate) type Answer = Result<(), LogError>;

/// A place in the queue of a lane, kept for one job.
pub(crate) struct JobPlace<'a> {
    lane: &'a JobLane,
    /// None if callers do the work.
    kept: Option<QueuePlace<Job>>,
}

impl JobPlace<'_> {
    /// Queues `work`; returns the channel that receives its answer. The work continues if its caller leaves.
    pub(crate) fn start(self, work: impl FnOnce() -> Answer + Send + 'static) -> Receiver<Answer> {
        let (reply, answer) = bounded(1);
        // The work is dropped before its answer is sent: the caller may close the store, which waits for what the
        // work holds. The caller may also have left.
        let job: Job = Box::new(move || drop(reply.send(work())));
        match self.kept {
            Some(place) => place.fill(job),
            // A closed lane drops the job, and with it the sender.
            None => drop(self.lane.submit(job, None)),
        }
        answer
    }
}

impl Duty for JobRunner {
    type Task = Job;

    fn run(&mut self, job: Job) {
        job();
    }
}

impl JobLane {
    /// Starts up to `threads` threads, as many as the system allows, with a queue of `capacity` jobs.
    ///
    /// # Errors
    ///
    /// The system's own if it does not allow even one thread.
    pub(crate) fn start_lane(
        name: &str,
        executor: Executor,
        threads: u32,
        capacity: u32,
    ) -> io::Result<Self> {
        let queue = Arc::new(TaskQueue::new(capacity as usize));
        if executor == Executor::Inline {
            return Ok(Self::of(queue, Runner::Inline(Mutex::new(Some(JobRunner)))));
        }
        let mut workers = Workers::new();
        for number in 0..threads {
            let queue = Arc::clone(&queue);
            let body = move || serve(&queue, &mut JobRunner, Next::OnTask);
            if let Err(error) = workers.start(name, body) {
                if number == 0 {
                    return Err(error);
                }
                break;
            }
        }
        Ok(Self::of(queue, Runner::Threads(Mutex::new(workers))))
    }

    /// Runs `work` in this lane and waits for its answer within the terms of `call`.
    ///
    /// # Errors
    ///
    /// The error of the work. [`LogError::Deadline`] or [`LogError::Cancelled`] if the call is over first: then the
    /// work goes on, unless it found no place in the queue and is dropped.
    pub(crate) fn run_blocking(
        &self,
        call: &Call,
        clock: &dyn Clock,
        work: impl FnOnce() -> Answer + Send + 'static,
    ) -> Answer {
        let answer = self.keep_place(call, clock)?.start(work);
        call.receive(&answer, clock)?
    }

    /// Keeps a place in the queue for a job; waits for it within the terms of `call`.
    ///
    /// # Errors
    ///
    /// [`LogError::Deadline`] or [`LogError::Cancelled`] if the call is over first, [`IoError::Closed`] if the lane is
    /// closed.
    pub(crate) fn keep_place(
        &self,
        call: &Call,
        clock: &dyn Clock,
    ) -> Result<JobPlace<'_>, LogError> {
        if self.is_inline() {
            call.timeout(clock)?;
            return Ok(JobPlace { lane: self, kept: None });
        }
        loop {
            match self.queue.keep_place(call.timeout(clock)?) {
                Ok(place) => return Ok(JobPlace { lane: self, kept: Some(place) }),
                Err(Refused::Full(())) => {}
                Err(Refused::Closed(())) => return Err(IoError::Closed.into()),
            }
        }
    }

    /// Queues `work`; nobody waits for its end.
    ///
    /// # Errors
    ///
    /// [`IoError::Busy`] if the queue is full, [`IoError::Closed`] if the lane is closed.
    pub(crate) fn spawn(&self, work: impl FnOnce() + Send + 'static) -> Answer {
        self.submit(Box::new(work), Some(Duration::ZERO)).map_err(|refused| match refused {
            Refused::Full(_) => IoError::Busy.into(),
            Refused::Closed(_) => IoError::Closed.into(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crossbeam_channel::Sender;
    use dalsegno_core::ManualClock;

    const LONG: Duration = Duration::from_secs(60);

    /// Reports each step and the end.
    struct Reporter(Sender<&'static str>);

    impl Duty for Reporter {
        type Task = NoTask;

        fn run(&mut self, task: NoTask) {
            match task {}
        }

        fn step(&mut self, _: &TaskQueue<NoTask>) -> Next {
            self.0.send("step").unwrap();
            Next::OnTask
        }

        fn finish(&mut self) {
            self.0.send("finish").unwrap();
        }
    }

    #[test]
    fn a_closed_lane_runs_queued_jobs_and_refuses_new_ones() {
        let lane = JobLane::start_lane("lane", Executor::Threads, 1, 4).unwrap();
        let (done, ended) = bounded(4);
        for _ in 0..4 {
            let done = done.clone();
            assert!(lane.submit(Box::new(move || done.send(()).unwrap()), Some(LONG)).is_ok());
        }
        lane.close();
        assert!(matches!(lane.submit(Box::new(|| ()), None), Err(Refused::Closed(_))));
        lane.join(LONG);
        assert_eq!(ended.len(), 4);
    }

    #[test]
    fn a_full_queue_gives_the_job_back_and_accepts_it_when_a_place_is_free() {
        let lane = JobLane::start_lane("lane", Executor::Threads, 1, 1).unwrap();
        let (release, held) = bounded::<()>(0);
        let (started, has_started) = bounded(1);
        lane.spawn(move || {
            started.send(()).unwrap();
            assert!(held.recv().is_err());
        })
        .unwrap();
        has_started.recv().unwrap();
        lane.spawn(|| ()).unwrap();
        assert!(matches!(
            lane.submit(Box::new(|| ()), Some(Duration::ZERO)),
            Err(Refused::Full(_))
        ));
        drop(release);
        assert!(lane.submit(Box::new(|| ()), Some(LONG)).is_ok());
    }

    #[test]
    fn an_inline_lane_runs_a_job_before_submit_returns() {
        let lane = JobLane::start_lane("lane", Executor::Inline, 1, 1).unwrap();
        let here = std::thread::current().id();
        let work = move || {
            assert_eq!(std::thread::current().id(), here);
            Err(LogError::Full)
        };
        let answer = lane.run_blocking(&Call::background(), &ManualClock::default(), work);
        assert!(matches!(answer, Err(LogError::Full)));
        lane.close();
        assert!(lane.spawn(|| ()).is_err());
    }

    #[test]
    fn a_thread_steps_when_it_is_woken_and_finishes_when_it_is_closed() {
        let (reports, heard) = bounded(8);
        let helper =
            Helper::start("helper", Executor::Threads, Reporter(reports), Next::OnTask).unwrap();
        helper.step_inline();
        assert!(heard.recv_timeout(Duration::from_millis(20)).is_err());
        helper.wake();
        assert_eq!(heard.recv_timeout(LONG).unwrap(), "step");
        helper.close();
        assert_eq!(heard.recv_timeout(LONG).unwrap(), "finish");
        helper.join(LONG);
    }

    #[test]
    fn an_inline_helper_steps_on_request_and_finishes_only_when_it_is_closed() {
        let (reports, heard) = bounded(8);
        let start = || {
            let duty = Reporter(reports.clone());
            Helper::start("helper", Executor::Inline, duty, Next::After(Duration::ZERO)).unwrap()
        };
        let helper = start();
        helper.wake();
        assert!(heard.is_empty());
        helper.step_inline();
        assert_eq!(heard.try_recv().unwrap(), "step");
        drop(helper);
        assert!(heard.is_empty(), "a drop ends a simulated process");
        let helper = start();
        helper.close();
        helper.close();
        assert_eq!(heard.try_iter().collect::<Vec<_>>(), ["finish"]);
    }
}
