//! How the blocks of each segment are used: what eviction asks an index for.
//!
//! 1. Sums of a segment are those of its extents that are in the index.
//! 2. A segment that is not known has nothing in the index, whatever tables say of it; dropping it changes nothing.
//! 3. Memory is bounded: beyond a number of hit extents the ones hit longest ago are taken for not hit.

use std::collections::{BTreeSet, HashMap};

use dalsegno_core::{Extent, ExtentId};

use crate::SegmentUse;

/// Most extents whose hits are remembered one by one; each takes about 100 bytes.
const MOST_HIT_EXTENTS: usize = 1 << 20;

/// How an extent was used since it was written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Heat {
    /// Hits.
    pub hits: u32,
    /// The log's newest sequence number at the last hit, zero for none.
    pub last_hit: u64,
}

/// What is alive in a segment, as sums that survive a restart.
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
struct Segment {
    sum: SegmentSum,
    hit_bytes: u64,
    /// What hits add to the weight.
    hit_weight: u128,
    hit: BTreeSet<ExtentId>,
}

#[derive(Clone, Copy, Debug)]
struct Hit {
    heat: Heat,
    segment: u64,
    bytes: u64,
}

/// Sums per segment and hits per extent.
#[derive(Debug, Default)]
pub(crate) struct Usage {
    segments: HashMap<u64, Segment>,
    hits: HashMap<ExtentId, Hit>,
    /// The hit extents by their last hit.
    by_age: BTreeSet<(u64, ExtentId)>,
}

impl Usage {
    pub(crate) fn restore(sums: Vec<SegmentSum>) -> Self {
        let segments =
            sums.into_iter().map(|sum| (sum.segment, Segment { sum, ..Segment::default() }));
        Self { segments: segments.collect(), ..Self::default() }
    }

    pub(crate) fn sums(&self) -> Vec<SegmentSum> {
        let mut sums: Vec<SegmentSum> = self.segments.values().map(|segment| segment.sum).collect();
        sums.sort_unstable_by_key(|sum| sum.segment);
        sums
    }

    /// The epoch of a segment's extents, as far as is known.
    pub(crate) fn epoch(&self, segment: u64) -> Option<u64> {
        self.segments.get(&segment).map(|segment| segment.sum.epoch)
    }

    /// An extent came with so many visible blocks.
    pub(crate) fn add(&mut self, extent: &Extent, blocks: u32) {
        let location = extent.location;
        let state = self.segments.entry(location.segment).or_default();
        if state.sum.epoch < location.epoch {
            let (segment, epoch) = (location.segment, location.epoch);
            state.sum = SegmentSum { segment, epoch, ..SegmentSum::default() };
        }
        let sum = &mut state.sum;
        sum.extents = sum.extents.saturating_add(1);
        sum.blocks = sum.blocks.saturating_add(u64::from(blocks));
        sum.live_bytes = sum.live_bytes.saturating_add(extent.total_bytes());
        sum.weight = sum.weight.saturating_add(weight_of(extent));
    }

    /// Blocks of an extent went; with the last one the extent.
    pub(crate) fn remove(&mut self, extent: &Extent, blocks: u32, last: bool) {
        let Some(segment) = self.segments.get_mut(&extent.location.segment) else { return };
        if segment.sum.epoch != extent.location.epoch {
            return;
        }
        // Sums come from a manifest and extents from tables: damage may let them disagree.
        let sum = &mut segment.sum;
        sum.blocks = sum.blocks.saturating_sub(u64::from(blocks));
        if last {
            sum.extents = sum.extents.saturating_sub(1);
            sum.live_bytes = sum.live_bytes.saturating_sub(extent.total_bytes());
            sum.weight = sum.weight.saturating_sub(weight_of(extent));
            self.forget(extent.id);
        }
    }

    /// All of a segment up to `epoch` went. Returns what that was.
    pub(crate) fn drop_segment(&mut self, number: u64, epoch: u64) -> SegmentSum {
        let Some(segment) = self.segments.get_mut(&number) else { return SegmentSum::default() };
        if segment.sum.epoch > epoch {
            return SegmentSum::default();
        }
        let hit: Vec<ExtentId> = segment.hit.iter().copied().collect();
        let sum = SegmentSum { segment: number, epoch: epoch + 1, ..SegmentSum::default() };
        let gone = std::mem::replace(&mut segment.sum, sum);
        for id in hit {
            self.forget(id);
        }
        gone
    }

    /// The newest segment that is or was known.
    pub(crate) fn newest(&self) -> Option<u64> {
        self.segments.keys().copied().max()
    }

    /// Drops segments that are not among these, or are in an earlier epoch than these. The newest stays known, though
    /// nothing is in it: nobody must take its number again, for tables may still lead there. `false` if a segment is in
    /// an earlier epoch than is known: it was taken for gone.
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

    pub(crate) fn touch(&mut self, extent: &Extent, sequence: u64) {
        let (segment, bytes) = (extent.location.segment, extent.total_bytes());
        let Some(sums) = self.segments.get_mut(&segment) else { return };
        if sums.sum.epoch != extent.location.epoch {
            return;
        }
        let hit = self.hits.entry(extent.id).or_insert_with(|| {
            sums.hit.insert(extent.id);
            sums.hit_bytes += bytes;
            Hit { heat: Heat::default(), segment, bytes }
        });
        let before = hit.heat.last_hit.max(extent.id.0);
        self.by_age.remove(&(hit.heat.last_hit, extent.id));
        hit.heat.hits = hit.heat.hits.saturating_add(1);
        hit.heat.last_hit = hit.heat.last_hit.max(sequence);
        self.by_age.insert((hit.heat.last_hit, extent.id));
        let after = hit.heat.last_hit.max(extent.id.0);
        sums.hit_weight += u128::from(bytes) * u128::from(after - before);
        if self.hits.len() > MOST_HIT_EXTENTS
            && let Some((_, oldest)) = self.by_age.first().copied()
        {
            self.forget(oldest);
        }
    }

    pub(crate) fn heat(&self, id: ExtentId) -> Heat {
        self.hits.get(&id).map(|hit| hit.heat).unwrap_or_default()
    }

    fn forget(&mut self, id: ExtentId) {
        let Some(hit) = self.hits.remove(&id) else { return };
        self.by_age.remove(&(hit.heat.last_hit, id));
        if let Some(segment) = self.segments.get_mut(&hit.segment) {
            segment.hit.remove(&id);
            segment.hit_bytes -= hit.bytes;
            let added = hit.heat.last_hit.max(id.0) - id.0;
            segment.hit_weight -= u128::from(hit.bytes) * u128::from(added);
        }
    }

    pub(crate) fn of_segment(&self, number: u64) -> SegmentUse {
        let Some(segment) = self.segments.get(&number) else { return SegmentUse::default() };
        let weight = segment.sum.weight.saturating_add(segment.hit_weight);
        let mean = weight / u128::from(segment.sum.live_bytes.max(1));
        SegmentUse {
            live_bytes: segment.sum.live_bytes,
            // A get may note a hit of an extent that was removed or merged while it was read.
            hit_bytes: segment.hit_bytes.min(segment.sum.live_bytes),
            mean_use_sequence: u64::try_from(mean).unwrap_or(u64::MAX),
        }
    }

    /// Extents and blocks in all.
    pub(crate) fn counts(&self) -> (u64, u64) {
        let sums = self.segments.values().map(|segment| (segment.sum.extents, segment.sum.blocks));
        sums.fold((0_u64, 0_u64), |(extents, blocks), (e, b)| {
            (extents.saturating_add(e), blocks.saturating_add(b))
        })
    }
}

fn weight_of(extent: &Extent) -> u128 {
    u128::from(extent.total_bytes()) * u128::from(extent.id.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn regression_dropping_an_unknown_segment_does_not_make_its_first_life_count() {
        let mut usage = Usage::default();
        // As a segment that was given up when the store was opened, and has no epoch.
        usage.drop_segment(3, 0);
        assert_eq!(usage.epoch(3), None);
    }
}
