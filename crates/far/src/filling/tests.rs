use dalsegno_core::{ChainHash, ExtentId, KvLayout, NamespaceId, StoreId};
use dalsegno_extent::format::NewExtent;

use super::*;
use crate::format::packs_of;
use crate::removal::RemovalId;

const WRITER: WriterId = WriterId { store: StoreId([7; 16]), open: 9 };
const FLUSH: Duration = Duration::from_secs(5);

fn at(ms: u64) -> Nanos {
    Nanos::default().after(Duration::from_millis(ms))
}

/// Packs that are begun and written as the publisher does it, without bytes and without a location.
struct Work {
    packs: PacksInWork,
    applied: Applied,
}

impl Work {
    fn new() -> Self {
        Self { packs: PacksInWork::new(WRITER), applied: Applied::default() }
    }

    /// Begins a pack, which stays the one that is being filled.
    fn fill(&mut self) -> u64 {
        let filling = self.packs.begin(at(0), FLUSH, &self.applied).expect("memory");
        let number = filling.number;
        self.packs.filling = Some(filling);
        number
    }

    /// Closes the pack that is being filled: it is being written from now on.
    fn write(&mut self) -> u64 {
        let filling = self.packs.filling.take().expect("a pack is being filled");
        let Filling { number, memory, applied, begun, .. } = filling;
        let pack = CatalogPack { number, bytes: 0, extents: Vec::new() };
        let writing = WritingPack { pack, memory, applied, begun: Some(begun) };
        self.packs.writing.insert(number, writing);
        number
    }

    fn begin_to_write(&mut self) -> u64 {
        self.fill();
        self.write()
    }

    fn complete(&mut self, number: u64, now: Nanos) {
        let WritingPack { pack, memory, applied, begun } =
            self.packs.writing.remove(&number).expect("it is being written");
        self.packs.keep_memory(memory);
        self.packs.add_complete(pack, applied, begun.expect("it is wanted"), now);
    }

    /// The packs of the catalogs that are to be written now.
    fn catalogs(&mut self, now: Nanos) -> Vec<(u64, Vec<u64>)> {
        let packs = |one: &WritingCatalog| {
            let numbers = one.catalog.packs.iter().map(|pack| pack.number).collect();
            (one.catalog.number, numbers)
        };
        self.packs.take_catalogs(now).iter().map(packs).collect()
    }
}

#[test]
fn a_lone_pack_gets_its_catalog_immediately() {
    let mut work = Work::new();
    assert!(!work.packs.has_packs());
    for catalog in 1..=3 {
        let number = work.begin_to_write();
        assert_eq!(number, packs_of(catalog).start);
        assert!(work.catalogs(at(0)).is_empty(), "it is being written");
        work.complete(number, at(1));
        assert_eq!(work.catalogs(at(1)), [(catalog, vec![number])]);
    }
    assert!(work.packs.is_idle() && work.packs.has_packs());
}

#[test]
fn packs_that_are_written_at_the_same_time_get_one_catalog() {
    let mut work = Work::new();
    let numbers: Vec<u64> = (0..3).map(|_| work.begin_to_write()).collect();
    assert_eq!(numbers, [16, 17, 18]);
    for number in [17, 16] {
        work.complete(number, at(1));
        assert!(work.catalogs(at(2)).is_empty(), "others join");
    }
    work.complete(18, at(3));
    assert_eq!(work.catalogs(at(3)), [(1, vec![16, 17, 18])]);
    assert_eq!(work.begin_to_write(), 32, "of the next catalog");
}

#[test]
fn a_complete_pack_lets_others_join_for_a_second_and_waits_for_those_that_did() {
    let mut work = Work::new();
    let (first, second) = (work.begin_to_write(), work.begin_to_write());
    work.complete(first, at(0));
    assert!(work.catalogs(at(999)).is_empty());
    assert_eq!(work.begin_to_write(), 18, "it joins");
    assert!(work.catalogs(at(1000)).is_empty());
    assert_eq!(work.begin_to_write(), 32, "it does not join any more");
    work.complete(second, at(2000));
    assert!(work.catalogs(at(2000)).is_empty());
    work.complete(18, at(3000));
    assert_eq!(work.catalogs(at(3000)), [(1, vec![first, second, 18])]);
}

#[test]
fn a_catalog_has_at_most_eight_packs() {
    let mut work = Work::new();
    let mut numbers = Vec::new();
    for _ in 0..10 {
        let number = work.begin_to_write();
        work.packs.writing.get_mut(&number).expect("it is written").begun = Some(at(0));
        numbers.push(number);
        // One is always under way, so none is the last.
        if numbers.len() > 1 {
            work.complete(numbers[numbers.len() - 2], at(1));
        }
    }
    let expected: Vec<u64> = (16..24).chain(32..34).collect();
    assert_eq!(numbers, expected);
    assert_eq!(work.catalogs(at(2)), [(1, (16..24).collect())]);
}

#[test]
fn a_pack_that_is_being_filled_keeps_no_catalog_waiting_and_its_records_name_its_new_number() {
    let mut work = Work::new();
    let written = work.begin_to_write();
    assert_eq!(work.fill(), 17);
    let layout = KvLayout::new(1, 4096).expect("a layout");
    let (hashes, crcs) = (vec![ChainHash([3; 32])], vec![5]);
    let (namespace, parent) = (NamespaceId([1; 16]), ChainHash::default());
    let lineage = ChainHash([2; 32]);
    let new =
        NewExtent { namespace, lineage, first_block_index: 0, parent, layout, hashes, born: None };
    let filling = work.packs.filling.as_mut().expect("it is being filled");
    for offset in [0, 8192] {
        let place = RecordPlace { segment: 17, epoch: WRITER.open, offset };
        let header = new.header(WRITER.store, place, 4, crcs.clone(), None);
        let begin = usize::try_from(offset).expect("it is small");
        let end = begin + header.header_bytes() as usize;
        header.encode(&mut filling.memory.memory().as_mut_slice()[begin..end]);
        filling.extents.push(header.extent().expect("an extent"));
    }
    work.complete(written, at(1));
    assert_eq!(work.catalogs(at(1)), [(1, vec![written])]);
    let filling = work.packs.filling.as_mut().expect("it is being filled");
    assert_eq!(filling.number, 32);
    let memory = filling.memory.memory();
    for extent in &filling.extents {
        let begin = usize::try_from(extent.location.offset).expect("it is small");
        let header = RecordHeader::decode(&memory.as_slice()[begin..]).expect("it is whole");
        assert_eq!(header.extent().as_ref(), Some(extent));
        assert_eq!((extent.location.segment, extent.id), (32, ExtentId(4)));
    }
}

#[test]
fn packs_with_other_removals_applied_get_another_catalog() {
    let mut work = Work::new();
    let first = work.begin_to_write();
    work.applied.note(RemovalId { by: WRITER, number: 1 });
    work.packs.begin_next_catalog();
    let second = work.begin_to_write();
    assert_eq!((first, second), (16, 32));
    work.complete(second, at(0));
    let catalogs = work.packs.take_catalogs(at(0));
    assert_eq!(catalogs.len(), 1, "it does not wait for the first one");
    assert_eq!(catalogs[0].catalog.applied, work.applied);
    work.complete(first, at(1));
    let catalogs = work.packs.take_catalogs(at(1));
    assert_eq!(catalogs[0].catalog.applied, Applied::default());
}

#[test]
fn what_is_under_way_of_a_catalog_is_known() {
    let mut work = Work::new();
    assert!(work.packs.has_catalog(1) && !work.packs.has_catalog(2));
    let number = work.begin_to_write();
    work.packs.begin_next_catalog();
    assert!(work.packs.has_catalog(1) && work.packs.has_catalog(2));
    work.complete(number, at(0));
    assert!(work.packs.has_catalog(1));
    let dropped: Vec<u64> = work.packs.take_complete().iter().map(|pack| pack.number).collect();
    assert_eq!(dropped, [number]);
    assert!(!work.packs.has_catalog(1) && work.packs.is_idle());
}
