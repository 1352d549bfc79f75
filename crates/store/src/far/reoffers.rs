//! Blocks that are offered to the far location again when they are put again, because publishing failed.
//!
//! 1. While nothing fails, no present block is offered again.
//! 2. After a failure, each extent is offered again once at most, and only if the location does not have all of it.
//! 3. Memory is bounded. Beyond the bound, extents may be offered more than once.

use std::collections::HashSet;

use dalsegno_core::ExtentId;
use parking_lot::Mutex;

/// Extents that are remembered.
const MOST: usize = 65_536;

/// Which extents were offered again.
#[derive(Debug, Default)]
pub(crate) struct Reoffers(Mutex<ReofferState>);

#[derive(Debug, Default)]
struct ReofferState {
    /// Failures so far.
    failures: u64,
    /// Extents that were offered again since the last failure; `None` before the first one.
    offered: Option<HashSet<ExtentId>>,
}

impl Reoffers {
    /// Notes how many failures there were so far.
    pub(crate) fn note_failures(&self, failures: u64) {
        let mut state = self.0.lock();
        if state.failures != failures {
            *state = ReofferState { failures, offered: Some(HashSet::new()) };
        }
    }

    /// Whether an extent that is put again is to be offered again. If so, that is noted.
    pub(crate) fn take(&self, extent: ExtentId) -> bool {
        let mut state = self.0.lock();
        let Some(offered) = &mut state.offered else { return false };
        if offered.len() >= MOST {
            offered.clear();
        }
        offered.insert(extent)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_extent_is_offered_again_once_after_each_failure() {
        let reoffers = Reoffers::default();
        let [one, two] = [1, 2].map(ExtentId);
        reoffers.note_failures(0);
        assert!(!reoffers.take(one), "nothing failed");
        reoffers.note_failures(3);
        assert!(reoffers.take(one) && !reoffers.take(one));
        reoffers.note_failures(3);
        assert!(reoffers.take(two) && !reoffers.take(one));
        reoffers.note_failures(4);
        assert!(reoffers.take(one));
        (0..2 * MOST as u64).map(ExtentId).for_each(|extent| _ = reoffers.take(extent));
        assert!(reoffers.0.lock().offered.as_ref().unwrap().len() <= MOST);
    }
}
