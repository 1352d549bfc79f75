//! Caches verified headers of extents, within a bound on their bytes.
//!
//! 1. The weights of all entries together never exceed the bound. A weight is the memory that its entry takes, rounded
//!    up.
//! 2. A name never gets another header: the number of an extent is used once in a store, and a pack never changes. A
//!    read still compares a cached header with what it expects, because an index may be wrong.
//! 3. The same headers stay in every run of a simulation.

use std::hash::{BuildHasherDefault, DefaultHasher};
use std::sync::Arc;

use dalsegno_core::{Extent, ExtentId};
use dalsegno_io::FileId;
use quick_cache::sync::{Cache, DefaultLifecycle};
use quick_cache::{OptionsBuilder, Weighter};

use crate::format::{RecordHeader, RecordKind, Units};

/// Memory of an entry in addition to its tables and hashes.
const ENTRY_BYTES: u64 = 512;
/// Bytes of a shard. The largest header takes a quarter of it.
const SHARD_BYTES: u64 = 1 << 20;
/// More shards would not help the threads that read.
const MOST_SHARDS: u64 = 64;

/// A header that was verified, or that this process wrote.
#[derive(Debug)]
pub struct VerifiedHeader {
    /// The extent that it describes.
    pub extent: Arc<Extent>,
    /// crc32c of every slice, layer-major.
    pub crcs: Vec<u32>,
    /// The units of a compressed extent.
    pub units: Option<Units>,
}

/// The name of a header in a [`HeaderCache`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum HeaderName {
    /// The header of an extent whose number the reader knows. A place in the log gets new extents when its segment is
    /// recycled.
    Extent(ExtentId),
    /// The header at an offset of a file that never changes.
    Place(FileId, u64),
}

/// Verified headers, within a bound on their bytes.
#[derive(Debug)]
pub struct HeaderCache {
    headers: Headers,
}

type Headers =
    Cache<HeaderName, Arc<VerifiedHeader>, HeaderWeight, BuildHasherDefault<DefaultHasher>>;

#[derive(Clone, Copy, Debug)]
struct HeaderWeight;

impl Weighter<HeaderName, Arc<VerifiedHeader>> for HeaderWeight {
    fn weight(&self, _: &HeaderName, header: &Arc<VerifiedHeader>) -> u64 {
        let units = header.units.as_ref().map_or(0, |units| u64::from(units.count()) * 8);
        let hashes = header.extent.hashes.len() as u64 * 32;
        ENTRY_BYTES + header.crcs.len() as u64 * 4 + units + hashes
    }
}

impl VerifiedHeader {
    /// The extent and the tables of a decoded header; `None` if it is of another record.
    #[must_use]
    pub fn of(header: RecordHeader) -> Option<Self> {
        let extent = Arc::new(header.extent()?);
        let RecordKind::Extent { slice_crcs: crcs, units, .. } = header.kind else { return None };
        Some(Self { extent, crcs, units })
    }

    /// The checksum of a slice.
    pub(super) fn crc(&self, layer: u32, block: u32) -> u32 {
        self.crcs[layer as usize * self.extent.hashes.len() + block as usize]
    }
}

impl HeaderCache {
    /// A cache of at most `bound` bytes.
    ///
    /// # Panics
    ///
    /// Never: all options are set.
    #[must_use]
    pub fn new(bound: u64) -> Self {
        let shards = (bound / SHARD_BYTES).clamp(1, MOST_SHARDS);
        let items = usize::try_from(bound / (4 * ENTRY_BYTES)).unwrap_or(usize::MAX);
        let options = OptionsBuilder::new()
            .shards(usize::try_from(shards).expect("a small number"))
            .estimated_items_capacity(items.max(16))
            .weight_capacity(bound)
            .build()
            .expect("all options are set");
        let (hasher, lifecycle) = (BuildHasherDefault::default(), DefaultLifecycle::default());
        Self { headers: Cache::with_options(options, HeaderWeight, hasher, lifecycle) }
    }

    /// A header, if it is cached. Counts as a use.
    #[must_use]
    pub fn get(&self, name: HeaderName) -> Option<Arc<VerifiedHeader>> {
        self.headers.get(&name)
    }

    /// Caches a header that was verified.
    pub fn insert(&self, name: HeaderName, header: Arc<VerifiedHeader>) {
        self.headers.insert(name, header);
    }

    /// Removes a header.
    pub fn remove(&self, name: HeaderName) {
        self.headers.remove(&name);
    }
}

#[cfg(test)]
mod tests {
    use dalsegno_core::{ChainHash, KvLayout, Location, NamespaceId};

    use super::*;

    fn header(id: u64, blocks: u32, layers: u32) -> Arc<VerifiedHeader> {
        let location =
            Location { segment: 1, epoch: 1, offset: 0, header_bytes: 4096, compressed_bytes: 0 };
        let extent = Extent {
            id: ExtentId(id),
            born: id,
            namespace: NamespaceId::default(),
            lineage: ChainHash::default(),
            first_block_index: 0,
            parent: ChainHash::default(),
            layout: KvLayout::new(layers, 4096).unwrap(),
            location,
            hashes: vec![ChainHash::default(); blocks as usize],
        };
        let crcs = vec![0; (blocks * layers) as usize];
        Arc::new(VerifiedHeader { extent: Arc::new(extent), crcs, units: None })
    }

    /// The cached ones of headers that were inserted one after the other.
    fn cached(cache: &HeaderCache, count: u64) -> Vec<u64> {
        let is_cached = |id: &u64| cache.headers.peek(&HeaderName::Extent(ExtentId(*id))).is_some();
        (0..count).filter(is_cached).collect()
    }

    #[test]
    fn a_cache_keeps_its_bound_and_what_is_used() {
        let cache = HeaderCache::new(1 << 20);
        for id in 0..5000 {
            cache.insert(HeaderName::Extent(ExtentId(id)), header(id, 4, 32));
            assert!(id < 10 || cache.get(HeaderName::Extent(ExtentId(7))).is_some(), "{id}");
            assert!(cache.headers.weight() <= 1 << 20);
        }
        let cached = cached(&cache, 5000);
        // Each one weighs 512 + 128 * 4 + 4 * 32 bytes.
        assert!((800..=910).contains(&cached.len()), "{}", cached.len());
        cache.remove(HeaderName::Extent(ExtentId(7)));
        assert!(cache.get(HeaderName::Extent(ExtentId(7))).is_none());
    }

    #[test]
    fn the_largest_header_is_cached_and_a_bound_of_zero_caches_none() {
        let largest = || header(1, 4096, 4);
        let name = HeaderName::Place(FileId(3), 4096);
        for bound in [1 << 20, 32 << 20, 1 << 30] {
            let cache = HeaderCache::new(bound);
            cache.insert(name, largest());
            assert!(cache.get(name).is_some(), "{bound}");
        }
        let none = HeaderCache::new(0);
        none.insert(name, header(1, 1, 1));
        assert!(none.get(name).is_none());
    }

    #[test]
    fn two_caches_with_the_same_history_hold_the_same_headers() {
        let caches = [(); 2].map(|()| HeaderCache::new(4 << 20));
        for cache in &caches {
            for id in 0..20_000_u64 {
                cache.insert(HeaderName::Extent(ExtentId(id)), header(id, 2, 16));
                let _ = cache.get(HeaderName::Extent(ExtentId(id / 3)));
            }
        }
        let [one, other] = caches.map(|cache| cached(&cache, 20_000));
        assert!(!one.is_empty() && one == other);
    }
}
