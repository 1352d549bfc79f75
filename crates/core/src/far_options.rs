//! How an object store is reached.

use serde::{Deserialize, Serialize};

/// Options of a far location in an object store. None of them is secret: credentials come from the environment, from
/// files that it names, or from the machine.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct FarOptions {
    /// The URL of the server, such as `https://minio.example:9000`; that of the provider if `None`.
    pub endpoint: Option<String>,
    /// The region of the bucket. S3 only.
    pub region: Option<String>,
    /// A file with certificates (PEM) that are trusted beside those of the system.
    pub ca_file: Option<String>,
    /// Whether the bucket is in the path of a URL, and not in its host: `true` unless said otherwise if there is an
    /// endpoint. S3 only.
    pub path_style: Option<bool>,
    /// The storage class of what is written, as the provider names it.
    pub storage_class: Option<String>,
    /// Encryption by the server: `AES256`, `aws:kms`, or `aws:kms:` and the key. S3 only.
    pub encryption: Option<String>,
}
