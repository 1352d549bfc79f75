//! Counts the requests of a client, and reads the server's clock from its responses.
//!
//! 1. Every request that the client sends is counted once, those for credentials too: what a bill would show.
//! 2. The time of a server is that of its newest response, and this host's clock from then on. It costs no request.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, UNIX_EPOCH};

use dalsegno_core::{Clock, Nanos};
use dalsegno_far::{SentRequests, TierRequests};
use object_store::ClientOptions;
use object_store::client::{
    HttpClient, HttpConnector, HttpError, HttpRequest, HttpResponse, HttpService, ReqwestConnector,
};
use parking_lot::Mutex;

use crate::cost::CostModel;
use crate::failure::Cause;
use crate::status::note_status;

/// After this time a response does not show the server's time well any more: the host may have been suspended.
const TIME_HOLDS: Duration = Duration::from_secs(10);

/// Who gives credentials to machines. Their paths have common words, which a bucket may be named.
const METADATA_HOSTS: [&str; 3] = ["169.254.169.254", "169.254.170.2", "metadata.google.internal"];

/// The kinds of requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum RequestKind {
    /// A GET or a HEAD of an object.
    Read,
    /// A PUT or a POST: ten times the price of a read.
    Write,
    /// A page of a listing, at the price of a write.
    List,
    /// Costs nothing.
    Removal,
    /// For credentials, from another server.
    Other,
}

/// See the module.
#[derive(Debug)]
pub(crate) struct Traffic {
    clock: Arc<dyn Clock>,
    /// In the URL of every request for an object.
    bucket: String,
    kinds: [AtomicU64; 5],
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

    /// What was counted. The costs are those that `cost` measured.
    pub(crate) fn requests(&self, cost: &CostModel) -> TierRequests {
        let load = |number: &AtomicU64| number.load(Ordering::Relaxed);
        let of_kind = |kind: RequestKind| load(&self.kinds[kind as usize]);
        let failed =
            Cause::ALL.into_iter().map(|cause| (cause.name(), load(&self.failed[cause as usize])));
        TierRequests {
            sent: SentRequests {
                reads: of_kind(RequestKind::Read),
                writes: of_kind(RequestKind::Write),
                lists: of_kind(RequestKind::List),
                removals: of_kind(RequestKind::Removal),
                others: of_kind(RequestKind::Other),
            },
            retries: load(&self.retries),
            failed: failed.filter(|(_, count)| *count > 0).collect(),
            read_bytes: load(&self.read_bytes),
            written_bytes: load(&self.written_bytes),
            cost: cost.measured(),
        }
    }

    /// Returns whether it is for an object or the bucket, and not for credentials.
    fn note_request(&self, request: &HttpRequest) -> bool {
        let (host, path) = (request.uri().host().unwrap_or_default(), request.uri().path());
        let is_in_host = host.strip_prefix(&self.bucket).is_some_and(|rest| rest.starts_with('.'));
        let is_of_bucket = (is_in_host || path.split('/').any(|part| part == self.bucket))
            && !METADATA_HOSTS.contains(&host);
        let kind = if is_of_bucket { kind_of(request) } else { RequestKind::Other };
        self.kinds[kind as usize].fetch_add(1, Ordering::Relaxed);
        is_of_bucket
    }

    /// What a cache or a proxy says is not the server's time.
    fn note_response(&self, response: &HttpResponse) {
        if response.status().is_server_error() || response.headers().contains_key("age") {
            return;
        }
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
    let lists =
        query.contains("list-type=") || query.contains("comp=list") || query.contains("restype=");
    match request.method().as_str() {
        "GET" | "HEAD" if !lists => RequestKind::Read,
        "GET" => RequestKind::List,
        "PUT" | "POST" => RequestKind::Write,
        "DELETE" => RequestKind::Removal,
        _ => RequestKind::Other,
    }
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
            note_status(response.status().as_u16());
        }
        Ok(response)
    }
}
