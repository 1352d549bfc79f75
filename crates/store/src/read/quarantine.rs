//! Taking damaged blocks out of the index, so that they can be put again.

use dalsegno_core::{Deadline, Extent};
use dalsegno_extent::Cause;

use crate::engine::Engine;

/// Quarantines the damaged blocks of an extent.
pub(crate) fn quarantine(
    engine: &Engine,
    extent: &Extent,
    damaged: &[(u32, Cause)],
    deadline: Deadline,
) {
    engine.front.dropper.quarantine(extent, damaged, deadline);
}
