//! The settings that an operator writes. [`Config::validate`] derives [`crate::Limits`] from them.
//!
//! 1. An unknown key is an error that names the nearest known one.

use std::time::Duration;

use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize};

use crate::choices::{Admission, DramAdmission, Durability, EngineChoice, FarWrite, IndexChoice};
use crate::far_options::FarOptions;
use crate::index_tuning::IndexTuning;
use crate::limits::{Limits, SpaceFacts};
use crate::{Error, Result, SECTOR_BYTES, format_bytes, parse_bytes, sector_down};

/// Space reserved for the store's small files: its own header and namespace descriptors.
const SMALL_FILES_BYTES: u64 = 1 << 20;
/// The part of the capacity reserved for an on-disk index: half for its tables, half to compact them. The index takes
/// about 82 bytes a block, so it suffices for blocks of 5 KiB. A token of a small model, at eight bits a value, has 6.
const INDEX_SHARE: u64 = 32;
const MIN_INDEX_BYTES: u64 = 4 << 20;
const MIN_SEGMENT_BYTES: u64 = 1 << 20;
const MAX_SEGMENT_BYTES: u64 = 4 << 30;
/// Fewest segments of a store: one takes writes, one is free for relocation, the others hold data.
pub const MIN_SEGMENTS: u64 = 4;
/// A directory of more files than this is slow to open and to list.
const MAX_SEGMENTS: u64 = 1 << 16;

/// The settings of a store. Every field has a default that works.
///
/// ```
/// use dalsegno_core::{Config, SpaceFacts};
///
/// let config = Config::from_json(r#"{"capacity": "200GiB", "dram": 0}"#)?;
/// let space = SpaceFacts { free_bytes: 500 << 30, own_bytes: 0, existing_segment_bytes: None };
/// let limits = config.validate(space)?;
/// assert_eq!(limits.capacity_bytes, 200 << 30);
/// assert_eq!(limits.segment_bytes, 256 << 20);
/// # Ok::<(), dalsegno_core::Error>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Config {
    /// Most bytes of disk that the store uses. Default: 80% of the free and own space of the file system at open.
    #[serde(deserialize_with = "optional_bytes")]
    pub capacity: Option<u64>,
    /// Size of a segment file, the unit of reclaim. A power of two. Default: capacity / 32, within 1 MiB to 256 MiB.
    #[serde(deserialize_with = "optional_bytes")]
    pub segment: Option<u64>,
    /// Largest extent. Default: 32 MiB, at most a quarter of a segment.
    #[serde(deserialize_with = "optional_bytes")]
    pub extent: Option<u64>,
    /// Most bytes of the DRAM tier; 0 disables it. Default: 256 MiB.
    #[serde(deserialize_with = "optional_bytes")]
    pub dram: Option<u64>,
    /// When a block enters the DRAM tier.
    pub dram_admission: DramAdmission,
    /// Which blocks a put writes.
    pub admission: Admission,
    /// Whether a put waits for `fdatasync`.
    pub durability: Durability,
    /// Which I/O engine serves the files.
    pub io_engine: EngineChoice,
    /// Requests that one call keeps in flight. Large requests fewer: together about 4 MiB. Default: 8.
    pub io_depth: Option<u32>,
    /// Largest single request to the device. Default: 1 MiB.
    #[serde(deserialize_with = "optional_bytes")]
    pub io_request: Option<u64>,
    /// Bytes of the pool of aligned buffers, for memory that direct I/O cannot reach. Default: 64 MiB.
    #[serde(deserialize_with = "optional_bytes")]
    pub staging: Option<u64>,
    /// Bytes of extent headers kept in memory. Default: 32 MiB.
    #[serde(deserialize_with = "optional_bytes")]
    pub header_cache: Option<u64>,
    /// Where the index is stored.
    pub index: IndexChoice,
    /// Bytes of memory of an on-disk index, without its filters. Default: 128 MiB.
    #[serde(deserialize_with = "optional_bytes")]
    pub index_memory: Option<u64>,
    /// Whether the shape of an on-disk index adapts to its workload.
    pub index_tuning: IndexTuning,
    /// Most bytes per second that compaction of an on-disk index writes; 0 for no bound. Default: 256 MiB.
    #[serde(deserialize_with = "optional_bytes")]
    pub index_rate: Option<u64>,
    /// Most bytes per second that merging of small extents writes; 0 disables it. Default: 64 MiB.
    #[serde(deserialize_with = "optional_bytes")]
    pub merge_rate: Option<u64>,
    /// Most bytes per second that scrubbing reads to find damaged bytes; 0 disables it. Default: 4 MiB.
    #[serde(deserialize_with = "optional_bytes")]
    pub scrub_rate: Option<u64>,
    /// Threads for loads, and as many for stores. Default: 2.
    pub transfer_threads: Option<u32>,
    /// Loads that may wait for a thread before new ones are throttled, and as many stores. Default: 256.
    pub transfer_queue: Option<u32>,
    /// Most namespaces of one store. Those without blocks are forgotten at open. Default: 16,384.
    pub namespaces: Option<u32>,
    /// A directory of a shared file system, or a place in an object store such as `s3://bucket/prefix`, where the
    /// stores of many hosts share blocks. Default: none.
    pub far: Option<String>,
    /// How an object store is reached.
    pub far_options: Option<FarOptions>,
    /// A folder of `far` that is used in its place, and created if it is missing. Only a server sets it, for a tenant.
    #[serde(skip)]
    pub far_folder: Option<String>,
    /// Most bytes that this store has there, with what its earlier opens wrote. Default: a tenth of the file system, or
    /// 1 TiB of an object store.
    #[serde(deserialize_with = "optional_bytes")]
    pub far_capacity: Option<u64>,
    /// Reads of the far directory at a time, and other calls at a time. Default: 32.
    pub far_workers: Option<u32>,
    /// When a block is written to the far directory.
    pub far_write: FarWrite,
    /// Seconds until blocks are published in the far directory even if their pack is not full. Default: 5.
    pub far_flush_s: Option<f64>,
}

impl Config {
    /// Parses a JSON object of settings. Byte counts may be numbers or text such as `"200GiB"`.
    ///
    /// # Errors
    ///
    /// `Invalid` for an unknown key (the message names the nearest known one) or a value of the wrong kind.
    pub fn from_json(text: &str) -> Result<Self> {
        let value: serde_json::Value = serde_json::from_str(text)
            .map_err(|e| Error::invalid("the configuration is not JSON").with_source(e))?;
        let serde_json::Value::Object(given) = &value else {
            return Err(Error::invalid("the configuration must be an object of settings"));
        };
        let known = Self::keys();
        if let Some(unknown) = given.keys().find(|key| !known.contains(key)) {
            let nearest = known
                .iter()
                .min_by_key(|key| strsim::damerau_levenshtein(key, unknown))
                .expect("there are settings");
            return Err(Error::invalid(format!(
                "unknown setting {unknown:?}; did you mean {nearest:?}?"
            )));
        }
        if let Some(options) = given.get("far_options") {
            FarOptions::check(options)?;
        }
        for (key, value) in given {
            let alone = serde_json::json!({ key: value });
            if let Err(error) = serde_json::from_value::<Self>(alone) {
                let message = format!("setting {key:?} cannot be {value}");
                return Err(Error::invalid(message).with_source(error));
            }
        }
        serde_json::from_value(value)
            .map_err(|e| Error::invalid("the settings contradict each other").with_source(e))
    }

    /// Names of all settings, sorted.
    #[must_use]
    pub fn keys() -> Vec<String> {
        match serde_json::to_value(Self::default()) {
            Ok(serde_json::Value::Object(map)) => map.keys().cloned().collect(),
            _ => unreachable!("a struct serializes to an object"),
        }
    }

    /// Derives every bound and checks them against each other.
    ///
    /// # Errors
    ///
    /// `Invalid` with the setting, its value, the allowed values and what to do.
    pub fn validate(&self, space: SpaceFacts) -> Result<Limits> {
        let capacity_bytes = self.capacity.unwrap_or_else(|| default_capacity(space));
        let segment_bytes = self.segment_bytes(capacity_bytes, space)?;
        let index_bytes = match self.index {
            IndexChoice::Memory => 0,
            IndexChoice::Lsm => (capacity_bytes / INDEX_SHARE).max(MIN_INDEX_BYTES),
        };
        let segments = self.segment_count(capacity_bytes, segment_bytes, index_bytes)?;
        let extent_bytes = self.extent_bytes(segment_bytes);
        let limits = Limits {
            capacity_bytes,
            capacity_is_default: self.capacity.is_none(),
            segment_bytes,
            segment_count: u32::try_from(segments.min(MAX_SEGMENTS)).expect("bounded"),
            extent_bytes,
            dram_bytes: self.dram.unwrap_or(256 << 20),
            dram_admission: self.dram_admission,
            admission: self.admission,
            durability: self.durability,
            io_engine: self.io_engine,
            io_depth: within("io_depth", self.io_depth.unwrap_or(8), 1, 64)?,
            io_request_bytes: sector_down(within_bytes(
                "io_request",
                self.io_request.unwrap_or(1 << 20),
                // A record's header, 256 KiB at most, is read in one request.
                256 << 10,
                4 << 20,
            )?),
            staging_bytes: within_bytes(
                "staging",
                self.staging.unwrap_or(64 << 20),
                16 << 20,
                64 << 30,
            )?,
            header_cache_bytes: self.header_cache.unwrap_or(32 << 20),
            // One is compressed while another is written.
            compression_bytes: 2 * extent_bytes,
            index: self.index,
            index_bytes,
            index_tuning: self.index_tuning,
            index_bytes_per_s: self.index_rate.unwrap_or(256 << 20),
            index_memory_bytes: within_bytes(
                "index_memory",
                self.index_memory.unwrap_or(128 << 20),
                1 << 20,
                64 << 30,
            )?,
            merge_bytes_per_s: self.merge_rate.unwrap_or(64 << 20),
            scrub_bytes_per_s: self.scrub_rate.unwrap_or(4 << 20),
            transfer_threads: within(
                "transfer_threads",
                self.transfer_threads.unwrap_or(2),
                1,
                64,
            )?,
            transfer_queue: within(
                "transfer_queue",
                self.transfer_queue.unwrap_or(256),
                1,
                65_536,
            )?,
            namespace_count: within("namespaces", self.namespaces.unwrap_or(16_384), 1, 65_536)?,
            far: self.far.clone(),
            far_capacity_bytes: self.far_capacity,
            far_workers: within("far_workers", self.far_workers.unwrap_or(32), 1, 64)?,
            far_write: self.far_write,
            far_flush_ms: self.far_flush_ms()?,
        };
        limits.check();
        Ok(limits)
    }

    fn far_flush_ms(&self) -> Result<u64> {
        let flush_s = self.far_flush_s.unwrap_or(5.0);
        if !(0.1..=1800.0).contains(&flush_s) {
            return Err(Error::invalid(format!(
                "far_flush_s is {flush_s}; it must be 0.1 to 1800"
            )));
        }
        let flush = Duration::from_secs_f64(flush_s);
        Ok(u64::try_from(flush.as_millis()).expect("at most half an hour"))
    }

    /// How many segments fit in the capacity next to the other files.
    fn segment_count(
        &self,
        capacity_bytes: u64,
        segment_bytes: u64,
        index_bytes: u64,
    ) -> Result<u64> {
        let others = SMALL_FILES_BYTES + index_bytes;
        let segments = capacity_bytes.saturating_sub(others) / segment_bytes;
        if segments >= MIN_SEGMENTS {
            return Ok(segments);
        }
        Err(Error::invalid(format!(
            "capacity {} holds {segments} segments of {}; at least {MIN_SEGMENTS} are needed, so give it {} \
             or more{}",
            format_bytes(capacity_bytes),
            format_bytes(segment_bytes),
            format_bytes(segment_bytes.saturating_mul(MIN_SEGMENTS).saturating_add(others)),
            if self.capacity.is_none() {
                " (the disk is nearly full: free some space)"
            } else {
                ""
            },
        )))
    }

    fn extent_bytes(&self, segment_bytes: u64) -> u64 {
        let wanted = self.extent.unwrap_or(32 << 20);
        sector_down(wanted.min(segment_bytes / 4).max(2 * SECTOR_BYTES))
    }

    fn segment_bytes(&self, capacity_bytes: u64, space: SpaceFacts) -> Result<u64> {
        // A store keeps the segment size it was created with, because its files exist already.
        if let Some(existing) = space.existing_segment_bytes {
            return match self.segment {
                Some(wanted) if wanted != existing => Err(Error::invalid(format!(
                    "this store was created with segments of {}, not {}; remove the setting \"segment\"",
                    format_bytes(existing),
                    format_bytes(wanted)
                ))),
                _ => Ok(existing),
            };
        }
        let segment = self.segment.unwrap_or_else(|| {
            let share = (capacity_bytes / 32).max(1);
            (1_u64 << share.ilog2()).clamp(MIN_SEGMENT_BYTES, 256 << 20)
        });
        if !may_be_segment_bytes(segment) {
            return Err(Error::invalid(format!(
                "segment is {}; it must be a power of two from {} to {}",
                format_bytes(segment),
                format_bytes(MIN_SEGMENT_BYTES),
                format_bytes(MAX_SEGMENT_BYTES)
            )));
        }
        Ok(segment)
    }
}

/// Whether a store may have segments of this size.
#[must_use]
pub fn may_be_segment_bytes(bytes: u64) -> bool {
    bytes.is_power_of_two() && (MIN_SEGMENT_BYTES..=MAX_SEGMENT_BYTES).contains(&bytes)
}

fn default_capacity(space: SpaceFacts) -> u64 {
    (space.free_bytes.saturating_add(space.own_bytes) / 10).saturating_mul(8)
}

fn within(name: &str, value: u32, low: u32, high: u32) -> Result<u32> {
    if (low..=high).contains(&value) {
        return Ok(value);
    }
    Err(Error::invalid(format!("{name} is {value}; it must be {low} to {high}")))
}

fn within_bytes(name: &str, value: u64, low: u64, high: u64) -> Result<u64> {
    if (low..=high).contains(&value) {
        return Ok(value);
    }
    Err(Error::invalid(format!(
        "{name} is {}; it must be {} to {}",
        format_bytes(value),
        format_bytes(low),
        format_bytes(high)
    )))
}

fn optional_bytes<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> std::result::Result<Option<u64>, D::Error> {
    let expected = "expected a byte count: a whole number, or text such as \"200GiB\"";
    match Option::<serde_json::Value>::deserialize(deserializer)? {
        None => Ok(None),
        Some(serde_json::Value::String(text)) => {
            parse_bytes(&text).map(Some).map_err(D::Error::custom)
        }
        Some(number) => number.as_u64().map(Some).ok_or_else(|| D::Error::custom(expected)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SPACE: SpaceFacts =
        SpaceFacts { free_bytes: 100 << 30, own_bytes: 0, existing_segment_bytes: None };

    #[test]
    fn an_unknown_setting_names_the_nearest_known_one() {
        let error = Config::from_json(r#"{"capacty": "1GiB"}"#).unwrap_err();
        assert!(error.message().contains("\"capacity\""), "{error}");
    }

    #[test]
    fn byte_counts_may_be_numbers_or_text() {
        let config = Config::from_json(r#"{"capacity": "2GiB", "dram": 0}"#).unwrap();
        assert_eq!((config.capacity, config.dram), (Some(2 << 30), Some(0)));
        assert!(Config::from_json(r#"{"capacity": "lots"}"#).is_err());
        assert!(Config::from_json(r#"{"durability": "maybe"}"#).is_err());
        let error = Config::from_json(r#"{"index_tuning": "T=1,K=1"}"#).unwrap_err();
        assert!(error.message().contains("\"index_tuning\" cannot be \"T=1,K=1\""), "{error}");
    }

    #[test]
    fn the_default_capacity_is_a_share_of_the_disk() {
        let limits = Config::default().validate(SPACE).unwrap();
        assert_eq!(limits.capacity_bytes, (100 << 30) / 10 * 8);
        assert!(limits.capacity_is_default);
        assert_eq!(limits.segment_bytes, 256 << 20);
    }

    #[test]
    fn a_capacity_too_small_for_its_segments_is_refused_with_the_least_that_works() {
        let config = Config { capacity: Some(3 << 20), ..Config::default() };
        let error = config.validate(SPACE).unwrap_err();
        assert!(error.message().contains("5 MiB"), "{error}");
    }

    #[test]
    fn regression_segments_larger_than_any_disk_are_refused() {
        let space = SpaceFacts { existing_segment_bytes: Some(1 << 63), ..SPACE };
        assert!(Config::default().validate(space).is_err());
    }

    #[test]
    fn an_existing_store_keeps_its_segment_size() {
        let space = SpaceFacts { existing_segment_bytes: Some(4 << 20), ..SPACE };
        assert_eq!(Config::default().validate(space).unwrap().segment_bytes, 4 << 20);
        let config = Config { segment: Some(8 << 20), ..Config::default() };
        assert!(config.validate(space).is_err());
    }
}
