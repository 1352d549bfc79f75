//! LEB128: seven bits a byte, lowest first.

/// Appends a number.
pub(crate) fn put(out: &mut Vec<u8>, mut number: u64) {
    while number >= 0x80 {
        #[expect(clippy::cast_possible_truncation, reason = "the lowest seven bits")]
        out.push(number as u8 | 0x80);
        number >>= 7;
    }
    #[expect(clippy::cast_possible_truncation, reason = "below 128")]
    out.push(number as u8);
}

/// Bytes that [`put`] appends.
pub(crate) fn bytes_of(number: u64) -> usize {
    (64 - (number | 1).leading_zeros()).div_ceil(7) as usize
}

/// Takes a number off the front; `None` if there is none, or if its encoding is longer than needed.
#[inline]
pub(crate) fn take(reader: &mut &[u8]) -> Option<u64> {
    match reader.split_first()? {
        // Nearly all lengths in blocks are below 128. Lookups spend their time here.
        (byte, rest) if *byte < 0x80 => {
            *reader = rest;
            Some(u64::from(*byte))
        }
        _ => take_long(reader),
    }
}

fn take_long(reader: &mut &[u8]) -> Option<u64> {
    let mut number = 0_u64;
    for (index, byte) in reader.iter().enumerate().take(10) {
        let bits = u64::from(byte & 0x7f);
        // The tenth byte holds one bit.
        if index == 9 && bits > 1 {
            return None;
        }
        number |= bits << (7 * index);
        if byte & 0x80 == 0 {
            if *byte == 0 && index > 0 {
                return None;
            }
            *reader = &reader[index + 1..];
            return Some(number);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_round_trip_in_their_only_form() {
        for number in [0, 1, 127, 128, 300, u64::from(u32::MAX), u64::MAX - 1, u64::MAX] {
            let mut bytes = Vec::new();
            put(&mut bytes, number);
            assert_eq!(bytes.len(), bytes_of(number));
            bytes.push(9);
            let mut reader = &bytes[..];
            assert_eq!((take(&mut reader), reader), (Some(number), &[9][..]));
            assert_eq!(take(&mut &bytes[..bytes.len() - 2]), None);
        }
        let too_long: [&[u8]; 3] = [&[0x80, 0], &[0xff; 10], &[0xff; 11]];
        assert!(too_long.iter().all(|bytes| take(&mut &bytes[..]).is_none()));
    }
}
