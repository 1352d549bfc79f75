//! A token bucket in debt: work is paid for after it is done, and the next piece waits until the debt is paid.

use std::time::Duration;

use dalsegno_core::Nanos;

/// A budget of bytes that refills at the rate. It holds at most what the rate gives in its burst.
#[derive(Clone, Copy, Debug)]
pub struct Bucket {
    bytes_per_s: u64,
    burst: Duration,
    /// The moment at which a whole burst is available.
    full_at: Nanos,
}

const BURST: Duration = Duration::from_secs(1);

impl Bucket {
    /// A full bucket with a burst of one second. With a rate of zero nothing ever passes.
    #[must_use]
    pub fn new(bytes_per_s: u64) -> Self {
        Self::with_burst(bytes_per_s, BURST)
    }

    /// A full bucket.
    #[must_use]
    pub fn with_burst(bytes_per_s: u64, burst: Duration) -> Self {
        Self { bytes_per_s, burst, full_at: Nanos(0) }
    }

    /// Changes the rate. A debt takes as long as before.
    pub fn set_rate(&mut self, bytes_per_s: u64) {
        self.bytes_per_s = bytes_per_s;
    }

    /// How long to wait before spending more; `None` means forever.
    #[must_use]
    pub fn wait(&self, now: Nanos) -> Option<Duration> {
        (self.bytes_per_s > 0).then(|| self.full_at.since(now.after(self.burst)))
    }

    /// Forgets the part of a debt that takes longer to pay.
    pub fn forgive(&mut self, most: Duration, now: Nanos) {
        self.full_at = self.full_at.min(now.after(self.burst).after(most));
    }

    /// Spends bytes, even more than are available.
    pub fn spend(&mut self, bytes: u64, now: Nanos) {
        let nanos = u128::from(bytes) * 1_000_000_000 / u128::from(self.bytes_per_s.max(1));
        let nanos = u64::try_from(nanos).unwrap_or(u64::MAX);
        self.full_at = self.full_at.max(now).after(Duration::from_nanos(nanos));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: u64 = 1_000_000_000;

    #[test]
    fn one_second_is_available_immediately_and_the_rest_arrives_at_the_rate() {
        let mut bucket = Bucket::new(1000);
        let now = Nanos(5);
        bucket.spend(1000, now);
        assert_eq!(bucket.wait(now), Some(Duration::ZERO));
        bucket.spend(500, now);
        assert_eq!(bucket.wait(now), Some(Duration::from_millis(500)));
        assert_eq!(bucket.wait(now.after(Duration::from_millis(500))), Some(Duration::ZERO));
    }

    #[test]
    fn over_any_long_time_the_rate_holds() {
        let mut bucket = Bucket::new(1000);
        let (mut now, mut spent) = (Nanos(9 * SECOND), 0);
        while now.0 < 109 * SECOND {
            match bucket.wait(now) {
                Some(Duration::ZERO) => {
                    bucket.spend(700, now);
                    spent += 700;
                }
                wait => now = now.after(wait.unwrap_or_default()),
            }
        }
        assert!((100_000..=102_000).contains(&spent), "{spent}");
    }

    #[test]
    fn a_rate_of_zero_lets_nothing_pass() {
        assert_eq!(Bucket::new(0).wait(Nanos(u64::MAX)), None);
    }
}
