//! A number for each unit of an arena that changes when its place ends, so that a reader finds out about it.
//!
//! 1. A unit's generation is even while a place with complete bytes has it, and odd otherwise. It only grows. All units
//!    of a complete place have the same one, and no two places of an arena ever have the same.
//! 2. When a place ends, the generations of *all* its units become odd before its range is allocated again. So a place
//!    that covers only some of them cannot hide that the earlier one ended.
//! 3. They become even after the new place's bytes are complete.
//!
//! A reader takes a [`Stamp`] before it reads and compares it afterwards. If the stamp is still [current], no byte that
//! it read was written meanwhile. The table may lie in memory that other processes read.
//!
//! [current]: is_current

use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering, fence};

use crate::places::Place;

/// The generation of all units of a place whose bytes are complete.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stamp(pub u64);

/// The generations of all units of an arena, for its only writer.
#[derive(Debug)]
pub struct Generations<T> {
    table: T,
    /// The largest even generation that was given out.
    last: AtomicU64,
}

impl<T: AsRef<[AtomicU64]>> Generations<T> {
    /// A table whose entries belong to no place yet.
    ///
    /// The entries are made odd if they are not: what they were in an earlier life of the memory stays smaller.
    #[must_use]
    pub fn new(table: T) -> Self {
        let mut last = 0;
        for entry in table.as_ref() {
            let generation = entry.load(Ordering::Relaxed) | 1;
            entry.store(generation, Ordering::Relaxed);
            last = last.max(generation - 1);
        }
        Self { table, last: AtomicU64::new(last) }
    }

    /// Says that all bytes of a place are complete. Call it after the last write, before the first reader learns of the
    /// place.
    ///
    /// # Panics
    ///
    /// If the place is complete already.
    pub fn complete(&self, place: &Place) -> Stamp {
        let stamp = self.last.fetch_add(2, Ordering::Relaxed) + 2;
        for entry in &self.table.as_ref()[range(place)] {
            let generation = entry.load(Ordering::Relaxed);
            assert!(is_odd(generation), "{place:?} is complete already (invariant 1)");
            // Release: a reader that sees this generation sees the bytes.
            entry.store(stamp, Ordering::Release);
        }
        Stamp(stamp)
    }

    /// Says that a place ends. Call it before its range is allocated again. It may end before it was complete.
    pub fn end(&self, place: &Place) {
        for entry in &self.table.as_ref()[range(place)] {
            let generation = entry.load(Ordering::Relaxed);
            entry.store(generation | 1, Ordering::Relaxed);
        }
        // A reader that sees a byte of the next place sees these generations: its own fence follows its last read.
        fence(Ordering::SeqCst);
    }
}

/// Whether `units` units from `start` on still have the place with this stamp, in a table that `generation` reads. Call
/// it after the last read of the place's bytes. Entries that `generation` does not have belong to no place.
#[must_use]
pub fn is_current(
    generation: impl Fn(usize) -> Option<u64>,
    start: u32,
    units: u32,
    Stamp(stamp): Stamp,
) -> bool {
    // The reads of the bytes come before the reads of the table.
    fence(Ordering::SeqCst);
    let start = start as usize;
    let Some(last) = (units as usize).checked_sub(1).map(|before| start + before) else {
        return false;
    };
    !is_odd(stamp) && generation(start) == Some(stamp) && generation(last) == Some(stamp)
}

fn is_odd(generation: u64) -> bool {
    generation & 1 == 1
}

fn range(place: &Place) -> Range<usize> {
    let start = place.start() as usize;
    start..start + place.units() as usize
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Places;
    use proptest::prelude::*;

    fn table(units: usize) -> Vec<AtomicU64> {
        (0..units).map(|_| AtomicU64::new(0)).collect()
    }

    fn current(
        generations: &Generations<Vec<AtomicU64>>,
        start: u32,
        units: u32,
        stamp: Stamp,
    ) -> bool {
        let read = |at: usize| generations.table.get(at).map(|entry| entry.load(Ordering::Relaxed));
        is_current(read, start, units, stamp)
    }

    #[test]
    fn a_place_has_a_stamp_from_its_last_byte_to_its_end() {
        let generations = Generations::new(table(8));
        let mut places = Places::new(8);
        let place = places.allocate(3).unwrap();
        let stamp = generations.complete(&place);
        assert!(current(&generations, 0, 3, stamp));
        generations.end(&place);
        assert!(!current(&generations, 0, 3, stamp));
    }

    #[test]
    fn a_place_may_end_before_it_is_complete() {
        let generations = Generations::new(table(2));
        let mut places = Places::new(2);
        let place = places.allocate(2).unwrap();
        generations.end(&place);
        places.free(place);
        let place = places.allocate(2).unwrap();
        let stamp = generations.complete(&place);
        assert!(current(&generations, 0, 2, stamp));
    }

    #[test]
    fn what_a_stranger_asks_for_outside_of_the_table_is_not_current() {
        let generations = Generations::new(table(2));
        let stamp = generations.complete(&Places::new(2).allocate(2).unwrap());
        for (start, units) in [(0, 0), (0, 3), (2, 1), (u32::MAX, u32::MAX)] {
            assert!(!current(&generations, start, units, stamp), "{units} units at {start}");
        }
        assert!(!current(&Generations::new(table(2)), 0, 1, Stamp(1)), "odd: no place");
    }

    #[test]
    #[should_panic(expected = "is complete already")]
    fn a_place_is_completed_once() {
        let generations = Generations::new(table(1));
        let place = Places::new(1).allocate(1).unwrap();
        generations.complete(&place);
        generations.complete(&place);
    }

    #[test]
    fn a_table_of_an_earlier_life_continues_upwards() {
        let entries = table(2);
        entries[0].store(6, Ordering::Relaxed);
        entries[1].store(9, Ordering::Relaxed);
        let generations = Generations::new(entries);
        let place = Places::new(2).allocate(2).unwrap();
        assert_eq!(generations.complete(&place), Stamp(10));
    }

    proptest! {
        /// Splitting, coalescing and nine sizes: a stamp is current exactly as long as its place lives.
        #[test]
        fn no_range_is_reused_under_an_unchanged_generation(
            steps in prop::collection::vec((0_usize..9, any::<prop::sample::Index>()), 1..300)
        ) {
            const SIZES: [u32; 9] = [1, 2, 3, 4, 5, 7, 8, 11, 16];
            let generations = Generations::new(table(48));
            let mut places = Places::new(48);
            let mut live: Vec<(Place, Stamp)> = Vec::new();
            let mut ended: Vec<(u32, u32, Stamp)> = Vec::new();
            for (size, leaves) in steps {
                if let Some(place) = places.allocate(SIZES[size]) {
                    let stamp = generations.complete(&place);
                    live.push((place, stamp));
                } else {
                    let (place, stamp) = live.swap_remove(leaves.index(live.len()));
                    ended.push((place.start(), place.units(), stamp));
                    generations.end(&place);
                    places.free(place);
                }
                for (place, stamp) in &live {
                    prop_assert!(current(&generations, place.start(), place.units(), *stamp));
                }
                for (start, units, stamp) in &ended {
                    prop_assert!(!current(&generations, *start, *units, *stamp));
                }
            }
        }
    }
}
