//! The list of violations: mistakes of the caller.
//!
//! 1. Recording never fails, never blocks on a stream and never changes the result of a call by itself.
//! 2. The list keeps the first `KEPT` texts and counts all violations.

use parking_lot::Mutex;
use std::fmt::Display;

const KEPT: usize = 1000;

struct Violations {
    count: usize,
    texts: Vec<String>,
}

static VIOLATIONS: Mutex<Violations> = Mutex::new(Violations { count: 0, texts: Vec::new() });

/// Kinds of violations. Each text starts with the name of its kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// A host range is only partly in a registration, or in two.
    Border,
    /// A call that spoils the capture of a stream.
    Capture,
    /// Memory or a module was given back while queued or running work uses it.
    InUse,
    /// A handle that does not exist, or was destroyed.
    Handle,
    /// A range that is not inside an allocation, or a pointer of the wrong side.
    Outside,
    /// Copies of one batch or launch whose ranges overlap.
    Overlap,
    /// A kernel uses memory that is not registered.
    Pageable,
    /// A kernel uses a host pointer instead of its device pointer.
    PlainPointer,
    /// A write to memory that was registered as read-only.
    ReadOnly,
    /// Host memory whose pages are not mapped, or not with the access that is needed.
    Unmapped,
    /// A call that the driver of this version does not export.
    Version,
}

impl Kind {
    fn name(self) -> &'static str {
        match self {
            Kind::Border => "border",
            Kind::Capture => "capture",
            Kind::InUse => "in-use",
            Kind::Handle => "handle",
            Kind::Outside => "outside",
            Kind::Overlap => "overlap",
            Kind::Pageable => "pageable",
            Kind::PlainPointer => "plain-pointer",
            Kind::ReadOnly => "read-only",
            Kind::Unmapped => "unmapped",
            Kind::Version => "version",
        }
    }
}

/// Records a violation.
pub(crate) fn record(kind: Kind, text: impl Display) {
    let mut violations = VIOLATIONS.lock();
    violations.count += 1;
    if violations.texts.len() < KEPT {
        violations.texts.push(format!("{}: {text}", kind.name()));
    }
}

/// Forgets all violations.
pub(crate) fn clear() {
    let mut violations = VIOLATIONS.lock();
    violations.count = 0;
    violations.texts.clear();
}

/// Returns the number of violations and their texts, one per line.
pub(crate) fn listed() -> (usize, String) {
    let violations = VIOLATIONS.lock();
    (violations.count, violations.texts.join("\n"))
}
