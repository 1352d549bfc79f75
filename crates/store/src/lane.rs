//! A bounded queue with threads of its own.
//!
//! 1. What is slow in one lane keeps no task of another lane waiting.
//! 2. Tasks begin in the order they were queued. Closing a lane refuses new tasks and still carries out queued ones.
//! 3. In a forked child a lane is left as it is: its threads are not there, and its channel may stay locked.

use std::fmt;
use std::io;
use std::time::Duration;

use crossbeam_channel::{Sender, bounded};
use dalsegno_io::Workers;
use parking_lot::Mutex;

/// How long dropping a lane waits for a task that is under way.
const DROP_PATIENCE: Duration = Duration::from_secs(10);

/// Threads that carry out tasks of one kind, and the queue in front of them.
pub(crate) struct Lane<T> {
    /// None once it is closed.
    queue: Mutex<Option<Sender<T>>>,
    threads: Mutex<Workers>,
}

impl<T: Send + 'static> Lane<T> {
    /// Starts up to `threads` threads, as many as the system allows, with room for `queue` tasks that wait.
    ///
    /// # Errors
    ///
    /// The system's own if it does not allow even one.
    pub(crate) fn start(name: &str, threads: u32, queue: u32, work: fn(T)) -> io::Result<Self> {
        let (sender, receiver) = bounded(queue as usize);
        let mut started = Workers::new();
        for number in 0..threads {
            let receiver = receiver.clone();
            if let Err(error) = started.start(name, move || receiver.iter().for_each(work)) {
                if number == 0 {
                    return Err(error);
                }
                break;
            }
        }
        Ok(Self { queue: Mutex::new(Some(sender)), threads: Mutex::new(started) })
    }
}

impl<T> Lane<T> {
    /// Where tasks go; `None` once it is closed.
    pub(crate) fn queue(&self) -> Option<Sender<T>> {
        self.queue.lock().clone()
    }

    /// Refuses new tasks.
    pub(crate) fn close(&self) {
        drop(self.queue.lock().take());
    }

    /// Waits until a closed lane has carried out its tasks, at most `patience`.
    pub(crate) fn join(&self, patience: Duration) {
        self.threads.lock().join(patience);
    }
}

impl<T> fmt::Debug for Lane<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Lane").field("threads", &self.threads).finish_non_exhaustive()
    }
}

impl<T> Drop for Lane<T> {
    fn drop(&mut self) {
        if self.threads.get_mut().are_ours() {
            self.close();
            self.join(DROP_PATIENCE);
        } else {
            std::mem::forget(self.queue.get_mut().take());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    type Task = Box<dyn FnOnce() + Send>;

    #[test]
    fn a_closed_lane_carries_out_what_was_queued_and_refuses_more() {
        let lane: Lane<Task> = Lane::start("lane", 1, 4, |task: Task| task()).unwrap();
        let (done, ended) = bounded(4);
        for _ in 0..4 {
            let done = done.clone();
            lane.queue().unwrap().send(Box::new(move || done.send(()).unwrap())).unwrap();
        }
        lane.close();
        assert!(lane.queue().is_none());
        lane.join(Duration::from_secs(60));
        assert_eq!(ended.len(), 4);
    }
}
