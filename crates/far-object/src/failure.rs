//! Why a request failed, and whether another try may help.
//!
//! 1. A message has the status and the code of the server's error, and nothing else of its response: bodies of S3
//!    repeat the access key and what was signed.

use std::error::Error as _;
use std::io::ErrorKind;

use dalsegno_core::Stopped;
use dalsegno_io::IoError;
use object_store::client::{HttpError, HttpErrorKind};
use thiserror::Error;

use crate::status::last_status;

/// Longest code of a server that is repeated.
const MAX_CODE: usize = 64;

/// The causes of failures.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Cause {
    /// There is no such object.
    Missing,
    /// The object exists already.
    Exists,
    /// The credentials are wrong, are expired, or do not allow it; or this host's clock is wrong.
    Denied,
    /// There is no such bucket.
    NoBucket,
    /// The bucket is in another region.
    Region,
    /// The server asks for fewer requests.
    SlowDown,
    /// The server failed.
    Server,
    /// No connection: refused, a name that is not known, a certificate that is not trusted.
    Connect,
    /// The server did not respond in time.
    Timeout,
    /// The connection ended in the middle.
    Cut,
    /// The response is not what the protocol says, such as another range.
    Protocol,
    /// The server does not accept the request.
    Refused,
    /// The object, or the listing, is larger than it may be.
    TooLarge,
}

impl Cause {
    /// How many there are.
    pub(crate) const COUNT: usize = 13;
    /// All of them, in their order.
    pub(crate) const ALL: [Self; Self::COUNT] = [
        Self::Missing,
        Self::Exists,
        Self::Denied,
        Self::NoBucket,
        Self::Region,
        Self::SlowDown,
        Self::Server,
        Self::Connect,
        Self::Timeout,
        Self::Cut,
        Self::Protocol,
        Self::Refused,
        Self::TooLarge,
    ];

    /// Its name in counts.
    #[must_use]
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Missing => "missing",
            Self::Exists => "exists",
            Self::Denied => "denied",
            Self::NoBucket => "no_bucket",
            Self::Region => "region",
            Self::SlowDown => "slow_down",
            Self::Server => "server",
            Self::Connect => "connect",
            Self::Timeout => "timeout",
            Self::Cut => "cut",
            Self::Protocol => "protocol",
            Self::Refused => "refused",
            Self::TooLarge => "too_large",
        }
    }

    /// Whether the same request may succeed a moment later.
    pub(crate) fn is_momentary(self) -> bool {
        matches!(
            self,
            Self::SlowDown
                | Self::Server
                | Self::Connect
                | Self::Timeout
                | Self::Cut
                | Self::Protocol
        )
    }

    fn of_status(status: u16) -> Self {
        match status {
            301 | 307 => Self::Region,
            404 => Self::Missing,
            409 | 412 | 304 => Self::Exists,
            401 | 403 => Self::Denied,
            429 | 503 => Self::SlowDown,
            408 => Self::Timeout,
            501 => Self::Refused,
            500..=599 => Self::Server,
            200..=299 => Self::Protocol,
            _ => Self::Refused,
        }
    }

    fn of_http(kind: HttpErrorKind) -> Self {
        match kind {
            HttpErrorKind::Connect => Self::Connect,
            HttpErrorKind::Timeout => Self::Timeout,
            HttpErrorKind::Decode => Self::Protocol,
            _ => Self::Cut,
        }
    }
}

/// A request that failed.
#[derive(Clone, Debug, Error)]
#[error("{}", self.shown())]
pub(crate) struct Failure {
    pub(crate) cause: Cause,
    status: Option<u16>,
    code: Option<String>,
}

impl Failure {
    /// Without a response.
    pub(crate) fn of(cause: Cause) -> Self {
        Self { cause, status: None, code: None }
    }

    /// What the client reports of a request of this task.
    pub(crate) fn from_client(error: &object_store::Error) -> Self {
        if let Some(kind) = http_kind(error) {
            return Self::of(Cause::of_http(kind));
        }
        let status = last_status();
        let code = code_in(&error.to_string());
        // Nothing was sent to the bucket: there are no credentials, or those who give them refused.
        let by_status = status.map_or(Cause::Denied, Cause::of_status);
        let cause = match code.as_deref() {
            Some("NoSuchBucket" | "ContainerNotFound") => Cause::NoBucket,
            Some("SlowDown" | "ServerBusy" | "RequestLimitExceeded") => Cause::SlowDown,
            Some("PermanentRedirect" | "TemporaryRedirect" | "AuthorizationHeaderMalformed") => {
                Cause::Region
            }
            Some("RequestTimeout") => Cause::Timeout,
            Some("InternalError" | "ConditionalRequestConflict" | "OperationAborted") => {
                Cause::Server
            }
            Some(
                "ExpiredToken" | "RequestTimeTooSkewed" | "InvalidAccessKeyId" | "InvalidToken",
            ) => Cause::Denied,
            _ => match error {
                object_store::Error::InvalidPath { .. } => Cause::Refused,
                object_store::Error::NotFound { .. } => Cause::Missing,
                object_store::Error::AlreadyExists { .. }
                | object_store::Error::Precondition { .. } => Cause::Exists,
                object_store::Error::PermissionDenied { .. }
                | object_store::Error::Unauthenticated { .. } => Cause::Denied,
                _ => by_status,
            },
        };
        Self { cause, status, code }
    }

    /// Whether the server does not know what was asked for.
    pub(crate) fn is_not_implemented(&self) -> bool {
        self.status == Some(501)
    }

    /// Whether a range began behind the end of its object.
    pub(crate) fn is_beyond_end(&self) -> bool {
        self.status == Some(416)
    }

    fn shown(&self) -> String {
        let what = match self.cause {
            Cause::Missing => "there is no such object",
            Cause::Exists => "it exists already",
            Cause::Denied => {
                "there are no credentials, they do not allow it, or have expired, or the clock of this host is wrong"
            }
            Cause::NoBucket => "there is no such bucket",
            Cause::Region => {
                "the bucket is in another region; set `region` in far_options or AWS_REGION"
            }
            Cause::SlowDown => "the server asks for fewer requests",
            Cause::Server => "the server failed",
            Cause::Connect => {
                "no connection: check the endpoint, its name and its certificate, and that there are credentials; \
                 without any in the environment or a file, the metadata service of the instance is asked for them"
            }
            Cause::Timeout => "the server did not respond in time",
            Cause::Cut => "the connection ended",
            Cause::Protocol => "the response is not what was asked for",
            Cause::Refused => "the server does not accept the request",
            Cause::TooLarge => "it is larger than it may be",
        };
        match (self.status, &self.code) {
            (Some(status), Some(code)) => format!("{what} ({status} {code})"),
            (Some(status), None) => format!("{what} ({status})"),
            (None, _) => what.to_owned(),
        }
    }

    /// As the store sees it. A failure of the whole location is none of an object, so access that is denied has no
    /// number of the system.
    pub(crate) fn to_io(&self, operation: &'static str, file: &str) -> IoError {
        match self.cause {
            Cause::Missing => IoError::not_found(operation, file),
            Cause::Exists => IoError::exists(operation, file),
            Cause::TooLarge => IoError::too_large(operation, file),
            Cause::Timeout => IoError::Stopped(Stopped::Deadline),
            _ => {
                let kind = match self.cause {
                    Cause::Connect => ErrorKind::NotConnected,
                    Cause::Cut => ErrorKind::ConnectionAborted,
                    Cause::Protocol => ErrorKind::InvalidData,
                    _ => ErrorKind::Other,
                };
                let source = std::io::Error::new(kind, self.clone());
                IoError::Os { operation, file: file.to_owned(), source }
            }
        }
    }
}

/// What happened to the connection, if that is what failed.
fn http_kind(error: &object_store::Error) -> Option<HttpErrorKind> {
    let mut source = error.source();
    while let Some(found) = source {
        if let Some(http) = found.downcast_ref::<HttpError>() {
            return Some(http.kind());
        }
        source = found.source();
    }
    None
}

/// The code in the body of an error: `<Code>` of S3 and Azure.
fn code_in(text: &str) -> Option<String> {
    let (_, rest) = text.split_once("<Code>")?;
    let (code, _) = rest.split_once("</Code>")?;
    let is_plain = code.len() <= MAX_CODE && code.bytes().all(|byte| byte.is_ascii_alphanumeric());
    (is_plain && !code.is_empty()).then(|| code.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn generic(text: &str) -> object_store::Error {
        object_store::Error::Generic { store: "S3", source: text.to_owned().into() }
    }

    #[test]
    fn a_message_has_the_code_and_nothing_else_of_the_body() {
        let body = "<Error><Code>InvalidAccessKeyId</Code><AWSAccessKeyId>AKIASECRET</AWSAccessKeyId></Error>";
        let failure = Failure::from_client(&generic(body));
        let shown = failure.to_io("read", "a/b").to_string();
        assert_eq!(failure.cause, Cause::Denied);
        assert!(shown.contains("InvalidAccessKeyId") || !shown.contains("AKIA"), "{shown}");
        assert!(!shown.contains("AKIA"), "{shown}");
    }

    #[test]
    fn codes_say_more_than_the_status() {
        for (code, cause) in [
            ("NoSuchBucket", Cause::NoBucket),
            ("SlowDown", Cause::SlowDown),
            ("ExpiredToken", Cause::Denied),
            ("InternalError", Cause::Server),
        ] {
            let body = format!("<Error><Code>{code}</Code></Error>");
            assert_eq!(Failure::from_client(&generic(&body)).cause, cause);
        }
        assert_eq!(code_in("<Code><x></Code>"), None);
        assert_eq!(code_in(&format!("<Code>{}</Code>", "x".repeat(65))), None);
    }

    #[test]
    fn access_that_is_denied_is_a_failure_of_the_location_and_not_of_an_object() {
        let denied = Failure::of(Cause::Denied).to_io("read", "x");
        assert!(!denied.is_denied() && !denied.is_of_object() && !denied.is_not_found());
        assert!(Failure::of(Cause::Missing).to_io("read", "x").is_not_found());
        assert!(Failure::of(Cause::Timeout).to_io("read", "x").is_late());
        assert_eq!(Cause::ALL.map(|cause| cause as usize), std::array::from_fn(|at| at));
    }
}
