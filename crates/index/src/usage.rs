//! How the extents of each segment are used. Eviction decides by that.
//!
//! 1. The sums of a segment are those of its extents in the index.
//! 2. A segment without an entry here has nothing in the index, whatever tables hold of it. Dropping it changes
//!    nothing.
//! 3. Memory is bounded. An extent without an entry of its own counts as used when it was written. All such extents of
//!    a segment appear as one of their mean age.

use std::collections::HashMap;

use dalsegno_core::{Extent, ExtentId};
use dalsegno_policy::recency::{Recency, Use};
use dalsegno_policy::reclaim::LiveExtent;

/// Most extents that have an entry of their own; each takes about 50 bytes.
const MOST_KNOWN: usize = 1 << 21;

/// The live extents of a segment, as sums that survive a restart.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct SegmentSum {
    pub(crate) segment: u64,
    pub(crate) epoch: u64,
    pub(crate) extents: u64,
    pub(crate) blocks: u64,
    pub(crate) live_bytes: u64,
    /// Sum of bytes times sequence number.
    pub(crate) weight: u128,
}

#[derive(Debug, Default)]
struct SegmentUsage {
    sum: SegmentSum,
    known: HashMap<ExtentId, LiveExtent>,
}

/// Sums per segment and uses per extent.
#[derive(Debug)]
pub(crate) struct Usage {
    segments: HashMap<u64, SegmentUsage>,
    /// How many extents have an entry of their own.
    known: usize,
    most_known: usize,
}

impl Default for Usage {
    fn default() -> Self {
        Self { segments: HashMap::new(), known: 0, most_known: MOST_KNOWN }
    }
}

impl Usage {
    pub(crate) fn restore(sums: Vec<SegmentSum>) -> Self {
        let segments = sums
            .into_iter()
            .map(|sum| (sum.segment, SegmentUsage { sum, ..SegmentUsage::default() }));
        Self { segments: segments.collect(), ..Self::default() }
    }

    pub(crate) fn sums(&self) -> Vec<SegmentSum> {
        let mut sums: Vec<SegmentSum> = self.segments.values().map(|segment| segment.sum).collect();
        sums.sort_unstable_by_key(|sum| sum.segment);
        sums
    }

    /// The epoch of the extents of a segment, if it has any.
    pub(crate) fn epoch(&self, segment: u64) -> Option<u64> {
        self.segments.get(&segment).map(|segment| segment.sum.epoch)
    }

    /// Adds an extent with so many visible blocks.
    pub(crate) fn add(&mut self, extent: &Extent, blocks: u32, used: Use) {
        let location = extent.location;
        let state = self.segments.entry(location.segment).or_default();
        if state.sum.epoch < location.epoch {
            let (segment, epoch) = (location.segment, location.epoch);
            state.sum = SegmentSum { segment, epoch, ..SegmentSum::default() };
            self.known -= std::mem::take(&mut state.known).len();
        }
        let sum = &mut state.sum;
        sum.extents = sum.extents.saturating_add(1);
        sum.blocks = sum.blocks.saturating_add(u64::from(blocks));
        sum.live_bytes = sum.live_bytes.saturating_add(extent.total_bytes());
        sum.weight = sum.weight.saturating_add(weight_of(extent));
        if let Some(known) = self.known_mut(extent) {
            *known = used.at_depth(extent.first_block_index);
        }
    }

    /// Removes blocks of an extent, and with the last one the extent.
    pub(crate) fn remove(&mut self, extent: &Extent, blocks: u32, last: bool) {
        let Some(segment) = self.segments.get_mut(&extent.location.segment) else { return };
        if segment.sum.epoch != extent.location.epoch {
            return;
        }
        // Sums come from a manifest and extents from tables. After damage they may disagree.
        let sum = &mut segment.sum;
        sum.blocks = sum.blocks.saturating_sub(u64::from(blocks));
        if last {
            sum.extents = sum.extents.saturating_sub(1);
            sum.live_bytes = sum.live_bytes.saturating_sub(extent.total_bytes());
            sum.weight = sum.weight.saturating_sub(weight_of(extent));
            self.known -= usize::from(segment.known.remove(&extent.id).is_some());
        }
    }

    /// Removes all of a segment up to `epoch`. Returns its sums.
    pub(crate) fn drop_segment(&mut self, number: u64, epoch: u64) -> SegmentSum {
        let Some(segment) = self.segments.get_mut(&number) else { return SegmentSum::default() };
        if segment.sum.epoch > epoch {
            return SegmentSum::default();
        }
        self.known -= std::mem::take(&mut segment.known).len();
        let sum = SegmentSum { segment: number, epoch: epoch + 1, ..SegmentSum::default() };
        std::mem::replace(&mut segment.sum, sum)
    }

    /// The newest segment that has or had an entry.
    pub(crate) fn newest(&self) -> Option<u64> {
        self.segments.keys().copied().max()
    }

    /// Drops segments that are not among these, or that have an earlier epoch. The newest one keeps an empty entry: its
    /// number must not be used again, because tables may still reference it. `false` if one of `segments` has an
    /// earlier epoch than the entry: the index took it for gone.
    pub(crate) fn align(&mut self, segments: &[(u64, u64)]) -> bool {
        let newest = self.newest();
        let present: HashMap<u64, u64> = segments.iter().copied().collect();
        let known: Vec<(u64, u64)> =
            self.segments.iter().map(|(number, segment)| (*number, segment.sum.epoch)).collect();
        let mut is_known = true;
        for (number, epoch) in known {
            match present.get(&number) {
                Some(now) if *now <= epoch => is_known &= *now == epoch,
                Some(now) => drop(self.drop_segment(number, now - 1)),
                None if Some(number) == newest => {
                    if self.segments.get(&number).is_some_and(|segment| segment.sum.extents > 0) {
                        self.drop_segment(number, epoch);
                    }
                }
                None => {
                    self.drop_segment(number, epoch);
                    self.segments.remove(&number);
                }
            }
        }
        is_known
    }

    /// How an extent was used.
    pub(crate) fn use_of(&self, extent: &Extent) -> Use {
        let segment = self.segments.get(&extent.location.segment);
        let known = segment.and_then(|segment| segment.known.get(&extent.id));
        known.map_or_else(|| written(extent), |known| known.used)
    }

    /// Counts a use of an extent; `false` if it was used in this round before, or is gone.
    pub(crate) fn raise(&mut self, extent: &Extent, round: u64) -> bool {
        self.known_mut(extent).is_some_and(|used| used.raise(round))
    }

    /// Makes an extent as recent as its dependents; `false` if it is already, or is gone.
    pub(crate) fn lift(&mut self, extent: &Extent, last: u64) -> bool {
        self.known_mut(extent).is_some_and(|used| used.lift(last))
    }

    /// Marks an extent as an orphan because an ancestor was evicted; `false` if it is marked already, or is gone.
    pub(crate) fn orphan(&mut self, extent: &Extent) -> bool {
        self.known_mut(extent).is_some_and(Use::orphan)
    }

    /// The use of an extent, to be changed; `None` if its segment has another epoch.
    fn known_mut(&mut self, extent: &Extent) -> Option<&mut Use> {
        let location = extent.location;
        let is_there = |segment: &SegmentUsage| {
            segment.sum.epoch == location.epoch && segment.sum.live_bytes > 0
        };
        self.segments.get(&location.segment).filter(|segment| is_there(segment))?;
        if self.known >= self.most_known {
            self.forget_some();
        }
        let segment = self.segments.get_mut(&location.segment)?;
        let known = segment.known.entry(extent.id).or_insert_with(|| {
            self.known += 1;
            LiveExtent { bytes: extent.total_bytes(), used: written(extent) }
        });
        Some(&mut known.used)
    }

    /// Drops half of the entries of single extents, the least recently used ones.
    fn forget_some(&mut self) {
        let known = self.segments.values().flat_map(|segment| segment.known.values());
        let mut uses: Vec<Recency> = known.map(|known| known.used.recency()).collect();
        let half = uses.len() / 2;
        let (_, median, _) = uses.select_nth_unstable(half);
        let median = *median;
        let mut excess = uses.len().saturating_sub(half);
        for segment in self.segments.values_mut() {
            segment.known.retain(|_, known| {
                let stays = known.used.recency() > median || excess == 0;
                excess -= usize::from(!stays);
                stays
            });
        }
        self.known = self.segments.values().map(|segment| segment.known.len()).sum();
    }

    /// Bytes of extents in a segment that have visible blocks.
    pub(crate) fn live_bytes(&self, number: u64) -> u64 {
        self.segments.get(&number).map_or(0, |segment| segment.sum.live_bytes)
    }

    /// The extents in a segment that have visible blocks. Those without an entry of their own appear as one of their
    /// mean age.
    pub(crate) fn live_extents(&self, number: u64) -> Vec<LiveExtent> {
        let Some(segment) = self.segments.get(&number).filter(|s| s.sum.live_bytes > 0) else {
            return Vec::new();
        };
        let mut live: Vec<LiveExtent> = segment.known.values().copied().collect();
        let known_bytes: u64 = live.iter().map(|known| known.bytes).fold(0, u64::saturating_add);
        let weight =
            |(id, known): (&ExtentId, &LiveExtent)| u128::from(known.bytes) * u128::from(id.0);
        let known_weight: u128 = segment.known.iter().map(weight).fold(0, u128::saturating_add);
        // A get may count a use of an extent that was removed or merged while it was read. Then the entries exceed the
        // sum.
        let bytes = segment.sum.live_bytes.saturating_sub(known_bytes);
        if bytes > 0 {
            let mean = segment.sum.weight.saturating_sub(known_weight) / u128::from(bytes);
            let used = Use::written(u64::try_from(mean).unwrap_or(u64::MAX));
            live.push(LiveExtent { bytes, used });
        }
        live
    }

    /// Number of extents and of blocks.
    pub(crate) fn counts(&self) -> (u64, u64) {
        let sums = self.segments.values().map(|segment| (segment.sum.extents, segment.sum.blocks));
        sums.fold((0_u64, 0_u64), |(extents, blocks), (e, b)| {
            (extents.saturating_add(e), blocks.saturating_add(b))
        })
    }
}

/// The use of an extent that has no entry.
fn written(extent: &Extent) -> Use {
    Use::written(extent.id.0).at_depth(extent.first_block_index)
}

fn weight_of(extent: &Extent) -> u128 {
    u128::from(extent.total_bytes()) * u128::from(extent.id.0)
}

#[cfg(test)]
mod tests {
    use dalsegno_core::{ChainHash, KvLayout, Location, NamespaceId};

    use super::*;

    fn extent(sequence: u64, segment: u64) -> Extent {
        Extent {
            id: ExtentId(sequence),
            born: sequence,
            namespace: NamespaceId([1; 16]),
            lineage: ChainHash([1; 32]),
            first_block_index: 0,
            parent: ChainHash::default(),
            layout: KvLayout::new(1, 4096).unwrap(),
            location: Location {
                segment,
                epoch: 1,
                offset: 4096,
                header_bytes: 4096,
                compressed_bytes: 0,
            },
            hashes: vec![ChainHash([1; 32])],
        }
    }

    #[test]
    fn regression_dropping_an_unknown_segment_adds_no_entry() {
        let mut usage = Usage::default();
        // Like a segment that was dropped when the store was opened, and has no epoch.
        usage.drop_segment(3, 0);
        assert_eq!(usage.epoch(3), None);
    }

    #[test]
    fn extents_without_an_entry_count_as_used_when_written() {
        let sum = SegmentSum {
            segment: 1,
            epoch: 1,
            extents: 3,
            blocks: 3,
            live_bytes: 3 * 8192,
            weight: 8192 * (10 + 20 + 30),
        };
        let mut usage = Usage::restore(vec![sum]);
        let mean = LiveExtent { bytes: 3 * 8192, used: Use::written(20) };
        assert_eq!(usage.live_extents(1), [mean]);
        assert!(usage.raise(&extent(10, 1), 50));
        let mut live = usage.live_extents(1);
        live.sort_by_key(|known| known.bytes);
        assert_eq!((live[0].used.last(), live[1].used.last()), (50, 25));
        assert_eq!(live[1].bytes, 2 * 8192);
        assert_eq!(usage.use_of(&extent(20, 1)), Use::written(20));
    }

    #[test]
    fn a_use_in_a_past_epoch_changes_nothing() {
        let mut usage = Usage::default();
        usage.add(&extent(10, 1), 1, Use::written(10));
        assert_eq!(usage.drop_segment(1, 1).extents, 1);
        assert!(!usage.raise(&extent(10, 1), 50));
        assert_eq!((usage.known, usage.live_extents(1).len()), (0, 0));
    }

    #[test]
    fn memory_is_bounded_and_recent_uses_are_kept() {
        let mut usage = Usage { most_known: 64, ..Usage::default() };
        for sequence in 1..=1000 {
            usage.add(&extent(sequence, sequence % 7), 1, Use::written(sequence));
            usage.raise(&extent(1, 1), sequence);
            assert!(usage.known <= 64);
            let known: usize = usage.segments.values().map(|segment| segment.known.len()).sum();
            assert_eq!(usage.known, known);
        }
        assert_eq!(usage.use_of(&extent(1, 1)).last(), 1000);
        let bytes =
            |segment| usage.live_extents(segment).iter().map(|live| live.bytes).sum::<u64>();
        assert_eq!((0..7).map(bytes).sum::<u64>(), 1000 * 8192, "all of them count");
    }
}
