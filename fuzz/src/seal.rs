//! Makes checksums valid again, so that inputs reach the code behind them.

use dalsegno_extent::format::RecordHeader;

pub(crate) const SECTOR: usize = 4096;
/// Offsets of the checksums of a record header and of a filter.
const RECORD_CRC_AT: usize = 76;
const FILTER_CRC_AT: usize = 24;
const FILTER_HEADER_BYTES: usize = 64;

/// The input, extended with zeros to whole sectors, at least one.
pub(crate) fn sectors(input: &[u8]) -> Vec<u8> {
    let mut bytes = input.to_vec();
    bytes.resize(input.len().next_multiple_of(SECTOR).max(SECTOR), 0);
    bytes
}

/// A sector whose last four bytes are the checksum of the others.
pub(crate) fn seal_sector(sector: &mut [u8]) {
    if let Some((body, crc)) = sector.get_mut(..SECTOR).and_then(<[u8]>::split_last_chunk_mut::<4>)
    {
        *crc = dalsegno_core::crc32c(body).to_le_bytes();
    }
}

/// A record header, whose first sector says its length. Returns that length if it looks like one.
pub(crate) fn seal_record(bytes: &mut [u8]) -> Option<usize> {
    let length = usize::try_from(RecordHeader::peek_bytes(bytes).ok()?).ok()?;
    let header = bytes.get_mut(..length)?;
    header[RECORD_CRC_AT..][..4].fill(0);
    let crc = dalsegno_core::crc32c(header);
    header[RECORD_CRC_AT..][..4].copy_from_slice(&crc.to_le_bytes());
    Some(length)
}

/// A segment: its header, and the records that follow each other in whole sectors.
pub(crate) fn seal_segment(bytes: &mut [u8]) {
    seal_sector(bytes);
    let mut at = SECTOR;
    while at < bytes.len() {
        at += seal_record(&mut bytes[at..]).unwrap_or(SECTOR);
    }
}

/// The checksum of the bytes at a sector of a table.
pub(crate) fn place_crc(table: u64, sector: u64, parts: &[&[u8]]) -> u32 {
    let own = dalsegno_core::crc32c(&table.to_le_bytes());
    let own = dalsegno_core::crc32c_append(own, &sector.to_le_bytes());
    parts.iter().fold(own, |crc, part| dalsegno_core::crc32c_append(crc, part))
}

/// A block of a table.
pub(crate) fn seal_block(bytes: &mut [u8], table: u64, sector: u64) {
    if let Some((body, crc)) = bytes.split_last_chunk_mut::<4>() {
        *crc = place_crc(table, sector, &[body]).to_le_bytes();
    }
}

/// The filter of a table, whose header says its length.
pub(crate) fn seal_filter(bytes: &mut [u8], table: u64, sector: u64) {
    let Some(lines) = bytes.get(8..).and_then(<[u8]>::first_chunk::<4>) else { return };
    let line_bytes = u32::from_le_bytes(*lines) as usize * 64;
    let Some((head, lines)) = bytes.split_at_mut_checked(FILTER_HEADER_BYTES) else { return };
    let Some(lines) = lines.get(..line_bytes) else { return };
    let crc = place_crc(table, sector, &[&head[..FILTER_CRC_AT], lines]);
    head[FILTER_CRC_AT..][..4].copy_from_slice(&crc.to_le_bytes());
}

/// A table: footer, filter, index and blocks, as far as the footer and the sizes in `block_sectors` refer to them.
pub(crate) fn seal_table(bytes: &mut [u8], table: u64, block_sectors: &[usize]) {
    let Some(footer_at) = bytes.len().checked_sub(SECTOR) else { return };
    seal_sector(&mut bytes[footer_at..]);
    let field = |at: usize| {
        let bytes = bytes[footer_at + at..].first_chunk().expect("inside of the sector");
        usize::try_from(u64::from_le_bytes(*bytes)).unwrap_or(usize::MAX)
    };
    let (filter_at, index_at) = (field(64), field(72));
    let mut from = 0;
    for sectors in block_sectors {
        let to = from + sectors * SECTOR;
        if let Some(block) = bytes.get_mut(from..to) {
            seal_block(block, table, (from / SECTOR) as u64);
        }
        from = to;
    }
    if let Some(filter) = bytes.get_mut(filter_at..index_at) {
        seal_filter(filter, table, (filter_at / SECTOR) as u64);
    }
    if let Some(index) = bytes.get_mut(index_at..footer_at) {
        seal_block(index, table, (index_at / SECTOR) as u64);
    }
}

/// A manifest: the body's checksum, then the header's.
pub(crate) fn seal_manifest(bytes: &mut [u8]) {
    let Some((header, body)) = bytes.split_at_mut_checked(SECTOR) else { return };
    let length = u64::from_le_bytes(*header[48..].first_chunk().expect("inside of the sector"));
    let length = usize::try_from(length).unwrap_or(usize::MAX);
    if let Some(body) = body.get(..length) {
        header[SECTOR - 8..SECTOR - 4].copy_from_slice(&dalsegno_core::crc32c(body).to_le_bytes());
    }
    seal_sector(header);
}
