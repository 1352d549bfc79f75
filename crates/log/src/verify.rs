//! The offline check: every byte that is stored is read and compared with its checksum.
//!
//! 1. Nothing is written, nothing is repaired.
//! 2. Every stored byte is covered: headers by their crc, payload by the slices' crcs, padding by being zero.

use std::sync::Arc;

use dalsegno_core::{Clock, Extent, SECTOR_BYTES};
use dalsegno_io::{BufferPool, Device, DirEntry, FileId, OpenMode, Operation, share_work};
use parking_lot::Mutex;

use crate::call::Call;
use crate::error::LogError;
use crate::format::{
    FormatError, ListedSegment, NamespaceSector, RecordHeader, RecordKind, STORE_FILE, all_zero,
    namespace_of_file, segment_number,
};
use crate::log::Core;
use crate::recover::read_segment_header;
use crate::scan::scan_records;
use crate::verify_list::{list_of, note_lost_records, note_missing};
use crate::verify_units::verify_units;

/// Threads that check segments.
const THREADS: u32 = 2;

/// One thing that is not as it should be.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Finding {
    /// The file.
    pub file: String,
    /// Byte offset in it.
    pub offset: u64,
    /// What is wrong there.
    pub what: String,
}

/// What a check saw.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct VerifyReport {
    /// Segment files read.
    pub segments: u64,
    /// Extents whose header is valid.
    pub extents: u64,
    /// Blocks in them.
    pub blocks: u64,
    /// Slices whose checksum was compared.
    pub slices: u64,
    /// Bytes read.
    pub bytes: u64,
    /// What is wrong, sorted by place; empty for a healthy store.
    pub findings: Vec<Finding>,
}

/// Checks a store that nobody has open. `progress` hears the bytes of segment files done so far and in all.
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
    let core = offline_core(device, clock, pool, &mut report)?;
    let entries = core.device.list()?;
    for entry in &entries {
        if let Some(id) = namespace_of_file(&entry.name) {
            let decoded = crate::meta::read_sector(&core, &entry.name)
                .map_err(|error| error.to_string())
                .and_then(|sector| {
                    NamespaceSector::decode(&sector).map_err(|error| error.to_string())
                });
            match decoded {
                Ok(NamespaceSector(found, _)) if found.id() == id && entry.bytes == 4096 => {}
                Ok(_) => report.note(&entry.name, 0, "the descriptor is not the one its name says"),
                Err(error) => report.note(&entry.name, 0, error),
            }
        }
    }
    let segments: Vec<_> =
        entries.iter().filter_map(|entry| Some((segment_number(&entry.name)?, entry))).collect();
    let list = list_of(&core, &mut report);
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
            let part = verify_segment(&core, number, entry, listed);
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

/// A core that only reads.
pub(crate) fn offline_core(
    device: Arc<dyn Device>,
    clock: Arc<dyn Clock>,
    pool: BufferPool,
    report: &mut VerifyReport,
) -> Result<Core, LogError> {
    let mut core = Core::offline(device, clock, pool);
    let header = crate::meta::decode_store_header(&core);
    let header = match header {
        Ok(header) => header,
        Err(FormatError::Newer(version)) => {
            let source = FormatError::Newer(version);
            return Err(LogError::Format { file: STORE_FILE.to_owned(), source });
        }
        Err(damage) => {
            report.note(STORE_FILE, 0, damage);
            let found = crate::meta::header_of_segments(&core)?;
            found.ok_or(LogError::Format { file: STORE_FILE.to_owned(), source: damage })?
        }
    };
    core.store = header.store;
    core.options.segment_bytes = header.segment_bytes;
    Ok(core)
}

fn verify_segment(
    core: &Core,
    number: u64,
    entry: &DirEntry,
    listed: Option<&ListedSegment>,
) -> VerifyReport {
    let (name, file_bytes) = (entry.name.as_str(), entry.bytes);
    let mut report = VerifyReport { segments: 1, ..VerifyReport::default() };
    if file_bytes != core.options.segment_bytes {
        let expected = core.options.segment_bytes;
        report.note(
            name,
            file_bytes,
            format!("the file has {file_bytes} bytes, expected {expected}"),
        );
    }
    let opened = match core.device.open(name, OpenMode::Read) {
        Ok(opened) => opened,
        Err(error) => {
            report.note(name, 0, error);
            return report;
        }
    };
    match read_segment_header(core, number, opened.file, file_bytes) {
        // What a crash left of creating a segment; the next open removes it.
        Err(FormatError::Unfinished) if listed.is_none() => {}
        Err(FormatError::Unfinished) => report.note(name, 0, "the segment's header is gone"),
        Err(error) => report.note(name, 0, error),
        // A crash came while it was recycled: no extent counts any more.
        Ok(header) if header.carrying => {}
        Ok(header) => {
            let scan = scan_records(core, opened.file, &header, SECTOR_BYTES..file_bytes);
            // What a cut file lost is reported with the cut.
            let is_whole = file_bytes == core.options.segment_bytes;
            if let Some(listed) = listed.filter(|_| is_whole) {
                note_lost_records(listed, (name, &header), &scan, &mut report);
            }
            for (offset, error) in scan.damage {
                report.note(name, offset, error);
            }
            for record in &scan.records {
                verify_record(core, opened.file, name, record, &mut report);
            }
        }
    }
    core.device.close(opened.file);
    report
}

fn verify_record(
    core: &Core,
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
        let payload = (&extent, slice_crcs.as_slice(), units);
        verify_units(core, file, payload, &mut |offset, what| report.note(name, offset, what));
        return;
    }
    let rows = slice_crcs.chunks_exact(extent.hashes.len());
    for (layer, crcs) in (0_u32..).zip(rows) {
        if let Err((offset, what)) = verify_row(core, file, &extent, layer, crcs) {
            report.note(name, offset, what);
        }
        report.slices += crcs.len() as u64;
        report.bytes += extent.layer_stride_bytes();
    }
}

/// Reads one layer's row front to back, summing slice after slice.
fn verify_row(
    core: &Core,
    file: FileId,
    extent: &Extent,
    layer: u32,
    crcs: &[u32],
) -> Result<(), (u64, String)> {
    let start = extent.slice_offset(layer, 0);
    let end = start + extent.layer_stride_bytes();
    let slice_bytes = extent.layout.slice_bytes() as usize;
    let mut buffer = vec![0; core.pool.largest()];
    let (mut offset, mut crc, mut summed, mut index) = (start, 0, 0, 0);
    while offset < end {
        let len =
            usize::try_from((end - offset).min(buffer.len() as u64)).expect("64-bit addresses");
        let bytes = &mut buffer[..len];
        core.transfer(Operation::Read, file, offset, bytes, &Call::background())
            .map_err(|error| (offset, error.to_string()))?;
        let mut rest = &bytes[..];
        while index < crcs.len() && !rest.is_empty() {
            let take = rest.len().min(slice_bytes - summed);
            crc = crc32c::crc32c_append(crc, &rest[..take]);
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

impl VerifyReport {
    pub(crate) fn note(&mut self, file: &str, offset: u64, what: impl std::fmt::Display) {
        self.findings.push(Finding { file: file.to_owned(), offset, what: what.to_string() });
    }

    fn merge(&mut self, part: Self) {
        self.segments += part.segments;
        self.extents += part.extents;
        self.blocks += part.blocks;
        self.slices += part.slices;
        self.bytes += part.bytes;
        self.findings.extend(part.findings);
    }
}
