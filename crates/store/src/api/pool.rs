//! The DRAM tier of a store as a pool: memory that other processes map, and what the server does for them.
//!
//! 1. Only this process writes the pool. What others read is protected by the stamp of its place, whatever this process
//!    does meanwhile.
//! 2. A block of another process is copied into its place once, and written to the log from there. So the bytes that
//!    were checksummed are the bytes that are stored, whatever the other process does meanwhile.

use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::Arc;

use dalsegno_arena::ArenaHeader;
use dalsegno_core::{ChainHash, Config, Error, ErrorKind, NamespaceId, Result};
use dalsegno_index::Scope;
use dalsegno_io::{Backing, Memory, StopSignal};

use crate::api::store::Store;
use crate::keep::Keep;
use crate::lookup::lookups::lookup_limit;
use crate::open::parts::parts_of;
use crate::put::report::PutReport;
use crate::put::writer::HeldPut;
use crate::read::lease::{Acquired, LeasedBlock, acquire};
use crate::state::arena::{Arena, ArenaBacking};
use crate::state::dram::Leaving;
use crate::state::held_block::HeldBlock;
use crate::state::recent_removals::RemovalMark;
use crate::terms::Terms;

/// The memory of a store that other processes map. Clones share it.
#[derive(Clone, Debug)]
pub struct Pool {
    store: Store,
    arena: Arena,
    file: Arc<OwnedFd>,
    header: ArenaHeader,
}

/// A block that another process puts.
#[derive(Debug)]
pub enum PoolBlock {
    /// In its place.
    Placed(LeasedBlock),
    /// In other memory, because no place was free.
    Elsewhere(Memory),
}

/// Blocks that another process puts.
#[derive(Debug)]
pub struct PoolPut<'a> {
    /// Hashes of consecutive blocks of a prompt.
    pub chain: &'a [ChainHash],
    /// The position in `chain` of the first block.
    pub first: usize,
    /// The blocks.
    pub blocks: Vec<PoolBlock>,
    /// Where they are kept.
    pub keep: Keep,
}

/// The moment at which a request of another process arrived. A removal after it also removes the blocks of a put, and
/// blocks that were found for a get.
#[derive(Clone, Copy, Debug)]
pub struct Arrival(RemovalMark);

/// How the memory of a pool is used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PoolUse {
    /// Bytes in all.
    pub capacity_bytes: u64,
    /// Bytes of no place.
    pub free_bytes: u64,
    /// Bytes of places that leases hold.
    pub leased_bytes: u64,
}

impl Pool {
    /// Opens the store in `path`, with a DRAM tier that other processes can map.
    ///
    /// # Errors
    ///
    /// As [`Store::open`]; `Invalid` if the DRAM tier is off.
    pub fn open(path: &Path, config: &Config, backing: Backing) -> Result<Self> {
        Self::open_unless(path, config, backing, StopSignal::default())
    }

    /// As [`Self::open`], and fails if the signal is set while the system provides the memory.
    ///
    /// # Errors
    ///
    /// As [`Self::open`].
    pub fn open_unless(
        path: &Path,
        config: &Config,
        backing: Backing,
        stop: StopSignal,
    ) -> Result<Self> {
        let mut parts = parts_of(path, config)?;
        parts.tiers.arena = ArenaBacking::Shared(backing);
        parts.tiers.stop = stop;
        let pool = Self::of(Store::open_parts(parts)?)?;
        let limits = pool.store.limits();
        tracing::info!(
            id = %pool.store.id(),
            path = %path.display(),
            capacity_bytes = limits.capacity_bytes,
            pool_bytes = pool.arena.capacity_bytes(),
            "store opened"
        );
        Ok(pool)
    }

    /// The pool of a store.
    ///
    /// # Errors
    ///
    /// `Invalid` if other processes cannot map its DRAM tier, or it is off; `Closed`.
    pub fn of(store: Store) -> Result<Self> {
        let open = store.door.enter()?;
        let arena = open.recent.dram.arena();
        let Some((arena, header)) = arena.and_then(|arena| Some((arena, arena.header()?))) else {
            let message = "the pool has no memory; give it at least 64 KiB";
            return Err(Error::invalid(message));
        };
        let file = arena.reader_file().expect("it has a header").map_err(|error| {
            let message = "the pool cannot be handed to other processes";
            Error::new(ErrorKind::Unavailable, message).with_source(error)
        })?;
        let (arena, file) = (arena.clone(), Arc::new(file));
        drop(open);
        Ok(Self { store, arena, file, header })
    }

    /// The store behind it.
    #[must_use]
    pub fn store(&self) -> &Store {
        &self.store
    }

    /// The file that other processes map. Nothing can be written through it.
    #[must_use]
    pub fn file(&self) -> &OwnedFd {
        &self.file
    }

    /// What the header of the file says.
    #[must_use]
    pub fn header(&self) -> ArenaHeader {
        self.header
    }

    /// Shows other processes that this one runs.
    pub fn beat(&self) {
        self.arena.beat();
    }

    /// How its memory is used.
    ///
    /// # Errors
    ///
    /// `Closed`.
    pub fn usage(&self) -> Result<PoolUse> {
        let open = self.store.door.enter()?;
        Ok(PoolUse {
            capacity_bytes: self.arena.capacity_bytes(),
            free_bytes: self.arena.free_bytes(),
            leased_bytes: open.recent.dram.leased_bytes(),
        })
    }

    /// Bytes of a block of a namespace.
    ///
    /// # Errors
    ///
    /// `Invalid` if the namespace is not known; `Closed`.
    pub fn block_bytes(&self, namespace: NamespaceId) -> Result<u64> {
        let open = self.store.door.enter()?;
        Ok(open.registrar.namespaces.get(namespace)?.layout().block_bytes())
    }

    /// Bytes of the place of a block of a namespace. Fails as [`Pool::block_bytes`].
    pub fn place_bytes(&self, namespace: NamespaceId) -> Result<u64> {
        let bytes = usize::try_from(self.block_bytes(namespace)?).expect("64-bit addresses");
        Ok(Arena::place_bytes(bytes))
    }

    /// How many leading blocks of a chain a put by layer skips: those that the log has. Pool-only blocks and those that
    /// only the far location has are put.
    ///
    /// # Errors
    ///
    /// `Closed`.
    pub fn count_stored(&self, namespace: NamespaceId, chain: &[ChainHash]) -> Result<usize> {
        let open = self.store.door.enter()?;
        let limit = lookup_limit(open.workers.clock.as_ref());
        Ok(open.writer.planner.leading_present(namespace, chain, limit))
    }

    /// Finds blocks as [`Store::get_batch`] does, and keeps them in their places, at most `most_bytes` of them. Blocks
    /// that are only in the log are read into places first. A block for which there is no place is lost as throttled.
    ///
    /// # Errors
    ///
    /// `Closed`.
    pub fn acquire(
        &self,
        namespace: NamespaceId,
        hashes: &[ChainHash],
        scope: Scope,
        most_bytes: u64,
        terms: &Terms,
    ) -> Result<Acquired> {
        acquire(&self.store.door.enter()?.loader, namespace, hashes, scope, most_bytes, terms)
    }

    /// Fills memory for a block of `bytes` that another process puts: in a place if one becomes free, otherwise
    /// elsewhere.
    ///
    /// # Errors
    ///
    /// What `fill` returns; `Closed`.
    pub fn receive<E: From<Error>>(
        &self,
        bytes: usize,
        fill: impl FnOnce(&mut Memory) -> std::result::Result<(), E>,
    ) -> std::result::Result<PoolBlock, E> {
        let place = self.store.door.enter()?.recent.dram.reserve(bytes, Leaving::Any);
        let Some(mut place) = place else {
            let mut memory = Memory::zeroed(bytes.max(1));
            fill(&mut memory)?;
            return Ok(PoolBlock::Elsewhere(memory));
        };
        let mut memory = place.memory();
        fill(&mut memory)?;
        drop(memory);
        let block = place.complete().expect("the memory was dropped");
        Ok(PoolBlock::Placed(LeasedBlock::of(Arc::new(block))))
    }

    /// The present moment, for a put that has arrived, or for a get. Take it before the blocks are received or found.
    ///
    /// # Errors
    ///
    /// `Closed`.
    pub fn arrival(&self) -> Result<Arrival> {
        self.store.door.removal_mark().map(Arrival)
    }

    /// Whether one of these blocks was removed since `arrival`.
    ///
    /// # Errors
    ///
    /// `Closed`.
    pub fn has_removed(
        &self,
        namespace: NamespaceId,
        hashes: &[ChainHash],
        Arrival(mark): Arrival,
    ) -> Result<bool> {
        let open = self.store.door.enter()?;
        Ok(!open.recent.removals.removed_since(mark, namespace, hashes).is_empty())
    }

    /// Puts blocks that were received since `arrival`, as [`Store::put_batch`] does.
    ///
    /// # Errors
    ///
    /// As [`Store::put_batch`].
    pub fn put(
        &self,
        Arrival(mark): Arrival,
        namespace: NamespaceId,
        put: PoolPut<'_>,
        terms: &Terms,
    ) -> Result<PutReport> {
        let PoolPut { chain, first, blocks, keep } = put;
        let held = blocks.into_iter().map(|block| match block {
            PoolBlock::Placed(block) => HeldBlock::Placed(block.into_inner()),
            PoolBlock::Elsewhere(bytes) => HeldBlock::Elsewhere(bytes),
        });
        let put = HeldPut { chain, first, blocks: held.collect(), keep };
        self.store.door.enter()?.writer.put_held(namespace, put, mark, terms)
    }
}
