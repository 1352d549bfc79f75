//! Tables: sorted files that are written once and never change.

pub(crate) mod block;
pub(crate) mod block_cache;
pub(crate) mod block_index;
pub(crate) mod filter;
pub(crate) mod footer;
pub(crate) mod iter;
pub(crate) mod read_buffer;
pub(crate) mod read_counts;
pub(crate) mod reader;
pub(crate) mod source;
pub(crate) mod writer;
