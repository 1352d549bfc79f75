//! Work that repeats, on its own thread.
//!
//! 1. A thread does one step after the other: when the step before said, or when it is woken.
//! 2. Closing ends the work after the current step, then [`Duty::finish`] runs. Waiting for that is bounded: a thread
//!    that hangs is left behind.
//! 3. With [`Executor::Inline`] there is no thread: steps are done where the owner calls [`Periodic::step_inline`].
//!    Dropping such work does nothing more, because a simulation ends a process by dropping its store.
//! 4. In a forked child it is left as it is: its thread does not exist there, and its locks may stay taken.

use std::fmt;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::{Condvar, Mutex};

use super::{CLOSE_TIMEOUT, Executor};
use crate::{Process, StopSignal, Workers};

/// When the next step is due, unless the work is woken first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NextStep {
    /// After this time.
    After(Duration),
    /// Not before the work is woken.
    OnWake,
    /// Never: the work is complete, and its thread ends.
    Never,
}

/// What repeats.
pub trait Duty: Send + 'static {
    /// Does one step. A long one ends early if `stop` is set: it looks between two pieces of I/O.
    fn step(&mut self, stop: &StopSignal) -> NextStep;

    /// Runs once, after the last step.
    fn finish(&mut self) {}
}

/// Work that repeats, and what carries it out.
pub struct Periodic<D> {
    bell: Arc<Bell>,
    runner: StepRunner<D>,
    process: Process,
}

enum StepRunner<D> {
    Thread(Mutex<Workers>),
    /// None once the work is closed.
    Inline(Mutex<Option<D>>),
}

/// What its thread waits for.
#[derive(Default)]
struct Bell {
    call: Mutex<BellCall>,
    rung: Condvar,
}

/// What the thread is to do next.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum BellCall {
    /// A step when it is due.
    #[default]
    None,
    /// A step now.
    Step,
    /// To end.
    End,
}

impl Bell {
    /// Waits for the next step; `false` if there is none.
    fn wait(&self, next: NextStep) -> bool {
        let mut call = self.call.lock();
        let is_quiet = |call: &mut BellCall| *call == BellCall::None;
        match next {
            NextStep::After(time) => {
                self.rung.wait_while_for(&mut call, is_quiet, time);
            }
            NextStep::OnWake => self.rung.wait_while(&mut call, is_quiet),
            NextStep::Never => return false,
        }
        if *call == BellCall::End {
            return false;
        }
        *call = BellCall::None;
        true
    }

    fn wake(&self) {
        let mut call = self.call.lock();
        if *call == BellCall::None {
            *call = BellCall::Step;
            self.rung.notify_one();
        }
    }

    /// Returns whether it had ended before.
    fn end(&self) -> bool {
        let before = std::mem::replace(&mut *self.call.lock(), BellCall::End);
        self.rung.notify_one();
        before == BellCall::End
    }

    fn stop_signal(self: &Arc<Self>) -> StopSignal {
        let bell = Arc::clone(self);
        StopSignal::new(move || *bell.call.lock() == BellCall::End)
    }
}

impl<D: Duty> Periodic<D> {
    /// Starts the thread; `first` says when the first step is due.
    ///
    /// # Errors
    ///
    /// The system's own if it refuses the thread.
    pub fn start(name: &str, executor: Executor, duty: D, first: NextStep) -> io::Result<Self> {
        let bell = Arc::<Bell>::default();
        let runner = match executor {
            Executor::Inline => StepRunner::Inline(Mutex::new(Some(duty))),
            Executor::Threads => {
                let mut workers = Workers::new();
                let of_thread = Arc::clone(&bell);
                workers.start(name, move || work(&of_thread, duty, first))?;
                StepRunner::Thread(Mutex::new(workers))
            }
        };
        Ok(Self { bell, runner, process: Process::this() })
    }

    /// Whether the callers do the work.
    #[must_use]
    pub fn is_inline(&self) -> bool {
        matches!(self.runner, StepRunner::Inline(_))
    }

    /// Whether it has a thread in this process.
    #[must_use]
    pub fn is_ours(&self) -> bool {
        !self.is_inline() && self.process.is_this()
    }

    /// Makes the next step due now. Does nothing without a thread.
    pub fn wake(&self) {
        if self.is_ours() {
            self.bell.wake();
        }
    }

    /// Does one step on the caller's thread. Does nothing if the work has a thread.
    pub fn step_inline(&self) {
        if let StepRunner::Inline(duty) = &self.runner
            && let Some(duty) = &mut *duty.lock()
        {
            duty.step(&self.bell.stop_signal());
        }
    }

    /// Ends the work after the current step. Calling it again does nothing.
    pub fn close(&self) {
        if !self.process.is_this() {
            return;
        }
        self.bell.end();
        if let StepRunner::Inline(duty) = &self.runner
            && let Some(mut duty) = duty.lock().take()
        {
            duty.finish();
        }
    }

    /// Waits until closed work has ended, at most `timeout`.
    pub fn join(&self, timeout: Duration) {
        if let StepRunner::Thread(workers) = &self.runner
            && self.process.is_this()
        {
            workers.lock().join(timeout);
        }
    }
}

impl<D> Drop for Periodic<D> {
    /// Work that was closed is not waited for again.
    fn drop(&mut self) {
        if self.process.is_this()
            && let StepRunner::Thread(workers) = &mut self.runner
            && !self.bell.end()
        {
            workers.get_mut().join(CLOSE_TIMEOUT);
        }
    }
}

impl<D> fmt::Debug for Periodic<D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Periodic").finish_non_exhaustive()
    }
}

fn work(bell: &Arc<Bell>, mut duty: impl Duty, first: NextStep) {
    let (mut next, stop) = (first, bell.stop_signal());
    while bell.wait(next) {
        next = duty.step(&stop);
    }
    duty.finish();
}

#[cfg(test)]
mod tests {
    use super::*;
    use crossbeam_channel::{Sender, bounded};

    const LONG: Duration = Duration::from_secs(60);

    /// Reports each step and the end.
    struct Reporter(Sender<&'static str>);

    impl Duty for Reporter {
        fn step(&mut self, stop: &StopSignal) -> NextStep {
            assert!(!stop.is_set());
            self.0.send("step").unwrap();
            NextStep::OnWake
        }

        fn finish(&mut self) {
            self.0.send("finish").unwrap();
        }
    }

    /// Ends its only step when the work is closed.
    struct Patient(Sender<&'static str>);

    impl Duty for Patient {
        fn step(&mut self, stop: &StopSignal) -> NextStep {
            self.0.send("step").unwrap();
            while !stop.is_set() {
                std::thread::sleep(Duration::from_millis(1));
            }
            self.0.send("stopped").unwrap();
            NextStep::After(Duration::ZERO)
        }
    }

    #[test]
    fn a_thread_steps_when_it_is_woken_and_finishes_when_it_is_closed() {
        let (reports, heard) = bounded(8);
        let duty = Reporter(reports);
        let work = Periodic::start("periodic", Executor::Threads, duty, NextStep::OnWake).unwrap();
        work.step_inline();
        assert!(heard.recv_timeout(Duration::from_millis(20)).is_err());
        work.wake();
        assert_eq!(heard.recv_timeout(LONG).unwrap(), "step");
        work.close();
        assert_eq!(heard.recv_timeout(LONG).unwrap(), "finish");
        work.join(LONG);
    }

    #[test]
    fn a_long_step_sees_that_the_work_is_closed_and_no_other_step_follows() {
        let (reports, heard) = bounded(8);
        let first = NextStep::After(Duration::ZERO);
        let work = Periodic::start("periodic", Executor::Threads, Patient(reports), first).unwrap();
        assert_eq!(heard.recv_timeout(LONG).unwrap(), "step");
        drop(work);
        assert_eq!(heard.iter().collect::<Vec<_>>(), ["stopped"]);
    }

    #[test]
    fn inline_work_steps_on_request_and_finishes_only_when_it_is_closed() {
        let (reports, heard) = bounded(8);
        let start = || {
            let first = NextStep::After(Duration::ZERO);
            let duty = Reporter(reports.clone());
            Periodic::start("periodic", Executor::Inline, duty, first).unwrap()
        };
        let work = start();
        work.wake();
        assert!(heard.is_empty());
        work.step_inline();
        assert_eq!(heard.try_recv().unwrap(), "step");
        drop(work);
        assert!(heard.is_empty(), "a drop ends a simulated process");
        let work = start();
        work.close();
        work.close();
        assert_eq!(heard.try_iter().collect::<Vec<_>>(), ["finish"]);
    }
}
