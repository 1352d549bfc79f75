//! How an object store or a Mooncake cluster is reached.

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::{Error, Result};

/// Options of a far location that is no directory. None of them is secret: credentials come from the environment, from
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
    /// Where everything but packs is: a directory that hosts share, or the URL of a bucket, for which the options above
    /// are then. Mooncake only, which needs it.
    pub catalogs: Option<String>,
    /// Copies of each pack in the cluster; 1 if `None`. Mooncake only.
    pub replicas: Option<u32>,
    /// How bytes are transferred: `tcp`, or `rdma`; `tcp` if `None`. Mooncake only.
    pub protocol: Option<String>,
    /// The RDMA devices, separated by commas; all if `None`. Mooncake only.
    pub devices: Option<String>,
    /// The metadata service of Mooncake's transfer engine; none, as `P2PHANDSHAKE`, if `None`. Mooncake only.
    pub metadata_server: Option<String>,
}

impl FarOptions {
    /// The names of the options that are given, and that only a Mooncake cluster has.
    #[must_use]
    pub fn of_cluster(&self) -> Vec<&'static str> {
        let given = [
            ("catalogs", self.catalogs.is_some()),
            ("replicas", self.replicas.is_some()),
            ("protocol", self.protocol.is_some()),
            ("devices", self.devices.is_some()),
            ("metadata_server", self.metadata_server.is_some()),
        ];
        given.into_iter().filter_map(|(name, is_given)| is_given.then_some(name)).collect()
    }

    /// The options that an object store has.
    #[must_use]
    pub fn of_object_store(&self) -> Self {
        let Self { endpoint, region, ca_file, path_style, storage_class, encryption, .. } =
            self.clone();
        Self { endpoint, region, ca_file, path_style, storage_class, encryption, ..Self::default() }
    }

    /// Reads options as they were given.
    ///
    /// # Errors
    ///
    /// `Invalid` names the option that is unknown, or of the wrong kind.
    pub fn parse(given: Value) -> Result<Self> {
        Self::check(&given)?;
        serde_json::from_value(given)
            .map_err(|_| Error::invalid("the far_options contradict each other"))
    }

    /// Checks options as they were given. No message repeats a value: somebody may have taken a credential for an
    /// option.
    ///
    /// # Errors
    ///
    /// `Invalid` names the option that is unknown, or of the wrong kind.
    pub(crate) fn check(given: &Value) -> Result<()> {
        let wrong = |what: String| Err(Error::invalid(format!("far_options {what}")));
        let Value::Object(given) = given else {
            return if given.is_null() { Ok(()) } else { wrong("must be an object".to_owned()) };
        };
        let Ok(Value::Object(known)) = serde_json::to_value(Self::default()) else {
            unreachable!("a struct serializes to an object")
        };
        let names: Vec<&str> = known.keys().map(String::as_str).collect();
        for (option, value) in given {
            if !known.contains_key(option) {
                return wrong(format!(
                    "has no {option:?}; it has {}. Credentials are no options: they come from the environment, from \
                     files that it names, or from the machine",
                    names.join(", ")
                ));
            }
            let alone = serde_json::json!({ option: value });
            if serde_json::from_value::<Self>(alone).is_err() {
                let expected = match option.as_str() {
                    "path_style" => "true or false",
                    "replicas" => "a number",
                    _ => "text",
                };
                return wrong(format!("has a {option:?} of another kind; it must be {expected}"));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wrong_option_is_named_and_no_value_is_repeated() {
        let shown = |text: &str| {
            let given: Value = serde_json::from_str(text).unwrap();
            FarOptions::check(&given).map_err(|error| error.to_string())
        };
        assert!(shown(r#"{"region": "eu-west-1", "path_style": true}"#).is_ok());
        assert!(shown("null").is_ok());
        for given in [
            r#"{"secret_access_key": "HUSH"}"#,
            r#"{"path_style": "HUSH"}"#,
            r#"{"endpoint": ["HUSH"]}"#,
            r#""HUSH""#,
        ] {
            let message = shown(given).unwrap_err();
            assert!(message.contains("far_options") && !message.contains("HUSH"), "{message}");
        }
        assert!(shown(r#"{"secret_access_key": "HUSH"}"#).unwrap_err().contains("environment"));
    }
}
