//! Memory of all kinds.
//!
//! | module | what it holds | lifetime |
//! |---|---|---|
//! | `handle` | [`Memory`]: exclusive access to a range of bytes, whatever owns them | one request |
//! | `region` | [`Region`]: one mapping, private or shared between processes | its users' |
//! | `mapping` | [`Mapping`]: what a region unmaps, or hands to its keeper | its region's, or longer |
//! | `claim` | [`Claim`] and [`Filled`]: a range of a region while it is written, and afterwards | a block's place |
//! | `counters` | [`Counters`]: numbers in a shared region, written here and read elsewhere | until dropped |
//! | `sealed` | [`SealedFile`]: memory of another process, read and never mapped | until dropped |
//! | `shared` | regions that other processes map, provided in parts | as their region |
//! | `huge_pages` | huge pages for the files behind shared regions | as their region |
//! | `buffer_pool` | aligned staging buffers for I/O, populated when the pool is created | one request |
//! | `paged` | [`PagedMemory`] and [`PagedBlocks`]: the KV cache of an engine | until dropped |
//! | `page_slice` | [`PageSlice`]: one layer of one block there, in memory or on a device | one copy |
//! | `copies` | [`Copier`]: what copies between them and places | one batch |
//! | `page_alloc` | large vectors of the on-disk index, each in its own mapping | until dropped |
//!
//! The buffer pool and the arena of blocks each divide one region. The page allocator maps and unmaps on demand.

mod available;
mod backing;
mod buffer_pool;
mod claim;
mod copies;
mod counters;
mod handle;
mod huge_pages;
mod lent;
mod mapping;
mod page_alloc;
mod page_shape;
mod page_slice;
mod paged;
mod region;
mod sealed;
mod shared;

pub use self::backing::Backing;
pub use self::buffer_pool::BufferPool;
pub use self::claim::{Claim, Filled};
pub use self::copies::{Copier, CopyBatch, CopyDone, CopyMark, CopySource, SliceCopy, copy_all};
pub use self::counters::Counters;
pub use self::handle::{Lender, Memory, RegionId, RegionRange, copy_pieces, lend};
pub use self::mapping::{Mapping, MappingKeeper};
pub use self::page_alloc::{PageAllocator, PageBuffer, PageVec};
pub use self::page_shape::{PagePart, PageShape};
pub use self::page_slice::{DevicePiece, DeviceSlice, PageSlice, StreamPoint};
pub use self::paged::{PagedBlocks, PagedMemory};
pub use self::region::{Access, Region, Touch};
pub use self::sealed::SealedFile;
