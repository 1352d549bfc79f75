//! The pack that a publisher fills, those that it writes, their catalogs, and their memory.
//!
//! 1. Packs that are written at the same time have one catalog. It is written when none of them is under way, at most
//!    [`GROUP_PACKS`] of them do, and no complete one waits for others longer than [`GROUP_WAIT`] and their writing.
//! 2. A pack that is being filled never keeps a catalog waiting: it is numbered again, for the next one.
//! 3. The packs of a catalog were begun with the same removals applied.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use dalsegno_core::{Deadline, Extent, Nanos};
use dalsegno_extent::RecordMemory;
use dalsegno_extent::format::{RecordHeader, RecordPlace};
use dalsegno_io::{Claim, Region, Touch};

use crate::format::{CATALOG_PACKS, Catalog, CatalogPack, MAX_PACK_BYTES, catalog_of};
use crate::names::WriterId;
use crate::removal::Applied;

/// Packs that are written at a time.
pub const IN_FLIGHT: usize = 4;
/// Packs and catalogs that are written at a time. A catalog takes no memory of a pack, so the next pack does not wait
/// for it.
const MOST_WRITING: usize = 2 * IN_FLIGHT;
/// Most packs that get one catalog.
const GROUP_PACKS: u64 = 8;
/// They leave together: they are at most this part of what a store may have at the location.
const GROUP_PART: u64 = 16;
/// How long a complete pack lets others join its catalog.
const GROUP_WAIT: Duration = Duration::from_secs(1);

const _: () = assert!(GROUP_PACKS <= CATALOG_PACKS, "a catalog has numbers for its packs");

/// The pack that is being filled, those that are being written, and memory for the next ones.
#[derive(Debug)]
pub(crate) struct PacksInWork {
    writer: WriterId,
    /// The catalog of the next pack, and how many packs it has already.
    catalog: u64,
    begun: u64,
    /// Most packs of a catalog.
    most: u64,
    pub(crate) filling: Option<Filling>,
    /// By number.
    pub(crate) writing: BTreeMap<u64, WritingPack>,
    /// Packs that are written and wait for their catalog, by its number.
    complete: BTreeMap<u64, CompletePacks>,
    /// Catalogs that are being written, by number.
    pub(crate) catalogs: BTreeMap<u64, WritingCatalog>,
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

/// A pack that is being written.
#[derive(Debug)]
pub(crate) struct WritingPack {
    pub(crate) pack: CatalogPack,
    pub(crate) memory: RecordMemory,
    pub(crate) applied: Applied,
    /// When it was begun; `None` if it is to be dropped.
    pub(crate) begun: Option<Nanos>,
}

/// Packs that are written, of one catalog.
#[derive(Debug)]
struct CompletePacks {
    packs: Vec<CatalogPack>,
    applied: Applied,
    /// When the first of them was begun, and when it was complete.
    begun: Nanos,
    since: Nanos,
}

/// A catalog that is being written.
#[derive(Debug)]
pub(crate) struct WritingCatalog {
    pub(crate) catalog: Catalog,
    /// When its first pack was begun; `None` if its packs are to be dropped.
    pub(crate) begun: Option<Nanos>,
}

impl PacksInWork {
    pub(crate) fn new(writer: WriterId) -> Self {
        let (writing, complete, catalogs) = (BTreeMap::new(), BTreeMap::new(), BTreeMap::new());
        Self {
            writer,
            catalog: 1,
            begun: 0,
            most: GROUP_PACKS,
            filling: None,
            writing,
            complete,
            catalogs,
            spare: Vec::new(),
        }
    }

    /// Bounds the packs of a catalog by those that a store may have at the location.
    pub(crate) fn bound_groups(&mut self, packs: u64) {
        self.most = (packs / GROUP_PART).clamp(1, GROUP_PACKS);
    }

    /// Whether any pack was begun.
    pub(crate) fn has_packs(&self) -> bool {
        self.catalog > 1 || self.begun > 0
    }

    /// Whether another pack may be written.
    pub(crate) fn can_write(&self) -> bool {
        self.writing.len() < IN_FLIGHT && self.writing.len() + self.catalogs.len() < MOST_WRITING
    }

    /// Whether packs of a catalog are being filled or written, or wait for it, or it is being written.
    pub(crate) fn has_catalog(&self, catalog: u64) -> bool {
        self.catalog == catalog
            || self.writing.keys().any(|pack| catalog_of(*pack) == catalog)
            || self.complete.contains_key(&catalog)
            || self.catalogs.contains_key(&catalog)
    }

    /// Whether nothing is being written, and nothing waits for a catalog.
    pub(crate) fn is_idle(&self) -> bool {
        self.writing.is_empty() && self.complete.is_empty() && self.catalogs.is_empty()
    }

    /// How many packs and catalogs are being written, and packs wait for their catalog.
    pub(crate) fn under_way(&self) -> usize {
        let waiting: usize = self.complete.values().map(|group| group.packs.len()).sum();
        self.writing.len() + self.catalogs.len() + waiting
    }

    /// The blocks of all of these.
    pub(crate) fn blocks(&self) -> u64 {
        let writing = self.writing.values().map(|one| one.pack.blocks());
        let waiting =
            self.complete.values().flat_map(|group| &group.packs).map(CatalogPack::blocks);
        let catalogs = self.catalogs.values().map(|one| one.catalog.blocks());
        writing.chain(waiting).chain(catalogs).sum()
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
        if self.writing.len() > IN_FLIGHT {
            return None;
        }
        let memory = match self.spare.pop() {
            Some(memory) => memory,
            None => pack_memory()?,
        };
        let number = self.next_number();
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

    fn next_number(&mut self) -> u64 {
        if self.begun >= self.most {
            (self.catalog, self.begun) = (self.catalog + 1, 0);
        }
        self.begun += 1;
        self.catalog * CATALOG_PACKS + self.begun - 1
    }

    /// Lets no more packs join the catalog that the next one would have.
    pub(crate) fn begin_next_catalog(&mut self) {
        if self.begun == 0 {
            return;
        }
        (self.catalog, self.begun) = (self.catalog + 1, 0);
        if let Some(mut filling) = self.filling.take() {
            let number = self.next_number();
            filling.renumber(self.writer, number);
            self.filling = Some(filling);
        }
    }

    /// Notes that a pack is written. Its catalog follows.
    pub(crate) fn add_complete(
        &mut self,
        pack: CatalogPack,
        applied: Applied,
        begun: Nanos,
        now: Nanos,
    ) {
        let new = || CompletePacks { packs: Vec::new(), applied, begun, since: now };
        let group = self.complete.entry(catalog_of(pack.number)).or_insert_with(new);
        group.begun = group.begun.min(begun);
        group.packs.push(pack);
    }

    /// The catalogs that are to be written now.
    pub(crate) fn take_catalogs(&mut self, now: Nanos) -> Vec<WritingCatalog> {
        let is_under_way = |catalog| self.writing.keys().any(|pack| catalog_of(*pack) == catalog);
        let joined = self.complete.get(&self.catalog).is_some_and(|group| {
            !is_under_way(self.catalog) || now.since(group.since) >= GROUP_WAIT
        });
        if joined {
            self.begin_next_catalog();
        }
        let due: Vec<u64> = self
            .complete
            .keys()
            .copied()
            .filter(|catalog| {
                let is_filled = self.filling.as_ref().map(|filling| catalog_of(filling.number));
                let is_writing = self.writing.keys().any(|pack| catalog_of(*pack) == *catalog);
                *catalog != self.catalog && !is_writing && is_filled != Some(*catalog)
            })
            .collect();
        due.into_iter().filter_map(|number| self.take_catalog(number)).collect()
    }

    fn take_catalog(&mut self, number: u64) -> Option<WritingCatalog> {
        let CompletePacks { mut packs, applied, begun, .. } = self.complete.remove(&number)?;
        packs.sort_unstable_by_key(|pack| pack.number);
        let catalog = Catalog { writer: self.writer, number, packs, applied };
        Some(WritingCatalog { catalog, begun: Some(begun) })
    }

    /// Takes the packs that wait for a catalog, to drop them.
    pub(crate) fn take_complete(&mut self) -> Vec<CatalogPack> {
        std::mem::take(&mut self.complete).into_values().flat_map(|group| group.packs).collect()
    }

    /// Keeps the memory of a pack for a later one. A connection that was dropped may still have it; then it is freed
    /// when that ends.
    pub(crate) fn keep_memory(&mut self, mut memory: RecordMemory) {
        if memory.is_free() {
            self.spare.push(memory);
        }
    }
}

impl Filling {
    /// Gives the pack another number: each of its records names it.
    fn renumber(&mut self, writer: WriterId, number: u64) {
        self.number = number;
        let mut memory = self.memory.memory();
        for extent in &mut self.extents {
            let at = usize::try_from(extent.location.offset).expect("64-bit addresses");
            let mut header =
                RecordHeader::decode(&memory.as_slice()[at..]).expect("it was encoded here");
            let place =
                RecordPlace { segment: number, epoch: writer.open, offset: extent.location.offset };
            place.move_here(writer.store, &mut header);
            header.encode(&mut memory.as_mut_slice()[at..at + header.header_bytes() as usize]);
            extent.location.segment = number;
        }
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

#[cfg(test)]
mod tests;
