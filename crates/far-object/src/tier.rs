//! A place in an object store as a [`Tier`].
//!
//! 1. A folder exists while it has objects: removing an empty one does nothing, and its age is that of its newest
//!    object.
//! 2. The time of the location is that of the server's newest response.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use dalsegno_core::{Clock, Deadline};
use dalsegno_far::{
    Ask, FileNames, Listed, Object, ObjectName, REMOVALS_FOLDER, Tier, TierFacts, TierRequests,
    TierState, WriterId,
};
use dalsegno_io::{FileId, Geometry, IoError, Memory, Operation, Request, Source, Space};
use futures_util::StreamExt;
use object_store::{ObjectMeta, ObjectStoreExt, PutPayload};
use parking_lot::Mutex;
use tokio::sync::Semaphore;
use tokio::time::Instant;

use crate::bucket::{Bucket, Fetched, unless_silent};
use crate::failure::{Cause, Failure};
use crate::location::{LocationError, ObjectLocation};
use crate::network::Network;
use crate::reads::Reads;
use crate::traffic::Traffic;

/// Calls and reads that wait or are under way. More are refused as busy.
const MOST_CALLS: usize = 16 << 10;
/// Reads that are taken for each worker: those that wait become fewer and larger ones.
const READS_PER_WORKER: u32 = 8;
/// How often a host polls that does not use the location.
const IDLE_POLL: Duration = Duration::from_secs(30);
/// Names that one listing may show. More are a fault of the location.
const MOST_LISTED: usize = 1 << 20;
/// How long a reply waits for the client to let go of what was published.
const RELEASE_TIMEOUT: Duration = Duration::from_secs(5);
/// The size of a location for those who ask: there is no limit.
const UNLIMITED: u64 = 1 << 60;
/// An object that nobody publishes. Asking for it shows the server's time.
const NO_OBJECT: &str = "no-object";

/// See the module.
#[derive(Debug)]
pub struct ObjectTier {
    // Before all that its calls use.
    network: Network,
    bucket: Arc<Bucket>,
    reads: Arc<Reads>,
    files: FileNames,
    /// Bounds the calls under way that are no reads.
    others: Arc<Semaphore>,
    name: &'static str,
    workers: u32,
}

impl ObjectTier {
    /// Opens a location. Sends nothing: a bucket that is not there makes its calls fail.
    ///
    /// # Errors
    ///
    /// [`OpenError`] if the location's options are wrong, or the thread cannot be started.
    ///
    /// # Panics
    ///
    /// If `workers` is 0.
    pub fn open(
        location: &ObjectLocation,
        workers: u32,
        clock: &Arc<dyn Clock>,
    ) -> Result<Self, OpenError> {
        assert!(workers > 0, "nobody works");
        let traffic = Traffic::new(Arc::clone(clock), location.bucket());
        let client = location.client(&traffic).map_err(OpenError::Location)?;
        let network = Network::start(MOST_CALLS).map_err(OpenError::Io)?;
        let bucket = Arc::new(Bucket::new(client, location.url(), traffic, Arc::clone(clock)));
        let reads = Arc::new(Reads::new(Arc::clone(&bucket), workers as usize));
        network.run(Arc::clone(&reads).serve());
        let (files, others) = (FileNames::default(), Arc::new(Semaphore::new(workers as usize)));
        let name = location.scheme().name();
        Ok(Self { network, bucket, reads, files, others, name, workers })
    }

    /// Runs a call in its turn, and answers it.
    fn answer<T, F>(
        &self,
        ask: Ask<T>,
        operation: &'static str,
        name: String,
        call: impl FnOnce(Arc<Bucket>, Instant) -> F + Send + 'static,
    ) where
        T: Send + 'static,
        F: Future<Output = Result<T, Failure>> + Send,
    {
        let job = Job { call: Some(call), ask: Some(ask) };
        let place = match self.network.keep_place() {
            Ok(place) => place,
            Err(busy) => return job.answer(Err(busy)),
        };
        let (bucket, others) = (Arc::clone(&self.bucket), Arc::clone(&self.others));
        self.network.run(async move {
            let (_place, mut job) = (place, job);
            let result = match bucket.turn(&others, job.deadline()).await {
                Ok((_turn, until)) => {
                    let call = job.call.take().expect("it is made once");
                    let shown = bucket.shown(&name);
                    let made = call(bucket, until).await;
                    made.map_err(|failure| failure.to_io(operation, &shown))
                }
                Err(error) => Err(error),
            };
            job.answer(result);
        });
    }
}

/// Why a tier could not be opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// Its location.
    #[error(transparent)]
    Location(LocationError),
    /// Its thread.
    #[error(transparent)]
    Io(IoError),
}

/// A call that is not answered. What it holds is dropped before it is, and dropping it answers it.
struct Job<T, C> {
    call: Option<C>,
    ask: Option<Ask<T>>,
}

impl<T, C> Job<T, C> {
    fn deadline(&self) -> Deadline {
        self.ask.as_ref().expect("it is answered once").deadline
    }

    fn answer(mut self, result: Result<T, IoError>) {
        drop(self.call.take());
        if let Some(ask) = self.ask.take() {
            ask.answer(result);
        }
    }
}

impl<T, C> Drop for Job<T, C> {
    fn drop(&mut self) {
        drop(self.call.take());
        if let Some(ask) = self.ask.take() {
            ask.answer(Err(IoError::Closed));
        }
    }
}

/// Memory that the client sends, and that says when it lets go of it.
struct Lent {
    memory: Memory,
    _released: tokio::sync::mpsc::Sender<()>,
}

impl AsRef<[u8]> for Lent {
    fn as_ref(&self) -> &[u8] {
        self.memory.as_slice()
    }
}

impl Source for ObjectTier {
    /// See [`Source::submit`].
    ///
    /// # Panics
    ///
    /// If a request is not a read, or fails [`Request::check`]. Nothing is submitted then.
    fn submit(&self, requests: Vec<Request>) {
        for request in &requests {
            assert_eq!(request.operation, Operation::Read, "a tier is read with requests");
            request.check();
        }
        let mut accepted = Vec::with_capacity(requests.len());
        for request in requests {
            let named = self.files.get(request.file);
            match named.and_then(|name| Ok((name, self.network.keep_place()?))) {
                Ok((name, place)) => accepted.push((name, request, place)),
                Err(error) => request.complete(Err(error)),
            }
        }
        self.reads.add(accepted);
    }

    fn geometry(&self) -> Geometry {
        // Those that wait here become fewer and larger ones.
        Geometry { memory_align: 1, engine: self.name, direct: false, places: MOST_CALLS }
    }
}

impl Tier for ObjectTier {
    fn facts(&self) -> TierFacts {
        TierFacts {
            name: self.name,
            workers: self.workers,
            most_reads: self.workers.saturating_mul(READS_PER_WORKER),
            idle_poll: IDLE_POLL,
            state: TierState::Open,
            reopened: 0,
        }
    }

    fn file(&self, name: ObjectName) -> FileId {
        self.files.add(name)
    }

    fn forget(&self, file: FileId) {
        self.files.forget(file);
    }

    fn publish(&self, name: ObjectName, bytes: Vec<Memory>, ask: Ask<()>) {
        let (released, mut all_released) = tokio::sync::mpsc::channel(1);
        let lent = |memory| Bytes::from_owner(Lent { memory, _released: released.clone() });
        let payload: PutPayload = bytes.into_iter().map(lent).collect();
        drop(released);
        self.answer(ask, "publish", name.to_string(), move |bucket, until| async move {
            let key = bucket.key(&name.to_string());
            let published = bucket.publish(&key, &payload, until).await;
            drop(payload);
            // A connection that was dropped lets go a moment later.
            let _ = tokio::time::timeout(RELEASE_TIMEOUT, all_released.recv()).await;
            published
        });
    }

    fn fetch(&self, name: ObjectName, limit: u64, ask: Ask<Vec<u8>>) {
        let text = name.to_string();
        self.answer(ask, "read", text.clone(), move |bucket, until| async move {
            match bucket.fetch(&bucket.key(&text), limit, until).await? {
                Fetched::Whole(bytes) => Ok(bytes),
                Fetched::TooLarge => Err(Failure::of(Cause::TooLarge)),
            }
        });
    }

    fn remove(&self, name: ObjectName, ask: Ask<()>) {
        let text = name.to_string();
        self.answer(ask, "remove", text.clone(), move |bucket, until| async move {
            let key = bucket.key(&text);
            match bucket.request(until, || bucket.store().delete(&key)).await {
                Err(failure) if failure.cause == Cause::Missing => Ok(()),
                ended => ended,
            }
        });
    }

    fn remove_writer(&self, writer: WriterId, ask: Ask<()>) {
        // A folder without objects does not exist.
        self.answer(ask, "remove", writer.to_string(), |_, _| async { Ok(()) });
    }

    fn removals(&self, ask: Ask<Vec<(ObjectName, u64)>>) {
        let folder = REMOVALS_FOLDER.to_owned();
        self.answer(ask, "list", folder.clone(), move |bucket, until| async move {
            let listed = list(&bucket, &folder, until).await?;
            let named = |meta: &ObjectMeta| {
                let name = bucket.name(&meta.location)?;
                Some((ObjectName::parse(&name).filter(ObjectName::is_removals)?, meta.size))
            };
            let mut lists: Vec<_> = listed.iter().filter_map(named).collect();
            lists.sort_unstable();
            Ok(lists)
        });
    }

    fn now(&self, ask: Ask<Duration>) {
        self.answer(ask, "time", String::new(), |bucket, until| async move {
            if let Some(time) = bucket.traffic.server_time() {
                return Ok(time);
            }
            let key = bucket.key(NO_OBJECT);
            let head = bucket.request(until, || bucket.store().head(&key)).await;
            match (bucket.traffic.server_time(), head) {
                (Some(time), _) => Ok(time),
                (None, Err(failure)) if failure.cause != Cause::Missing => Err(failure),
                (None, _) => Err(Failure::of(Cause::Protocol)),
            }
        });
    }

    fn removals_changed(&self, ask: Ask<Duration>) {
        // The server's time is known without writing, and what a listing does not show had gone by then.
        self.now(ask);
    }

    fn writers(&self, ask: Ask<Vec<WriterId>>) {
        self.answer(ask, "list", String::new(), |bucket, until| async move {
            let prefix = bucket.key("");
            let list = || bucket.store().list_with_delimiter(Some(&prefix));
            let listed = bucket.request(until, list).await?;
            let named = |folder| WriterId::parse(&bucket.name(folder)?);
            let mut writers: Vec<WriterId> =
                listed.common_prefixes.iter().filter_map(named).collect();
            writers.sort_unstable();
            Ok(writers)
        });
    }

    fn list(&self, writer: WriterId, after: Option<Object>, ask: Ask<Vec<Listed>>) {
        let folder = writer.to_string();
        self.answer(ask, "list", folder.clone(), move |bucket, until| async move {
            let listed = list(&bucket, &folder, until).await?;
            let shown = |meta: &ObjectMeta| {
                let name = ObjectName::parse(&bucket.name(&meta.location)?)?;
                Some(Listed { object: name.object, bytes: meta.size })
            };
            let mut objects: Vec<Listed> = listed.iter().filter_map(shown).collect();
            objects.retain(|listed| after.is_none_or(|after| listed.object > after));
            objects.sort_unstable();
            Ok(objects)
        });
    }

    fn age(&self, name: ObjectName, ask: Ask<Duration>) {
        let text = name.to_string();
        self.answer(ask, "age", text.clone(), move |bucket, until| async move {
            let key = bucket.key(&text);
            let meta = bucket.request(until, || bucket.store().head(&key)).await?;
            age_of(&bucket, &meta)
        });
    }

    fn writer_age(&self, writer: WriterId, ask: Ask<Duration>) {
        let folder = writer.to_string();
        self.answer(ask, "age", folder.clone(), move |bucket, until| async move {
            let listed = list(&bucket, &folder, until).await?;
            let newest = listed.iter().max_by_key(|meta| meta.last_modified);
            age_of(&bucket, newest.ok_or(Failure::of(Cause::Missing))?)
        });
    }

    fn requests(&self) -> Option<TierRequests> {
        Some(self.bucket.traffic.requests(&self.reads.cost()))
    }

    fn space(&self, ask: Ask<Space>) {
        let space = Space { free_bytes: UNLIMITED, total_bytes: UNLIMITED };
        self.answer(ask, "space", String::new(), move |_, _| async move { Ok(space) });
    }
}

/// All objects of a folder. What fails in the middle goes on behind the last name.
async fn list(bucket: &Bucket, folder: &str, until: Instant) -> Result<Vec<ObjectMeta>, Failure> {
    let prefix = bucket.key(folder);
    let listed: Mutex<Vec<ObjectMeta>> = Mutex::default();
    bucket
        .attempt(until, || async {
            let last = listed.lock().last().map(|meta| meta.location.clone());
            let mut names = match last {
                Some(last) => bucket.store().list_with_offset(Some(&prefix), &last),
                None => bucket.store().list(Some(&prefix)),
            };
            while let Some(meta) = unless_silent(names.next()).await? {
                let meta = meta.map_err(|error| Failure::from_client(&error))?;
                let mut listed = listed.lock();
                listed.push(meta);
                if listed.len() > MOST_LISTED {
                    return Err(Failure::of(Cause::TooLarge));
                }
            }
            Ok(())
        })
        .await?;
    Ok(listed.into_inner())
}

/// The time since an object was written, by the clock of the server.
fn age_of(bucket: &Bucket, meta: &ObjectMeta) -> Result<Duration, Failure> {
    let now = bucket.traffic.server_time().ok_or(Failure::of(Cause::Protocol))?;
    let written = u64::try_from(meta.last_modified.timestamp()).unwrap_or_default();
    Ok(now.saturating_sub(Duration::from_secs(written)))
}
