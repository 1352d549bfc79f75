//! The bounded queue in front of a helper's threads, and their stop signal.
//!
//! 1. Tasks leave in the order they came. A closed queue accepts none, and its tasks still leave.
//! 2. A thread waits in one place for a task, a wake-up, the time of its next step, and the end.
//! 3. A place can be kept before its task exists. Then the queue does not end before that task.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::{Condvar, Mutex, MutexGuard};

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
    /// The same refusal of another task.
    fn with<U>(self, task: U) -> Refused<U> {
        match self {
            Self::Full(_) => Refused::Full(task),
            Self::Closed(_) => Refused::Closed(task),
        }
    }

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
    /// Places that are kept for tasks.
    kept: usize,
    is_woken: bool,
    is_closed: bool,
}

impl<T> QueueState<T> {
    fn has_ended(&self) -> bool {
        self.is_closed && self.kept == 0
    }
}

/// A free place of a queue, kept for one task until it is dropped.
pub(crate) struct QueuePlace<T>(Arc<TaskQueue<T>>);

impl<T> QueuePlace<T> {
    /// Queues the task, also if the queue was closed since.
    pub(crate) fn fill(self, task: T) {
        self.0.state.lock().tasks.push_back(task);
    }
}

impl<T> Drop for QueuePlace<T> {
    fn drop(&mut self) {
        self.0.state.lock().kept -= 1;
        // One thread for the task, or all for the end.
        self.0.arrived.notify_all();
        self.0.left.notify_one();
    }
}

/// What a thread does next.
pub(crate) enum Turn<T> {
    Task(T),
    Step,
    End,
}

impl<T> TaskQueue<T> {
    pub(crate) fn new(capacity: usize) -> Self {
        let state =
            QueueState { tasks: VecDeque::new(), kept: 0, is_woken: false, is_closed: false };
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
        match self.wait_for_place(timeout) {
            Ok(mut state) => {
                state.tasks.push_back(task);
                self.arrived.notify_one();
                Ok(())
            }
            Err(refused) => Err(refused.with(task)),
        }
    }

    /// Keeps a free place for a task; waits as [`Self::push`].
    pub(crate) fn keep_place(
        self: &Arc<Self>,
        timeout: Option<Duration>,
    ) -> Result<QueuePlace<T>, Refused<()>> {
        self.wait_for_place(timeout)?.kept += 1;
        Ok(QueuePlace(Arc::clone(self)))
    }

    fn wait_for_place(
        &self,
        timeout: Option<Duration>,
    ) -> Result<MutexGuard<'_, QueueState<T>>, Refused<()>> {
        let mut state = self.state.lock();
        let is_full = |state: &mut QueueState<T>| {
            state.tasks.len() + state.kept >= self.capacity && !state.is_closed
        };
        match timeout {
            None => self.left.wait_while(&mut state, is_full),
            Some(timeout) => {
                self.left.wait_while_for(&mut state, is_full, timeout);
            }
        }
        if state.is_closed {
            return Err(Refused::Closed(()));
        }
        if is_full(&mut state) {
            return Err(Refused::Full(()));
        }
        Ok(state)
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
            state.tasks.is_empty() && !state.is_woken && !state.has_ended()
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
        if state.has_ended() {
            return Turn::End;
        }
        state.is_woken = false;
        Turn::Step
    }
}
