//! The offline check: reads every stored byte and compares it with its checksum.
//!
//! 1. The check writes nothing and repairs nothing.
//! 2. It checks every stored byte: headers by their checksum, payload by the slices' checksums, padding by being zero.

use std::sync::Arc;

use dalsegno_core::{Class, Clock, Extent, SECTOR_BYTES};
use dalsegno_extent::format::{
    FormatError, ListedSegment, NamespaceSector, RecordHeader, RecordKind, all_zero,
    namespace_of_file, segment_number,
};
use dalsegno_extent::offline::check_units;
use dalsegno_extent::{read_at, read_first_sector};
use dalsegno_io::{BufferPool, Call, Device, DirEntry, FileId, OpenMode, share_work};
use parking_lot::Mutex;

use super::offline_store::OfflineStore;
use super::report::VerifyReport;
use super::verify_list::{list_of, note_lost_records, note_missing};
use crate::error::LogError;
use crate::recovery::read_segment_header;
use crate::scan::scan_records;

/// Threads that check segments.
const THREADS: u32 = 2;

/// Checks a store that nobody has open. `progress` gets the bytes of segment files checked so far, and of all files.
///
/// # Errors
///
/// [`LogError::Format`] if a newer Dalsegno wrote the store or there is no store; [`LogError::Io`] if its directory
/// cannot be read. Everything else is a finding.
pub fn verify(
    device: Arc<dyn Device>,
    clock: Arc<dyn Clock>,
    pool: BufferPool,
    progress: &(dyn Fn(u64, u64) + Sync),
) -> Result<VerifyReport, LogError> {
    let mut report = VerifyReport::default();
    let store = OfflineStore::open(device, clock, pool, &mut report)?;
    let entries = store.io.device.list()?;
    for entry in &entries {
        if let Some(id) = namespace_of_file(&entry.name) {
            let decoded = read_first_sector(&store.io, &entry.name)
                .map_err(|error| error.to_string())
                .and_then(|sector| {
                    NamespaceSector::decode(&sector).map_err(|error| error.to_string())
                });
            match decoded {
                Ok(NamespaceSector(found, _)) if found.id() == id && entry.bytes == 4096 => {}
                Ok(_) => {
                    report.note(&entry.name, 0, "the descriptor does not match the file's name");
                }
                Err(error) => report.note(&entry.name, 0, error),
            }
        }
    }
    let segments: Vec<_> =
        entries.iter().filter_map(|entry| Some((segment_number(&entry.name)?, entry))).collect();
    let list = list_of(&store, &mut report);
    if let Some(list) = &list {
        let numbers = segments.iter().map(|(number, _)| *number).collect();
        note_missing(list, &numbers, &mut report);
    }
    let total: u64 = segments.iter().map(|(_, entry)| entry.bytes).sum();
    let shared = Mutex::new((segments.into_iter(), report, 0_u64));
    share_work("dalsegno-verify", THREADS, || {
        loop {
            let Some((number, entry)) = shared.lock().0.next() else { return };
            let listed = list.as_ref().and_then(|list| list.get(number));
            let part = verify_segment(&store, number, entry, listed);
            let mut guard = shared.lock();
            guard.1.merge(part);
            guard.2 += entry.bytes;
            progress(guard.2, total);
        }
    });
    let (_, mut report, _) = shared.into_inner();
    report.findings.sort();
    Ok(report)
}

fn verify_segment(
    store: &OfflineStore,
    number: u64,
    entry: &DirEntry,
    listed: Option<&ListedSegment>,
) -> VerifyReport {
    let (name, file_bytes) = (entry.name.as_str(), entry.bytes);
    let mut report = VerifyReport { segments: 1, ..VerifyReport::default() };
    if file_bytes != store.segment_bytes {
        let expected = store.segment_bytes;
        report.note(
            name,
            file_bytes,
            format!("the file has {file_bytes} bytes, expected {expected}"),
        );
    }
    let opened = match store.io.device.open(name, OpenMode::Read) {
        Ok(opened) => opened,
        Err(error) => {
            report.note(name, 0, error);
            return report;
        }
    };
    match read_segment_header(&store.io, store.identity_of(number), opened.file, file_bytes) {
        // A crash interrupted the creation of the segment. The next open removes it.
        Err(FormatError::Unfinished) if listed.is_none() => {}
        Err(FormatError::Unfinished) => report.note(name, 0, "the segment's header is gone"),
        Err(error) => report.note(name, 0, error),
        // A crash interrupted its recycling: no extent counts any more.
        Ok(header) if header.carrying => {}
        Ok(header) => {
            let scan = scan_records(&store.io, opened.file, &header, SECTOR_BYTES..file_bytes);
            // The loss of a truncated file is reported with the truncation.
            let is_whole = file_bytes == store.segment_bytes;
            if let Some(listed) = listed.filter(|_| is_whole) {
                note_lost_records(name, &header, listed, &scan, &mut report);
            }
            for (offset, error) in scan.damage {
                report.note(name, offset, error);
            }
            for record in &scan.records {
                verify_record(store, opened.file, name, record, &mut report);
            }
        }
    }
    store.io.device.close(opened.file);
    report
}

fn verify_record(
    store: &OfflineStore,
    file: FileId,
    name: &str,
    record: &RecordHeader,
    report: &mut VerifyReport,
) {
    report.bytes += u64::from(record.header_bytes());
    let (Some(extent), RecordKind::Extent { slice_crcs, units, .. }) =
        (record.extent(), &record.kind)
    else {
        return;
    };
    report.extents += 1;
    report.blocks += u64::from(extent.block_count());
    if let Some(units) = units {
        report.slices += slice_crcs.len() as u64;
        report.bytes += extent.payload_bytes();
        let note = &mut |offset, what| report.note(name, offset, what);
        let read = &mut |offset, len| store.read_bytes(file, offset, len);
        check_units(&extent, slice_crcs, units, read, note);
        return;
    }
    let rows = slice_crcs.chunks_exact(extent.hashes.len());
    for (layer, crcs) in (0_u32..).zip(rows) {
        if let Err((offset, what)) = verify_row(store, file, &extent, layer, crcs) {
            report.note(name, offset, what);
        }
        report.slices += crcs.len() as u64;
        report.bytes += extent.layer_stride_bytes();
    }
}

/// Reads one layer's row from front to back, and sums slice after slice.
fn verify_row(
    store: &OfflineStore,
    file: FileId,
    extent: &Extent,
    layer: u32,
    crcs: &[u32],
) -> Result<(), (u64, String)> {
    let start = extent.slice_offset(layer, 0);
    let end = start + extent.layer_stride_bytes();
    let slice_bytes = extent.layout.slice_bytes() as usize;
    let mut buffer = vec![0; store.io.pool.largest()];
    let (mut offset, mut crc, mut summed, mut index) = (start, 0, 0, 0);
    while offset < end {
        let len =
            usize::try_from((end - offset).min(buffer.len() as u64)).expect("64-bit addresses");
        let bytes = &mut buffer[..len];
        read_at(&store.io, file, offset, bytes, &Call::of(Class::Need))
            .map_err(|error| (offset, error.to_string()))?;
        let mut rest = &bytes[..];
        while index < crcs.len() && !rest.is_empty() {
            let take = rest.len().min(slice_bytes - summed);
            crc = dalsegno_core::crc32c_append(crc, &rest[..take]);
            summed += take;
            rest = &rest[take..];
            if summed == slice_bytes {
                if crc != crcs[index] {
                    let at = start + (index * slice_bytes) as u64;
                    return Err((at, format!("layer {layer} of block {index}: checksum differs")));
                }
                (crc, summed, index) = (0, 0, index + 1);
            }
        }
        if index == crcs.len() && !all_zero(rest) {
            return Err((offset + (len - rest.len()) as u64, "padding is not zero".to_owned()));
        }
        offset += len as u64;
    }
    Ok(())
}
