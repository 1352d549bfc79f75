//! Hosts that share a location in memory: what each publishes, knows, reads and collects.
#![allow(dead_code, unreachable_pub, reason = "each test file uses its own part")]

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use dalsegno_core::{ChainHash, Class, Clock, Extent, KvLayout, NamespaceId, StoreId};
use dalsegno_extent::format::{NewExtent, RecordPlace};
use dalsegno_extent::{BlockTarget, IoBounds, PinnedFile, SourceIo};
use dalsegno_far::{
    Applied, Collector, EarlierSearch, FarIndex, FarReader, FarShape, FarWanted, Follower,
    LIST_EVERY, Member, MemoryLocation, MemoryTier, Object, Polled, Publisher, PublisherOptions,
    Removal, RemovalId, Tier, WriterId, wait_for,
};
use dalsegno_io::{BufferPool, Call, IoError, Memory, Source};

const LAYERS: u32 = 2;
const SLICE_BYTES: u32 = 4096;
pub const NAMESPACE: NamespaceId = NamespaceId([1; 16]);
pub const LIMIT: Duration = Duration::from_secs(1);
/// A record of two blocks takes a sector and four.
pub const RECORD_BYTES: u64 = 5 * 4096;

fn layout() -> KvLayout {
    KvLayout::new(LAYERS, SLICE_BYTES).unwrap()
}

pub fn hash(number: u8) -> ChainHash {
    ChainHash([number; 32])
}

/// The bytes of a layer of a block.
fn slice(number: u8, layer: u32) -> Vec<u8> {
    let layer = u8::try_from(layer).unwrap();
    vec![number.wrapping_mul(7) ^ (layer << 6); SLICE_BYTES as usize]
}

/// A host: the packs that it writes, and what it knows of the location.
pub struct Host {
    pub tier: Arc<MemoryTier>,
    pub index: Arc<FarIndex>,
    pub publisher: Publisher,
    search: EarlierSearch,
    pub follower: Follower,
    pub collector: Collector,
    reader: FarReader,
    /// Where its log is.
    log: Arc<MemoryTier>,
    log_io: SourceIo,
    pub writer: WriterId,
    capacity_bytes: u64,
    /// What its packs had beyond its bound when it evicted last.
    pub excess_bytes: u64,
    records: u64,
    /// The number of its last removal.
    removals: u64,
    /// What it has applied.
    pub applied: Applied,
    /// Removals that could not be published yet.
    pending: Vec<Removal>,
}

fn io_of(source: Arc<dyn Source>, clock: &Arc<dyn Clock>) -> SourceIo {
    SourceIo {
        source,
        clock: Arc::clone(clock),
        pool: BufferPool::new(4 << 20, 1 << 20).unwrap(),
        bounds: IoBounds { depth: 8, request_bytes: 1 << 20 },
        stats: Arc::default(),
    }
}

impl Host {
    pub fn new(
        location: &MemoryLocation,
        clock: &Arc<dyn Clock>,
        (number, open): (u8, u64),
        packs: u64,
    ) -> Self {
        let tier = Arc::new(location.mount());
        let as_tier = Arc::clone(&tier) as Arc<dyn Tier>;
        let index = Arc::new(FarIndex::new(1 << 20));
        let writer = WriterId { store: StoreId([number; 16]), open };
        let options = PublisherOptions {
            pack_bytes: RECORD_BYTES,
            capacity_bytes: packs * RECORD_BYTES,
            flush: LIMIT,
        };
        let member =
            Member { tier: as_tier, index: Arc::clone(&index), clock: Arc::clone(clock), writer };
        let publisher = Publisher::new(member.clone(), options);
        let search = EarlierSearch::new(member.clone());
        let follower = Follower::new(member.clone());
        let collector = Collector::new(member.clone());
        let source = Arc::new(io_of(Arc::<MemoryTier>::clone(&tier), clock));
        let reader = FarReader::new(source, member, 1 << 20);
        let log = Arc::new(MemoryLocation::new(Arc::clone(clock)).mount());
        let log_io = io_of(Arc::<MemoryTier>::clone(&log), clock);
        Self {
            tier,
            index,
            publisher,
            search,
            follower,
            collector,
            reader,
            log,
            log_io,
            writer,
            capacity_bytes: options.capacity_bytes,
            excess_bytes: 0,
            records: 0,
            removals: 0,
            applied: Applied::default(),
            pending: Vec::new(),
        }
    }

    /// Writes a record of two blocks to the host's log.
    fn record(&mut self, first: u8) -> (PinnedFile, Extent) {
        self.records += 1;
        let blocks = [first, first + 1];
        let new = NewExtent {
            namespace: NAMESPACE,
            lineage: hash(first),
            first_block_index: 0,
            parent: ChainHash::default(),
            layout: layout(),
            hashes: blocks.map(hash).to_vec(),
            born: None,
        };
        let slices: Vec<Vec<u8>> =
            (0..LAYERS).flat_map(|layer| blocks.map(|block| slice(block, layer))).collect();
        let crcs = slices.iter().map(|slice| dalsegno_core::crc32c(slice)).collect();
        let place = RecordPlace { segment: self.records, epoch: 1, offset: 0 };
        let header = new.header(self.writer.store, place, self.records, crcs, None);
        let mut bytes = vec![0; header.header_bytes() as usize];
        header.encode(&mut bytes);
        bytes.extend(slices.concat());
        assert_eq!(bytes.len() as u64, RECORD_BYTES);
        let name = self.writer.object(Object::Pack(self.records));
        let bytes = vec![Memory::owned(bytes, ())];
        let clock = &self.log_io.clock;
        wait_for(clock, LIMIT, |ask| self.log.publish(name, bytes, ask)).unwrap();
        let pinned = PinnedFile { file: self.log.file(name), guard: Arc::new(()) };
        (pinned, header.extent().unwrap())
    }

    /// Publishes two blocks, `first` and the next one; whether that succeeded.
    pub fn publish(&mut self, first: u8) -> bool {
        self.begin(first) && self.complete()
    }

    /// Publishes the pack of two blocks, and not yet its catalog.
    pub fn begin(&mut self, first: u8) -> bool {
        if self.publisher.describe(NAMESPACE, &[0; 4096]).is_err() {
            return false;
        }
        let (pinned, extent) = self.record(first);
        self.publisher.add(&self.log_io, &pinned, self.writer.store, &extent).unwrap();
        true
    }

    /// Publishes the catalog; whether all succeeded.
    pub fn complete(&mut self) -> bool {
        let before = self.publisher.stats().packs;
        while self.publisher.advance() > 0 {}
        self.publisher.stats().packs > before
    }

    /// Removes a block everywhere; whether that is published.
    pub fn remove(&mut self, block: u8) -> bool {
        self.remove_all(&[block])
    }

    /// Removes blocks everywhere, or the namespace if there are none; whether that is published.
    pub fn remove_all(&mut self, blocks: &[u8]) -> bool {
        self.removals += 1;
        let id = self.last_removal();
        let hashes = blocks.iter().map(|block| hash(*block)).collect();
        self.pending.push(Removal { id, namespace: NAMESPACE, hashes });
        self.applied.note(id);
        self.publisher.set_applied(self.applied.clone());
        self.publish_pending()
    }

    /// The removal that it issued last.
    pub fn last_removal(&self) -> RemovalId {
        RemovalId { by: self.writer, number: self.removals }
    }

    /// Publishes what an earlier open of this store could not publish; whether that succeeded.
    pub fn publish_for(&mut self, earlier: &Self) -> bool {
        self.pending.extend(earlier.pending.iter().cloned());
        earlier.pending.iter().for_each(|removal| self.applied.note(removal.id));
        self.publisher.set_applied(self.applied.clone());
        self.publish_pending()
    }

    /// Fills packs of many records from now on. Nothing may have been published.
    pub fn use_large_packs(&mut self) {
        let tier = Arc::clone(&self.tier) as Arc<dyn Tier>;
        let (capacity_bytes, clock) = (self.capacity_bytes, Arc::clone(&self.log_io.clock));
        let options = PublisherOptions { pack_bytes: 1 << 20, capacity_bytes, flush: LIMIT };
        let (index, writer) = (Arc::clone(&self.index), self.writer);
        self.publisher = Publisher::new(Member { tier, index, clock, writer }, options);
    }

    /// Publishes the removals that are not published; whether that succeeded.
    pub fn publish_pending(&mut self) -> bool {
        let is_published = self.publisher.publish_removals(&self.pending).is_ok();
        if is_published {
            self.pending.clear();
        }
        is_published
    }

    /// Follows the location, and applies what others removed, as a store does.
    pub fn poll(&mut self) -> Polled {
        let polled = self.follower.poll();
        if let Some(at_location) = &polled.at_location {
            self.applied = at_location.clone();
            self.applied.note(self.last_removal());
            self.publisher.set_applied(self.applied.clone());
        }
        polled
    }

    /// Polls until a poll lists everything.
    pub fn read_all(&mut self) {
        for _ in 0..LIST_EVERY {
            self.poll();
        }
    }

    pub fn finds(&self, block: u8) -> bool {
        self.index.find(NAMESPACE, &hash(block)).is_some()
    }

    /// Reads a block that is found, and compares its bytes. Whether it is a hit.
    pub fn reads(&self, block: u8) -> bool {
        let Some(place) = self.index.find(NAMESPACE, &hash(block)) else { return false };
        let bytes = (SLICE_BYTES * LAYERS) as usize;
        let memory = vec![Memory::zeroed(bytes)];
        let target =
            BlockTarget { block: 0, number: 0, memory, outlives_call: true, copy: Vec::new() };
        let shape = FarShape { namespace: NAMESPACE, layout: layout(), layers: 0..LAYERS };
        let wanted = [FarWanted { place, hash: hash(block) }];
        let read =
            self.reader.read(&shape, &wanted, vec![target], &Call::of(Class::Need)).remove(0);
        if read.outcome.is_ok() {
            let got: Vec<u8> =
                read.memory.iter().flat_map(|piece| piece.as_slice().to_vec()).collect();
            let expected: Vec<u8> = (0..LAYERS).flat_map(|layer| slice(block, layer)).collect();
            assert!(got == expected, "wrong bytes of block {block}");
        }
        read.outcome.is_ok()
    }

    /// Evicts, and shows that the store lives, as the publishing thread of a store does.
    pub fn keep_up(&mut self) -> Result<(), IoError> {
        self.search.hasten(self.publisher.take_search_due());
        if let Some(found) = self.search.step()? {
            self.publisher.take_over(found);
        }
        let own_bytes = self.publisher.stats().own_bytes;
        self.excess_bytes = own_bytes.saturating_sub(self.capacity_bytes);
        self.publisher.evict()?;
        if self.publisher.is_at_location() { self.publisher.beat() } else { Ok(()) }
    }

    /// Checks one writer, or removes some more of a dead one; whether that succeeded.
    pub fn collect(&mut self) -> bool {
        self.collector.step(&|| false).is_ok()
    }

    /// The blocks that can be read.
    pub fn readable(&self) -> BTreeSet<u8> {
        (0..=u8::MAX).filter(|block| self.reads(*block)).collect()
    }
}
