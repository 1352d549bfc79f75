//! How long whoever works on this thread may wait for files that are read at once.
//!
//! A look-up in an index passes many hands before it comes to a file, and none of them decides anything by the time
//! that is left. So it travels beside them, with the thread.

use std::cell::Cell;
use std::time::Instant;

use dalsegno_core::{Clock, Deadline};

/// When to give up, in the store's time and in the system's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Patience {
    /// After this moment a request is not started any more.
    pub deadline: Deadline,
    /// Nobody waits beyond it.
    pub until: Instant,
}

thread_local! {
    static PATIENCE: Cell<Option<Patience>> = const { Cell::new(None) };
}

impl Patience {
    /// That of the work on this thread; none may wait as long as it takes.
    #[must_use]
    pub fn of_this_thread() -> Option<Self> {
        PATIENCE.get()
    }
}

/// Does work that must not wait for files beyond `deadline`; work inside of work waits as long as the inner one says.
#[expect(clippy::disallowed_methods, reason = "the system's waits know no other time")]
pub fn patiently<R>(deadline: Deadline, clock: &dyn Clock, work: impl FnOnce() -> R) -> R {
    /// Restores what held before, also after a panic.
    struct Before(Option<Patience>);
    impl Drop for Before {
        fn drop(&mut self) {
            PATIENCE.set(self.0);
        }
    }
    let left = deadline.remaining(clock.now());
    let patience = left.map(|left| Patience { deadline, until: Instant::now() + left });
    let _before = Before(PATIENCE.replace(patience));
    work()
}

#[cfg(test)]
mod tests {
    use super::*;
    use dalsegno_core::ManualClock;
    use std::time::Duration;

    #[test]
    fn patience_holds_within_the_work_and_not_after_it() {
        let clock = ManualClock::default();
        let deadline = Deadline::At(clock.now().after(Duration::from_secs(5)));
        patiently(deadline, &clock, || {
            let patience = Patience::of_this_thread().expect("set");
            assert_eq!(patience.deadline, deadline);
            patiently(Deadline::Never, &clock, || assert_eq!(Patience::of_this_thread(), None));
            assert_eq!(Patience::of_this_thread(), Some(patience));
        });
        assert_eq!(Patience::of_this_thread(), None);
    }
}
