//! Shows the bytes of an object with the names of docs/formats/pack.md.

use dalsegno_core::{Extent, SECTOR_BYTES, sector_down};
use dalsegno_extent::format::fields::Field;
use dalsegno_extent::format::fields::Form::{Bytes, Number, Text};
use dalsegno_extent::format::{RecordHeader, SECTOR, SECTOR_CRC_AT as CRC_AT};
use dalsegno_extent::offline::{
    Inspection, ShownField, ShownRecord, kind_name, parts_of, raw_field, sector_crc, show_header,
    show_namespace, shown_fields,
};
use dalsegno_io::IoError;

use super::location::Location;
use crate::format::{
    Catalog, MAX_CATALOG_BYTES, MAX_LIST_BYTES, MAX_PACK_BYTES, PACK_FIELD_BYTES, RemovalList,
    extent_bytes,
};
use crate::names::{Object, ObjectName};

/// Fields of a catalog's header. Reserved bytes follow, and at 4092 the crc.
const CATALOG_FIELDS: [Field; 9] = [
    ("magic", 8, Text),
    ("version", 4, Number),
    ("header_bytes", 4, Number),
    ("store_id", 16, Bytes),
    ("open", 8, Number),
    ("number", 8, Number),
    ("body_bytes", 8, Number),
    ("body_crc", 4, Bytes),
    ("pack_count", 4, Number),
];

/// Fields of a pack in a catalog. Reserved bytes and the entries follow.
const PACK_FIELDS: [Field; 3] =
    [("pack", 8, Number), ("pack_bytes", 8, Number), ("entry_count", 8, Number)];

/// Fields of the header of a list of removals, as above.
const LIST_FIELDS: [Field; 9] = [
    ("magic", 8, Text),
    ("version", 4, Number),
    ("header_bytes", 4, Number),
    ("store_id", 16, Bytes),
    ("open", 8, Number),
    ("number", 8, Number),
    ("body_bytes", 8, Number),
    ("body_crc", 4, Bytes),
    ("entry_count", 4, Number),
];

/// Shows a catalog or a list of removals with its entries, a pack with its records, or a description. With `at`, the
/// record of a pack that holds this offset.
///
/// # Errors
///
/// [`IoError`] if the object cannot be read. `None` if no record of it is at that offset.
pub fn inspect(
    location: &Location,
    name: ObjectName,
    at: Option<u64>,
) -> Result<Option<Inspection>, IoError> {
    let is_in_header = at.unwrap_or(0) < SECTOR_BYTES;
    match name.object {
        Object::Catalog(_) => {
            let bytes = location.fetch(name, MAX_CATALOG_BYTES)?;
            Ok(is_in_header.then(|| show_catalog(name, &bytes)))
        }
        Object::Removals(_) => {
            let bytes = location.fetch(name, MAX_LIST_BYTES)?;
            Ok(is_in_header.then(|| show_list(name, &bytes)))
        }
        Object::Namespace(_) => {
            let mut sector = [0; SECTOR];
            let bytes = location.fetch(name, SECTOR as u64)?;
            sector[..bytes.len()].copy_from_slice(&bytes);
            Ok(is_in_header.then(|| show_namespace(&name.to_string(), &sector)))
        }
        Object::Beat(_) => {
            location.fetch(name, 0)?;
            Ok(is_in_header
                .then(|| Inspection { title: name.to_string(), ..Inspection::default() }))
        }
        Object::Pack(_) => {
            let objects = location.list(name.writer)?;
            let listed = objects.iter().find(|listed| listed.object == name.object);
            // A pack that was not listed is asked for, too, which gives the right error.
            let bytes = listed.map_or(SECTOR_BYTES, |listed| listed.bytes.min(MAX_PACK_BYTES));
            let pack = location.read_pack(name, sector_down(bytes))?;
            Ok(match at {
                None => Some(show_pack(name, &pack)),
                Some(at) => show_record(&pack, at),
            })
        }
    }
}

fn show_catalog(name: ObjectName, bytes: &[u8]) -> Inspection {
    let mut found = Inspection { title: format!("catalog {name}"), ..Inspection::default() };
    if bytes.len() < SECTOR {
        found.problem = format!("it has {} bytes, less than a header", bytes.len());
        return found;
    }
    found.fields = shown_fields(bytes, 0, 0, &CATALOG_FIELDS);
    let behind = found.fields.iter().map(|field| field.bytes.len()).sum::<usize>();
    found.fields.extend(shown_fields(bytes, 0, behind, &[("applied_count", 4, Number)]));
    found.fields.push(raw_field(bytes, 0, behind + 4..CRC_AT, "reserved"));
    found.fields.push(sector_crc(bytes));
    match Catalog::decode(bytes) {
        Ok(catalog) => {
            if catalog.writer != name.writer || Object::Catalog(catalog.number) != name.object {
                "it belongs to another writer or number than its name says"
                    .clone_into(&mut found.problem);
            }
            let applied = catalog.applied.iter();
            let mut first = SECTOR;
            for pack in &catalog.packs {
                found.fields.extend(shown_fields(bytes, 0, first, &PACK_FIELDS));
                first += PACK_FIELD_BYTES + pack.extents.iter().map(extent_bytes).sum::<usize>();
            }
            let behind = first + 32 * applied.len();
            for (at, id) in (first..behind).step_by(32).zip(applied) {
                let field = raw_field(bytes, 0, at..at + 32, "applied");
                let says = format!("removals up to {id}");
                found.fields.push(ShownField { says, ..field });
            }
            found.records = catalog.extents().map(show_extent).collect();
        }
        Err(error) => found.problem = error.to_string(),
    }
    found
}

/// An entry of a catalog as a line. The offset is that in the pack.
fn show_extent(extent: &Extent) -> ShownRecord {
    ShownRecord {
        offset: extent.location.offset,
        bytes: extent.total_bytes(),
        kind: if extent.is_compressed() { "compressed extent" } else { "extent" },
        blocks: extent.hashes.len() as u64,
        sequence: extent.id.0,
        problem: String::new(),
    }
}

fn show_list(name: ObjectName, bytes: &[u8]) -> Inspection {
    let title = format!("list of removals {name}");
    let mut found = Inspection { title, ..Inspection::default() };
    if bytes.len() < SECTOR {
        found.problem = format!("it has {} bytes, less than a header", bytes.len());
        return found;
    }
    found.fields = shown_fields(bytes, 0, 0, &LIST_FIELDS);
    let behind = found.fields.iter().map(|field| field.bytes.len()).sum::<usize>();
    found.fields.push(raw_field(bytes, 0, behind..CRC_AT, "reserved"));
    found.fields.push(sector_crc(bytes));
    let list = match RemovalList::decode(bytes) {
        Ok(list) => list,
        Err(error) => {
            found.problem = error.to_string();
            return found;
        }
    };
    if list.writer.object(Object::Removals(list.number)) != name {
        "it belongs to another writer or number than its name says".clone_into(&mut found.problem);
    }
    let mut at = SECTOR;
    for removal in &list.removals {
        let entry = RemovalList::entry_bytes(removal);
        found.records.push(ShownRecord {
            offset: at as u64,
            bytes: entry as u64,
            kind: if removal.hashes.is_empty() { "removed namespace" } else { "removed blocks" },
            blocks: removal.hashes.len() as u64,
            sequence: removal.id.number,
            problem: String::new(),
        });
        at += entry;
    }
    found
}

/// The records of a pack, and where no valid one begins although one should.
fn show_pack(name: ObjectName, pack: &[u8]) -> Inspection {
    let mut found = Inspection { title: format!("pack {name}"), ..Inspection::default() };
    let mut at = 0;
    while at < pack.len() {
        let record = match RecordHeader::decode(&pack[at..]) {
            Ok(header) => {
                let bytes = u64::from(header.header_bytes()) + header.payload_bytes();
                let is_here = header.offset == at as u64 && header.store == name.writer.store;
                let is_cut = bytes > (pack.len() - at) as u64;
                let problem = match (is_here, is_cut) {
                    (false, _) => "the header belongs to another place",
                    (true, true) => "the pack ends before this record does",
                    (true, false) => "",
                };
                ShownRecord {
                    offset: at as u64,
                    bytes,
                    kind: kind_name(&header.kind),
                    blocks: header.hashes.len() as u64,
                    sequence: header.sequence,
                    problem: problem.to_owned(),
                }
            }
            Err(error) => ShownRecord {
                offset: at as u64,
                bytes: 0,
                kind: "damaged",
                blocks: 0,
                sequence: 0,
                problem: error.to_string(),
            },
        };
        at = match record.bytes {
            // The next sector that looks like a header.
            0 => next_header(pack, at + SECTOR),
            bytes => at + usize::try_from(bytes).expect("a pack is in memory"),
        };
        found.records.push(record);
    }
    if pack.is_empty() {
        "the pack has no bytes".clone_into(&mut found.problem);
    }
    found
}

fn next_header(pack: &[u8], from: usize) -> usize {
    let mut sectors = (from..pack.len()).step_by(SECTOR);
    sectors.find(|at| RecordHeader::peek_bytes(&pack[*at..]).is_ok()).unwrap_or(pack.len())
}

/// The record that holds an offset. Without a valid one, bytes that look like a header in that sector.
fn show_record(pack: &[u8], at: u64) -> Option<Inspection> {
    let mut start = 0;
    while start < pack.len() {
        let Ok(header) = RecordHeader::decode(&pack[start..]) else {
            start = next_header(pack, start + SECTOR);
            continue;
        };
        let bytes = u64::from(header.header_bytes()) + header.payload_bytes();
        let end = start + usize::try_from(bytes).expect("a pack is in memory");
        if !(start as u64..end as u64).contains(&at) {
            start = end;
            continue;
        }
        let header_bytes = header.header_bytes() as usize;
        let mut found = show_header(&pack[start..start + header_bytes], start as u64);
        if let Some(extent) = header.extent() {
            let show = |place: dalsegno_extent::offline::PartPlace| {
                let range =
                    usize::try_from(place.offset).ok().zip(usize::try_from(place.bytes).ok());
                let bytes = range.and_then(|(at, len)| pack.get(at..at.checked_add(len)?));
                place.show(bytes.ok_or_else(|| "the pack ends before it".to_owned()))
            };
            found.parts = parts_of(&extent, &header.kind).into_iter().map(show).collect();
        }
        return Some(found);
    }
    let sector = usize::try_from(sector_down(at)).ok()?;
    let bytes = RecordHeader::peek_bytes(pack.get(sector..)?).ok()? as usize;
    let end = sector.saturating_add(bytes).min(pack.len());
    Some(show_header(&pack[sector..end], sector as u64))
}
