//! What a caller says about one call: who waits, how long, and whether it still wants the answer.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use dalsegno_core::Deadline;
use dalsegno_io::Class;

/// Shared between a call and whoever may call it off.
#[derive(Clone, Debug, Default)]
pub struct Cancel(Arc<AtomicBool>);

impl Cancel {
    /// Calls it off; work that is already with the device finishes unseen.
    pub fn cancel(&self) {
        self.0.store(true, Ordering::Release);
    }

    /// Whether it was called off.
    #[must_use]
    pub fn is_cancelled(&self) -> bool {
        self.0.load(Ordering::Acquire)
    }
}

/// The terms of one call.
#[derive(Clone, Debug)]
pub struct Call {
    /// Who waits.
    pub class: Class,
    /// When to give up.
    pub deadline: Deadline,
    /// How to be called off.
    pub cancel: Option<Cancel>,
}

impl Call {
    /// Somebody waits, as long as it takes.
    #[must_use]
    pub fn foreground() -> Self {
        Self { class: Class::Foreground, deadline: Deadline::Never, cancel: None }
    }

    /// Nobody waits.
    #[must_use]
    pub fn background() -> Self {
        Self { class: Class::Background, ..Self::foreground() }
    }

    /// Sets when to give up.
    #[must_use]
    pub fn until(mut self, deadline: Deadline) -> Self {
        self.deadline = deadline;
        self
    }

    /// Whether requests must not touch the caller's memory, because the call may end before they do.
    #[must_use]
    pub fn must_stage(&self) -> bool {
        self.deadline.is_bounded()
    }

    pub(crate) fn is_cancelled(&self) -> bool {
        self.cancel.as_ref().is_some_and(Cancel::is_cancelled)
    }
}
