//! Work that no caller waits for, or not to its end.

pub(crate) mod evict;
pub(crate) mod helper;
pub(crate) mod index_care;
pub(crate) mod merge_board;
pub(crate) mod merge_row;
pub(crate) mod merge_walk;
pub(crate) mod merger;
pub(crate) mod relocate;
pub(crate) mod rows;
pub(crate) mod scrubber;
pub(crate) mod space;
pub(crate) mod task_queue;
pub(crate) mod tuner;
