//! A number for each unit of an arena that changes when its place ends, so that a reader finds out about it.
//!
//! 1. A unit's generation is even while a place with complete bytes has it, and odd otherwise. It only grows.
//! 2. When a place ends, the generations of *all* its units become odd before its range is allocated again. So a place
//!    that covers only some of them cannot hide that the earlier one ended.
//! 3. They become even after the new place's bytes are complete.
//!
//! A reader takes a [`Stamp`] before it reads and compares it afterwards. If the stamp is still [current], no byte that
//! it read was written meanwhile. The table may lie in memory that other processes read.
//!
//! [current]: Generations::is_current

use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering, fence};

use crate::places::Place;

/// The generations of the first and the last unit of a place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stamp {
    /// Of the first unit.
    pub first: u64,
    /// Of the last unit.
    pub last: u64,
}

/// The generations of all units of an arena.
#[derive(Debug)]
pub struct Generations<T> {
    table: T,
}

impl<T: AsRef<[AtomicU64]>> Generations<T> {
    /// A table whose entries belong to no place yet.
    ///
    /// The entries are made odd if they are not: what they were in an earlier life of the memory stays smaller.
    #[must_use]
    pub fn new(table: T) -> Self {
        for entry in table.as_ref() {
            let generation = entry.load(Ordering::Relaxed);
            entry.store(generation | 1, Ordering::Relaxed);
        }
        Self { table }
    }

    /// Says that all bytes of a place are complete. Call it after the last write, before the first reader learns of the
    /// place.
    ///
    /// # Panics
    ///
    /// If the place is complete already.
    pub fn complete(&self, place: &Place) -> Stamp {
        for entry in &self.table.as_ref()[range(place)] {
            let generation = entry.load(Ordering::Relaxed);
            assert!(is_odd(generation), "{place:?} is complete already (invariant 1)");
            // Release: a reader that sees this generation sees the bytes.
            entry.store(generation + 1, Ordering::Release);
        }
        self.stamp(place).expect("the entries are even now")
    }

    /// Says that a place ends. Call it before its range is allocated again. It may end before it was complete.
    pub fn end(&self, place: &Place) {
        for entry in &self.table.as_ref()[range(place)] {
            let generation = entry.load(Ordering::Relaxed);
            entry.store(generation + 1 + u64::from(is_odd(generation)), Ordering::Relaxed);
        }
        // A reader that sees a byte of the next place sees these generations: its own fence follows its last read.
        fence(Ordering::SeqCst);
    }

    /// The stamp of a place whose bytes are complete, otherwise `None`.
    #[must_use]
    pub fn stamp(&self, place: &Place) -> Option<Stamp> {
        let units = range(place);
        let table = self.table.as_ref();
        let first = table[units.start].load(Ordering::Acquire);
        let last = table[units.end - 1].load(Ordering::Acquire);
        (!is_odd(first) && !is_odd(last)).then_some(Stamp { first, last })
    }

    /// Whether the units from `start` on still have the place that the stamp was taken from. Call it after the last
    /// read of the place's bytes.
    ///
    /// # Panics
    ///
    /// If there are no such units.
    #[must_use]
    pub fn is_current(&self, start: u32, units: u32, stamp: Stamp) -> bool {
        fence(Ordering::SeqCst);
        let table = self.table.as_ref();
        let (first, last) = (start as usize, start as usize + units as usize - 1);
        table[first].load(Ordering::Acquire) == stamp.first
            && table[last].load(Ordering::Acquire) == stamp.last
    }
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

    #[test]
    fn a_place_has_a_stamp_from_its_last_byte_to_its_end() {
        let generations = Generations::new(table(8));
        let mut places = Places::new(8);
        let place = places.allocate(3).unwrap();
        assert_eq!(generations.stamp(&place), None);
        let stamp = generations.complete(&place);
        assert_eq!(generations.stamp(&place), Some(stamp));
        assert!(generations.is_current(0, 3, stamp));
        generations.end(&place);
        assert!(!generations.is_current(0, 3, stamp));
        assert_eq!(generations.stamp(&place), None);
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
        assert!(generations.is_current(0, 2, stamp));
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
        assert_eq!(generations.complete(&place), Stamp { first: 8, last: 10 });
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
                    prop_assert_eq!(generations.stamp(&place), None, "not complete yet");
                    let stamp = generations.complete(&place);
                    live.push((place, stamp));
                } else {
                    let (place, stamp) = live.swap_remove(leaves.index(live.len()));
                    ended.push((place.start(), place.units(), stamp));
                    generations.end(&place);
                    places.free(place);
                }
                for (place, stamp) in &live {
                    prop_assert!(generations.is_current(place.start(), place.units(), *stamp));
                }
                for (start, units, stamp) in &ended {
                    prop_assert!(!generations.is_current(*start, *units, *stamp));
                }
            }
        }
    }
}
