//! Two hosts share a location, and one of them is killed at every operation that changes it.
//!
//! A third host, which starts afterwards, finds everything that was published and not removed, finds nothing that was
//! removed, and reads the right bytes.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use dalsegno_core::{
    ChainHash, Clock, Deadline, Extent, KvLayout, ManualClock, NamespaceId, StoreId,
};
use dalsegno_extent::format::{NewExtent, RecordPlace};
use dalsegno_extent::{BlockTarget, Call, IoBounds, PinnedFile, SourceIo};
use dalsegno_far::{
    FarIndex, FarReader, FarShape, FarWanted, Follower, MemoryLocation, MemoryTier, Object,
    Publisher, PublisherOptions, StopMode, Tier, Tombstone, WriterId, wait_for,
};
use dalsegno_io::{BufferPool, Memory, Source};

const LAYERS: u32 = 2;
const SLICE_BYTES: u32 = 4096;
const NAMESPACE: NamespaceId = NamespaceId([1; 16]);
const LIMIT: Duration = Duration::from_secs(1);
/// A record of two blocks takes a sector and four.
const RECORD_BYTES: u64 = 5 * 4096;

fn layout() -> KvLayout {
    KvLayout::new(LAYERS, SLICE_BYTES).unwrap()
}

fn hash(number: u8) -> ChainHash {
    ChainHash([number; 32])
}

/// The bytes of a layer of a block.
fn slice(number: u8, layer: u32) -> Vec<u8> {
    let layer = u8::try_from(layer).unwrap();
    vec![number.wrapping_mul(7) ^ (layer << 6); SLICE_BYTES as usize]
}

/// A host: the packs that it writes, and what it knows of the location.
struct Host {
    tier: Arc<MemoryTier>,
    index: Arc<FarIndex>,
    publisher: Publisher,
    follower: Follower,
    reader: FarReader,
    /// Where its log is.
    log: Arc<MemoryTier>,
    log_io: SourceIo,
    writer: WriterId,
    records: u64,
}

fn io_of(source: Arc<dyn Source>, clock: &Arc<dyn Clock>) -> SourceIo {
    SourceIo {
        source,
        clock: Arc::clone(clock),
        pool: BufferPool::new(16 << 20, 1 << 20).unwrap(),
        bounds: IoBounds::local(8, 1 << 20),
        stats: Arc::default(),
    }
}

impl Host {
    fn new(location: &MemoryLocation, clock: &Arc<dyn Clock>, number: u8, packs: u64) -> Self {
        let tier = Arc::new(location.mount());
        let as_tier = Arc::clone(&tier) as Arc<dyn Tier>;
        let index = Arc::new(FarIndex::new(1 << 20));
        let writer = WriterId { store: StoreId([number; 16]), open: u64::from(number) };
        let options = PublisherOptions {
            pack_bytes: RECORD_BYTES,
            capacity_bytes: packs * RECORD_BYTES,
            flush: LIMIT,
        };
        let (of_index, of_clock) = (|| Arc::clone(&index), || Arc::clone(clock));
        let publisher =
            Publisher::new(Arc::clone(&as_tier), of_index(), of_clock(), writer, options);
        let follower = Follower::new(Arc::clone(&as_tier), of_index(), of_clock(), writer);
        let source = Arc::new(io_of(Arc::<MemoryTier>::clone(&tier), clock));
        let reader = FarReader::new(source, as_tier, of_index(), 1 << 20);
        let log = Arc::new(MemoryLocation::new(of_clock()).mount());
        let log_io = io_of(Arc::<MemoryTier>::clone(&log), clock);
        Self { tier, index, publisher, follower, reader, log, log_io, writer, records: 0 }
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
        let crcs = slices.iter().map(|slice| crc32c::crc32c(slice)).collect();
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

    /// Publishes two blocks; whether that succeeded.
    fn publish(&mut self, first: u8) -> bool {
        if self.publisher.describe(NAMESPACE, &[0; 4096]).is_err() {
            return false;
        }
        let (pinned, extent) = self.record(first);
        let of = (self.writer.store, &extent);
        self.publisher.add(&self.log_io, &pinned, of).unwrap();
        while self.publisher.advance() > 0 {}
        self.index.find(NAMESPACE, &hash(first)).is_some()
    }

    fn remove(&mut self, block: u8) -> bool {
        let tombstone =
            Tombstone { sequence: self.records, namespace: NAMESPACE, hashes: vec![hash(block)] };
        let known = self.follower.known();
        self.publisher.remove(tombstone, known).is_ok()
    }

    fn finds(&self, block: u8) -> bool {
        self.index.find(NAMESPACE, &hash(block)).is_some()
    }

    /// Reads a block that is found, and compares its bytes. Whether it is a hit.
    fn reads(&self, block: u8) -> bool {
        let Some(place) = self.index.find(NAMESPACE, &hash(block)) else { return false };
        let bytes = (SLICE_BYTES * LAYERS) as usize;
        let memory = vec![Memory::zeroed(bytes)];
        let target = BlockTarget { block: 0, memory, outlives_call: true, copy: Vec::new() };
        let shape = FarShape { namespace: NAMESPACE, layout: layout(), layers: 0..LAYERS };
        let wanted = vec![FarWanted { place, hash: hash(block), target }];
        let read = self.reader.read(&shape, wanted, &Call::foreground()).remove(0);
        if read.outcome.is_ok() {
            let got: Vec<u8> =
                read.memory.iter().flat_map(|piece| piece.as_slice().to_vec()).collect();
            let expected: Vec<u8> = (0..LAYERS).flat_map(|layer| slice(block, layer)).collect();
            assert!(got == expected, "wrong bytes of block {block}");
        }
        read.outcome.is_ok()
    }
}

/// What must hold afterwards.
#[derive(Debug, Default)]
struct Expected {
    /// Published, and neither removed nor evicted.
    present: BTreeSet<u8>,
    /// Removed, and that was acknowledged.
    gone: BTreeSet<u8>,
}

/// Runs a history in which host A stops after so many changes of the location. `false` if it never stopped.
fn history(changes: u64, mode: StopMode) -> bool {
    let clock: Arc<dyn Clock> = Arc::new(ManualClock::default());
    let location = MemoryLocation::new(Arc::clone(&clock));
    let (mut a, mut b) = (Host::new(&location, &clock, 1, 3), Host::new(&location, &clock, 2, 99));
    a.tier.stop_after(changes, mode);
    let mut expected = Expected::default();
    let publish = |host: &mut Host, first: u8, expected: &mut Expected| {
        // Blocks that are put again may be there, also if that was not acknowledged.
        expected.gone.retain(|block| *block != first && *block != first + 1);
        if host.publish(first) {
            expected.present.extend([first, first + 1]);
        }
    };
    for first in [10, 20, 30] {
        publish(&mut a, first, &mut expected);
    }
    drop(b.follower.poll());
    publish(&mut b, 40, &mut expected);
    drop(a.follower.poll());
    // Each removes a block of its own, and one of the other.
    for (is_a, block) in [(true, 10), (false, 20), (false, 41), (true, 40)] {
        let host = if is_a { &mut a } else { &mut b };
        let knew = host.finds(block);
        let is_gone = host.remove(block);
        expected.present.remove(&block);
        if is_gone && knew {
            expected.gone.insert(block);
        }
    }
    publish(&mut a, 10, &mut expected);
    publish(&mut a, 50, &mut expected);
    let is_killed = a.tier.is_stopped();
    let evicted = a.publisher.evict();
    drop(a.publisher.beat());
    a.publisher.finish(Deadline::At(clock.now()));
    if !is_killed {
        // The oldest packs of A leave: three fit. If A is killed while they leave, the last one may stay.
        let may_leave = if evicted.is_ok() { 20..30 } else { 10..30 };
        expected.present.retain(|block| !may_leave.contains(block));
    }

    let mut c = Host::new(&location, &clock, 3, 99);
    for _ in 0..2 {
        assert_eq!(c.follower.poll().unwrap().bad_catalogs, 0);
    }
    for block in 0..=u8::MAX {
        let reads = c.reads(block);
        let wanted = expected.present.contains(&block);
        assert!(reads || !wanted, "block {block} is gone after {changes} {mode:?}: {expected:?}");
        let is_gone = expected.gone.contains(&block);
        assert!(!(reads && is_gone), "block {block} is back after {changes} {mode:?}");
    }
    a.tier.is_stopped()
}

#[test]
fn a_host_that_is_killed_at_any_operation_loses_nothing_published_and_brings_nothing_back() {
    for mode in [StopMode::NotDone, StopMode::DoneUnanswered] {
        let stops = (0..1000).take_while(|changes| history(*changes, mode)).count();
        assert!(stops >= 18, "{stops} operations change the location");
    }
}

#[test]
fn a_location_without_space_costs_the_oldest_packs() {
    let clock: Arc<dyn Clock> = Arc::new(ManualClock::default());
    let location = MemoryLocation::new(Arc::clone(&clock));
    let mut a = Host::new(&location, &clock, 1, 99);
    assert!([10, 20, 30].into_iter().all(|first| a.publish(first)));
    location.set_full(true);
    assert!(!a.publish(40));
    let stats = a.publisher.stats();
    assert_eq!((stats.full, stats.failed_blocks, stats.packs), (1, 2, 3));
    a.publisher.evict().unwrap();
    assert_eq!([10, 20, 30].map(|first| a.finds(first)), [false, true, true]);
    location.set_full(false);
    assert!(a.publish(50) && a.reads(51) && a.reads(21));
    a.publisher.evict().unwrap();
    assert_eq!(a.publisher.stats().evicted_packs, 1);
}
