//! How the bytes of new extents are compressed.

use crate::{Error, Result};

/// Largest width of an element, in bytes.
pub const MAX_ELEMENT_BYTES: u32 = 4;
/// Most bytes of a unit before compression. A unit is read in one request, which takes at least 256 KiB.
pub const MAX_UNIT_BYTES: u32 = 128 << 10;
/// Most units in one extent. They keep a header within 256 KiB.
pub const MAX_EXTENT_UNITS: u32 = 8_000;

/// How new extents of a namespace are stored: plain, or compressed without loss.
///
/// Every extent records its own codec, so a namespace may change this at any time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Compression {
    /// Zero for plain.
    element_bytes: u32,
}

impl Compression {
    /// Stores bytes unchanged.
    pub const PLAIN: Self = Self { element_bytes: 0 };

    /// zstd over elements of this width, with the bytes of equal position in the element grouped: 2 for bf16 and fp16,
    /// 4 for fp32, 1 for fp8 and data that is not numbers.
    ///
    /// # Errors
    ///
    /// `Invalid` for another width.
    pub fn zstd(element_bytes: u32) -> Result<Self> {
        if [1, 2, MAX_ELEMENT_BYTES].contains(&element_bytes) {
            return Ok(Self { element_bytes });
        }
        Err(Error::invalid(format!(
            "element_bytes must be 1, 2 or {MAX_ELEMENT_BYTES}, got {element_bytes}"
        )))
    }

    /// Parses the two settings; `codec` is `none` or `zstd`.
    ///
    /// # Errors
    ///
    /// `Invalid` for another codec or width.
    pub fn parse(codec: &str, element_bytes: u32) -> Result<Self> {
        match codec {
            "none" => Ok(Self::PLAIN),
            "zstd" => Self::zstd(element_bytes),
            other => {
                Err(Error::invalid(format!("unknown codec {other:?}; use \"none\" or \"zstd\"")))
            }
        }
    }

    /// Whether bytes are stored unchanged.
    #[must_use]
    pub fn is_plain(self) -> bool {
        self.element_bytes == 0
    }

    /// Width of an element, zero for plain.
    #[must_use]
    pub fn element_bytes(self) -> u32 {
        self.element_bytes
    }

    /// The codec's name.
    #[must_use]
    pub fn name(self) -> &'static str {
        if self.is_plain() { "none" } else { "zstd" }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_codec_is_named_and_a_width_is_checked() {
        assert_eq!(Compression::parse("none", 2).unwrap(), Compression::PLAIN);
        assert_eq!(Compression::parse("zstd", 2).unwrap().element_bytes(), 2);
        assert!(Compression::parse("zstd", 3).unwrap_err().message().contains("1, 2 or 4"));
        assert!(Compression::parse("lz4", 2).unwrap_err().message().contains("\"zstd\""));
    }
}
