//! The pack that a publisher fills, those that it writes, and their memory.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use dalsegno_core::{Deadline, Extent, Nanos};
use dalsegno_extent::RecordMemory;
use dalsegno_io::{Claim, Region, Touch};

use crate::format::{Catalog, MAX_PACK_BYTES};
use crate::removal::Applied;

/// Packs that are written at a time.
pub const IN_FLIGHT: usize = 4;
/// Packs and catalogs that are written at a time. A catalog takes no memory of a pack, so the next pack does not wait
/// for it.
const MOST_WRITING: usize = 2 * IN_FLIGHT;

/// The pack that is being filled, those that are being written, and memory for the next ones.
#[derive(Debug)]
pub(crate) struct PacksInWork {
    /// The number of the next pack.
    next: u64,
    pub(crate) filling: Option<Filling>,
    /// By number.
    pub(crate) writing: BTreeMap<u64, Writing>,
    /// Memory of packs that were written.
    spare: Vec<RecordMemory>,
}

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

impl Default for PacksInWork {
    fn default() -> Self {
        Self { next: 1, filling: None, writing: BTreeMap::new(), spare: Vec::new() }
    }
}

impl PacksInWork {
    /// Whether any pack was begun.
    pub(crate) fn has_packs(&self) -> bool {
        self.next > 1
    }

    /// Whether another pack may be written.
    pub(crate) fn can_write(&self) -> bool {
        self.in_flight() < IN_FLIGHT && self.writing.len() < MOST_WRITING
    }

    /// A new pack to be filled, of which the removals `applied` are applied; `None` if too many are being written, or
    /// the system has no memory.
    pub(crate) fn begin(
        &mut self,
        now: Nanos,
        flush: Duration,
        applied: &Applied,
    ) -> Option<Filling> {
        // A removal closes a pack out of turn.
        if self.in_flight() > IN_FLIGHT {
            return None;
        }
        let memory = match self.spare.pop() {
            Some(memory) => memory,
            None => pack_memory()?,
        };
        let number = self.next;
        self.next += 1;
        let (applied, extents, due) = (applied.clone(), Vec::new(), Deadline::At(now.after(flush)));
        Some(Filling {
            number,
            memory,
            bytes: 0,
            extents,
            catalog_bytes: 0,
            applied,
            begun: now,
            due,
        })
    }

    /// Keeps the memory of a pack for a later one. A connection that was dropped may still have it; then it is freed
    /// when that ends.
    pub(crate) fn keep_memory(&mut self, mut memory: RecordMemory) {
        if memory.is_free() {
            self.spare.push(memory);
        }
    }

    fn in_flight(&self) -> usize {
        self.writing.values().filter(|one| one.memory.is_some()).count()
    }
}

/// Memory for a pack; `None` if the system has none.
fn pack_memory() -> Option<RecordMemory> {
    let bytes = usize::try_from(MAX_PACK_BYTES).expect("64-bit addresses");
    match Region::anonymous(bytes, Touch::AtUse, "memory for a pack") {
        Ok(region) => Some(RecordMemory::new(Claim::of(&Arc::new(region), 0, bytes, ()))),
        Err(error) => {
            tracing::warn!(%error, "no memory for a pack");
            None
        }
    }
}
