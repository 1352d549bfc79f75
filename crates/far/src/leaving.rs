//! Names that are to be removed from a location.
//!
//! 1. A name that cannot be removed keeps no other one from being removed. It is tried again later.

use std::collections::BTreeMap;
use std::fmt::Display;
use std::ops::Range;
use std::time::Duration;

use dalsegno_core::Nanos;
use dalsegno_io::IoError;

/// When a name that could not be removed is tried again.
const AGAIN: Duration = Duration::from_secs(60);
/// Names of a call that cannot be removed. Further ones would fail, too.
const MOST_FAILURES: usize = 8;

/// Names that are to be removed, and from when on.
#[derive(Debug)]
pub(crate) struct Leaving<K>(BTreeMap<K, Nanos>);

impl<K> Default for Leaving<K> {
    fn default() -> Self {
        Self(BTreeMap::new())
    }
}

impl<K: Ord + Copy + Display> Leaving<K> {
    pub(crate) fn add(&mut self, name: K, from: Nanos) {
        self.0.entry(name).or_insert(from);
    }

    /// The names of a range, in order.
    pub(crate) fn range(&self, names: Range<K>) -> impl Iterator<Item = K> {
        self.0.range(names).map(|(name, _)| *name)
    }

    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    /// Removes what is due, in the order of the names. `remove` also gets all names that are left, with its own.
    ///
    /// # Errors
    ///
    /// If the location does not respond, or many names fail. All that were tried are tried again later.
    pub(crate) fn remove_due(
        &mut self,
        now: Nanos,
        mut remove: impl FnMut(K, &Self) -> Result<(), IoError>,
    ) -> Result<(), IoError> {
        let is_due = |(name, from): (&K, &Nanos)| (*from <= now).then_some(*name);
        let due: Vec<K> = self.0.iter().filter_map(is_due).collect();
        let mut failures = 0;
        for name in due {
            let Err(error) = remove(name, self) else {
                self.0.remove(&name);
                continue;
            };
            self.0.insert(name, now.after(AGAIN));
            failures += 1;
            if error.is_late() || failures == MOST_FAILURES {
                return Err(error);
            }
            tracing::warn!(%error, number = %name, "not removed from the far location; it is tried again in a minute");
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::io::Error;

    use super::*;

    const EIO: i32 = 5;

    fn failed() -> IoError {
        let source = Error::from_raw_os_error(EIO);
        IoError::Os { operation: "remove", file: "1.pack".to_owned(), source }
    }

    /// Removes what is due at a second, while these names fail. Returns whether that succeeds, and what was tried.
    fn remove_due(leaving: &mut Leaving<u64>, at_s: u64, bad: &[u64]) -> (bool, Vec<u64>) {
        let now = Nanos(at_s * 1_000_000_000);
        let mut tried = Vec::new();
        let result = leaving.remove_due(now, |name, _| {
            tried.push(name);
            if bad.contains(&name) { Err(failed()) } else { Ok(()) }
        });
        (result.is_ok(), tried)
    }

    #[test]
    fn a_name_that_cannot_be_removed_keeps_no_other_one_and_is_tried_again_later() {
        let mut leaving = Leaving::default();
        (1..=3).for_each(|name| leaving.add(name, Nanos(0)));
        leaving.add(4, Nanos(30_000_000_000));
        assert_eq!(remove_due(&mut leaving, 0, &[1]), (true, vec![1, 2, 3]));
        assert_eq!(remove_due(&mut leaving, 30, &[1]), (true, vec![4]));
        assert_eq!(remove_due(&mut leaving, 60, &[]), (true, vec![1]));
        assert_eq!(leaving.len(), 0);
    }

    #[test]
    fn a_location_on_which_all_names_fail_ends_the_removal() {
        let mut leaving = Leaving::default();
        (1..=20).for_each(|name| leaving.add(name, Nanos(0)));
        let all: Vec<u64> = (1..=20).collect();
        assert_eq!(remove_due(&mut leaving, 0, &all), (false, (1..=8).collect()));
        assert_eq!(remove_due(&mut leaving, 1, &[]), (true, (9..=20).collect()));
        assert_eq!(leaving.len(), 8);
    }
}
