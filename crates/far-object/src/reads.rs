//! Reads of parts of objects: which of them become one request, and their bytes straight into places.
//!
//! 1. Every request is completed once: by its bytes, by a failure, by its deadline, or when it is dropped.
//! 2. The oldest request that waits is served next, and with it those of the same object that the [`CostModel`] says.
//! 3. A request is completed with its last byte, not with the last one of those that it was read with.
//! 4. What failed in the middle goes on behind the last byte that arrived. A request is tried [`MOST_TRIES`] times, and
//!    while it waits to be tried again its connection serves others.

mod run;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ops::Bound;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use dalsegno_core::Stopped;
use dalsegno_far::ObjectName;
use dalsegno_io::Request;
use futures_util::StreamExt;
use object_store::{GetOptions, GetRange};
use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::time::{Instant, timeout_at};

use crate::bucket::{Bucket, next_try, unless_silent};
use crate::cost::CostModel;
use crate::failure::{Cause, Failure};
use crate::network::CallPlace;
use crate::status::noting_status;

use self::run::{Open, Run, Wanted};

/// How often a request is sent. An object that fails so often is a miss.
const MOST_TRIES: u32 = 5;

/// Where a request is in the queue: its object, its offset, and its number.
type Position = (ObjectName, u64, u64);

/// Requests that wait.
#[derive(Debug, Default)]
struct ReadQueue {
    waiting: BTreeMap<Position, Open>,
    /// By their numbers.
    oldest: BTreeMap<u64, Position>,
    /// By their deadlines.
    deadlines: BTreeSet<(Instant, Position)>,
    next: u64,
    connections: usize,
}

impl ReadQueue {
    fn push(&mut self, name: ObjectName, open: Open) {
        let position = (name, open.start(), self.next);
        self.oldest.insert(self.next, position);
        self.deadlines.insert((open.until, position));
        self.waiting.insert(position, open);
        self.next += 1;
    }

    fn remove(&mut self, position: Position) -> Open {
        self.oldest.remove(&position.2);
        let open = self.waiting.remove(&position).expect("it was found there");
        self.deadlines.remove(&(open.until, position));
        open
    }

    /// Takes a request whose deadline has passed.
    fn take_late(&mut self, now: Instant) -> Option<Open> {
        let (_, position) = *self.deadlines.first().filter(|(until, _)| *until <= now)?;
        Some(self.remove(position))
    }

    /// Takes the oldest request, and its neighbours in at most so many bytes, with gaps of at most `gap` bytes.
    fn take(&mut self, most: u64, gap: u64) -> Option<Run> {
        let (_, first) = self.oldest.first_key_value()?;
        let (name, first) = (first.0, *first);
        let of_object = (name, 0, 0)..=(name, u64::MAX, u64::MAX);
        let (mut start, mut end) = {
            let open = &self.waiting[&first];
            (open.start(), open.end())
        };
        let mut positions = VecDeque::from([first]);
        let after = (Bound::Excluded(first), Bound::Included(*of_object.end()));
        // How many there are within `most`, and where they end.
        let mut within = (1, end);
        for (position, open) in self.waiting.range(after) {
            if open.start() > end.saturating_add(gap) {
                break;
            }
            let joined = end.max(open.end());
            // A rest that takes no longer than a response is no request by itself.
            if joined - start > most.saturating_add(gap) {
                positions.truncate(within.0);
                end = within.1;
                break;
            }
            end = joined;
            positions.push_back(*position);
            if end - start <= most {
                within = (positions.len(), end);
            }
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
            requests.push_back(self.remove(position));
        }
        Some(Run { name, requests })
    }
}

/// See the module.
#[derive(Debug)]
pub(crate) struct Reads {
    bucket: Arc<Bucket>,
    queue: Mutex<ReadQueue>,
    cost: Mutex<CostModel>,
    /// The bytes of all requests that are not completed.
    wanted: Arc<AtomicU64>,
    most_connections: usize,
    arrived: Notify,
}

impl Reads {
    pub(crate) fn new(bucket: Arc<Bucket>, most_connections: usize) -> Self {
        Self {
            bucket,
            queue: Mutex::default(),
            cost: Mutex::default(),
            wanted: Arc::default(),
            most_connections,
            arrived: Notify::new(),
        }
    }

    pub(crate) fn cost(&self) -> CostModel {
        *self.cost.lock()
    }

    /// Adds requests of objects. Those that arrive together may be read together.
    pub(crate) fn add(&self, requests: Vec<(ObjectName, Request, CallPlace)>) {
        let mut queue = self.queue.lock();
        for (name, request, place) in requests {
            let until = self.bucket.instant(request.deadline);
            let wanted = Wanted::new(&self.wanted, request.bytes());
            let mut open = Open::new(request, until, wanted, place);
            if open.request().bytes() == 0 {
                open.fill(&[]);
                open.complete(Ok(()));
                continue;
            }
            queue.push(name, open);
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
                let reads = Arc::clone(&self);
                tokio::spawn(async move { Connected { reads: &reads }.serve(run).await });
            }
            let next = self.complete_late();
            let arrived = self.arrived.notified();
            match next {
                Some(next) => drop(timeout_at(next, arrived).await),
                None => arrived.await,
            }
        }
    }

    /// Completes requests that wait and whose deadline has passed. Returns the next deadline.
    fn complete_late(&self) -> Option<Instant> {
        let now = Instant::now();
        loop {
            let mut queue = self.queue.lock();
            let Some(late) = queue.take_late(now) else {
                return queue.deadlines.first().map(|(until, _)| *until);
            };
            drop(queue);
            late.complete(Err(Stopped::Deadline.into()));
        }
    }

    /// Adds requests again that are to be tried again.
    fn add_again(&self, run: Run) {
        let mut queue = self.queue.lock();
        for open in run.requests {
            queue.push(run.name, open);
        }
        drop(queue);
        self.arrived.notify_one();
    }

    /// Takes the next run if a connection is free.
    fn begin(&self) -> Option<Run> {
        let mut queue = self.queue.lock();
        if queue.connections >= self.most_connections {
            return None;
        }
        let (cost, wanted) = (self.cost(), self.wanted.load(Ordering::Relaxed));
        let most = cost.request_bytes(wanted, self.most_connections as u64);
        let run = queue.take(most, cost.gap_bytes())?;
        queue.connections += 1;
        Some(run)
    }
}

/// A connection. It is free when it is dropped.
struct Connected<'a> {
    reads: &'a Reads,
}

impl Drop for Connected<'_> {
    fn drop(&mut self) {
        self.reads.queue.lock().connections -= 1;
        self.reads.arrived.notify_one();
    }
}

/// What is left of a run.
enum Left {
    Nothing,
    /// It is to be tried again at this moment.
    Again(Run, Instant),
}

impl Connected<'_> {
    async fn serve(self, run: Run) {
        let reads = self.reads;
        let left = UnderWay { reads, run }.finish().await;
        drop(self);
        if let Left::Again(mut run, next) = left {
            while let Some(first) = run.first_deadline().filter(|first| *first < next) {
                tokio::time::sleep_until(first).await;
                run.complete_late(Instant::now());
            }
            if run.first_deadline().is_some() {
                tokio::time::sleep_until(next).await;
                reads.add_again(run);
            }
        }
    }
}

/// A run that has a connection.
struct UnderWay<'a> {
    reads: &'a Reads,
    run: Run,
}

impl UnderWay<'_> {
    async fn finish(mut self) -> Left {
        let bucket = &self.reads.bucket;
        self.run.complete_late(Instant::now());
        let Some(until) = self.run.last_deadline() else { return Left::Nothing };
        let turn = self.run.wait(bucket.wait_for_turn(until)).await;
        let failure = match turn {
            None => return Left::Nothing,
            Some(Err(failure)) => failure,
            Some(Ok(())) => match noting_status(self.read()).await {
                Ok(()) => return Left::Nothing,
                Err(failure) => failure,
            },
        };
        if failure.is_beyond_end() {
            self.run.end_short(&self.shown());
            return Left::Nothing;
        }
        bucket.note(&failure);
        let tries = self.run.note_try();
        let next = next_try(tries);
        if !failure.cause.is_momentary() || tries >= MOST_TRIES || next >= until {
            self.run.fail(&failure, &self.shown());
            return Left::Nothing;
        }
        bucket.traffic.note_retry();
        Left::Again(self.run, next)
    }

    /// Reads what is missing, in one request.
    async fn read(&mut self) -> Result<(), Failure> {
        let Some(range) = self.run.range() else { return Ok(()) };
        let bucket = &self.reads.bucket;
        let failed = |error: object_store::Error| Failure::from_client(&error);
        let (key, began) = (bucket.key(&self.run.name.to_string()), Instant::now());
        let options =
            GetOptions { range: Some(GetRange::Bounded(range.clone())), ..GetOptions::default() };
        let got = unless_silent(bucket.store().get_opts(&key, options));
        let Some(got) = self.run.wait(got).await else { return Ok(()) };
        let got = got?.map_err(failed)?;
        let response = began.elapsed();
        let (size, mut at) = (got.meta.size, got.range.start);
        let mut body = got.into_stream();
        let from = Instant::now();
        while self.run.first_deadline().is_some() {
            let Some(next) = self.run.wait(unless_silent(body.next())).await else { break };
            match next? {
                Some(piece) => {
                    let piece = piece.map_err(failed)?;
                    self.run.fill(at, &piece);
                    at += piece.len() as u64;
                    bucket.traffic.note_read(piece.len() as u64);
                }
                None if at >= size && size < range.end => {
                    let shown = self.shown();
                    self.run.end_short(&shown);
                }
                None => return Err(Failure::of(Cause::Cut)),
            }
        }
        self.note_cost(response, at - range.start, from.elapsed());
        Ok(())
    }

    fn shown(&self) -> String {
        self.reads.bucket.shown(&self.run.name.to_string())
    }

    fn note_cost(&self, response: Duration, bytes: u64, body: Duration) {
        self.reads.cost.lock().note(response, bytes, body);
    }
}

#[cfg(test)]
mod tests;
