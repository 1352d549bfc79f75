//! How long a request takes and how long each byte of it does: so, which ranges become one request.
//!
//! 1. Reading a gap between two ranges costs its bytes; a request of its own costs a response time, and money. So a gap
//!    is read if its bytes take no longer than the response does.
//! 2. A request is as large as it may be while all connections have something to do. If there is little to read, its
//!    bytes still take as long as its response does: more requests would cost more and save at most that time.

use std::time::Duration;

use dalsegno_far::RequestCost;

/// Before anything was measured: a server in the same region.
const FIRST_RESPONSE_S: f64 = 0.015;
const FIRST_BYTES_PER_S: f64 = 80e6;
/// The weight of a new sample.
const WEIGHT: f64 = 0.1;
/// Gaps that are read, and not left out.
const GAP_BYTES: std::ops::RangeInclusive<u64> = (64 << 10)..=(4 << 20);
/// Largest request.
const MOST_BYTES: u64 = 32 << 20;
/// Smaller bodies say nothing about a rate.
const MEASURED_BYTES: u64 = 256 << 10;

/// See the module.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CostModel {
    response_s: f64,
    bytes_per_s: f64,
}

impl Default for CostModel {
    fn default() -> Self {
        Self { response_s: FIRST_RESPONSE_S, bytes_per_s: FIRST_BYTES_PER_S }
    }
}

impl CostModel {
    /// A request took so long until its response began, and its bytes so long from then on.
    pub(crate) fn note(&mut self, response: Duration, bytes: u64, body: Duration) {
        let mix = |old: f64, new: f64| old + WEIGHT * (new - old);
        self.response_s = mix(self.response_s, response.as_secs_f64());
        if bytes >= MEASURED_BYTES && !body.is_zero() {
            self.bytes_per_s = mix(self.bytes_per_s, real(bytes) / body.as_secs_f64());
        }
    }

    /// The largest gap between two ranges that is read.
    pub(crate) fn gap_bytes(&self) -> u64 {
        whole(self.response_s * self.bytes_per_s).clamp(*GAP_BYTES.start(), *GAP_BYTES.end())
    }

    /// How large a request is at most, while `wanted` bytes are to arrive over `connections`.
    pub(crate) fn request_bytes(&self, wanted: u64, connections: u64) -> u64 {
        (wanted / connections.max(1)).clamp(self.gap_bytes(), MOST_BYTES)
    }

    /// What a request takes.
    pub(crate) fn measured(&self) -> RequestCost {
        RequestCost {
            response_us: whole(self.response_s * 1e6),
            request_bytes_per_s: whole(self.bytes_per_s),
            gap_bytes: self.gap_bytes(),
        }
    }
}

#[expect(clippy::cast_precision_loss, reason = "a figure, not a count")]
fn real(number: u64) -> f64 {
    number as f64
}

#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a cast saturates")]
fn whole(number: f64) -> u64 {
    number as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    fn measured(response_ms: u64, bytes_per_ms: u64) -> CostModel {
        let mut model = CostModel::default();
        for _ in 0..200 {
            let body = Duration::from_millis(100);
            model.note(Duration::from_millis(response_ms), 100 * bytes_per_ms, body);
        }
        model
    }

    #[test]
    fn a_gap_is_read_that_takes_no_longer_than_a_response() {
        let far = measured(20, 100_000).gap_bytes();
        assert!((1_900_000..2_100_000).contains(&far), "{far}");
        assert_eq!(measured(1, 10_000).gap_bytes(), 64 << 10, "a response costs more than time");
        assert_eq!(measured(500, 100_000).gap_bytes(), 4 << 20);
    }

    #[test]
    fn requests_grow_until_all_connections_are_busy() {
        let model = measured(20, 100_000);
        assert_eq!(model.request_bytes(1 << 20, 16), model.gap_bytes());
        assert_eq!(model.request_bytes(256 << 20, 16), 16 << 20);
        assert_eq!(model.request_bytes(1 << 40, 16), MOST_BYTES);
    }
}
