//! Where packs lie: the URL of a cluster, and its options.
//!
//! 1. What is wrong with them is found before anything is connected.

use std::fmt;

use dalsegno_core::FarOptions;
use thiserror::Error;

/// How a URL begins.
const SCHEME: &str = "mooncake://";
/// Where a master listens unless its URL says otherwise.
const MASTER_PORT: u16 = 50051;
/// The prefix of keys unless the URL has one.
const PREFIX: &str = "dalsegno";
/// Longest prefix.
const MAX_PREFIX_BYTES: usize = 512;
/// Copies of a pack that may be asked for.
const MOST_REPLICAS: u32 = 8;

/// Why a location cannot be used.
#[derive(Debug, PartialEq, Eq, Error)]
pub enum LocationError {
    /// The URL is wrong.
    #[error(
        "{shown:?} is no URL of a Mooncake cluster: {reason}; give mooncake://host:50051/prefix"
    )]
    Url {
        /// The URL, without what may be secret.
        shown: String,
        /// What is wrong.
        reason: &'static str,
    },
    /// An option is wrong or missing.
    #[error("far_options: {0}")]
    Option(String),
}

/// A place in a Mooncake cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MooncakeLocation {
    /// Host and port of the master.
    pub master: String,
    /// What all keys begin with, before a `/`.
    pub prefix: String,
    /// Where everything but packs is: a directory or the URL of an object store.
    pub catalogs: String,
    /// Copies of each pack.
    pub replicas: u32,
    /// How bytes are transferred: `tcp` or `rdma`.
    pub protocol: String,
    /// The RDMA devices, separated by commas; empty for all.
    pub devices: String,
    /// The metadata service of Mooncake's transfer engine, or `P2PHANDSHAKE`.
    pub metadata_server: String,
}

impl MooncakeLocation {
    /// Whether a text names a Mooncake cluster, and no path.
    #[must_use]
    pub fn is_url(text: &str) -> bool {
        text.starts_with(SCHEME)
    }

    /// Checks a URL and its options.
    ///
    /// # Errors
    ///
    /// [`LocationError`] says what is wrong with which.
    pub fn parse(url: &str, options: &FarOptions) -> Result<Self, LocationError> {
        let wrong = |shown: &str, reason| LocationError::Url { shown: shown.to_owned(), reason };
        let rest = url.strip_prefix(SCHEME).ok_or_else(|| wrong("...", "it begins otherwise"))?;
        if rest.contains(['@', '?', '#']) {
            return Err(wrong(SCHEME, "it has a user or a query, which may be secret"));
        }
        let (address, prefix) = rest.split_once('/').unwrap_or((rest, ""));
        let (host, port) = address.rsplit_once(':').unwrap_or((address, ""));
        let is_host = |text: &str| {
            !text.is_empty()
                && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-.".contains(&byte))
        };
        if !is_host(host) {
            return Err(wrong(url, "the host of its master is missing or has other letters"));
        }
        let port = if port.is_empty() { Ok(MASTER_PORT) } else { port.parse() };
        let port = port.map_err(|_| wrong(url, "its port is no number up to 65535"))?;
        let prefix = prefix.trim_end_matches('/');
        let is_plain = |text: &str| {
            text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte))
        };
        let is_segment = |text: &str| !matches!(text, "" | "." | "..") && is_plain(text);
        let prefix = if prefix.is_empty() { PREFIX } else { prefix };
        if prefix.len() > MAX_PREFIX_BYTES || !prefix.split('/').all(is_segment) {
            return Err(wrong(
                url,
                "its prefix has other letters than a-z, A-Z, 0-9, '-', '_' and '.'",
            ));
        }
        let located = Self {
            master: format!("{host}:{port}"),
            prefix: prefix.to_owned(),
            catalogs: options.catalogs.clone().unwrap_or_default(),
            replicas: options.replicas.unwrap_or(1),
            protocol: options.protocol.clone().unwrap_or_else(|| "tcp".to_owned()),
            devices: options.devices.clone().unwrap_or_default(),
            metadata_server: options
                .metadata_server
                .clone()
                .unwrap_or_else(|| "P2PHANDSHAKE".to_owned()),
        };
        located.check()?;
        Ok(located)
    }

    fn check(&self) -> Result<(), LocationError> {
        let wrong = |what: String| Err(LocationError::Option(what));
        if self.catalogs.is_empty() {
            return wrong(
                "catalogs is missing: a Mooncake cluster keeps packs only; give catalogs a directory that all hosts \
                 share, or the URL of a bucket, such as far_options={\"catalogs\": \"/mnt/kv\"}"
                    .to_owned(),
            );
        }
        if Self::is_url(&self.catalogs) {
            return wrong(
                "catalogs is a Mooncake cluster, which cannot list objects; give a directory that all hosts share, or \
                 the URL of a bucket"
                    .to_owned(),
            );
        }
        if !(1..=MOST_REPLICAS).contains(&self.replicas) {
            return wrong(format!(
                "replicas is {}; it must be 1 to {MOST_REPLICAS}",
                self.replicas
            ));
        }
        if !matches!(self.protocol.as_str(), "tcp" | "rdma") {
            return wrong("protocol is unknown; it must be tcp or rdma".to_owned());
        }
        Ok(())
    }

    /// The same cluster with a longer prefix.
    #[must_use]
    pub fn within(&self, folder: &str) -> Self {
        Self { prefix: format!("{}/{folder}", self.prefix), ..self.clone() }
    }
}

impl fmt::Display for MooncakeLocation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{SCHEME}{}/{}", self.master, self.prefix)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(url: &str) -> Result<MooncakeLocation, LocationError> {
        let options = FarOptions { catalogs: Some("/mnt/kv".to_owned()), ..FarOptions::default() };
        MooncakeLocation::parse(url, &options)
    }

    #[test]
    fn a_url_has_a_master_and_a_prefix() {
        assert_eq!(parse("mooncake://host").unwrap().to_string(), "mooncake://host:50051/dalsegno");
        let located = parse("mooncake://10.0.0.1:7000/a/b/").unwrap();
        assert_eq!((located.master.as_str(), located.prefix.as_str()), ("10.0.0.1:7000", "a/b"));
        assert_eq!(located.within("t").to_string(), "mooncake://10.0.0.1:7000/a/b/t");
        for url in [
            "mooncake://",
            "mooncake:///a",
            "mooncake://host:x",
            "mooncake://host:70000",
            "mooncake://host/a//b",
            "mooncake://host/..",
            "mooncake://host/a b",
        ] {
            assert!(matches!(parse(url), Err(LocationError::Url { .. })), "{url}");
        }
        let hidden = parse("mooncake://user:HUSH@host").unwrap_err().to_string();
        assert!(!hidden.contains("HUSH"), "{hidden}");
    }

    #[test]
    fn an_option_that_is_wrong_or_missing_is_named() {
        let given = |options: FarOptions| {
            MooncakeLocation::parse("mooncake://host", &options).unwrap_err().to_string()
        };
        let here = FarOptions { catalogs: Some("/mnt/kv".to_owned()), ..FarOptions::default() };
        assert!(given(FarOptions::default()).contains("catalogs is missing"));
        assert!(given(FarOptions { replicas: Some(0), ..here.clone() }).contains("replicas is 0"));
        let protocol = Some("pigeon".to_owned());
        assert!(given(FarOptions { protocol, ..here }).contains("must be tcp or rdma"));
        let catalogs = Some("mooncake://other".to_owned());
        let cyclic = given(FarOptions { catalogs, ..FarOptions::default() });
        assert!(cyclic.contains("cannot list objects"), "{cyclic}");
    }
}
