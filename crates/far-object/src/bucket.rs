//! Requests to a bucket, tried again until a deadline.
//!
//! 1. What fails for a moment is tried again, after a time that doubles, until the deadline of the call. Every failure
//!    is counted by its cause.
//! 2. All requests of a location have one [`Pace`].

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use dalsegno_core::{Clock, Deadline, Stopped};
use dalsegno_io::IoError;
use futures_util::StreamExt;
use object_store::path::Path as Key;
use object_store::{ObjectStore, ObjectStoreExt, PutMode, PutOptions, PutPayload};
use parking_lot::Mutex;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{Instant, timeout};

use crate::failure::{Cause, Failure};
use crate::location::Client;
use crate::pace::Pace;
use crate::status::noting_status;
use crate::traffic::Traffic;

/// The first pause before a request is tried again; it doubles up to the longest.
const FIRST_PAUSE: Duration = Duration::from_millis(50);
const LONGEST_PAUSE: Duration = Duration::from_secs(2);
/// How long a server may take until its response begins, and send nothing while it goes on.
const SILENCE: Duration = Duration::from_secs(10);
/// A call without a deadline ends after this.
const LONGEST_CALL: Duration = Duration::from_secs(120);

/// See the module.
pub(crate) struct Bucket {
    client: Client,
    /// As messages name it.
    url: String,
    pub(crate) traffic: Arc<Traffic>,
    pace: Mutex<Pace>,
    /// Whether the server refused to create an object only if there is none.
    writes_over: AtomicBool,
    clock: Arc<dyn Clock>,
    began: Instant,
}

impl std::fmt::Debug for Bucket {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Bucket").field("prefix", &self.client.prefix).finish_non_exhaustive()
    }
}

impl Bucket {
    pub(crate) fn new(
        client: Client,
        url: String,
        traffic: Arc<Traffic>,
        clock: Arc<dyn Clock>,
    ) -> Self {
        let (pace, writes_over) = (Mutex::default(), AtomicBool::new(false));
        Self { client, url, traffic, pace, writes_over, clock, began: Instant::now() }
    }

    /// An object as messages name it, or the location for an empty name.
    pub(crate) fn shown(&self, name: &str) -> String {
        let slash = if name.is_empty() { "" } else { "/" };
        format!("{}{slash}{name}", self.url)
    }

    pub(crate) fn store(&self) -> &dyn ObjectStore {
        self.client.store.as_ref()
    }

    /// The key of a name below the prefix.
    pub(crate) fn key(&self, name: &str) -> Key {
        name.split('/').filter(|part| !part.is_empty()).fold(self.client.prefix.clone(), Key::join)
    }

    /// The name of a key below the prefix; `None` if it is of another folder.
    pub(crate) fn name(&self, key: &Key) -> Option<String> {
        let parts: Vec<_> = key.prefix_match(&self.client.prefix)?.collect();
        let parts: Vec<&str> = parts.iter().map(AsRef::as_ref).collect();
        Some(parts.join("/"))
    }

    /// The moment of a deadline for this thread's timers.
    pub(crate) fn instant(&self, deadline: Deadline) -> Instant {
        let left = deadline.remaining(self.clock.now()).unwrap_or(LONGEST_CALL);
        Instant::now() + left.min(LONGEST_CALL)
    }

    /// The turn of a call among those under way, and the moment at which it ends.
    pub(crate) async fn turn(
        &self,
        others: &Arc<Semaphore>,
        deadline: Deadline,
    ) -> Result<(OwnedSemaphorePermit, Instant), IoError> {
        if deadline.is_bounded() && deadline.expired(self.clock.now()) {
            return Err(Stopped::Deadline.into());
        }
        let until = self.instant(deadline);
        match tokio::time::timeout_at(until, Arc::clone(others).acquire_owned()).await {
            Ok(Ok(turn)) => Ok((turn, until)),
            Ok(Err(_)) => Err(IoError::Closed),
            Err(_) => Err(Stopped::Deadline.into()),
        }
    }

    /// Makes a request until it succeeds, fails for good, or the deadline passes.
    pub(crate) async fn attempt<T, F>(
        &self,
        until: Instant,
        mut request: impl FnMut() -> F,
    ) -> Result<T, Failure>
    where
        F: Future<Output = Result<T, Failure>>,
    {
        for tries in 1.. {
            self.wait_for_turn(until).await?;
            let ended = tokio::time::timeout_at(until, noting_status(request())).await;
            let failure = match ended {
                Ok(Ok(value)) => return Ok(value),
                Ok(Err(failure)) => failure,
                Err(_) => Failure::of(Cause::Timeout),
            };
            self.note(&failure);
            let next = next_try(tries);
            if !failure.cause.is_momentary() || next >= until {
                return Err(failure);
            }
            self.traffic.note_retry();
            tokio::time::sleep_until(next).await;
        }
        unreachable!("the deadline is over before")
    }

    /// As [`Self::attempt`], for a request of the client alone that has no large body.
    pub(crate) async fn request<T, F>(
        &self,
        until: Instant,
        mut request: impl FnMut() -> F,
    ) -> Result<T, Failure>
    where
        F: Future<Output = object_store::Result<T>>,
    {
        let attempt = || {
            let asked = request();
            async { unless_silent(asked).await?.map_err(|error| Failure::from_client(&error)) }
        };
        self.attempt(until, attempt).await
    }

    /// Counts a failure, and slows down if the server asks for that.
    pub(crate) fn note(&self, failure: &Failure) {
        self.traffic.note_failure(failure.cause);
        if failure.cause == Cause::SlowDown {
            self.pace.lock().slow_down(self.began.elapsed());
        }
    }

    pub(crate) async fn wait_for_turn(&self, until: Instant) -> Result<(), Failure> {
        loop {
            let turn = self.pace.lock().turn(self.began.elapsed());
            let Err(wait) = turn else { return Ok(()) };
            let next = Instant::now() + wait;
            if next >= until {
                return Err(Failure::of(Cause::Timeout));
            }
            tokio::time::sleep_until(next).await;
        }
    }

    /// Publishes an object. If there is one of this name already, it is compared: a request of ours may have succeeded
    /// whose response was lost.
    pub(crate) async fn publish(
        &self,
        key: &Key,
        payload: &PutPayload,
        until: Instant,
    ) -> Result<(), Failure> {
        let mut tries = 0;
        loop {
            let writes_over = self.writes_over.load(Ordering::Relaxed);
            let put = self.attempt(until, || self.put(key, payload, writes_over)).await;
            match put {
                Err(failure) if failure.is_not_implemented() && !writes_over => {
                    self.writes_over.store(true, Ordering::Relaxed);
                }
                Err(failure) if failure.cause == Cause::Exists => {
                    match self.is_same(key, payload, until).await {
                        Ok(true) => break,
                        // A creation of ours is still under way at the server, or failed there.
                        Err(missing) if missing.cause == Cause::Missing => {
                            tries += 1;
                            let next = next_try(tries);
                            if next >= until {
                                return Err(failure);
                            }
                            tokio::time::sleep_until(next).await;
                        }
                        Ok(false) => return Err(failure),
                        Err(other) => return Err(other),
                    }
                }
                Err(failure) => return Err(failure),
                Ok(()) => break,
            }
        }
        self.traffic.note_written(payload.content_length() as u64);
        Ok(())
    }

    /// Makes an object, or writes it over where the server knows no creation: names are never used twice.
    async fn put(&self, key: &Key, payload: &PutPayload, writes_over: bool) -> Result<(), Failure> {
        let mode = if writes_over { PutMode::Overwrite } else { PutMode::Create };
        let attributes = self.client.attributes.clone();
        let options = PutOptions { mode, attributes, ..PutOptions::default() };
        let put = self.store().put_opts(key, payload.clone(), options).await;
        put.map(drop).map_err(|error| Failure::from_client(&error))
    }

    /// Whether an object has these bytes.
    async fn is_same(
        &self,
        key: &Key,
        payload: &PutPayload,
        until: Instant,
    ) -> Result<bool, Failure> {
        let limit = payload.content_length() as u64;
        let found = match self.fetch(key, limit, until).await? {
            Fetched::Whole(found) => found,
            Fetched::TooLarge => return Ok(false),
        };
        let mut rest = found.as_slice();
        let is_prefix = payload.iter().all(|piece| match rest.strip_prefix(piece.as_ref()) {
            Some(left) => {
                rest = left;
                true
            }
            None => false,
        });
        Ok(is_prefix && rest.is_empty())
    }

    /// Reads a whole object of at most `limit` bytes.
    pub(crate) async fn fetch(
        &self,
        key: &Key,
        limit: u64,
        until: Instant,
    ) -> Result<Fetched, Failure> {
        let get = || async {
            let failed = |error: object_store::Error| Failure::from_client(&error);
            let got = unless_silent(self.store().get(key)).await?.map_err(failed)?;
            let bytes = got.meta.size;
            if bytes > limit {
                return Ok(Fetched::TooLarge);
            }
            let mut body = got.into_stream();
            let mut whole = Vec::with_capacity(usize::try_from(bytes).unwrap_or_default());
            while let Some(piece) = unless_silent(body.next()).await? {
                let piece = piece.map_err(failed)?;
                if (whole.len() + piece.len()) as u64 > bytes {
                    return Err(Failure::of(Cause::Protocol));
                }
                whole.extend_from_slice(&piece);
            }
            if whole.len() as u64 != bytes {
                return Err(Failure::of(Cause::Cut));
            }
            self.traffic.note_read(bytes);
            Ok(Fetched::Whole(whole))
        };
        self.attempt(until, get).await
    }
}

/// What a fetch found.
#[derive(Debug)]
pub(crate) enum Fetched {
    Whole(Vec<u8>),
    TooLarge,
}

/// When to try again after so many tries: after half of a pause up to all of it, so that hosts that failed together do
/// not try again together.
pub(crate) fn next_try(tries: u32) -> Instant {
    let doubled = 2_u32.saturating_pow(tries.saturating_sub(1).min(8));
    let pause = (FIRST_PAUSE * doubled).min(LONGEST_PAUSE);
    let random = dalsegno_io::random_bytes::<2>().map_or(0, u16::from_le_bytes);
    let part = 0.5 + f64::from(random) / f64::from(u16::MAX) / 2.0;
    Instant::now() + pause.mul_f64(part)
}

/// Waits for a server, which may send nothing for so long.
pub(crate) async fn unless_silent<T>(what: impl Future<Output = T>) -> Result<T, Failure> {
    timeout(SILENCE, what).await.map_err(|_| Failure::of(Cause::Timeout))
}
