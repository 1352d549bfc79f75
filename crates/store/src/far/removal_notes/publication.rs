//! How the publication of a removal ends.

/// What became of a removal beyond the blocks that are removed here.
pub(crate) type Publication = std::result::Result<(), Incomplete>;

/// Why a removal is not complete.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Incomplete {
    /// The error of the location.
    #[error("{0}")]
    Unpublished(String),
    /// It is published, but packs do not name it yet.
    #[error("{0}")]
    Unnamed(String),
}
