//! Work that repeats and that no caller waits for: merging small extents, and checking what is stored.

pub(crate) mod merge_board;
pub(crate) mod merge_walk;
pub(crate) mod merger;
pub(crate) mod scrubber;
