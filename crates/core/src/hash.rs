//! Fixed-width names: chain hashes, namespace ids, store ids.

use std::fmt;

use thiserror::Error;

/// Text that is not the hexadecimal form of a name.
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

            /// The name as lower-case hexadecimal digits.
            #[must_use]
            pub fn to_hex(self) -> String {
                to_hex(&self.0)
            }

            /// Reads the form that [`Self::to_hex`] writes.
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
    /// The name of a block: a collision-resistant hash over the namespace's tokens up to and including it.
    ///
    /// A block is accepted only when all 32 bytes are equal.
    ChainHash, 32
);
fixed_name!(
    /// Who may share bytes: the first 16 bytes of the SHA-256 of a namespace's fields.
    NamespaceId, 16
);
fixed_name!(
    /// A random name given to a store when it is created; every header carries it, so that bytes of another store
    /// that reach our files are never taken for ours.
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
