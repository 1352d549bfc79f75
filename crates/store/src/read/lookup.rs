//! How long a lookup takes.

use dalsegno_core::Deadline;

use crate::engine::Engine;
use crate::lookup::lookups;

/// How long the index may wait for a caller that gave no timeout.
pub(crate) fn lookup_limit(engine: &Engine) -> Deadline {
    lookups::lookup_limit(engine.clock.as_ref())
}
