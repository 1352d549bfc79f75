//! Reading a compressed extent as it is stored, to write it once more elsewhere.
//!
//! 1. Every unit is compared with its checksum; nothing is decoded. The checksums of slices go along, so whoever reads
//!    the copy verifies what was put.

use dalsegno_core::Extent;
use dalsegno_io::{IoError, Memory, Operation};

use crate::call::Call;
use crate::compressed::CompressedExtent;
use crate::error::LogError;
use crate::format::{RecordHeader, RecordKind, Units};
use crate::log::{Core, Log};
use crate::segment::Pin;

/// What direct I/O asks of memory.
const ALIGN: usize = 4096;

impl Log {
    /// A compressed extent as it is stored; `None` if any of it is not as it should be: then it is to be read block by
    /// block. Takes an extent's worth of memory beside every bound, so it is only for the thread that makes room.
    ///
    /// # Errors
    ///
    /// Whatever the device says.
    pub fn read_compressed(&self, extent: &Extent) -> Result<Option<CompressedExtent>, LogError> {
        let core = &self.core;
        let Some(pin) = core.pin(extent.location).filter(|_| extent.is_compressed()) else {
            return Ok(None);
        };
        let mut header = vec![0; extent.location.header_bytes as usize];
        if core.read_range(&pin, extent.location.offset, &mut header).is_err() {
            return Ok(None);
        }
        let Ok(header) = RecordHeader::decode(&header) else { return Ok(None) };
        if header.store != core.store || header.extent().as_ref() != Some(extent) {
            return Ok(None);
        }
        let RecordKind::Extent { slice_crcs, units: Some(units), .. } = header.kind else {
            return Ok(None);
        };
        let bytes = usize::try_from(units.payload_bytes()).expect("64-bit addresses");
        let mut stored = vec![0; bytes + ALIGN];
        let skew = stored.as_ptr().align_offset(ALIGN).min(ALIGN);
        let offset = extent.location.offset + u64::from(extent.location.header_bytes);
        let is_read = core.read_range(&pin, offset, &mut stored[skew..skew + bytes]).is_ok();
        if !is_read || !is_whole(&units, &stored[skew..]) {
            return Ok(None);
        }
        stored.truncate(skew + bytes);
        let mut payload = Memory::owned(stored, ());
        drop(payload.split_to(skew));
        Ok(Some(CompressedExtent { slice_crcs, units, payload }))
    }
}

fn is_whole(units: &Units, stored: &[u8]) -> bool {
    let mut rest = stored;
    units.table.iter().all(|unit| {
        let (bytes, behind) = rest.split_at(unit.bytes as usize);
        rest = behind;
        crc32c::crc32c(bytes) == unit.crc
    })
}

impl Core {
    /// Fills `bytes` from a segment, in as many requests as that takes.
    fn read_range(&self, pin: &Pin, mut offset: u64, bytes: &mut [u8]) -> Result<(), IoError> {
        for part in bytes.chunks_mut(self.pool.largest()) {
            let call = Call::background();
            self.transfer(Operation::Read, pin.segment.file, offset, part, &call)?;
            offset += part.len() as u64;
        }
        Ok(())
    }
}
