//! The packs of a far index, and the records in them.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::Arc;

use dalsegno_core::{NamespaceId, SECTOR_BYTES};
use dalsegno_io::FileId;

use super::place::FarPlace;
use crate::format::CatalogPack;
use crate::names::WriterId;
use crate::removal::{Applied, RemovalId};

/// Memory of a pack in addition to its records: entries of three maps.
const PACK_BYTES: u64 = 232;

/// Where a record is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecordAt {
    /// Whose pack it is in.
    pub writer: WriterId,
    /// The pack's number.
    pub number: u64,
    /// The pack, for requests.
    pub file: FileId,
    /// Offset of the record in the pack.
    pub offset: u64,
    /// Bytes of its header.
    pub header_bytes: u32,
    /// Its blocks, if its payload is not compressed.
    pub plain_blocks: Option<u32>,
}

/// A pack.
#[derive(Debug)]
pub(super) struct IndexedPack {
    writer: WriterId,
    number: u64,
    pub(super) file: FileId,
    /// Blocks that are found through it.
    pub(super) blocks: u64,
    /// Blocks that are found through other packs.
    hidden: u64,
    /// How often the index had lost blocks when it looked for them.
    losses: u64,
    bytes: u64,
    /// What its writer had applied.
    applied: Arc<Applied>,
    records: Box<[IndexedRecord]>,
}

/// A record of a pack, in 12 bytes.
#[derive(Clone, Copy, Debug)]
struct IndexedRecord {
    /// Number of a namespace; [`REMOVED`] if a removal covers all its blocks.
    namespace: u32,
    offset_sectors: u16,
    header_sectors: u16,
    /// Its blocks if its payload is not compressed, else 0.
    plain_blocks: u16,
    /// Blocks that are found through it.
    blocks: u16,
}

const REMOVED: u32 = u32::MAX;

/// The packs, by their numbers in this index. No number is used twice.
#[derive(Debug, Default)]
pub(super) struct Packs {
    by_number: HashMap<u32, IndexedPack>,
    by_name: BTreeMap<(WriterId, u64), u32>,
    /// In the order in which they were indexed; may name packs that are gone.
    order: VecDeque<u32>,
    next: u32,
    namespaces: Vec<NamespaceId>,
    bytes: u64,
    record_count: u64,
    hidden: u64,
}

impl Packs {
    /// Adds a pack, without blocks yet.
    pub(super) fn add(
        &mut self,
        writer: WriterId,
        of: &CatalogPack,
        applied: &Arc<Applied>,
        file: FileId,
    ) -> u32 {
        let name = (writer, of.number);
        let records: Box<[IndexedRecord]> = of
            .extents
            .iter()
            .map(|extent| {
                let sectors = |bytes: u64| bytes / SECTOR_BYTES;
                let header_bytes = u64::from(extent.location.header_bytes);
                let plain_blocks = if extent.is_compressed() { 0 } else { extent.block_count() };
                IndexedRecord {
                    namespace: self.number_of(extent.namespace),
                    offset_sectors: u16::try_from(sectors(extent.location.offset))
                        .expect("bounded by MAX_PACK_BYTES"),
                    header_sectors: u16::try_from(sectors(header_bytes))
                        .expect("bounded by MAX_RECORD_HEADER_BYTES"),
                    plain_blocks: u16::try_from(plain_blocks)
                        .expect("bounded by MAX_EXTENT_BLOCKS"),
                    blocks: 0,
                }
            })
            .collect();
        let pack = self.next;
        self.next += 1;
        self.bytes += of.bytes;
        self.record_count += records.len() as u64;
        self.by_name.insert(name, pack);
        self.order.push_back(pack);
        let (number, bytes) = (of.number, of.bytes);
        let (blocks, hidden, losses, applied) = (0, 0, 0, Arc::clone(applied));
        let added =
            IndexedPack { writer, number, file, blocks, hidden, losses, bytes, applied, records };
        self.by_number.insert(pack, added);
        pack
    }

    fn number_of(&mut self, namespace: NamespaceId) -> u32 {
        let at = self.namespaces.iter().rposition(|known| *known == namespace);
        let at = at.unwrap_or_else(|| {
            self.namespaces.push(namespace);
            self.namespaces.len() - 1
        });
        u32::try_from(at).expect("fewer namespaces than records")
    }

    /// Notes how many more blocks are found through a record.
    pub(super) fn add_blocks(&mut self, pack: u32, record: u16, blocks: u16) {
        let pack = self.by_number.get_mut(&pack).expect("it is being indexed");
        pack.records[usize::from(record)].blocks += blocks;
        pack.blocks += u64::from(blocks);
    }

    /// Notes how many blocks of a pack are found through others, and how often the index had lost blocks then.
    pub(super) fn set_hidden(&mut self, pack: u32, hidden: u64, losses: u64) {
        let pack = self.by_number.get_mut(&pack).expect("it is being indexed");
        self.hidden = self.hidden - pack.hidden + hidden;
        (pack.hidden, pack.losses) = (hidden, losses);
    }

    /// Blocks that are found through other packs than these.
    pub(super) fn hidden(&self) -> u64 {
        self.hidden
    }

    /// The packs with such blocks that were looked at before the index lost blocks so often.
    pub(super) fn hiding(&self, losses: u64) -> Vec<(WriterId, u64)> {
        let is_due = |pack: &IndexedPack| pack.hidden > 0 && pack.losses < losses;
        let hiding = self.by_number.values().filter(|pack| is_due(pack));
        let mut names: Vec<_> = hiding.map(|pack| (pack.writer, pack.number)).collect();
        names.sort_unstable();
        names
    }

    /// Notes that a block, which was found here, is not any more.
    pub(super) fn forget_block(&mut self, place: FarPlace) {
        let pack = self.by_number.get_mut(&place.pack).expect("the block was found");
        pack.records[usize::from(place.record)].blocks -= 1;
        pack.blocks -= 1;
    }

    pub(super) fn remove(&mut self, pack: u32) -> Option<IndexedPack> {
        let removed = self.by_number.remove(&pack)?;
        self.by_name.remove(&(removed.writer, removed.number));
        self.bytes -= removed.bytes;
        self.hidden -= removed.hidden;
        self.record_count -= removed.records.len() as u64;
        if self.order.len() > 2 * self.by_number.len() + 16 {
            let Self { by_number, order, .. } = self;
            order.retain(|pack| by_number.contains_key(pack));
        }
        Some(removed)
    }

    /// Makes the records of a namespace, or of all, unreadable in the packs that a removal covers. Returns how many
    /// blocks were found through them.
    pub(super) fn remove_all(&mut self, namespace: Option<NamespaceId>, id: RemovalId) -> u64 {
        let at = match namespace {
            None => None,
            Some(namespace) => match self.namespaces.iter().position(|one| *one == namespace) {
                Some(at) => u32::try_from(at).ok(),
                None => return 0,
            },
        };
        let mut removed = 0;
        for pack in self.by_number.values_mut().filter(|pack| !pack.applied.contains(id)) {
            let is_covered =
                |record: &&mut IndexedRecord| at.is_none_or(|at| record.namespace == at);
            for record in pack.records.iter_mut().filter(is_covered) {
                record.namespace = REMOVED;
                let blocks = u64::from(std::mem::take(&mut record.blocks));
                pack.blocks -= blocks;
                removed += blocks;
            }
        }
        removed
    }

    pub(super) fn oldest(&mut self) -> Option<u32> {
        while let Some(oldest) = self.order.front() {
            if self.by_number.contains_key(oldest) {
                return Some(*oldest);
            }
            self.order.pop_front();
        }
        None
    }

    pub(super) fn find(&self, writer: WriterId, number: u64) -> Option<u32> {
        self.by_name.get(&(writer, number)).copied()
    }

    /// Whether a removal covers a pack.
    pub(super) fn is_covered(&self, pack: u32, id: RemovalId) -> bool {
        self.by_number.get(&pack).is_some_and(|pack| !pack.applied.contains(id))
    }

    /// Whether the block at a place can be read.
    pub(super) fn finds(&self, place: FarPlace) -> bool {
        self.record(place).is_some()
    }

    pub(super) fn record(&self, place: FarPlace) -> Option<RecordAt> {
        let pack = self.by_number.get(&place.pack)?;
        let record = pack.records.get(usize::from(place.record))?;
        (record.namespace != REMOVED).then(|| RecordAt {
            writer: pack.writer,
            number: pack.number,
            file: pack.file,
            offset: u64::from(record.offset_sectors) * SECTOR_BYTES,
            header_bytes: u32::from(record.header_sectors) * 4096,
            plain_blocks: (record.plain_blocks > 0).then(|| u32::from(record.plain_blocks)),
        })
    }

    pub(super) fn numbers(&self, writer: WriterId) -> Vec<u64> {
        let of_writer = self.by_name.range((writer, 0)..=(writer, u64::MAX));
        of_writer.map(|((_, number), _)| *number).collect()
    }

    pub(super) fn len(&self) -> usize {
        self.by_number.len()
    }

    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    pub(super) fn memory_bytes(&self) -> u64 {
        self.by_number.len() as u64 * PACK_BYTES
            + self.record_count * size_of::<IndexedRecord>() as u64
    }
}
