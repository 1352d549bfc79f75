//! The pack that a publisher fills, those that it writes, their catalogs, and their memory.
//!
//! 1. Packs that are written at the same time share a catalog, at most [`GROUP_PACKS`] of them. The catalog is written
//!    when none of its packs is being written. [`GROUP_WAIT`] after the first complete pack, no further one joins.
//! 2. A pack gets its number when it is closed, so a pack that is being filled delays no catalog.
//! 3. The packs of a catalog were begun with the same removals applied.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use dalsegno_core::{Deadline, Extent, Nanos};
use dalsegno_extent::RecordMemory;
use dalsegno_extent::format::{RecordHeader, RecordPlace};
use dalsegno_io::{Claim, Region, Touch};

use crate::format::{
    CATALOG_PACKS, Catalog, CatalogPack, MAX_PACK_BYTES, catalog_of, entry_bytes, packs_of,
};
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
    /// The catalog of the next pack.
    catalog: u64,
    /// How many packs have numbers of that catalog.
    numbered: u64,
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
    pub(crate) memory: RecordMemory,
    pub(crate) bytes: usize,
    /// The headers of its records. They are encoded when the pack has a number.
    pub(crate) headers: Vec<RecordHeader>,
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
            numbered: 0,
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

    /// Whether any pack has a number.
    pub(crate) fn has_packs(&self) -> bool {
        self.catalog > 1 || self.numbered > 0
    }

    /// Whether another pack may be written.
    pub(crate) fn can_write(&self) -> bool {
        self.writing.len() < IN_FLIGHT && self.writing.len() + self.catalogs.len() < MOST_WRITING
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
        let complete =
            self.complete.values().flat_map(|group| &group.packs).map(CatalogPack::blocks);
        let catalogs = self.catalogs.values().map(|one| one.catalog.blocks());
        writing.chain(complete).chain(catalogs).sum()
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
        let (applied, headers, due) = (applied.clone(), Vec::new(), Deadline::At(now.after(flush)));
        Some(Filling { memory, bytes: 0, headers, catalog_bytes: 0, applied, begun: now, due })
    }

    /// The number of the next pack that is written.
    pub(crate) fn next_number(&mut self) -> u64 {
        if self.numbered >= self.most {
            self.begin_next_catalog();
        }
        self.numbered += 1;
        packs_of(self.catalog).start + self.numbered - 1
    }

    /// Lets no more packs join the catalog that the next one would have.
    pub(crate) fn begin_next_catalog(&mut self) {
        if self.numbered > 0 {
            (self.catalog, self.numbered) = (self.catalog + 1, 0);
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
        let current = self.complete.get(&self.catalog);
        let has_waited = |group: &CompletePacks| now.since(group.since) >= GROUP_WAIT;
        if current.is_some_and(|group| !self.writes_pack_of(self.catalog) || has_waited(group)) {
            self.begin_next_catalog();
        }
        let is_due = |catalog: &u64| *catalog != self.catalog && !self.writes_pack_of(*catalog);
        let due: Vec<u64> = self.complete.keys().copied().filter(is_due).collect();
        due.into_iter().filter_map(|number| self.take_catalog(number)).collect()
    }

    fn writes_pack_of(&self, catalog: u64) -> bool {
        self.writing.range(packs_of(catalog)).next().is_some()
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
    /// The number of its blocks.
    pub(crate) fn blocks(&self) -> u64 {
        self.headers.iter().map(|header| header.hashes.len() as u64).sum()
    }

    /// Adds a record, whose payload is in the memory already, behind the space of its header.
    pub(crate) fn add(&mut self, header: RecordHeader, bytes: usize) {
        self.catalog_bytes += entry_bytes(header.hashes.len());
        self.headers.push(RecordHeader { offset: self.bytes as u64, ..header });
        self.bytes += bytes;
    }

    /// Writes the headers of the records, which name the pack. Returns the extents.
    pub(crate) fn encode_headers(&mut self, writer: WriterId, number: u64) -> Vec<Extent> {
        let mut memory = self.memory.memory();
        let bytes = memory.as_mut_slice();
        let mut encode = |header: &mut RecordHeader| {
            let place = RecordPlace { segment: number, epoch: writer.open, offset: header.offset };
            place.move_here(writer.store, header);
            let at = usize::try_from(header.offset).expect("64-bit addresses");
            header.encode(&mut bytes[at..at + header.header_bytes() as usize]);
            header.extent().expect("the record of an extent")
        };
        self.headers.iter_mut().map(&mut encode).collect()
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
mod tests {
    use std::sync::Arc;

    use dalsegno_core::StoreId;

    use super::*;

    const WRITER: WriterId = WriterId { store: StoreId([7; 16]), open: 9 };
    const MS: u64 = 1_000_000;

    fn in_work() -> PacksInWork {
        PacksInWork::new(WRITER)
    }

    /// Begins to write a pack; returns its number.
    fn write(packs: &mut PacksInWork) -> u64 {
        let number = packs.next_number();
        let region = Region::anonymous(4096, Touch::AtUse, "memory for a pack").unwrap();
        let memory = RecordMemory::new(Claim::of(&Arc::new(region), 0, 4096, ()));
        let pack = CatalogPack { number, bytes: 4096, extents: Vec::new() };
        let (applied, begun) = (Applied::default(), Some(Nanos(0)));
        packs.writing.insert(number, WritingPack { pack, memory, applied, begun });
        number
    }

    /// Completes packs at a time in milliseconds; returns the packs of the catalogs that are due.
    fn complete(packs: &mut PacksInWork, numbers: &[u64], at_ms: u64) -> Vec<Vec<u64>> {
        for number in numbers {
            let WritingPack { pack, applied, begun, .. } = packs.writing.remove(number).unwrap();
            packs.add_complete(pack, applied, begun.unwrap(), Nanos(at_ms * MS));
        }
        due(packs, at_ms)
    }

    fn due(packs: &mut PacksInWork, at_ms: u64) -> Vec<Vec<u64>> {
        let numbers =
            |one: WritingCatalog| one.catalog.packs.iter().map(|pack| pack.number).collect();
        packs.take_catalogs(Nanos(at_ms * MS)).into_iter().map(numbers).collect()
    }

    #[test]
    fn a_lone_pack_waits_for_no_other_and_packs_that_are_written_together_share_a_catalog() {
        let mut packs = in_work();
        assert_eq!(write(&mut packs), 16);
        assert_eq!(complete(&mut packs, &[16], 0), [[16]]);
        assert_eq!([write(&mut packs), write(&mut packs), write(&mut packs)], [32, 33, 34]);
        assert!(complete(&mut packs, &[34, 32], 5).is_empty());
        assert_eq!(packs.under_way(), 3);
        assert_eq!(complete(&mut packs, &[33], 10), [[32, 33, 34]]);
        assert!(packs.is_idle() && packs.has_packs());
    }

    #[test]
    fn no_pack_joins_a_catalog_a_second_after_its_first_complete_pack() {
        let mut packs = in_work();
        assert_eq!([write(&mut packs), write(&mut packs)], [16, 17]);
        assert!(complete(&mut packs, &[16], 0).is_empty());
        assert!(due(&mut packs, 999).is_empty());
        assert_eq!(write(&mut packs), 18);
        assert!(due(&mut packs, 1000).is_empty(), "17 and 18 are being written");
        assert_eq!(write(&mut packs), 32);
        assert!(complete(&mut packs, &[17], 1500).is_empty());
        assert_eq!(complete(&mut packs, &[18], 1600), [[16, 17, 18]]);
        assert_eq!(complete(&mut packs, &[32], 1700), [[32]]);
    }

    #[test]
    fn a_catalog_has_eight_packs_at_most_and_a_slow_one_delays_only_its_own() {
        let mut packs = in_work();
        let numbers: Vec<u64> = (0..9).map(|_| write(&mut packs)).collect();
        assert_eq!(numbers, [16, 17, 18, 19, 20, 21, 22, 23, 32]);
        assert!(complete(&mut packs, &numbers[1..8], 0).is_empty());
        assert_eq!(complete(&mut packs, &[32], 1), [[32]]);
        assert_eq!(complete(&mut packs, &[16], 2), [numbers[..8].to_vec()]);
    }

    #[test]
    fn a_pack_that_fails_does_not_keep_the_catalog_of_the_others() {
        let mut packs = in_work();
        assert_eq!([write(&mut packs), write(&mut packs)], [16, 17]);
        assert!(complete(&mut packs, &[17], 0).is_empty());
        packs.writing.remove(&16);
        assert_eq!(due(&mut packs, 1), [[17]]);
        // One that fails alone has no catalog, and its number is not used again.
        assert_eq!(write(&mut packs), 32);
        packs.writing.remove(&32);
        assert!(due(&mut packs, 2).is_empty() && packs.is_idle());
        assert_eq!(write(&mut packs), 33);
    }

    #[test]
    fn packs_that_are_dropped_get_no_catalog() {
        let mut packs = in_work();
        assert_eq!([write(&mut packs), write(&mut packs)], [16, 17]);
        assert!(complete(&mut packs, &[16], 0).is_empty());
        let dropped: Vec<u64> = packs.take_complete().iter().map(|pack| pack.number).collect();
        assert_eq!(dropped, [16]);
        packs.begin_next_catalog();
        assert_eq!(complete(&mut packs, &[17], 1), [[17]]);
    }
}
