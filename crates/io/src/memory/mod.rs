//! Memory of four kinds.
//!
//! | module | what it holds | how long | who hands it out |
//! |---|---|---|---|
//! | `handle` | [`Memory`]: exclusive access to a range of bytes, whatever they belong to | one request | the owner of the bytes |
//! | `buffer_pool` | staging buffers that the device reads and writes, touched when the pool is made | one request | [`BufferPool`] |
//! | `block_frames` | bytes of blocks in the DRAM tier, touched when a frame is first used | until evicted | [`BlockFrames`] |
//! | `page_alloc` | large vectors of the on-disk index, a mapping each | until dropped | [`PageAllocator`] |
//!
//! The pool and the frames each cut one `mapping`, which never grows. The allocator maps and unmaps on demand.

mod block_frames;
mod buffer_pool;
mod handle;
mod mapping;
mod page_alloc;

pub use self::block_frames::{BlockFrames, FilledFrames, ReservedFrames};
pub use self::buffer_pool::BufferPool;
pub use self::handle::{Lender, Memory, lend};
pub use self::page_alloc::{PageAllocator, PageBuffer, PageVec};
