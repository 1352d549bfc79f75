//! What a far location holds: its writers, its namespaces, and the blocks of each. Reads catalogs, never packs.

use std::collections::{BTreeMap, BTreeSet};

use dalsegno_core::{Extent, NamespaceId};
use dalsegno_extent::format::{NamespaceSector, SECTOR};
use dalsegno_io::IoError;
use serde::Serialize;

use super::location::{Location, SeenWriter, WriterState};
use super::read::{catalogs_of, number_of, read_catalog, read_namespace};
use super::removals::{FarRemovalsRow, RemovedBlocks};
use super::report::FarFinding;
use crate::format::{Catalog, MAX_CATALOG_BYTES, catalog_of};
use crate::names::{Object, ObjectName, WriterId};

/// What a survey lists.
#[derive(Clone, Copy, Debug, Default)]
pub struct SurveyOptions {
    /// Most extents to list.
    pub extents: usize,
}

/// The contents of a far location.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Survey {
    /// The writers, in the order of their names.
    pub writers: Vec<FarWriterRow>,
    /// The namespaces, in the order of their ids.
    pub namespaces: Vec<FarNamespaceRow>,
    /// Extents, by namespace, lineage and position, as many as were wanted.
    pub extents: Vec<FarExtentRow>,
    /// The lists of removals.
    pub removals: FarRemovalsRow,
    /// Catalogs, descriptions and lists that cannot be used.
    pub faults: Vec<FarFinding>,
}

/// A writer of a far location.
#[derive(Clone, Debug, Serialize)]
pub struct FarWriterRow {
    /// Its folder.
    pub writer: String,
    /// Whether it runs.
    pub state: WriterState,
    /// Seconds since its last sign of life, by the clock of the location, if that can be found out.
    pub silent_s: Option<f64>,
    /// Packs with a catalog.
    pub packs: u64,
    /// Packs without one: they are being written, or a crash left them. Nobody reads them.
    pub unpublished_packs: u64,
    /// Catalogs.
    pub catalogs: u64,
    /// Bytes of all its objects.
    pub bytes: u64,
    /// Extents in its packs.
    pub extents: u64,
    /// Blocks in its packs, without removed ones.
    pub blocks: u64,
    /// Blocks in its packs that were removed.
    pub removed_blocks: u64,
}

/// A namespace of a far location.
#[derive(Clone, Debug, Serialize)]
pub struct FarNamespaceRow {
    /// Its id.
    pub id: String,
    /// Its description; empty if no writer's can be read.
    pub fields: BTreeMap<String, String>,
    /// How its blocks are stored: `none` or `zstd`; `none` without a description.
    pub codec: &'static str,
    /// Layers per block.
    pub layers: u32,
    /// Bytes of one layer of one block.
    pub slice_bytes: u32,
    /// Writers that have blocks of it.
    pub writers: u64,
    /// Extents.
    pub extents: u64,
    /// Blocks, without removed ones. A block that two writers have counts twice.
    pub blocks: u64,
    /// Bytes of these blocks.
    pub bytes: u64,
    /// Blocks that were removed and still take space.
    pub removed_blocks: u64,
    /// Bytes that its extents take in packs.
    pub stored_bytes: u64,
}

/// An extent of a far location.
#[derive(Clone, Debug, Serialize)]
pub struct FarExtentRow {
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
    /// The pack that holds it: folder and file.
    pub pack: String,
    /// Offset in the pack.
    pub offset: u64,
    /// Header and payload.
    pub bytes: u64,
    /// Order of writing in the log of its store.
    pub sequence: u64,
}

/// A survey under way.
struct Surveyor<'a> {
    location: &'a Location,
    options: SurveyOptions,
    survey: Survey,
    tallies: BTreeMap<NamespaceId, Tally>,
    removed: RemovedBlocks,
}

#[derive(Default)]
struct Tally {
    row: Option<FarNamespaceRow>,
    writers: BTreeSet<WriterId>,
}

/// Reads all catalogs and descriptions. `progress` gets the objects read so far and in all.
///
/// # Errors
///
/// [`IoError`] if the location cannot be listed. What cannot be read in it is in the result.
pub fn survey(
    location: &Location,
    options: SurveyOptions,
    progress: &(dyn Fn(u64, u64) + Sync),
) -> Result<Survey, IoError> {
    let seen = location.look(None)?;
    let total: usize = seen.iter().map(|one| one.objects.len()).sum();
    let mut survey = Survey::default();
    let removed = RemovedBlocks::read(location, &mut survey.faults)?;
    survey.removals = removed.row;
    let tallies = BTreeMap::new();
    let mut surveyor = Surveyor { location, options, survey, tallies, removed };
    let mut done = 0;
    for one in &seen {
        surveyor.add_writer(one);
        done += one.objects.len();
        progress(done as u64, total as u64);
    }
    surveyor.describe(&seen);
    Ok(surveyor.finish())
}

impl Surveyor<'_> {
    fn add_writer(&mut self, seen: &SeenWriter) {
        let SeenWriter { writer, ref objects, age, state, ref refused } = *seen;
        let refused = refused.iter().map(|error| FarFinding::of_folder(writer, error));
        self.survey.faults.extend(refused);
        let catalogs = catalogs_of(writer, objects);
        let published: BTreeSet<u64> =
            catalogs.iter().filter_map(|name| number_of(*name)).collect();
        let (packs, unpublished): (Vec<u64>, Vec<u64>) = objects
            .iter()
            .filter_map(|listed| match listed.object {
                Object::Pack(number) => Some(number),
                _ => None,
            })
            .partition(|number| published.contains(&catalog_of(*number)));
        let mut row = FarWriterRow {
            writer: writer.to_string(),
            state,
            silent_s: age.map(|age| age.as_secs_f64()),
            packs: packs.len() as u64,
            unpublished_packs: unpublished.len() as u64,
            catalogs: catalogs.len() as u64,
            bytes: objects.iter().map(|listed| listed.bytes).sum(),
            extents: 0,
            blocks: 0,
            removed_blocks: 0,
        };
        let location = self.location;
        location.fetch_each(&catalogs, MAX_CATALOG_BYTES, |name, fetched| {
            match read_catalog(name, fetched) {
                Ok(Some(catalog)) => {
                    let removed = self.add_catalog(name, &catalog);
                    row.extents += catalog.extents().count() as u64;
                    row.blocks += catalog.blocks() - removed;
                    row.removed_blocks += removed;
                }
                Ok(None) => row.catalogs -= 1,
                Err(what) => self.survey.faults.push(FarFinding::new(name, 0, what)),
            }
        });
        self.survey.writers.push(row);
    }

    /// Adds the extents of a catalog. Returns how many of their blocks are removed.
    fn add_catalog(&mut self, name: ObjectName, catalog: &Catalog) -> u64 {
        let mut all_removed = 0;
        for extent in catalog.extents() {
            let removed = self.removed.count(extent, &catalog.applied);
            all_removed += removed;
            let blocks = u64::from(extent.block_count()) - removed;
            let tally = self.tallies.entry(extent.namespace).or_default();
            tally.writers.insert(name.writer);
            let row = tally.row.get_or_insert_with(|| FarNamespaceRow::new(extent));
            row.extents += 1;
            row.blocks += blocks;
            row.bytes += blocks * extent.layout.block_bytes();
            row.removed_blocks += removed;
            row.stored_bytes += extent.total_bytes();
            if self.survey.extents.len() < self.options.extents {
                self.survey.extents.push(FarExtentRow::new(name.writer, extent));
            }
        }
        all_removed
    }

    /// Fetches descriptions until each namespace has one.
    fn describe(&mut self, seen: &[SeenWriter]) {
        for SeenWriter { writer, objects, .. } in seen {
            let wanted: Vec<ObjectName> = objects
                .iter()
                .filter(|listed| match listed.object {
                    Object::Namespace(id) => self
                        .tallies
                        .get(&id)
                        .and_then(|tally| tally.row.as_ref())
                        .is_some_and(|row| row.fields.is_empty()),
                    _ => false,
                })
                .map(|listed| writer.object(listed.object))
                .collect();
            let (tallies, faults) = (&mut self.tallies, &mut self.survey.faults);
            self.location.fetch_each(&wanted, SECTOR as u64, |name, fetched| match read_namespace(
                name, fetched,
            ) {
                Ok(Some(NamespaceSector(namespace, compression))) => {
                    let tally = tallies.get_mut(&namespace.id());
                    if let Some(row) = tally.and_then(|tally| tally.row.as_mut()) {
                        row.fields = namespace.fields().clone();
                        row.codec = compression.name();
                    }
                }
                Ok(None) => {}
                Err(what) => faults.push(FarFinding::new(name, 0, what)),
            });
        }
    }

    fn finish(mut self) -> Survey {
        self.survey.namespaces = self
            .tallies
            .into_values()
            .filter_map(|tally| {
                let writers = tally.writers.len() as u64;
                tally.row.map(|row| FarNamespaceRow { writers, ..row })
            })
            .collect();
        let order = |row: &FarExtentRow| {
            (row.namespace.clone(), row.lineage.clone(), row.first_block_index, row.pack.clone())
        };
        self.survey.extents.sort_by_cached_key(order);
        self.survey.faults.sort();
        self.survey
    }
}

impl FarNamespaceRow {
    fn new(extent: &Extent) -> Self {
        Self {
            id: extent.namespace.to_hex(),
            fields: BTreeMap::new(),
            codec: "none",
            layers: extent.layout.layers(),
            slice_bytes: extent.layout.slice_bytes(),
            writers: 0,
            extents: 0,
            blocks: 0,
            bytes: 0,
            removed_blocks: 0,
            stored_bytes: 0,
        }
    }
}

impl FarExtentRow {
    fn new(writer: WriterId, extent: &Extent) -> Self {
        Self {
            namespace: extent.namespace.to_hex(),
            lineage: extent.lineage.to_hex(),
            first_block_index: extent.first_block_index,
            blocks: extent.block_count(),
            first_hash: extent.hashes.first().map(|hash| hash.to_hex()).unwrap_or_default(),
            pack: writer.object(Object::Pack(extent.location.segment)).to_string(),
            offset: extent.location.offset,
            bytes: extent.total_bytes(),
            sequence: extent.id.0,
        }
    }
}
