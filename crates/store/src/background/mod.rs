//! Work that no caller waits for, or not to its end.

pub(crate) mod copy;
pub(crate) mod evict;
pub(crate) mod merge_board;
pub(crate) mod merge_row;
pub(crate) mod merge_walk;
pub(crate) mod merger;
pub(crate) mod relocate;
pub(crate) mod rows;
pub(crate) mod scrubber;
pub(crate) mod space;
