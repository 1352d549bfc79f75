//! Measures the requests to the far location.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use dalsegno_core::{Clock, Nanos};
use dalsegno_io::{Geometry, IoError, Request, Source, Watch};

/// The first bucket has requests of up to 64 µs, each further one those of up to twice as long, the last one the rest.
const FIRST_BUCKET_US: u64 = 64;
const BUCKETS: usize = 18;

/// Times of requests, in buckets, and the bytes that are in flight.
#[derive(Debug, Default)]
pub(crate) struct RequestTimes {
    buckets: [AtomicU64; BUCKETS],
    in_flight_bytes: AtomicU64,
}

/// A source whose requests are measured.
#[derive(Debug)]
pub(crate) struct TimedSource {
    source: Arc<dyn Source>,
    clock: Arc<dyn Clock>,
    times: Arc<RequestTimes>,
}

/// A request in flight.
struct TimedRequest {
    clock: Arc<dyn Clock>,
    times: Arc<RequestTimes>,
    began: Nanos,
    bytes: u64,
}

impl RequestTimes {
    /// Bytes of requests that the location has not completed.
    pub(crate) fn in_flight_bytes(&self) -> u64 {
        self.in_flight_bytes.load(Ordering::Relaxed)
    }

    /// How many requests took so long: up to 64 µs, up to 128 µs and so on. The last one has no upper bound.
    pub(crate) fn buckets(&self) -> BTreeMap<String, u64> {
        let name = |at: usize| match at + 1 {
            BUCKETS => "longer".to_owned(),
            _ => format!("up_to_{}", FIRST_BUCKET_US << at),
        };
        let count = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        self.buckets.iter().enumerate().map(|(at, one)| (name(at), count(one))).collect()
    }

    fn note(&self, took_us: u64) {
        let units = took_us.div_ceil(FIRST_BUCKET_US).max(1);
        let at = units.next_power_of_two().trailing_zeros() as usize;
        self.buckets[at.min(BUCKETS - 1)].fetch_add(1, Ordering::Relaxed);
    }
}

impl TimedSource {
    pub(crate) fn new(source: Arc<dyn Source>, clock: Arc<dyn Clock>) -> Self {
        Self { source, clock, times: Arc::default() }
    }

    pub(crate) fn times(&self) -> Arc<RequestTimes> {
        Arc::clone(&self.times)
    }
}

impl Source for TimedSource {
    fn submit(&self, mut requests: Vec<Request>) {
        for request in &mut requests {
            let bytes = request.bytes();
            self.times.in_flight_bytes.fetch_add(bytes, Ordering::Relaxed);
            let (clock, times) = (Arc::clone(&self.clock), Arc::clone(&self.times));
            let began = clock.now();
            request.add_watch(Arc::new(TimedRequest { clock, times, began, bytes }));
        }
        self.source.submit(requests);
    }

    fn geometry(&self) -> Geometry {
        self.source.geometry()
    }
}

impl Watch for TimedRequest {
    fn ended(&self, result: Result<(), &IoError>) {
        self.times.in_flight_bytes.fetch_sub(self.bytes, Ordering::Relaxed);
        if result.is_ok() {
            let took = self.clock.now().since(self.began);
            self.times.note(u64::try_from(took.as_micros()).unwrap_or(u64::MAX));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_time_is_in_the_bucket_of_its_bound() {
        for (took_us, bucket) in [
            (0, "up_to_64"),
            (64, "up_to_64"),
            (65, "up_to_128"),
            (1000, "up_to_1024"),
            (4_194_304, "up_to_4194304"),
            (4_194_305, "longer"),
            (u64::MAX / 2, "longer"),
        ] {
            let times = RequestTimes::default();
            times.note(took_us);
            let buckets = times.buckets();
            assert_eq!(buckets.len(), BUCKETS);
            assert_eq!((buckets[bucket], buckets.values().sum::<u64>()), (1, 1), "{took_us}");
        }
    }
}
