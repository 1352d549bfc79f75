//! CRC-32C, the checksum of everything that we store.

use crc_fast::{CrcAlgorithm, Digest};

/// The CRC-32C of some bytes.
#[must_use]
pub fn crc32c(bytes: &[u8]) -> u32 {
    narrow(crc_fast::checksum(CrcAlgorithm::Crc32Iscsi, bytes))
}

/// The CRC-32C of bytes of which `crc` is that of the first ones, and `more` are the others.
#[must_use]
pub fn crc32c_append(crc: u32, more: &[u8]) -> u32 {
    let mut digest = Digest::new_with_init_state(CrcAlgorithm::Crc32Iscsi, u64::from(!crc));
    digest.update(more);
    narrow(digest.finalize())
}

/// The CRC-32C of bytes of which `crc` is that of the first ones, and `more` is that of the other `count`.
#[must_use]
pub fn crc32c_combine(crc: u32, more: u32, count: u64) -> u32 {
    let (crc, more) = (u64::from(crc), u64::from(more));
    narrow(crc_fast::checksum_combine(CrcAlgorithm::Crc32Iscsi, crc, more, count))
}

fn narrow(crc: u64) -> u32 {
    u32::try_from(crc).expect("it has 32 bits")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_vectors_of_rfc_3720_come_out() {
        let rising: Vec<u8> = (0..32).collect();
        assert_eq!(crc32c(&[0; 32]), 0x8a91_36aa);
        assert_eq!(crc32c(&[0xff; 32]), 0x62a8_ab43);
        assert_eq!(crc32c(&rising), 0x46dd_794e);
        assert_eq!(crc32c(b"123456789"), 0xe306_9283);
        assert_eq!(crc32c(b""), 0);
    }

    #[test]
    fn parts_have_the_checksum_of_the_whole() {
        let bytes: Vec<u8> =
            (0..9000_u32).map(|at| at.wrapping_mul(2_654_435_761).to_le_bytes()[3]).collect();
        for cut in [0, 1, 7, 64, 255, 256, 4096, 8999, 9000] {
            let (first, more) = bytes.split_at(cut);
            assert_eq!(crc32c_append(crc32c(first), more), crc32c(&bytes), "cut at {cut}");
            let combined = crc32c_combine(crc32c(first), crc32c(more), more.len() as u64);
            assert_eq!(combined, crc32c(&bytes), "cut at {cut}");
        }
    }
}
