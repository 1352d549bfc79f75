//! Counters of transfers.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use serde::Serialize;

use crate::error::Cause;

/// Live counters, which only grow.
#[derive(Debug, Default)]
pub struct TransferStats {
    pub(crate) read_bytes: AtomicU64,
    pub(crate) read_requests: AtomicU64,
    pub(crate) staged_read_bytes: AtomicU64,
    pub(crate) written_bytes: AtomicU64,
    pub(crate) write_requests: AtomicU64,
    pub(crate) staged_write_bytes: AtomicU64,
    pub(crate) encoded_bytes: AtomicU64,
    pub(crate) encoded_stored_bytes: AtomicU64,
    pub(crate) not_shrunk_bytes: AtomicU64,
    pub(crate) encode_ns: AtomicU64,
    pub(crate) decoded_bytes: AtomicU64,
    pub(crate) decode_ns: AtomicU64,
    causes: [AtomicU64; Cause::ALL.len()],
}

/// What the codec did: its ratio and its time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct CompressionStats {
    /// Bytes of blocks that were compressed.
    pub encoded_bytes: u64,
    /// Their bytes after compression; the quotient is the ratio.
    pub encoded_stored_bytes: u64,
    /// Bytes of blocks that were stored plain because compression did not shrink them enough.
    pub not_shrunk_bytes: u64,
    /// Nanoseconds of compression, including extents that did not shrink.
    pub encode_ns: u64,
    /// Bytes of units after decompression, including bytes that the reader did not want.
    pub decoded_bytes: u64,
    /// Nanoseconds of decompression.
    pub decode_ns: u64,
}

/// A snapshot of the counters.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct TransferStatsView {
    /// Bytes read from the device, including padding and headers.
    pub read_bytes: u64,
    /// Read requests sent to the device.
    pub read_requests: u64,
    /// Bytes read into a staging buffer because the caller's memory could not be used directly.
    pub staged_read_bytes: u64,
    /// Bytes written to the device.
    pub written_bytes: u64,
    /// Write requests sent to the device.
    pub write_requests: u64,
    /// Bytes copied to a staging buffer before they were written.
    pub staged_write_bytes: u64,
    /// What the codec did.
    pub codec: CompressionStats,
    /// Blocks that were a miss when they were read, by cause.
    pub misses: BTreeMap<&'static str, u64>,
}

impl TransferStats {
    pub(crate) fn add(counter: &AtomicU64, value: u64) {
        counter.fetch_add(value, Ordering::Relaxed);
    }

    pub(crate) fn add_time(counter: &AtomicU64, time: Duration) {
        Self::add(counter, u64::try_from(time.as_nanos()).unwrap_or(u64::MAX));
    }

    /// Counts blocks that are a miss.
    pub fn count_miss(&self, cause: Cause, blocks: u64) {
        let index = Cause::ALL.iter().position(|c| *c == cause).expect("ALL is complete");
        Self::add(&self.causes[index], blocks);
    }

    /// Copies the counters.
    #[must_use]
    pub fn view(&self) -> TransferStatsView {
        let get = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        TransferStatsView {
            read_bytes: get(&self.read_bytes),
            read_requests: get(&self.read_requests),
            staged_read_bytes: get(&self.staged_read_bytes),
            written_bytes: get(&self.written_bytes),
            write_requests: get(&self.write_requests),
            staged_write_bytes: get(&self.staged_write_bytes),
            codec: CompressionStats {
                encoded_bytes: get(&self.encoded_bytes),
                encoded_stored_bytes: get(&self.encoded_stored_bytes),
                not_shrunk_bytes: get(&self.not_shrunk_bytes),
                encode_ns: get(&self.encode_ns),
                decoded_bytes: get(&self.decoded_bytes),
                decode_ns: get(&self.decode_ns),
            },
            misses: Cause::ALL.iter().zip(&self.causes).map(|(c, n)| (c.name(), get(n))).collect(),
        }
    }
}
