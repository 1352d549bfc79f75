//! The bounded queue in front of a helper's threads, and their stop signal.
//!
//! 1. Tasks leave in the order they came. A closed queue accepts none, and its tasks still leave.
//! 2. A thread waits in one place for a task, a wake-up, the time of its next step, and the end.

use std::collections::VecDeque;
use std::time::Duration;

use parking_lot::{Condvar, Mutex};

/// When the next step is due, unless a task or a wake-up comes first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Next {
    /// After this time.
    After(Duration),
    /// Not before something is queued.
    OnTask,
    /// Never: the work is complete, and its thread ends.
    Never,
}

/// A task that a queue did not accept.
pub(crate) enum Refused<T> {
    /// The queue stayed full.
    Full(T),
    /// The helper is closed.
    Closed(T),
}

impl<T> Refused<T> {
    /// The task.
    pub(crate) fn into_task(self) -> T {
        match self {
            Self::Full(task) | Self::Closed(task) => task,
        }
    }
}

/// The bounded queue in front of a helper's threads, and their stop signal.
pub(crate) struct TaskQueue<T> {
    state: Mutex<QueueState<T>>,
    capacity: usize,
    /// Signals a task, a wake-up or the end.
    arrived: Condvar,
    /// Signals a free place.
    left: Condvar,
}

struct QueueState<T> {
    tasks: VecDeque<T>,
    is_woken: bool,
    is_closed: bool,
}

/// What a thread does next.
pub(crate) enum Turn<T> {
    Task(T),
    Step,
    End,
}

impl<T> TaskQueue<T> {
    pub(crate) fn new(capacity: usize) -> Self {
        let state = QueueState { tasks: VecDeque::new(), is_woken: false, is_closed: false };
        let (arrived, left) = (Condvar::new(), Condvar::new());
        Self { state: Mutex::new(state), capacity, arrived, left }
    }

    /// Whether the helper is to stop.
    pub(crate) fn is_closed(&self) -> bool {
        self.state.lock().is_closed
    }

    /// Waits for this time, or until the queue is closed; `false` if it is.
    pub(crate) fn sleep(&self, time: Duration) -> bool {
        let mut state = self.state.lock();
        if !time.is_zero() {
            self.arrived.wait_while_for(&mut state, |state| !state.is_closed, time);
        }
        !state.is_closed
    }

    /// Queues a task; waits for a free place, without `timeout` as long as it takes.
    pub(crate) fn push(&self, task: T, timeout: Option<Duration>) -> Result<(), Refused<T>> {
        let mut state = self.state.lock();
        let is_full =
            |state: &mut QueueState<T>| state.tasks.len() >= self.capacity && !state.is_closed;
        match timeout {
            None => self.left.wait_while(&mut state, is_full),
            Some(timeout) => {
                self.left.wait_while_for(&mut state, is_full, timeout);
            }
        }
        if state.is_closed {
            return Err(Refused::Closed(task));
        }
        if is_full(&mut state) {
            return Err(Refused::Full(task));
        }
        state.tasks.push_back(task);
        self.arrived.notify_one();
        Ok(())
    }

    /// Makes the next turn a step.
    pub(crate) fn wake(&self) {
        self.state.lock().is_woken = true;
        self.arrived.notify_one();
    }

    /// Refuses new tasks and wakes every waiter; returns whether it was closed before.
    pub(crate) fn close(&self) -> bool {
        let was_closed = std::mem::replace(&mut self.state.lock().is_closed, true);
        self.arrived.notify_all();
        self.left.notify_all();
        was_closed
    }

    /// What a thread does next; waits for it.
    pub(crate) fn turn(&self, next: Next) -> Turn<T> {
        let mut state = self.state.lock();
        let is_idle = |state: &mut QueueState<T>| {
            state.tasks.is_empty() && !state.is_woken && !state.is_closed
        };
        match next {
            Next::After(time) => {
                self.arrived.wait_while_for(&mut state, is_idle, time);
            }
            Next::OnTask => self.arrived.wait_while(&mut state, is_idle),
            Next::Never => return Turn::End,
        }
        if let Some(task) = state.tasks.pop_front() {
            self.left.notify_one();
            return Turn::Task(task);
        }
        if state.is_closed {
            return Turn::End;
        }
        state.is_woken = false;
        Turn::Step
    }
}
