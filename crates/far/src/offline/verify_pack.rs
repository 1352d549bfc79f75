//! The check of a pack in memory against its catalog.

use dalsegno_core::Extent;
use dalsegno_extent::format::{FormatError, RecordHeader, RecordKind, all_zero};
use dalsegno_extent::offline::check_units;

use super::read::describe_error;
use super::report::FarVerifyReport;
use crate::format::CatalogPack;
use crate::names::ObjectName;

/// Checks every byte of a pack: each record that the catalog names, and that nothing else is in it.
pub(super) fn check_pack(
    name: ObjectName,
    pack: &[u8],
    of: &CatalogPack,
    report: &mut FarVerifyReport,
) {
    let mut end = 0;
    for extent in &of.extents {
        let offset = extent.location.offset;
        if offset != end {
            report.note(name, end, "bytes that the catalog does not name");
        }
        end = offset + extent.total_bytes();
        if end > pack.len() as u64 {
            report.note(name, offset, "the pack ends before this record does");
            continue;
        }
        check_record(name, pack, extent, report);
    }
    if end < pack.len() as u64 {
        report.note(name, end, "bytes that the catalog does not name");
    }
}

fn check_record(name: ObjectName, pack: &[u8], extent: &Extent, report: &mut FarVerifyReport) {
    let offset = extent.location.offset;
    let header = match RecordHeader::decode(bytes_at(pack, offset, extent.total_bytes())) {
        Ok(header) => header,
        Err(error) => return report.note(name, offset, describe_header(error)),
    };
    if header.store != name.writer.store {
        return report.note(name, offset, "the record's header names another store");
    }
    if header.extent().as_ref() != Some(extent) {
        return report.note(name, offset, "the record's header differs from the catalog");
    }
    report.contents.extents += 1;
    report.contents.blocks += u64::from(extent.block_count());
    let RecordKind::Extent { slice_crcs, units, .. } = &header.kind else { return };
    report.contents.slices += slice_crcs.len() as u64;
    if let Some(units) = units {
        let read = &mut |offset: u64, len: usize| {
            let bytes = usize::try_from(offset).ok().and_then(|at| pack.get(at..at + len));
            bytes.map(<[u8]>::to_vec).ok_or_else(|| "the pack ends before it".to_owned())
        };
        let note = &mut |offset, what: String| report.note(name, offset, what);
        return check_units(extent, slice_crcs, units, read, note);
    }
    check_slices(name, pack, extent, slice_crcs, report);
}

/// Compares each slice with its checksum. Notes the first damaged one of each layer.
fn check_slices(
    name: ObjectName,
    pack: &[u8],
    extent: &Extent,
    slice_crcs: &[u32],
    report: &mut FarVerifyReport,
) {
    let slice_bytes = u64::from(extent.layout.slice_bytes());
    let rows = slice_crcs.chunks_exact(extent.hashes.len());
    for (layer, crcs) in (0_u32..).zip(rows) {
        let differs = |(block, crc): &(u32, &u32)| {
            let bytes = bytes_at(pack, extent.slice_offset(layer, *block), slice_bytes);
            dalsegno_core::crc32c(bytes) != **crc
        };
        if let Some((block, _)) = (0_u32..).zip(crcs).find(differs) {
            let what = format!("layer {layer} of block {block}: checksum differs");
            report.note(name, extent.slice_offset(layer, block), what);
        }
        let used = slice_bytes * crcs.len() as u64;
        let padding = extent.layer_stride_bytes() - used;
        let at = extent.slice_offset(layer, 0) + used;
        if !all_zero(bytes_at(pack, at, padding)) {
            report.note(name, at, "padding is not zero");
        }
    }
}

/// Bytes of a record that is inside the pack.
fn bytes_at(pack: &[u8], offset: u64, len: u64) -> &[u8] {
    let at = usize::try_from(offset).expect("a pack is in memory");
    &pack[at..at + usize::try_from(len).expect("a pack is in memory")]
}

fn describe_header(error: FormatError) -> String {
    match error {
        FormatError::Newer(_) => describe_error(&error),
        error => format!("the record's header is not valid: {error}"),
    }
}
