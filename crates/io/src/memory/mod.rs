//! Memory of four kinds.
//!
//! | module | what it holds | lifetime |
//! |---|---|---|
//! | `handle` | [`Memory`]: exclusive access to a range of bytes, whatever owns them | one request |
//! | `buffer_pool` | aligned staging buffers for I/O, populated when the pool is created | one request |
//! | `block_frames` | blocks of the DRAM tier, populated when a frame is first used | until evicted |
//! | `page_alloc` | large vectors of the on-disk index, each in its own mapping | until dropped |
//!
//! The pool and the frames each divide one fixed `mapping`. The page allocator maps and unmaps on demand.

mod block_frames;
mod buffer_pool;
mod handle;
mod mapping;
mod page_alloc;

pub use self::block_frames::{BlockFrames, FilledFrames, ReservedFrames};
pub use self::buffer_pool::BufferPool;
pub use self::handle::{Lender, Memory, lend};
pub use self::page_alloc::{PageAllocator, PageBuffer, PageVec};
