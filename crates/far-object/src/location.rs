//! Where objects lie: a URL and its options, and the client for them.
//!
//! 1. What is wrong with them is found before anything is sent.
//! 2. Credentials come from the environment, from files that it names, or from the machine (instance metadata, web
//!    identity), as `object_store` finds them. A URL with a user or a password is refused and not repeated.
//! 3. Without TLS a client is made only where the endpoint says `http://`.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use dalsegno_core::FarOptions;
use object_store::aws::{AmazonS3Builder, AmazonS3ConfigKey, S3ConditionalPut};
use object_store::azure::{AzureConfigKey, MicrosoftAzureBuilder};
use object_store::gcp::{GoogleCloudStorageBuilder, GoogleConfigKey};
use object_store::path::Path as Key;
use object_store::{Attribute, Attributes, Certificate, ClientOptions, ObjectStore, RetryConfig};
use thiserror::Error;

use crate::traffic::{Connector, Traffic};

/// How long a connection may take to be made.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// How long a connection that nobody uses is kept.
const IDLE_TIMEOUT: Duration = Duration::from_secs(90);
/// Longest prefix. A key may have 1024 bytes, and ours take up to 90.
const MAX_PREFIX_BYTES: usize = 512;
/// Largest file of certificates.
const MAX_CA_BYTES: u64 = 4 << 20;

/// The protocols of object stores.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scheme {
    /// `s3://bucket/prefix`: Amazon S3 and what speaks its protocol.
    S3,
    /// `gs://bucket/prefix`: Google Cloud Storage.
    Gcs,
    /// `az://container/prefix`: Azure Blob Storage.
    Azure,
}

impl Scheme {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::S3, Self::Gcs, Self::Azure];

    /// How its URLs begin, before `://`.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::S3 => "s3",
            Self::Gcs => "gs",
            Self::Azure => "az",
        }
    }
}

/// Why a location cannot be used.
#[derive(Debug, Error)]
pub enum LocationError {
    /// The URL is wrong.
    #[error("{shown:?} is no URL of an object store: {reason}; give {example}")]
    Url {
        /// The URL, without what may be secret.
        shown: String,
        /// What is wrong.
        reason: &'static str,
        /// What would be right.
        example: &'static str,
    },
    /// An option is wrong.
    #[error("{option} is {value:?}: {reason}")]
    Option {
        /// The name of the option.
        option: &'static str,
        /// Its value.
        value: String,
        /// What is wrong, what is expected, and what to do.
        reason: String,
    },
    /// The client refused its configuration.
    #[error("no client for {url}: {reason}; check far_options and the environment")]
    Client {
        /// The location.
        url: String,
        /// What the client says.
        reason: String,
    },
}

/// A place in an object store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ObjectLocation {
    scheme: Scheme,
    bucket: String,
    prefix: String,
    options: FarOptions,
}

/// What a tier needs of a location.
pub(crate) struct Client {
    pub(crate) store: Arc<dyn ObjectStore>,
    pub(crate) prefix: Key,
    /// Of what is written.
    pub(crate) attributes: Attributes,
}

impl ObjectLocation {
    /// Whether a text names an object store, and no path: it begins with a scheme.
    #[must_use]
    pub fn is_url(text: &str) -> bool {
        Scheme::ALL.iter().any(|scheme| after_scheme(text, *scheme).is_some())
    }

    /// Checks a URL and its options.
    ///
    /// # Errors
    ///
    /// [`LocationError`] says what is wrong with which.
    pub fn parse(url: &str, options: FarOptions) -> Result<Self, LocationError> {
        let found = Scheme::ALL.into_iter().find_map(|one| Some((one, after_scheme(url, one)?)));
        let Some((scheme, rest)) = found else {
            let shown = url.split_once("://").map_or(url, |(scheme, _)| scheme);
            return Err(wrong_url(shown, "it begins with none of s3://, gs://, az://"));
        };
        if rest.contains(['@', '?', '#', ':']) {
            let shown = format!("{}://...", scheme.name());
            let reason =
                "it has a user, a port or a query, which may be secret and has no place here";
            return Err(wrong_url(&shown, reason));
        }
        let (bucket, prefix) = rest.split_once('/').unwrap_or((rest, ""));
        let prefix = prefix.trim_end_matches('/');
        let is_plain = |text: &str| {
            text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_.=".contains(&byte))
        };
        if bucket.is_empty() || bucket.len() > 255 || !is_plain(bucket) {
            return Err(wrong_url(url, "the name of its bucket is missing or has other letters"));
        }
        let is_segment = |text: &str| !matches!(text, "" | "." | "..") && is_plain(text);
        if prefix.len() > MAX_PREFIX_BYTES
            || !prefix.is_empty() && !prefix.split('/').all(is_segment)
        {
            return Err(wrong_url(
                url,
                "its prefix is over 512 bytes or not folders of a-z, A-Z, 0-9, '-', '_', '.', '='",
            ));
        }
        let (bucket, prefix) = (bucket.to_owned(), prefix.to_owned());
        let location = Self { scheme, bucket, prefix, options };
        location.check_options()?;
        Ok(location)
    }

    /// The protocol.
    #[must_use]
    pub fn scheme(&self) -> Scheme {
        self.scheme
    }

    pub(crate) fn bucket(&self) -> &str {
        &self.bucket
    }

    /// The same bucket, in a folder below the prefix.
    #[must_use]
    pub fn within(mut self, folder: &str) -> Self {
        let slash = if self.prefix.is_empty() { "" } else { "/" };
        self.prefix = format!("{}{slash}{folder}", self.prefix);
        self
    }

    /// The URL. It has no credentials.
    #[must_use]
    pub fn url(&self) -> String {
        let slash = if self.prefix.is_empty() { "" } else { "/" };
        format!("{}://{}{slash}{}", self.scheme.name(), self.bucket, self.prefix)
    }

    fn check_options(&self) -> Result<(), LocationError> {
        let options = &self.options;
        if let Some(endpoint) = &options.endpoint {
            let rest = endpoint.strip_prefix("https://").or(endpoint.strip_prefix("http://"));
            let is_host =
                rest.is_some_and(|rest| !rest.is_empty() && !rest.contains(['@', '?', '#', ' ']));
            if !is_host {
                let reason = "it must be https:// or http:// and a host, without a user".to_owned();
                let value =
                    if endpoint.contains(['@', '?', '#']) { "..." } else { endpoint.as_str() };
                return Err(wrong_option("endpoint", value, reason));
            }
        }
        if let Some(option) = options.of_cluster().first() {
            let reason = format!("only mooncake:// has it; leave it out for {}", self.url());
            return Err(wrong_option(option, "given", reason));
        }
        let is_s3 = self.scheme == Scheme::S3;
        let only_s3 = [
            ("region", options.region.is_some()),
            ("path_style", options.path_style.is_some()),
            ("encryption", options.encryption.is_some()),
        ];
        for (option, is_given) in only_s3 {
            if is_given && !is_s3 {
                let reason = format!("only s3:// has it; leave it out for {}", self.url());
                return Err(wrong_option(option, "given", reason));
            }
        }
        if let Some(encryption) = &options.encryption {
            let is_key =
                |text: &str| text.strip_prefix("aws:kms:").is_some_and(|key| !key.is_empty());
            if !matches!(encryption.as_str(), "AES256" | "aws:kms") && !is_key(encryption) {
                let reason = "it must be AES256, aws:kms, or aws:kms: and the key".to_owned();
                return Err(wrong_option("encryption", "something else", reason));
            }
        }
        Ok(())
    }

    /// Makes a client that counts its requests in `traffic`. Sends nothing.
    pub(crate) fn client(&self, traffic: &Arc<Traffic>) -> Result<Client, LocationError> {
        // An error means that there is one already.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let failed = |error: object_store::Error| LocationError::Client {
            url: self.url(),
            reason: without_secrets(&error.to_string()),
        };
        let store: Arc<dyn ObjectStore> = match self.scheme {
            Scheme::S3 => Arc::new(self.s3(traffic)?.build().map_err(failed)?),
            Scheme::Gcs => {
                let mut builder = GoogleCloudStorageBuilder::from_env();
                let of_environment = builder.get_config_value(&GoogleConfigKey::BaseUrl);
                let endpoint = self.options.endpoint.clone().or(of_environment);
                builder = builder
                    .with_bucket_name(&self.bucket)
                    .with_client_options(self.client_options(endpoint.as_deref())?)
                    .with_retry(no_retries())
                    .with_http_connector(Connector::new(traffic));
                if let Some(endpoint) = endpoint {
                    builder = builder.with_base_url(&endpoint);
                }
                Arc::new(builder.build().map_err(failed)?)
            }
            Scheme::Azure => {
                let mut builder = MicrosoftAzureBuilder::from_env();
                let of_environment = builder.get_config_value(&AzureConfigKey::Endpoint);
                let endpoint = self.options.endpoint.clone().or(of_environment);
                builder = builder
                    .with_container_name(&self.bucket)
                    .with_client_options(self.client_options(endpoint.as_deref())?)
                    .with_retry(no_retries())
                    .with_http_connector(Connector::new(traffic));
                if let Some(endpoint) = endpoint {
                    builder = builder.with_config(AzureConfigKey::Endpoint, endpoint);
                }
                Arc::new(builder.build().map_err(failed)?)
            }
        };
        let prefix = Key::parse(&self.prefix).map_err(|error| failed(error.into()))?;
        let class = self.options.storage_class.clone();
        let attributes = class.map(|class| (Attribute::StorageClass, class)).into_iter().collect();
        Ok(Client { store, prefix, attributes })
    }

    fn s3(&self, traffic: &Arc<Traffic>) -> Result<AmazonS3Builder, LocationError> {
        let options = &self.options;
        let mut builder = AmazonS3Builder::from_env()
            .with_bucket_name(&self.bucket)
            .with_client_options(self.client_options(None)?)
            .with_retry(no_retries())
            .with_conditional_put(S3ConditionalPut::ETagMatch)
            // Its response hides which object was not removed, and why.
            .with_disable_bulk_delete(true)
            .with_http_connector(Connector::new(traffic));
        let of_environment = [AmazonS3ConfigKey::S3Endpoint, AmazonS3ConfigKey::Endpoint];
        let of_environment = of_environment.iter().find_map(|key| builder.get_config_value(key));
        let endpoint = options.endpoint.clone().or(of_environment);
        if let Some(region) = &options.region {
            builder = builder.with_region(region);
        }
        let is_plain = endpoint.as_ref().is_some_and(|url| url.starts_with("http://"));
        let style = AmazonS3ConfigKey::VirtualHostedStyleRequest;
        let of_environment = builder.get_config_value(&style).is_some_and(|value| value == "true");
        let is_hosted = match options.path_style {
            Some(path_style) => !path_style,
            None => of_environment || endpoint.is_none(),
        };
        builder = builder.with_virtual_hosted_style_request(is_hosted);
        if let Some(endpoint) = endpoint {
            let endpoint = if is_hosted { with_host(&endpoint, &self.bucket) } else { endpoint };
            // Each of both may come from the environment, and the second one would be stronger.
            builder = builder
                .with_endpoint(&endpoint)
                .with_config(AmazonS3ConfigKey::S3Endpoint, endpoint);
        }
        // TLS protects what is sent already, and checksums of ours are inside.
        builder = builder.with_allow_http(is_plain).with_unsigned_payload(!is_plain);
        Ok(match options.encryption.as_deref() {
            None => builder,
            Some(kind @ ("AES256" | "aws:kms")) => {
                let key = "aws_server_side_encryption".parse().expect("a key of the client");
                builder.with_config(key, kind)
            }
            Some(key) => builder.with_sse_kms_encryption(key.trim_start_matches("aws:kms:")),
        })
    }

    fn client_options(&self, endpoint: Option<&str>) -> Result<ClientOptions, LocationError> {
        let mut client = ClientOptions::new()
            .with_connect_timeout(CONNECT_TIMEOUT)
            .with_pool_idle_timeout(IDLE_TIMEOUT)
            .with_timeout_disabled()
            .with_allow_http(endpoint.is_some_and(|url| url.starts_with("http://")))
            .with_user_agent(
                concat!("dalsegno/", env!("CARGO_PKG_VERSION")).parse().expect("ASCII"),
            );
        if let Some(file) = &self.options.ca_file {
            for certificate in certificates(file)? {
                client = client.with_root_certificate(certificate);
            }
        }
        Ok(client)
    }
}

/// The endpoint of a bucket whose name is in the host.
fn with_host(endpoint: &str, bucket: &str) -> String {
    match endpoint.split_once("://") {
        Some((scheme, host)) if !host.starts_with(&format!("{bucket}.")) => {
            format!("{scheme}://{bucket}.{host}")
        }
        _ => endpoint.to_owned(),
    }
}

/// The text without the values of variables that may be secret: a client repeats what it cannot read.
fn without_secrets(text: &str) -> String {
    let is_of_client =
        |name: &str| ["AWS_", "AZURE_", "GOOGLE_"].iter().any(|start| name.starts_with(start));
    let values = std::env::vars_os().filter_map(|(name, value)| {
        let (name, value) = (name.into_string().ok()?, value.into_string().ok()?);
        (is_of_client(&name) && value.len() >= 8).then_some((name, value))
    });
    values.fold(text.to_owned(), |text, (name, value)| text.replace(&value, &format!("${name}")))
}

fn after_scheme(text: &str, scheme: Scheme) -> Option<&str> {
    text.strip_prefix(scheme.name())?.strip_prefix("://")
}

fn wrong_url(shown: &str, reason: &'static str) -> LocationError {
    let example = "s3://bucket/prefix, gs://bucket/prefix or az://container/prefix";
    LocationError::Url { shown: shown.to_owned(), reason, example }
}

fn wrong_option(option: &'static str, value: &str, reason: String) -> LocationError {
    LocationError::Option { option, value: value.to_owned(), reason }
}

/// Tries again are our own: they end with the deadline of a call, and are counted by cause.
fn no_retries() -> RetryConfig {
    RetryConfig { max_retries: 0, ..RetryConfig::default() }
}

/// The certificates in a file.
fn certificates(file: &str) -> Result<Vec<Certificate>, LocationError> {
    let wrong = |reason: String| wrong_option("ca_file", file, reason);
    let what = "give a file with certificates as PEM";
    let read = dalsegno_io::read_file(Path::new(file), MAX_CA_BYTES);
    let pem = read.map_err(|error| wrong(format!("{error}; {what}")))?;
    let found =
        Certificate::from_pem_bundle(&pem).map_err(|error| wrong(format!("{error}; {what}")))?;
    if found.is_empty() {
        return Err(wrong(format!("it has no certificate; {what}")));
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(url: &str) -> Result<ObjectLocation, LocationError> {
        ObjectLocation::parse(url, FarOptions::default())
    }

    #[test]
    fn urls_name_a_bucket_and_a_prefix() {
        for (url, shown) in [
            ("s3://bucket", "s3://bucket"),
            ("s3://bucket/", "s3://bucket"),
            ("gs://a-b.c_d/x/y=1/", "gs://a-b.c_d/x/y=1"),
            ("az://container/kv", "az://container/kv"),
        ] {
            assert_eq!(parse(url).unwrap().url(), shown);
        }
        let tenant = parse("s3://bucket").unwrap().within("tenants/blue");
        assert_eq!(tenant.url(), "s3://bucket/tenants/blue");
        assert_eq!(tenant.within("x").url(), "s3://bucket/tenants/blue/x");
        assert!(!ObjectLocation::is_url("/mnt/s3://x") && !ObjectLocation::is_url("s3:/x"));
    }

    #[test]
    fn wrong_urls_are_refused_with_what_is_wrong() {
        for (url, reason) in [
            ("http://bucket", "begins with none of"),
            ("s3://", "bucket"),
            ("s3:///prefix", "bucket"),
            ("s3://bücket", "bucket"),
            ("s3://bucket/a//b", "prefix"),
            ("s3://bucket/../other", "prefix"),
            ("s3://bucket/a b", "prefix"),
            ("s3://bucket/x?versionId=1", "query"),
        ] {
            let message = parse(url).unwrap_err().to_string();
            assert!(
                message.contains(reason) && message.contains("s3://bucket/prefix"),
                "{message}"
            );
        }
        let long = format!("s3://bucket/{}", "x".repeat(513));
        assert!(parse(&long).is_err());
    }

    #[test]
    fn no_message_repeats_a_password() {
        let message = parse("s3://key:PASSWORD@host/bucket").unwrap_err().to_string();
        assert!(!message.contains("PASSWORD"), "{message}");
        let endpoint = Some("https://key:PASSWORD@host".to_owned());
        let options = FarOptions { endpoint, ..FarOptions::default() };
        let message = ObjectLocation::parse("s3://bucket", options).unwrap_err().to_string();
        assert!(message.contains("endpoint") && !message.contains("PASSWORD"), "{message}");
    }

    #[test]
    fn a_bucket_may_be_in_the_host_of_an_endpoint() {
        assert_eq!(with_host("https://s3.example:9000", "kv"), "https://kv.s3.example:9000");
        assert_eq!(with_host("https://kv.s3.example", "kv"), "https://kv.s3.example");
    }

    #[test]
    fn options_are_checked_before_anything_is_sent() {
        let refused = |url: &str, options: FarOptions| {
            ObjectLocation::parse(url, options).unwrap_err().to_string()
        };
        let text = |text: &str| Some(text.to_owned());
        let endpoint = FarOptions { endpoint: text("host:9000"), ..FarOptions::default() };
        assert!(refused("s3://b", endpoint).contains("https://"));
        let region = FarOptions { region: text("eu-west-1"), ..FarOptions::default() };
        assert!(refused("gs://b", region).contains("only s3://"));
        let encryption = FarOptions { encryption: text("rot13"), ..FarOptions::default() };
        assert!(refused("s3://b", encryption).contains("AES256"));
        let ca_file = FarOptions { ca_file: text("/no/such/file.pem"), ..FarOptions::default() };
        let location = ObjectLocation::parse("s3://b", ca_file).unwrap();
        let clock = Arc::new(dalsegno_core::ManualClock::default());
        let made = location.client(&Traffic::new(clock, "b")).map(drop);
        assert!(made.unwrap_err().to_string().contains("ca_file"));
    }
}
