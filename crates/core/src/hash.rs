//! Fixed-width identifiers: chain hashes, namespace ids, store ids.

use std::fmt;

use thiserror::Error;

/// Text that is not the hexadecimal form of an identifier.
#[derive(Debug, Error, PartialEq, Eq)]
#[error("{got:?} is not a name of {expected} hexadecimal digits")]
pub struct ParseHexError {
    got: String,
    expected: usize,
}

/// Bytes as lower-case hexadecimal digits.
#[must_use]
pub fn to_hex(bytes: &[u8]) -> String {
    use fmt::Write as _;
    bytes.iter().fold(String::with_capacity(bytes.len() * 2), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

macro_rules! fixed_name {
    ($(#[$doc:meta])* $name:ident, $bytes:literal) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
        pub struct $name(pub [u8; $bytes]);

        impl $name {
            /// Width in bytes.
            pub const BYTES: usize = $bytes;

            /// The identifier as lower-case hexadecimal digits.
            #[must_use]
            pub fn to_hex(self) -> String {
                to_hex(&self.0)
            }

            /// Parses the form that [`Self::to_hex`] writes.
            pub fn from_hex(text: &str) -> Result<Self, ParseHexError> {
                let error = || ParseHexError { got: text.to_owned(), expected: $bytes * 2 };
                let digits = text.as_bytes();
                if digits.len() != $bytes * 2 || !digits.iter().all(u8::is_ascii_hexdigit) {
                    return Err(error());
                }
                let mut bytes = [0; $bytes];
                for (index, byte) in bytes.iter_mut().enumerate() {
                    *byte = u8::from_str_radix(&text[index * 2..index * 2 + 2], 16)
                        .map_err(|_| error())?;
                }
                Ok(Self(bytes))
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.to_hex())
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.to_hex())
            }
        }
    };
}

fixed_name!(
    /// The identity of a block: a collision-resistant hash of the namespace's tokens up to and including the block.
    ///
    /// A block matches only if all 32 bytes are equal.
    ChainHash, 32
);
fixed_name!(
    /// The identity of a namespace: the first 16 bytes of the SHA-256 of its fields.
    NamespaceId, 16
);
fixed_name!(
    /// A random identifier that a store gets when it is created. Every header carries it, so that bytes of another
    /// store in our files are never accepted.
    StoreId, 16
);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hex_round_trips_and_rejects_what_is_not_hex() {
        let hash = ChainHash(std::array::from_fn(|i| u8::try_from(i * 7).unwrap()));
        assert_eq!(ChainHash::from_hex(&hash.to_hex()), Ok(hash));
        assert!(NamespaceId::from_hex("zz").is_err());
        assert!(NamespaceId::from_hex(&"é".repeat(16)).is_err());
    }
}
