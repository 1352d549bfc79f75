//! What the clones of a client share, and the calls that its writers and watches make as well.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use dalsegno_core::{ChainHash, Class, Clock, Deadline, Error, ErrorKind, NamespaceId, Result};
use dalsegno_io::{Call, Process, SystemClock};
use dalsegno_store::{
    Direction, GetReport, Located, Put, PutOutcome, PutReport, Scope, Stats, Terms, Transfer,
    TransferLanes, forked,
};
use parking_lot::Mutex;

use super::attachment::Attachment;
use super::link::Link;
use super::load::BlockLoad;
use super::lost::Lost;
use super::save::{self, Allocation, AllocationPut};
use super::submitted::SubmittedPuts;
use super::watch_lines::WatchLines;
use crate::wire::{self, Look, MOST_HASHES, Reply, Request};

/// Hashes of one question where they are. While the server looks these up, the next ones are sent.
const LOCATED_TOGETHER: usize = 1024;
const CLOSE_TIMEOUT: Duration = Duration::from_secs(10);

/// What the clones of a client share.
#[derive(Debug)]
pub(super) struct Inner {
    /// `None` while it is dropped.
    parts: Option<Parts>,
    process: Process,
}

#[derive(Debug)]
pub(super) struct Parts {
    pub(super) link: Link,
    pub(super) lanes: TransferLanes,
    pub(super) clock: SystemClock,
    pub(super) is_closed: AtomicBool,
    pub(super) last_stats: Mutex<serde_json::Value>,
    pub(super) submitted: Arc<SubmittedPuts>,
    pub(super) watches: WatchLines,
}

impl Inner {
    pub(super) fn new(parts: Parts) -> Self {
        Self { parts: Some(parts), process: Process::this() }
    }

    /// Fails in a forked child.
    pub(super) fn check_process(&self) -> Result<()> {
        if self.process.is_this() { Ok(()) } else { Err(forked(self.process)) }
    }

    /// The parts, whether or not the client was closed.
    pub(super) fn parts(&self) -> &Parts {
        self.parts.as_ref().expect("there until it is dropped")
    }

    /// The parts, for one call. Fails with `Closed`, or `Unavailable` in a forked child.
    pub(super) fn enter(&self) -> Result<&Parts> {
        self.check_process()?;
        let parts = self.parts();
        if parts.is_closed.load(Ordering::Acquire) {
            return Err(Error::new(ErrorKind::Closed, "the store is closed; open it again"));
        }
        Ok(parts)
    }

    pub(super) fn close(&self) {
        let Ok(parts) = self.enter() else { return };
        let until = Deadline::At(parts.clock.now().after(CLOSE_TIMEOUT));
        parts.lanes.stop(until, &parts.clock);
        let _ = parts.stats();
        parts.is_closed.store(true, Ordering::Release);
        parts.watches.close();
        parts.link.close();
    }

    pub(super) fn count_leading(
        &self,
        namespace: NamespaceId,
        chain: &[ChainHash],
        how: Look,
        terms: &Terms,
    ) -> Result<usize> {
        let parts = self.enter()?;
        let call = terms.call(&parts.clock);
        let mut found = 0;
        for part in chain.chunks(MOST_HASHES) {
            let message = look(namespace, how, part);
            let Ok(answer) = parts.ask_within(namespace, &message, &call) else { break };
            let Ok((Reply::Count { count }, _)) = wire::decode::<Reply>(&answer) else { break };
            let count = usize::try_from(count).unwrap_or(usize::MAX).min(part.len());
            found += count;
            if count < part.len() {
                break;
            }
        }
        Ok(found)
    }

    pub(super) fn locate(
        &self,
        namespace: NamespaceId,
        chain: &[ChainHash],
    ) -> Result<Vec<Located>> {
        let parts = self.enter()?;
        let mut located: Vec<Located> = Vec::new();
        for hashes in chain.chunks(MOST_HASHES) {
            let pieces = hashes.chunks(LOCATED_TOGETHER);
            let questions = pieces.clone().map(|piece| look(namespace, Look::Locate, piece));
            let call = Call::of(Class::Need);
            let server = parts.server();
            let Ok(answers) =
                server.and_then(|server| server.call_in_parts(namespace, &questions, &call))
            else {
                break;
            };
            let mut asked = pieces.zip(&answers);
            if !asked.all(|(piece, answer)| add_located(&mut located, answer, piece.len())) {
                break;
            }
        }
        Ok(located)
    }

    pub(super) fn put_batch(
        &self,
        namespace: NamespaceId,
        put: &Put<'_>,
        terms: &Terms,
    ) -> Result<PutReport> {
        let parts = self.enter()?;
        let namespace = parts.link.namespace(namespace)?;
        put.check(&namespace)?;
        match parts.server() {
            Ok(server) => save::put(&server, &namespace, put, &terms.call(&parts.clock)),
            Err(_) => Ok(PutReport { outcomes: vec![PutOutcome::Failed; put.blocks.len()] }),
        }
    }

    /// See [`Client::commit`](super::Client::commit).
    pub(super) fn commit(
        &self,
        allocation: &Allocation,
        put: AllocationPut<'_>,
        terms: &Terms,
    ) -> Result<PutReport> {
        let parts = self.enter()?;
        let count = allocation.count_of(put.chain, put.first)?;
        match parts.server() {
            Ok(server) => save::commit(&server, allocation, put, &terms.call(&parts.clock)),
            Err(_) => Ok(PutReport { outcomes: vec![PutOutcome::Failed; count] }),
        }
    }

    /// Starts work in the background.
    pub(super) fn start<T: Send + 'static>(
        &self,
        direction: Direction,
        timeout: Option<Duration>,
        refused: Result<T>,
        work: impl FnOnce(&Terms) -> Result<T> + Send + 'static,
    ) -> Transfer<T> {
        let parts = match self.enter() {
            Ok(parts) => parts,
            Err(closed) => return Transfer::ended(Err(closed)),
        };
        let clock: Arc<dyn Clock> = Arc::new(parts.clock);
        parts.lanes.run(direction, timeout, &clock, refused, work)
    }
}

impl Parts {
    pub(super) fn server(&self) -> std::result::Result<Arc<Attachment>, Lost> {
        self.link.server().ok_or(Lost::Away)
    }

    /// Gets blocks.
    pub(super) fn run(&self, load: BlockLoad<'_>, scope: Scope, terms: &Terms) -> GetReport {
        match self.server() {
            Ok(server) => load.run(&server, scope, &terms.call(&self.clock)),
            Err(lost) => load.lose(lost),
        }
    }

    /// Asks about a namespace, or about none, without a deadline.
    pub(super) fn ask(
        &self,
        namespace: impl Into<Option<NamespaceId>>,
        message: &[u8],
    ) -> std::result::Result<Vec<u8>, Lost> {
        self.ask_within(namespace, message, &Call::of(Class::Need))
    }

    /// As [`Parts::ask`], within a call.
    pub(super) fn ask_within(
        &self,
        namespace: impl Into<Option<NamespaceId>>,
        message: &[u8],
        call: &Call,
    ) -> std::result::Result<Vec<u8>, Lost> {
        self.server()?.call(namespace, message, call)
    }

    /// The counters of the store, as JSON; the last known ones if the server is away, zeros if there are none.
    pub(super) fn stats(&self) -> serde_json::Value {
        let call = Terms::within(CLOSE_TIMEOUT).call(&self.clock);
        let message = wire::encode(&Request::Stats);
        if let Ok(answer) = self.ask_within(None, &message, &call)
            && let Ok((Reply::Stats { stats }, _)) = wire::decode::<Reply>(&answer)
            && let Ok(stats) = serde_json::from_str(&stats)
        {
            *self.last_stats.lock() = stats;
        }
        let last = self.last_stats.lock().clone();
        if last.is_null() { to_json(&Stats::default()) } else { last }
    }
}

fn to_json<T: serde::Serialize>(value: &T) -> serde_json::Value {
    serde_json::to_value(value).expect("plain fields")
}

impl Drop for Inner {
    fn drop(&mut self) {
        if self.process.is_this() {
            self.close();
        } else {
            // The threads of the parent may hold any lock of it.
            std::mem::forget(self.parts.take());
        }
    }
}

/// Adds the tiers of an answer behind those before it. `false` if not all of so many blocks are present.
fn add_located(located: &mut Vec<Located>, answer: &[u8], asked: usize) -> bool {
    let Ok((Reply::Located, tail)) = wire::decode::<Reply>(answer) else { return false };
    let Ok(runs) = wire::located_of(tail) else { return false };
    let blocks = runs.iter().fold(0_u64, |sum, run| sum.saturating_add(run.blocks));
    for run in runs {
        match located.last_mut().filter(|last| last.tier == run.tier) {
            Some(last) => {
                last.blocks = last.blocks.saturating_add(run.blocks);
                last.bytes = last.bytes.saturating_add(run.bytes);
            }
            None => located.push(run),
        }
    }
    blocks >= asked as u64
}

/// A question about hashes.
pub(super) fn look(namespace: NamespaceId, how: Look, hashes: &[ChainHash]) -> Vec<u8> {
    let mut message = wire::encode(&Request::Look { namespace: namespace.0, how });
    wire::push_hashes(&mut message, hashes);
    message
}
