//! Reads a record as it is stored, header and payload, to write it elsewhere.
//!
//! 1. The device reads into the memory of the copy. Nothing is decompressed and nothing is copied.
//! 2. Every checksum is compared, so a copy never spreads damaged bytes.

use dalsegno_core::{Class, Extent, StoreId};
use dalsegno_io::{Call, Claim, Memory, Operation, Purpose, Request};

use crate::compress::is_whole;
use crate::error::Cause;
use crate::format::{RecordHeader, RecordKind};
use crate::transfer::{PinnedFile, Pump, SourceIo};

/// Memory for records, page-aligned.
#[derive(Debug)]
pub struct RecordMemory {
    /// `None` if a device may still write to it.
    claim: Option<Claim>,
}

impl RecordMemory {
    /// Memory in a claim whose start is a multiple of the page.
    #[must_use]
    pub fn new(claim: Claim) -> Self {
        Self { claim: Some(claim) }
    }

    /// Whether it can be used. Otherwise a device may still write to it, and it must be dropped.
    #[must_use]
    pub fn is_usable(&self) -> bool {
        self.claim.is_some()
    }

    /// Whether nobody has it, so that it can be used for another purpose.
    #[must_use]
    pub fn is_free(&mut self) -> bool {
        self.claim.as_mut().is_some_and(Claim::is_alone)
    }

    /// All of it, for writing.
    ///
    /// # Panics
    ///
    /// If it is not usable, or an earlier memory still exists.
    #[must_use]
    pub fn memory(&mut self) -> Memory {
        self.claim.as_mut().expect("no device writes to it").memory()
    }

    /// Reads the record of `extent` to the byte `at`, a multiple of the sector, and verifies all of it. Returns its
    /// header.
    ///
    /// # Errors
    ///
    /// Why the bytes are not a whole copy. If the device is too slow, the memory is not usable afterwards.
    ///
    /// # Panics
    ///
    /// If the record does not fit.
    pub fn read(
        &mut self,
        io: &SourceIo,
        pinned: &PinnedFile,
        store: StoreId,
        extent: &Extent,
        at: usize,
    ) -> Result<RecordHeader, Cause> {
        let bytes = usize::try_from(extent.total_bytes()).expect("64-bit addresses");
        let mut memory = self.memory();
        drop(memory.split_to(at));
        let read = fill(io, pinned, extent.location.offset, memory.split_to(bytes));
        drop(memory);
        match read {
            Filling::Whole => {}
            Filling::Failed(cause) => return Err(cause),
            Filling::Late(cause) => {
                self.claim = None;
                return Err(cause);
            }
        }
        let memory = self.memory();
        let record = &memory.as_slice()[at..at + bytes];
        let header = RecordHeader::decode(record).map_err(Cause::of_format)?;
        if header.store != store || header.extent().as_ref() != Some(extent) {
            return Err(Cause::WrongPlace);
        }
        check_payload(extent, &header, &record[extent.location.header_bytes as usize..])?;
        Ok(header)
    }
}

/// How reading into memory ended.
enum Filling {
    Whole,
    Failed(Cause),
    /// The device may still write to the memory.
    Late(Cause),
}

/// Reads bytes of a file.
fn fill(io: &SourceIo, pinned: &PinnedFile, mut offset: u64, mut memory: Memory) -> Filling {
    // Large, and nobody waits for it.
    let call = Call { purpose: Purpose::of(Class::Upkeep), ..io.own_call() };
    let limit = usize::try_from(io.bounds.request_bytes).expect("64-bit addresses");
    let mut pump = Pump::new(io, &call);
    let mut failed = None;
    while !memory.is_empty() || !pump.is_idle() {
        if !memory.is_empty() && pump.can_submit() {
            let piece = memory.split_to(memory.len().min(limit));
            let next = offset + piece.len() as u64;
            let request = pump.request(Operation::Read, pinned.file, offset, vec![piece]);
            pump.submit(Request { guard: Some(pinned.guard.clone()), ..request });
            offset = next;
            continue;
        }
        match pump.next() {
            Ok(completion) => failed = failed.or(completion.result.err()),
            Err(stopped) => return Filling::Late(stopped.into()),
        }
    }
    failed.map_or(Filling::Whole, |error| Filling::Failed(Cause::of_io(&error)))
}

/// Compares the payload of an extent with the checksums in its header.
fn check_payload(extent: &Extent, header: &RecordHeader, payload: &[u8]) -> Result<(), Cause> {
    let RecordKind::Extent { slice_crcs, units, .. } = &header.kind else {
        return Err(Cause::WrongPlace);
    };
    if let Some(units) = units {
        return if is_whole(units, payload) { Ok(()) } else { Err(Cause::Codec) };
    }
    let start = extent.location.offset + u64::from(extent.location.header_bytes);
    let slice_bytes = extent.layout.slice_bytes() as usize;
    let mut crcs = slice_crcs.iter();
    for layer in 0..extent.layout.layers() {
        for block in 0..extent.block_count() {
            let at = usize::try_from(extent.slice_offset(layer, block) - start);
            let at = at.expect("within the payload");
            let crc = crcs.next().expect("one for each slice");
            if dalsegno_core::crc32c(&payload[at..at + slice_bytes]) != *crc {
                return Err(Cause::SliceChecksum);
            }
        }
    }
    Ok(())
}
