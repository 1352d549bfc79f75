//! How fast the tiers are, measured from the store's own reads.

use std::time::Duration;

use dalsegno_core::BlockTier;
use parking_lot::Mutex;

/// How far one sample moves the median.
const MEDIAN_STEP: f64 = 1.05;
/// The weight of earlier samples in the bandwidth after each new one.
const KEPT: f64 = 0.9;

/// Recent reads of a tier.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct TierSpeed {
    /// A moving median of the time of a call.
    median_ns: Option<f64>,
    /// Sums in which older calls weigh less.
    bytes: f64,
    ns: f64,
}

/// How fast each tier is.
#[derive(Debug, Default)]
pub(crate) struct TierSpeeds {
    dram: Mutex<TierSpeed>,
    log: Mutex<TierSpeed>,
    far: Mutex<TierSpeed>,
}

impl TierSpeed {
    fn note(&mut self, bytes: f64, ns: f64) {
        self.median_ns = Some(match self.median_ns {
            None => ns,
            Some(median) if ns > median => (median * MEDIAN_STEP).min(ns),
            Some(median) => (median / MEDIAN_STEP).max(ns),
        });
        self.bytes = self.bytes * KEPT + bytes;
        self.ns = self.ns * KEPT + ns;
    }
}

impl TierSpeeds {
    /// Notes that a call read `bytes` of a tier in the time `took`.
    #[expect(clippy::cast_precision_loss, reason = "an estimate")]
    pub(crate) fn note(&self, tier: BlockTier, bytes: u64, took: Duration) {
        if bytes > 0 {
            self.of(tier).lock().note(bytes as f64, (took.as_nanos() as f64).max(1.0));
        }
    }

    /// The median time of recent calls in nanoseconds, and the bytes per second of them; `None` before the first one.
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "an estimate")]
    pub(crate) fn view(&self, tier: BlockTier) -> Option<(u64, u64)> {
        let TierSpeed { median_ns, bytes, ns } = *self.of(tier).lock();
        Some((median_ns? as u64, (bytes / ns * 1e9) as u64))
    }

    fn of(&self, tier: BlockTier) -> &Mutex<TierSpeed> {
        match tier {
            BlockTier::Dram => &self.dram,
            BlockTier::Log => &self.log,
            BlockTier::Far => &self.far,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_and_the_bandwidth_follow_the_reads() {
        let speeds = TierSpeeds::default();
        assert_eq!(speeds.view(BlockTier::Log), None);
        let note = |bytes, ms| speeds.note(BlockTier::Log, bytes, Duration::from_millis(ms));
        note(0, 5);
        assert_eq!(speeds.view(BlockTier::Log), None, "a call that read nothing");
        (0..100).for_each(|_| note(1 << 20, 1));
        // One slow call in five moves the median little.
        (0..100).for_each(|number| note(1 << 20, if number % 5 == 0 { 500 } else { 1 }));
        let (median_ns, _) = speeds.view(BlockTier::Log).unwrap();
        assert!((900_000..1_300_000).contains(&median_ns), "{median_ns}");
        (0..300).for_each(|_| note(1 << 20, 2));
        let (median_ns, bytes_per_s) = speeds.view(BlockTier::Log).unwrap();
        assert!((1_900_000..2_100_000).contains(&median_ns), "{median_ns}");
        assert!(bytes_per_s.abs_diff(500 << 20) < 5 << 20, "{bytes_per_s}");
        assert_eq!(speeds.view(BlockTier::Far), None);
    }
}
