//! The log's decoders: headers, units, checkpoints.

use dalsegno_extent::UnitCodec;
use dalsegno_extent::format::{
    NamespaceSector, RecordHeader, SegmentHeader, SegmentList, StoreHeader,
};
use dalsegno_log::fuzzing;

use crate::seal::{SECTOR, seal_record, seal_sector, sectors};

const RECORD_MAGIC: &[u8; 8] = b"DSGNRECD";
/// Offset of the checksum of a segment list's entries.
const LIST_CRC_AT: usize = 40;
/// Most bytes of a unit.
const MOST_UNIT_BYTES: usize = 128 << 10;

/// A record's header, with the right magic number and checksum.
pub(crate) fn record(input: &[u8]) {
    let mut bytes = RECORD_MAGIC.to_vec();
    bytes.extend_from_slice(input);
    let header_bytes = RecordHeader::peek_bytes(&bytes).unwrap_or(0) as usize;
    // Zeros follow an input that is too short.
    bytes.resize(bytes.len().max(header_bytes).next_multiple_of(SECTOR), 0);
    let sealed = seal_record(&mut bytes);
    if let Ok(header) = RecordHeader::decode(&bytes) {
        let length = sealed.expect("it decodes");
        let mut again = vec![0; header.header_bytes() as usize];
        header.encode(&mut again);
        assert!(again == bytes[..length], "another header");
        let extent = header.extent();
        assert!(extent.is_none_or(|extent| !extent.hashes.is_empty()), "an extent has blocks");
        let _ = (header.payload_bytes(), header.units());
    }
    let _ = RecordHeader::decode(input);
}

/// The headers of one sector: a store's, a segment's.
pub(crate) fn sector(input: &[u8]) {
    let mut again = [0; SECTOR];
    let mut bytes = sectors(input);
    for magic in [b"DSGNSTOR", b"DSGNSEGM"] {
        bytes[..8].copy_from_slice(magic);
        seal_sector(&mut bytes);
        let decoded = match magic {
            b"DSGNSTOR" => StoreHeader::decode(&bytes).map(|header| header.encode(&mut again)),
            _ => SegmentHeader::decode(&bytes).map(|header| header.encode(&mut again)),
        };
        assert!(decoded.is_err() || again == bytes[..SECTOR], "another header");
    }
    let _ = (StoreHeader::decode(input), SegmentHeader::decode(input));
}

/// A namespace descriptor.
pub(crate) fn namespace(input: &[u8]) {
    let mut bytes = sectors(input);
    bytes[..8].copy_from_slice(b"DSGNNAME");
    seal_sector(&mut bytes);
    if let Ok(descriptor) = NamespaceSector::decode(&bytes) {
        let mut again = [0; SECTOR];
        assert!(descriptor.encode(&mut again), "a decoded descriptor fits into a sector");
        assert!(again == bytes[..SECTOR], "another descriptor");
    }
    let _ = NamespaceSector::decode(input);
}

/// The segment list, whose header has the right magic number and checksums.
pub(crate) fn list(input: &[u8]) {
    let mut bytes = sectors(input);
    bytes[..8].copy_from_slice(b"DSGNLIST");
    let body_crc = dalsegno_core::crc32c(&bytes[SECTOR..]);
    bytes[LIST_CRC_AT..][..4].copy_from_slice(&body_crc.to_le_bytes());
    seal_sector(&mut bytes);
    if let Ok(list) = SegmentList::decode(&bytes) {
        assert!(list.encode() == bytes, "another list");
    }
    let _ = SegmentList::decode(input);
}

/// A unit of a compressed extent: one byte for the width of an element, three for the raw length, then the stored
/// bytes.
pub(crate) fn unit(input: &[u8]) {
    let Some((&[width, low, middle, high], stored)) = input.split_first_chunk::<4>() else {
        return;
    };
    let width = usize::from(width % 8) + 1;
    let raw_bytes = usize::from(low) | usize::from(middle) << 8 | usize::from(high & 1) << 16;
    let mut codec = UnitCodec::new();
    let _ = codec.decode(stored, width, &mut vec![0; raw_bytes.min(MOST_UNIT_BYTES)]);
    if !stored.is_empty() {
        let (mut compressed, mut raw) = (Vec::new(), vec![0; stored.len()]);
        codec.encode(stored, width, &mut compressed);
        assert!(compressed.len() <= stored.len(), "it grew");
        assert!(codec.decode(&compressed, width, &mut raw).is_ok(), "it is not decodable");
        assert!(raw == stored, "it is not lossless");
    }
}

/// A checkpoint of the log, which an index keeps.
pub(crate) fn checkpoint(input: &[u8]) {
    if let Some(again) = fuzzing::recode_checkpoint(input) {
        // A flag is one byte of eight, so only the second encoding is canonical.
        assert_eq!(again.len(), input.len());
        assert!(fuzzing::recode_checkpoint(&again).as_deref() == Some(&again[..]));
    }
}
