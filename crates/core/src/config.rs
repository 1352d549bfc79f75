//! What a person writes; [`Config::validate`] makes [`crate::Limits`] of it.
//!
//! 1. An unknown key is an error that names the nearest known one.

use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize};

use crate::index_tuning::IndexTuning;
use crate::{Error, Result, parse_bytes};

/// Whether a put waits until its bytes survive a power cut.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Durability {
    /// A put returns when its bytes are written: a crash of the machine may lose the newest, never correctness.
    #[default]
    None,
    /// A put returns after `fdatasync`; puts that arrive together share one.
    Batch,
}

/// Which I/O engine serves the files.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum EngineChoice {
    /// `io_uring` where the kernel allows it, else `psync`.
    #[default]
    Auto,
    /// Linux `io_uring`; opening fails where it is missing or forbidden.
    Uring,
    /// A pool of threads with `preadv` and `pwritev`.
    Psync,
}

/// Which blocks a put writes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Admission {
    /// All of them.
    #[default]
    All,
    /// A block is written when it is put for the second time within the memory of the filter: saves flash wear.
    SecondPut,
}

/// When a block enters the DRAM tier.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum DramAdmission {
    /// When it is read from the log.
    #[default]
    Get,
    /// Already when it is put.
    Put,
}

/// Where the index lives.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum IndexChoice {
    /// In memory: about 150 bytes per block, rebuilt from the log's headers at every open.
    #[default]
    Memory,
    /// In files beside the log: bounded memory and a quick open, however many blocks there are.
    Lsm,
}

/// The settings of a store. Every field has a default that needs no thought.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Config {
    /// Most bytes of disk the store uses; default 80% of what the file system could give it when it is opened.
    #[serde(deserialize_with = "optional_bytes")]
    pub capacity: Option<u64>,
    /// Size of a segment file, the unit of recycling; a power of two, default capacity / 32 within 1 MiB to 256 MiB.
    #[serde(deserialize_with = "optional_bytes")]
    pub segment: Option<u64>,
    /// Largest extent; default 32 MiB, at most a quarter of a segment.
    #[serde(deserialize_with = "optional_bytes")]
    pub extent: Option<u64>,
    /// Most bytes of the DRAM tier; 0 switches it off; default 256 MiB.
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
    /// Requests that one call keeps in flight, large ones fewer: together about 4 MiB; default 8.
    pub io_depth: Option<u32>,
    /// Largest single request to the device; default 1 MiB.
    #[serde(deserialize_with = "optional_bytes")]
    pub io_request: Option<u64>,
    /// Bytes of the pool of aligned buffers for memory that direct I/O cannot reach; default 64 MiB.
    #[serde(deserialize_with = "optional_bytes")]
    pub staging: Option<u64>,
    /// Bytes of extent headers kept in memory; default 32 MiB.
    #[serde(deserialize_with = "optional_bytes")]
    pub header_cache: Option<u64>,
    /// Where the index lives.
    pub index: IndexChoice,
    /// Bytes of memory of an index in files, but for its filters; default 128 MiB.
    #[serde(deserialize_with = "optional_bytes")]
    pub index_memory: Option<u64>,
    /// Whether the shape of an index in files follows what is asked of it.
    pub index_tuning: IndexTuning,
    /// Most bytes a second that merging tables of an index in files writes; 0 for no bound; default 256 MiB.
    #[serde(deserialize_with = "optional_bytes")]
    pub index_rate: Option<u64>,
    /// Most bytes a second that merging small extents writes; 0 switches it off; default 64 MiB.
    #[serde(deserialize_with = "optional_bytes")]
    pub merge_rate: Option<u64>,
    /// Most bytes a second that scrubbing reads, to find bytes that went bad; 0 switches it off; default 4 MiB.
    #[serde(deserialize_with = "optional_bytes")]
    pub scrub_rate: Option<u64>,
    /// Threads that carry out loads, and as many that carry out stores; default 2.
    pub transfer_threads: Option<u32>,
    /// Loads that may wait for a thread before a new one is throttled, and as many stores; default 256.
    pub transfer_queue: Option<u32>,
    /// Most namespaces of one store, those without blocks forgotten at open; default 4096.
    pub namespaces: Option<u32>,
}

impl Config {
    /// Reads a JSON object of settings; byte counts may be numbers or text such as `"200GiB"`.
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
        for (key, value) in given {
            let alone = serde_json::json!({ key: value });
            if let Err(error) = serde_json::from_value::<Self>(alone) {
                let message = format!("setting {key:?} cannot be {value}");
                return Err(Error::invalid(message).with_source(error));
            }
        }
        serde_json::from_value(value)
            .map_err(|e| Error::invalid("the settings do not go together").with_source(e))
    }

    /// Names of all settings, sorted.
    #[must_use]
    pub fn keys() -> Vec<String> {
        match serde_json::to_value(Self::default()) {
            Ok(serde_json::Value::Object(map)) => map.keys().cloned().collect(),
            _ => unreachable!("a struct serializes to an object"),
        }
    }
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
}
