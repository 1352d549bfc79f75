//! Storing blocks.
//!
//! | module | what it does |
//! |---|---|
//! | `writer` | the calls |
//! | `report` | how the blocks of a put ended |
//! | `plan` | which blocks are written |
//! | `pool_only` | keeps the blocks of a put in DRAM only |
//! | `group` | writes the extents of a put together |
//! | `publish` | the two ends of a write in the index |
//! | `pending` | blocks that a put is writing |
//! | `stretch` | the runs of blocks that become one extent each |

pub(crate) mod group;
pub(crate) mod pending;
pub(crate) mod plan;
mod pool_only;
pub(crate) mod publish;
pub(crate) mod report;
pub(crate) mod stretch;
pub(crate) mod writer;
