//! Reads of parts of objects: which of them become one request, and their bytes straight into places.
//!
//! 1. Every request is completed once: by its bytes, by a failure, by its deadline, or when it is dropped.
//! 2. The oldest request that waits is served next, and with it those of the same object that the [`CostModel`] says.
//! 3. A request is completed with its last byte, not with the last one of those that it was read with.
//! 4. What failed in the middle goes on behind the last byte that arrived.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use dalsegno_core::Stopped;
use dalsegno_far::ObjectName;
use dalsegno_io::{IoError, Request};
use futures_util::StreamExt;
use object_store::{GetOptions, GetRange};
use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::time::{Instant, timeout_at};

use crate::bucket::{Bucket, Pauses};
use crate::cost::CostModel;
use crate::failure::{Cause, Failure};
use crate::network::CallPlace;
use crate::traffic::noting_status;

/// A request that is not completed.
#[derive(Debug)]
struct Open {
    request: Option<Request>,
    until: Instant,
    /// Bytes that arrived.
    filled: u64,
    _place: CallPlace,
}

impl Open {
    fn request(&self) -> &Request {
        self.request.as_ref().expect("it is completed when it is dropped")
    }

    fn start(&self) -> u64 {
        self.request().offset
    }

    fn end(&self) -> u64 {
        self.request().offset + self.request().bytes()
    }

    fn complete(mut self, result: Result<(), IoError>) {
        if let Some(request) = self.request.take() {
            request.complete(result);
        }
    }

    /// Copies bytes to where they belong.
    fn fill(&mut self, mut bytes: &[u8]) {
        let request = self.request.as_mut().expect("it is completed when it is dropped");
        let mut skip = usize::try_from(self.filled).expect("64-bit addresses");
        for memory in &mut request.memory {
            let place = memory.as_mut_slice();
            let Some(place) = place.get_mut(skip..).filter(|place| !place.is_empty()) else {
                skip -= place.len();
                continue;
            };
            let count = place.len().min(bytes.len());
            place[..count].copy_from_slice(&bytes[..count]);
            (bytes, skip) = (&bytes[count..], 0);
            self.filled += count as u64;
        }
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        if let Some(request) = self.request.take() {
            request.complete(Err(IoError::Closed));
        }
    }
}

/// Where a request is in the queue: its object, its offset, and its number.
type Position = (ObjectName, u64, u64);

/// Requests that wait.
#[derive(Debug, Default)]
struct ReadQueue {
    waiting: BTreeMap<Position, Open>,
    /// By their numbers.
    oldest: BTreeMap<u64, Position>,
    bytes: u64,
    next: u64,
    connections: usize,
}

impl ReadQueue {
    fn push(&mut self, name: ObjectName, open: Open) {
        let position = (name, open.start(), self.next);
        self.bytes += open.request().bytes();
        self.oldest.insert(self.next, position);
        self.waiting.insert(position, open);
        self.next += 1;
    }

    /// Takes the oldest request, and its neighbours as far as the model says.
    fn take(&mut self, cost: &CostModel, most_connections: usize) -> Option<Run> {
        let (_, first) = self.oldest.first_key_value()?;
        let (name, first) = (first.0, *first);
        let most = cost.request_bytes(self.bytes, most_connections as u64);
        let gap = cost.gap_bytes();
        let of_object = (name, 0, 0)..=(name, u64::MAX, u64::MAX);
        let (mut start, mut end) = {
            let open = &self.waiting[&first];
            (open.start(), open.end())
        };
        let mut positions = VecDeque::from([first]);
        let after = self.waiting.range((std::ops::Bound::Excluded(first), std::ops::Bound::Included(*of_object.end())));
        for (position, open) in after {
            let joined = end.max(open.end());
            if open.start() > end.saturating_add(gap) || joined - start > most {
                break;
            }
            end = joined;
            positions.push_back(*position);
        }
        for (position, open) in self.waiting.range(*of_object.start()..first).rev() {
            if open.end().saturating_add(gap) < start || end - open.start() > most {
                break;
            }
            start = open.start();
            positions.push_front(*position);
        }
        let mut requests = VecDeque::with_capacity(positions.len());
        for position in positions {
            self.oldest.remove(&position.2);
            let open = self.waiting.remove(&position).expect("it was found there");
            self.bytes -= open.request().bytes();
            requests.push_back(open);
        }
        Some(Run { name, requests })
    }
}

/// Requests that are read as one, by offset.
#[derive(Debug)]
struct Run {
    name: ObjectName,
    requests: VecDeque<Open>,
}

impl Run {
    /// What is still to be read.
    fn range(&self) -> Option<std::ops::Range<u64>> {
        let start = self.requests.iter().map(|open| open.start() + open.filled).min()?;
        let end = self.requests.iter().map(Open::end).max()?;
        Some(start..end)
    }

    fn first_deadline(&self) -> Option<Instant> {
        self.requests.iter().map(|open| open.until).min()
    }

    fn last_deadline(&self) -> Option<Instant> {
        self.requests.iter().map(|open| open.until).max()
    }

    /// Takes bytes that lie at `at`, and completes the requests that have all of theirs.
    fn fill(&mut self, at: u64, bytes: &[u8]) {
        let end = at + bytes.len() as u64;
        for open in &mut self.requests {
            let next = open.start() + open.filled;
            if next >= end || open.end() <= at || next < at {
                continue;
            }
            let skip = usize::try_from(next - at).expect("within the bytes");
            open.fill(&bytes[skip..]);
        }
        self.complete_if(|open| open.start() + open.filled == open.end(), || Ok(()));
    }

    fn complete_late(&mut self, now: Instant) {
        self.complete_if(|open| open.until <= now, || Err(Stopped::Deadline.into()));
    }

    fn complete_if(
        &mut self,
        is_over: impl Fn(&Open) -> bool,
        result: impl Fn() -> Result<(), IoError>,
    ) {
        for _ in 0..self.requests.len() {
            let open = self.requests.pop_front().expect("counted");
            if is_over(&open) {
                open.complete(result());
            } else {
                self.requests.push_back(open);
            }
        }
    }

    /// The object ends before all bytes were read.
    fn end_short(&mut self) {
        let file = self.name.to_string();
        for open in self.requests.drain(..) {
            let (expected, got) = (open.request().bytes(), open.filled);
            let (operation, file) = ("read", file.clone());
            open.complete(Err(IoError::Short { operation, file, expected, got }));
        }
    }

    fn fail(&mut self, failure: &Failure) {
        let file = self.name.to_string();
        for open in self.requests.drain(..) {
            open.complete(Err(failure.to_io("read", &file)));
        }
    }
}

/// See the module.
#[derive(Debug)]
pub(crate) struct Reads {
    bucket: Arc<Bucket>,
    queue: Mutex<ReadQueue>,
    cost: Mutex<CostModel>,
    most_connections: usize,
    arrived: Notify,
}

impl Reads {
    pub(crate) fn new(bucket: Arc<Bucket>, most_connections: usize) -> Self {
        let (queue, cost, arrived) = (Mutex::default(), Mutex::default(), Notify::new());
        Self { bucket, queue, cost, most_connections, arrived }
    }

    pub(crate) fn cost(&self) -> CostModel {
        *self.cost.lock()
    }

    /// Adds requests of objects. Those that arrive together may be read together.
    pub(crate) fn add(&self, requests: Vec<(ObjectName, Request, CallPlace)>) {
        let mut queue = self.queue.lock();
        for (name, request, place) in requests {
            let until = self.bucket.instant(request.deadline);
            queue.push(name, Open { request: Some(request), until, filled: 0, _place: place });
        }
        drop(queue);
        self.arrived.notify_one();
    }

    /// Serves requests until the tier is dropped.
    pub(crate) async fn serve(self: Arc<Self>) {
        loop {
            // Others may be on their way.
            tokio::task::yield_now().await;
            while let Some(run) = self.begin() {
                let of_run = Arc::clone(&self);
                tokio::spawn(async move {
                    let run = Under { reads: &of_run, run };
                    run.finish().await;
                });
            }
            self.arrived.notified().await;
        }
    }

    /// Takes the next run if a connection is free.
    fn begin(&self) -> Option<Run> {
        let mut queue = self.queue.lock();
        if queue.connections >= self.most_connections {
            return None;
        }
        let run = queue.take(&self.cost.lock(), self.most_connections)?;
        queue.connections += 1;
        Some(run)
    }
}

/// A run under way. Its connection is free when it is dropped.
struct Under<'a> {
    reads: &'a Reads,
    run: Run,
}

impl Drop for Under<'_> {
    fn drop(&mut self) {
        self.reads.queue.lock().connections -= 1;
        self.reads.arrived.notify_one();
    }
}

impl Under<'_> {
    async fn finish(mut self) {
        let bucket = &self.reads.bucket;
        let mut pauses = Pauses::default();
        loop {
            self.run.complete_late(Instant::now());
            let Some(until) = self.run.last_deadline() else { return };
            let failure = match bucket.wait_for_turn(until).await {
                Ok(()) => match noting_status(self.read()).await {
                    Ok(()) => return,
                    Err(failure) => failure,
                },
                Err(failure) => failure,
            };
            if failure.is_beyond_end() {
                return self.run.end_short();
            }
            bucket.note(&failure);
            let next = pauses.next_moment();
            if !failure.cause.is_momentary() || next >= until {
                return self.run.fail(&failure);
            }
            bucket.traffic.note_retry();
            tokio::time::sleep_until(next).await;
        }
    }

    /// Reads what is missing, in one request.
    async fn read(&mut self) -> Result<(), Failure> {
        let (Some(range), Some(until)) = (self.run.range(), self.run.last_deadline()) else {
            return Ok(());
        };
        let bucket = &self.reads.bucket;
        let late = |_| Failure::of(Cause::Timeout);
        let failed = |error: object_store::Error| Failure::from_client(&error);
        let (key, began) = (bucket.key(&self.run.name.to_string()), Instant::now());
        let options =
            GetOptions { range: Some(GetRange::Bounded(range.clone())), ..GetOptions::default() };
        let got = timeout_at(until, bucket.store().get_opts(&key, options)).await;
        let got = got.map_err(late)?.map_err(failed)?;
        let response = began.elapsed();
        let (size, mut at) = (got.meta.size, got.range.start);
        let mut body = got.into_stream();
        let from = Instant::now();
        while let Some(first) = self.run.first_deadline() {
            match timeout_at(first, body.next()).await {
                Err(_) => self.run.complete_late(Instant::now()),
                Ok(Some(piece)) => {
                    let piece = piece.map_err(failed)?;
                    self.run.fill(at, &piece);
                    at += piece.len() as u64;
                    bucket.traffic.note_read(piece.len() as u64);
                }
                Ok(None) if at >= size && size < range.end => {
                    self.run.end_short();
                }
                Ok(None) => return Err(Failure::of(Cause::Cut)),
            }
        }
        self.note_cost(response, at - range.start, from.elapsed());
        Ok(())
    }

    fn note_cost(&self, response: Duration, bytes: u64, body: Duration) {
        self.reads.cost.lock().note(response, bytes, body);
    }
}
