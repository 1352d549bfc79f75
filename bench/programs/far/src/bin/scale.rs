//! The far index with very many blocks: memory, first load, refresh and probes, from synthetic catalogs.
//!
//! The catalogs are in a location in memory and are followed as those of a directory, so what is measured is listing,
//! decoding, indexing and looking up, without a network. Prints one JSON object as its last line.

use std::sync::Arc;
use std::time::{Duration, Instant};

use dalsegno_core::{ChainHash, Clock, Extent, ExtentId, KvLayout, Location, NamespaceId, StoreId};
use dalsegno_far::format::{Catalog, CatalogPack, packs_of};
use dalsegno_far::{
    Applied, FarIndex, Follower, Member, MemoryLocation, Object, Polled, Tier, WriterId, wait_for,
};
use dalsegno_io::{Memory, SystemClock};

const NAMESPACE: NamespaceId = NamespaceId([7; 16]);
const WAIT: Duration = Duration::from_secs(60);
/// Blocks of a probe.
const CHAIN: usize = 512;
const PROBES: usize = 20_000;
/// New catalogs of a refresh.
const REFRESHES: [u64; 3] = [1, 100, 1_000];
const POLLS: usize = 5;

/// What the synthetic packs are.
struct Shape {
    blocks: u64,
    writers: u64,
    extents_of_pack: u64,
    blocks_of_extent: u64,
    slice_bytes: u32,
}

impl Shape {
    fn blocks_of_pack(&self) -> u64 {
        self.extents_of_pack * self.blocks_of_extent
    }

    fn packs(&self) -> u64 {
        self.blocks.div_ceil(self.blocks_of_pack())
    }

    fn writer(&self, pack: u64) -> WriterId {
        WriterId { store: StoreId([3; 16]), open: pack % self.writers + 1 }
    }

    /// The catalog of a pack; its blocks are numbered through all packs.
    fn catalog(&self, pack: u64) -> Catalog {
        let (writer, catalog) = (self.writer(pack), pack / self.writers + 1);
        let number = packs_of(catalog).start;
        let mut offset = 0;
        let extents = (0..self.extents_of_pack).map(|at| {
            let first = pack * self.blocks_of_pack() + at * self.blocks_of_extent;
            let extent = Extent {
                id: ExtentId(pack * self.extents_of_pack + at),
                born: pack,
                namespace: NAMESPACE,
                lineage: hash(first),
                first_block_index: 0,
                parent: ChainHash::default(),
                layout: KvLayout::new(1, self.slice_bytes).expect("a layout"),
                location: Location {
                    segment: number,
                    epoch: writer.open,
                    offset,
                    header_bytes: 4096,
                    compressed_bytes: 0,
                },
                hashes: (first..first + self.blocks_of_extent).map(hash).collect(),
            };
            offset += extent.total_bytes();
            extent
        });
        let extents = extents.collect();
        let packs = vec![CatalogPack { number, bytes: offset, extents }];
        Catalog { writer, number: catalog, packs, applied: Applied::default() }
    }
}

/// The name of a block: bits that look random, the same for a number.
fn hash(number: u64) -> ChainHash {
    let mut bytes = [0; 32];
    for (at, word) in bytes.chunks_exact_mut(8).enumerate() {
        word.copy_from_slice(&mixed(number ^ ((at as u64) << 60)).to_le_bytes());
    }
    ChainHash(bytes)
}

fn mixed(number: u64) -> u64 {
    let mut bits = number.wrapping_add(0x9e37_79b9_7f4a_7c15);
    bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    bits ^ (bits >> 31)
}

fn publish(clock: &Arc<dyn Clock>, tier: &dyn Tier, shape: &Shape, packs: std::ops::Range<u64>) {
    for pack in packs {
        let catalog = shape.catalog(pack);
        let name = catalog.writer.object(Object::Catalog(catalog.number));
        let bytes = vec![Memory::owned(catalog.encode(), ())];
        wait_for(clock, WAIT, |ask| tier.publish(name, bytes, ask)).expect("memory");
    }
}

fn rss_bytes() -> u64 {
    let text = std::fs::read_to_string("/proc/self/statm").expect("Linux");
    let pages: u64 = text.split(' ').nth(1).expect("a field").parse().expect("a number");
    pages * 4096
}

/// Sorted microseconds of probes of a chain, of which each block is looked up as `probe` does: until the first miss.
fn probes(index: &FarIndex, blocks: u64, is_present: bool) -> Vec<f64> {
    let mut micros: Vec<f64> = (0..PROBES as u64)
        .map(|probe| {
            let first = mixed(probe) % (blocks - CHAIN as u64);
            let offset = if is_present { 0 } else { 1 << 48 };
            let chain: Vec<ChainHash> =
                (first..first + CHAIN as u64).map(|number| hash(number + offset)).collect();
            let start = Instant::now();
            let found = chain.iter().filter(|hash| index.find(NAMESPACE, hash).is_some()).count();
            let micros = start.elapsed().as_secs_f64() * 1e6;
            assert_eq!(found, if is_present { CHAIN } else { 0 });
            micros
        })
        .collect();
    micros.sort_by(f64::total_cmp);
    micros
}

fn number(name: &str, default: u64) -> u64 {
    let given = std::env::args().find_map(|one| one.strip_prefix(name).map(str::to_owned));
    given.map_or(default, |text| text.parse().unwrap_or_else(|_| panic!("{name}NUMBER")))
}

fn main() {
    let shape = Shape {
        blocks: number("--blocks=", 10_000_000),
        writers: number("--writers=", 16),
        extents_of_pack: number("--extents=", 4),
        blocks_of_extent: number("--extent-blocks=", 16),
        slice_bytes: 512 << 10,
    };
    let memory_mib = number("--memory-mib=", 1024);
    let clock: Arc<dyn Clock> = Arc::new(SystemClock::default());
    let location = MemoryLocation::new(Arc::clone(&clock));
    let writing = location.mount();
    publish(&clock, &writing, &shape, 0..shape.packs());
    let catalog_bytes: u64 = location.objects().iter().map(|(_, bytes)| bytes).sum();
    let index = Arc::new(FarIndex::new(memory_mib << 20));
    let member = Member {
        tier: Arc::new(location.mount()),
        index: Arc::clone(&index),
        clock: Arc::clone(&clock),
        writer: WriterId { store: StoreId([9; 16]), open: 1 },
    };
    let mut follower = Follower::new(member);
    let before = rss_bytes();
    let start = Instant::now();
    let polled = poll(&mut follower);
    let first_load_s = start.elapsed().as_secs_f64();
    let rss = rss_bytes() - before;
    let view = index.view();
    let (present, absent) = (probes(&index, view.blocks, true), probes(&index, view.blocks, false));
    let quantile = |sorted: &[f64], q: f64| sorted[(sorted.len() as f64 * q) as usize];
    let nothing_new = median_poll_ms(&mut follower);
    let mut next = shape.packs();
    let mut refresh = Vec::new();
    for catalogs in REFRESHES {
        publish(&clock, &writing, &shape, next..next + catalogs);
        next += catalogs;
        let start = Instant::now();
        let polled = poll(&mut follower);
        let ms = start.elapsed().as_secs_f64() * 1e3;
        assert_eq!(polled.catalogs, catalogs);
        refresh.push((catalogs, polled.new_blocks, ms));
    }
    println!(
        "{}",
        serde_json::json!({
            "blocks": view.blocks,
            "packs": view.packs,
            "forgotten_blocks": view.forgotten_blocks,
            "first_load_catalogs": polled.catalogs,
            "writers": shape.writers,
            "pack_blocks": shape.blocks_of_pack(),
            "memory_bound_mib": memory_mib,
            "catalog_mb": catalog_bytes as f64 / 1e6,
            "index_mb": view.memory_bytes as f64 / 1e6,
            "rss_mb": rss as f64 / 1e6,
            "first_load_s": first_load_s,
            "poll_nothing_new_ms": nothing_new,
            "refresh": refresh,
            "probe512_p50_us": quantile(&present, 0.5),
            "probe512_p99_us": quantile(&present, 0.99),
            "probe512_absent_p99_us": quantile(&absent, 0.99),
        })
    );
}

/// Polls a location in memory, which does not fail.
fn poll(follower: &mut Follower) -> Polled {
    let polled = follower.poll();
    assert!(polled.failure.is_none(), "{:?}", polled.failure);
    polled
}

fn median_poll_ms(follower: &mut Follower) -> f64 {
    let mut polls: Vec<f64> = (0..POLLS)
        .map(|_| {
            let start = Instant::now();
            poll(follower);
            start.elapsed().as_secs_f64() * 1e3
        })
        .collect();
    polls.sort_by(f64::total_cmp);
    polls[POLLS / 2]
}
