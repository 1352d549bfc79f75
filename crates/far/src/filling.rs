//! The pack that a publisher fills, those that it writes, and their memory.

use std::sync::Arc;

use dalsegno_core::{Deadline, Extent, Nanos};
use dalsegno_extent::RecordMemory;
use dalsegno_io::{Claim, Region, Touch};

use crate::format::{Catalog, MAX_PACK_BYTES};
use crate::removal::Applied;

/// The pack that is being filled.
#[derive(Debug)]
pub(crate) struct Filling {
    pub(crate) number: u64,
    pub(crate) memory: RecordMemory,
    pub(crate) bytes: usize,
    pub(crate) extents: Vec<Extent>,
    pub(crate) catalog_bytes: usize,
    /// The removals that were applied when it was begun.
    pub(crate) applied: Applied,
    pub(crate) begun: Nanos,
    /// When it is published even if it is not full.
    pub(crate) due: Deadline,
}

/// A pack that is being written, or its catalog.
#[derive(Debug)]
pub(crate) struct Writing {
    pub(crate) catalog: Catalog,
    /// The bytes of the pack, until it is written.
    pub(crate) memory: Option<RecordMemory>,
    /// When the pack was begun; `None` if it is to be dropped.
    pub(crate) begun: Option<Nanos>,
}

/// Memory for a pack; `None` if the system has none.
pub(crate) fn pack_memory() -> Option<RecordMemory> {
    let bytes = usize::try_from(MAX_PACK_BYTES).expect("64-bit addresses");
    match Region::anonymous(bytes, Touch::AtUse, "memory for a pack") {
        Ok(region) => Some(RecordMemory::new(Claim::of(&Arc::new(region), 0, bytes, ()))),
        Err(error) => {
            tracing::warn!(%error, "no memory for a pack");
            None
        }
    }
}
