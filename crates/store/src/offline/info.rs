//! The facts and contents of a store that nobody has open. Nothing is written.

use std::path::Path;
use std::sync::Arc;

use dalsegno_core::{Compression, Config, Error, Result, SpaceFacts, StoreId};
use dalsegno_extent::offline::Inspection;
use dalsegno_index::{Index, LsmIndex, LsmOptions, LsmStats, MemoryIndex, ScanPlace, index_number};
use dalsegno_io::DirectoryLock;
use dalsegno_log::{Log, LogOptions, SegmentState};
use serde::Serialize;

use crate::error::{to_error, unavailable};
use crate::far::removal_notes::pending_in;
use crate::open::directory::{DirectoryReader, lock_shared};
use crate::open::fill_index::fill_index;
use crate::tuning::tuner::{DecisionRow, read_decisions};

/// Facts about a store.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct StoreInfo {
    /// Its random name.
    pub id: String,
    /// Size of its segment files.
    pub segment_bytes: u64,
    /// Segment files, by state.
    pub segments_free: u64,
    /// The one that takes records, if any.
    pub segments_open: u64,
    /// Full ones.
    pub segments_sealed: u64,
    /// Damaged ones.
    pub segments_damaged: u64,
    /// Bytes of disk taken by segment files.
    pub disk_bytes: u64,
    /// Extents that can be found.
    pub extents: u64,
    /// Blocks that can be found.
    pub blocks: u64,
    /// Bytes of these blocks.
    pub block_bytes: u64,
    /// Bytes that their extents take in segments.
    pub stored_bytes: u64,
    /// Namespaces.
    pub namespaces: Vec<NamespaceRow>,
    /// The index, if it is on disk.
    pub index: Option<IndexRow>,
    /// Removals that other hosts do not know yet: an open with a far directory that responds publishes them.
    pub pending_removals: u64,
    /// Damage found in headers.
    pub faults: Vec<FaultRow>,
}

/// An on-disk index, and how its shape came about.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct IndexRow {
    /// The shape it had last.
    pub shape: String,
    /// Runs of each level, the newest data first.
    pub runs: Vec<u64>,
    /// Files of tables.
    pub tables: u64,
    /// Their bytes.
    pub table_bytes: u64,
    /// Entries in them.
    pub entries: u64,
    /// The last changes of shape, the oldest first.
    pub decisions: Vec<DecisionRow>,
}

/// A namespace of a store.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct NamespaceRow {
    /// Its id.
    pub id: String,
    /// Its description; empty if that is lost.
    pub fields: std::collections::BTreeMap<String, String>,
    /// Layers per block.
    pub layers: u32,
    /// Bytes of one layer of one block.
    pub slice_bytes: u32,
    /// Runs of the prefix tree.
    pub lineages: u64,
    /// Extents.
    pub extents: u64,
    /// Most extents of one lineage: merging keeps them few.
    pub most_extents: u64,
    /// Blocks.
    pub blocks: u64,
    /// Bytes of the blocks.
    pub bytes: u64,
    /// Bytes that its extents take in segments, with headers, padding, and blocks that the index no longer refers to.
    pub stored_bytes: u64,
    /// How new extents are stored: `none` or `zstd`.
    pub codec: &'static str,
    /// With `zstd`, the width of an element, else 0.
    pub element_bytes: u32,
}

/// Damage found in a header.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct FaultRow {
    /// The file.
    pub file: String,
    /// Byte offset in it.
    pub offset: u64,
    /// What is wrong.
    pub what: String,
}

/// An extent of a store.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ExtentRow {
    /// Its namespace.
    pub namespace: String,
    /// Its run of the prefix tree.
    pub lineage: String,
    /// Position of its first block there.
    pub first_block_index: u32,
    /// Blocks in it.
    pub blocks: u32,
    /// Hash of its first block.
    pub first_hash: String,
    /// Segment that holds it.
    pub segment: u64,
    /// Offset in the segment.
    pub offset: u64,
    /// Header and payload.
    pub bytes: u64,
    /// Whether the payload is compressed.
    #[serde(rename = "coded")]
    pub compressed: bool,
    /// Order of writing.
    pub sequence: u64,
}

/// A store opened for reading only.
struct Offline {
    log: Log,
    index: MemoryIndex,
    faults: Vec<FaultRow>,
    _lock: DirectoryLock,
}

fn open(path: &Path) -> Result<Offline> {
    let (reader, lock) = lock_shared(path)?;
    let facts = reader.facts(path)?;
    let DirectoryReader { device, clock, pool } = reader;
    // The bounds do not matter for reading; a large disk satisfies every check.
    let space = SpaceFacts { free_bytes: 1 << 50, ..facts.space };
    let limits = Config::default().validate(space)?;
    let options = LogOptions { read_only: true, ..LogOptions::new(limits) };
    let (log, recovered) =
        Log::open(device, clock, pool, options, StoreId::default()).map_err(to_error)?;
    let faults = recovered.faults.iter().map(|fault| FaultRow {
        file: fault.file.clone(),
        offset: fault.offset,
        what: fault.what.clone(),
    });
    let faults = faults.collect();
    let index = MemoryIndex::default();
    fill_index(&log, &index, recovered, &|| true);
    Ok(Offline { log, index, faults, _lock: lock })
}

/// Reports facts about a store.
///
/// # Errors
///
/// `Invalid` if there is none, `Unavailable` if a process has it open, `Incompatible` if it is newer.
pub fn info(path: &Path) -> Result<StoreInfo> {
    let offline = open(path)?;
    let index = index_row(path, offline.log.store())?;
    let segments = offline.log.segments().views();
    let count = |state| segments.iter().filter(|view| view.state == state).count() as u64;
    let namespaces = offline.namespaces()?;
    let (extents, blocks) = offline.index.counts();
    Ok(StoreInfo {
        id: offline.log.store().to_hex(),
        segment_bytes: offline.log.options().limits.segment_bytes,
        segments_free: count(SegmentState::Free),
        segments_open: count(SegmentState::Open),
        segments_sealed: count(SegmentState::Sealed),
        segments_damaged: count(SegmentState::Damaged),
        disk_bytes: offline.log.segments().disk_bytes(),
        extents,
        blocks,
        block_bytes: namespaces.iter().map(|row| row.bytes).sum(),
        stored_bytes: namespaces.iter().map(|row| row.stored_bytes).sum(),
        namespaces,
        index,
        pending_removals: pending_in(offline.log.store_files(), offline.log.store()),
        faults: offline.faults,
    })
}

/// What the files of the index say, if there are any.
fn index_row(path: &Path, store: StoreId) -> Result<Option<IndexRow>> {
    let DirectoryReader { device, clock, .. } = DirectoryReader::open(path)?;
    let files = device.list().map_err(|error| unavailable(path, error))?;
    if !files.iter().any(|entry| index_number(&entry.name).is_some()) {
        return Ok(None);
    }
    let options = LsmOptions { read_only: true, ..LsmOptions::default() };
    let opened = LsmIndex::open(Arc::clone(&device), clock, store, options);
    let (index, _) = opened.map_err(|error| unavailable(path, error))?;
    let LsmStats { runs, tables, table_bytes, entries, .. } = index.lsm_stats();
    let (shape, decisions) = (index.shape().to_string(), read_decisions(&device));
    Ok(Some(IndexRow { shape, runs, tables, table_bytes, entries, decisions }))
}

/// Lists namespaces and extents, in the order of the index.
///
/// # Errors
///
/// As [`info`].
pub fn list(path: &Path) -> Result<(Vec<NamespaceRow>, Vec<ExtentRow>)> {
    let offline = open(path)?;
    let entries = offline.extents();
    let rows = entries.iter().map(|extent| ExtentRow {
        namespace: extent.namespace.to_hex(),
        lineage: extent.lineage.to_hex(),
        first_block_index: extent.first_block_index,
        blocks: extent.block_count(),
        first_hash: extent.hashes[0].to_hex(),
        segment: extent.location.segment,
        offset: extent.location.offset,
        bytes: extent.total_bytes(),
        compressed: extent.is_compressed(),
        sequence: extent.id.0,
    });
    let rows = rows.collect();
    Ok((offline.namespaces()?, rows))
}

/// Shows a file of a store with the names of its format: with `at`, the record of a segment that holds that offset.
///
/// # Errors
///
/// As [`info`]; `Invalid` if the file is not one of the log's, or no record is at that offset.
pub fn inspect(path: &Path, file: &str, at: Option<u64>) -> Result<Inspection> {
    let (reader, _lock) = lock_shared(path)?;
    let DirectoryReader { device, clock, pool } = reader;
    let files = device.list().map_err(|error| unavailable(path, error))?;
    let exists = files.iter().any(|entry| entry.name == file);
    let found = if exists {
        dalsegno_log::inspect(device, clock, pool, file, at).map_err(to_error)?
    } else {
        None
    };
    found.ok_or_else(|| {
        Error::invalid(match at {
            Some(at) if exists => format!(
                "{file} has no record at offset {at}; without an offset its records are listed"
            ),
            _ => format!(
                "{file:?} is not a file of the log in {}; give one such as segment-0000000000000001.log or store.meta",
                path.display()
            ),
        })
    })
}

impl Offline {
    fn extents(&self) -> Vec<Arc<dalsegno_core::Extent>> {
        self.index.scan(ScanPlace::default(), usize::MAX)
    }

    fn namespaces(&self) -> Result<Vec<NamespaceRow>> {
        let described = self.log.store_files().read_namespaces().map_err(to_error)?;
        let mut rows: Vec<NamespaceRow> = Vec::new();
        let (mut lineage, mut extents_of_lineage) = (None, 0);
        for extent in &self.extents() {
            let id = extent.namespace.to_hex();
            if rows.last().is_none_or(|row| row.id != id) {
                let found = described.iter().find(|(n, _)| n.id() == extent.namespace);
                let compression = found.map_or(Compression::PLAIN, |(_, compression)| *compression);
                rows.push(NamespaceRow {
                    id,
                    fields: found.map(|(n, _)| n.fields().clone()).unwrap_or_default(),
                    codec: compression.name(),
                    element_bytes: compression.element_bytes(),
                    layers: extent.layout.layers(),
                    slice_bytes: extent.layout.slice_bytes(),
                    lineages: 0,
                    extents: 0,
                    most_extents: 0,
                    blocks: 0,
                    bytes: 0,
                    stored_bytes: 0,
                });
            }
            let live = self.index.live_blocks(extent).unwrap_or_default();
            let live = live.iter().filter(|live| **live).count() as u64;
            let row = rows.last_mut().expect("just pushed");
            let this = Some((extent.namespace, extent.lineage));
            if std::mem::replace(&mut lineage, this) != this {
                row.lineages += 1;
                extents_of_lineage = 0;
            }
            extents_of_lineage += 1;
            row.extents += 1;
            row.most_extents = row.most_extents.max(extents_of_lineage);
            row.blocks += live;
            row.bytes += live * extent.layout.block_bytes();
            row.stored_bytes += extent.total_bytes();
        }
        Ok(rows)
    }
}
