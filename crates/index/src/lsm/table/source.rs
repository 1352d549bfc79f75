//! Sorted entries, one after the other.

use crate::error::TableError;

/// A position in a sequence of entries with ascending keys.
pub(crate) trait Source {
    /// The key of the current entry; none after the last one.
    fn key(&self) -> Option<&[u8]>;

    /// The value of the current entry.
    fn value(&self) -> &[u8];

    /// Moves to the next entry. After an error there is none.
    fn advance(&mut self) -> Result<(), TableError>;
}

impl<S: Source + ?Sized> Source for Box<S> {
    fn key(&self) -> Option<&[u8]> {
        (**self).key()
    }

    fn value(&self) -> &[u8] {
        (**self).value()
    }

    fn advance(&mut self) -> Result<(), TableError> {
        (**self).advance()
    }
}
