//! Counts the requests of a client, and reads the server's clock from its responses.
//!
//! 1. Every request that the client sends is counted once, those for credentials too: what a bill would show.
//! 2. The time of a server is that of its newest response, and this host's clock from then on. It costs no request.

use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, UNIX_EPOCH};

use dalsegno_core::{Clock, Nanos};
use object_store::ClientOptions;
use object_store::client::{
    HttpClient, HttpConnector, HttpError, HttpRequest, HttpResponse, HttpService, ReqwestConnector,
};
use parking_lot::Mutex;
use serde::Serialize;

use crate::failure::Cause;

/// After this time a response does not show the server's time well any more: two clocks drift.
const TIME_HOLDS: Duration = Duration::from_secs(600);

/// The kinds of requests by what providers ask for them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RequestKind {
    /// A GET or a HEAD of an object.
    Read,
    /// A PUT or a POST, and each listing: ten times the price of a read.
    Write,
    /// Costs nothing.
    Delete,
    /// For credentials, from another server.
    Other,
}

/// What a location cost and how its requests ended. Numbers since the location was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct TrafficView {
    /// GETs and HEADs of objects.
    pub reads: u64,
    /// PUTs, POSTs and listings.
    pub writes: u64,
    /// Removals.
    pub deletes: u64,
    /// Requests for credentials.
    pub others: u64,
    /// Bytes of objects that were read, gaps between wanted ranges included.
    pub read_bytes: u64,
    /// Bytes of objects that were written.
    pub written_bytes: u64,
    /// Requests that failed, by [`Cause`], in the order of [`Cause::ALL`].
    pub failed: [u64; Cause::COUNT],
    /// Requests that were tried again.
    pub retries: u64,
}

/// See the module.
#[derive(Debug)]
pub(crate) struct Traffic {
    clock: Arc<dyn Clock>,
    /// In the URL of every request for an object.
    bucket: String,
    kinds: [AtomicU64; 4],
    read_bytes: AtomicU64,
    written_bytes: AtomicU64,
    failed: [AtomicU64; Cause::COUNT],
    retries: AtomicU64,
    /// The time of a server, and when its response arrived.
    server: Mutex<Option<(Duration, Nanos)>>,
}

impl Traffic {
    pub(crate) fn new(clock: Arc<dyn Clock>, bucket: &str) -> Arc<Self> {
        Arc::new(Self {
            clock,
            bucket: bucket.to_owned(),
            kinds: Default::default(),
            read_bytes: AtomicU64::new(0),
            written_bytes: AtomicU64::new(0),
            failed: Default::default(),
            retries: AtomicU64::new(0),
            server: Mutex::new(None),
        })
    }

    /// The server's time since 1970, if one of its responses is recent.
    pub(crate) fn server_time(&self) -> Option<Duration> {
        let (time, at) = (*self.server.lock())?;
        let since = self.clock.now().since(at);
        (since <= TIME_HOLDS).then(|| time + since)
    }

    pub(crate) fn note_read(&self, bytes: u64) {
        self.read_bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    pub(crate) fn note_written(&self, bytes: u64) {
        self.written_bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    pub(crate) fn note_failure(&self, cause: Cause) {
        self.failed[cause as usize].fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn note_retry(&self) {
        self.retries.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn view(&self) -> TrafficView {
        let load = |number: &AtomicU64| number.load(Ordering::Relaxed);
        let of_kind = |kind: RequestKind| load(&self.kinds[kind as usize]);
        TrafficView {
            reads: of_kind(RequestKind::Read),
            writes: of_kind(RequestKind::Write),
            deletes: of_kind(RequestKind::Delete),
            others: of_kind(RequestKind::Other),
            read_bytes: load(&self.read_bytes),
            written_bytes: load(&self.written_bytes),
            failed: std::array::from_fn(|at| load(&self.failed[at])),
            retries: load(&self.retries),
        }
    }

    /// Returns whether it is for an object or the bucket, and not for credentials.
    fn note_request(&self, request: &HttpRequest) -> bool {
        let (host, path) = (request.uri().host().unwrap_or_default(), request.uri().path());
        let is_of_bucket = host.starts_with(&self.bucket) || path.contains(&self.bucket);
        let kind = if is_of_bucket { kind_of(request) } else { RequestKind::Other };
        self.kinds[kind as usize].fetch_add(1, Ordering::Relaxed);
        is_of_bucket
    }

    fn note_response(&self, response: &HttpResponse) {
        let date = response.headers().get("date").and_then(|value| value.to_str().ok());
        let time = date.and_then(|date| httpdate::parse_http_date(date).ok());
        if let Some(time) = time.and_then(|time| time.duration_since(UNIX_EPOCH).ok()) {
            *self.server.lock() = Some((time, self.clock.now()));
        }
    }
}

/// What a request is, by its method and its query: listings are GETs of the bucket.
fn kind_of(request: &HttpRequest) -> RequestKind {
    let query = request.uri().query().unwrap_or_default();
    let lists = query.contains("list-type=") || query.contains("comp=list") || query.contains("restype=");
    match request.method().as_str() {
        "GET" | "HEAD" if !lists => RequestKind::Read,
        "GET" | "PUT" | "POST" => RequestKind::Write,
        "DELETE" => RequestKind::Delete,
        _ => RequestKind::Other,
    }
}

tokio::task_local! {
    /// The status of the newest response to this task.
    static LAST_STATUS: Cell<Option<u16>>;
}

/// Runs a request, so that [`last_status`] knows its response.
pub(crate) async fn noting_status<T>(request: impl Future<Output = T>) -> T {
    LAST_STATUS.scope(Cell::new(None), request).await
}

/// The status of the newest response within [`noting_status`].
pub(crate) fn last_status() -> Option<u16> {
    LAST_STATUS.try_with(Cell::get).ok().flatten()
}

/// Makes clients whose requests are counted.
#[derive(Debug)]
pub(crate) struct Connector {
    traffic: Arc<Traffic>,
}

impl Connector {
    pub(crate) fn new(traffic: &Arc<Traffic>) -> Self {
        Self { traffic: Arc::clone(traffic) }
    }
}

impl HttpConnector for Connector {
    fn connect(&self, options: &ClientOptions) -> object_store::Result<HttpClient> {
        let inner = ReqwestConnector::default().connect(options)?;
        Ok(HttpClient::new(Counted { inner, traffic: Arc::clone(&self.traffic) }))
    }
}

#[derive(Debug)]
struct Counted {
    inner: HttpClient,
    traffic: Arc<Traffic>,
}

#[async_trait::async_trait]
impl HttpService for Counted {
    async fn call(&self, request: HttpRequest) -> Result<HttpResponse, HttpError> {
        let is_of_bucket = self.traffic.note_request(&request);
        let response = self.inner.execute(request).await?;
        if is_of_bucket {
            self.traffic.note_response(&response);
            // No task notes it where nobody asks.
            let _ = LAST_STATUS.try_with(|last| last.set(Some(response.status().as_u16())));
        }
        Ok(response)
    }
}
