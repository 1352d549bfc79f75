//! Object stores as a [`Tier`](dalsegno_far::Tier): S3 and what speaks its protocol, Google Cloud Storage, Azure Blob.
//!
//! | module | what it does |
//! |---|---|
//! | `location` | [`ObjectLocation`]: a URL and its options, checked; the client for it |
//! | `network` | the one thread with a runtime, and what is bounded about it |
//! | `traffic` | counts every request of the client, and reads the server's clock from its responses |
//! | `failure` | why a request failed, and whether another try may help |
//! | `status` | the status of the newest response to a task |
//! | `bucket` | requests with retries until a deadline, and one pace for all of them |
//! | `pace` | how many requests in a second a server takes that asked for fewer |
//! | `cost` | how long a request and a byte take, and so which ranges become one |
//! | `reads` | reads of parts of objects: which become one request, and bytes straight into places |
//! | `tier` | [`ObjectTier`] |
//!
//! 1. Tokio runs on one thread of each tier and nowhere else. No call waits for it.
//! 2. Every call gets one reply and every request one completion, whatever the server does, and also when the tier is
//!    dropped.
//! 3. Nothing depends on a server that keeps a promise: an object that exists already is compared with what was to be
//!    published, and checksums inside of objects decide what is read.
//! 4. No credential is in a message, a count or an option: they come from the environment, from files or from the
//!    machine, and stay in the client.

#![forbid(unsafe_code)]

mod bucket;
mod cost;
mod failure;
mod location;
mod network;
mod pace;
mod reads;
mod status;
mod tier;
mod traffic;

pub use location::{LocationError, ObjectLocation, Scheme};
pub use tier::{ObjectTier, OpenError};
