//! Writing extents again: to free space, and to merge small ones.
//!
//! | module | what it does |
//! |---|---|
//! | `space` | the lane in which space is freed |
//! | `reclaimer` | which segment is recycled, which extents move, which are evicted |
//! | `relocate` | moves extents out of a segment |
//! | `merge_row` | one merge |
//! | `rows` | neighbours that are written again as one extent |
//! | `copy` | reads stored blocks to write or check them again |

pub(crate) mod copy;
pub(crate) mod merge_row;
pub(crate) mod reclaimer;
pub(crate) mod relocate;
pub(crate) mod rows;
pub(crate) mod space;
