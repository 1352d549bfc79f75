//! A subscription to the blocks that leave the store of a server.
//!
//! 1. A server that ended, or a connection that broke, is a gap: nothing says what left meanwhile.
//! 2. A client that was closed has no connection, also none of a watch.

use dalsegno_core::{Class, Error, Result};
use dalsegno_io::Call;
use dalsegno_store::{MAX_WATCHED_BLOCKS, Removals, Terms};
use std::sync::Arc;
use std::time::Duration;

use super::inner::Inner;
use super::lost::Lost;
use super::watch_lines::{Line, SharedLine};
use crate::wire::{self, Reply, Request};

/// How long taking removals waits for the server.
const TIMEOUT: Duration = Duration::from_secs(1);

/// A subscription to the blocks that leave the store of a server. It ends when it is dropped.
#[derive(Debug)]
pub struct ServedWatch {
    client: Arc<Inner>,
    capacity: u64,
    line: SharedLine,
}

impl ServedWatch {
    pub(super) fn open(client: Arc<Inner>, capacity: usize) -> Result<Self> {
        if !(1..=MAX_WATCHED_BLOCKS).contains(&capacity) {
            return Err(Error::invalid(format!(
                "capacity is {capacity}; a watch of removals holds 1 to {MAX_WATCHED_BLOCKS} blocks"
            )));
        }
        let line = SharedLine::default();
        client.enter()?.watches.add(&line);
        let watch = Self { client, capacity: capacity as u64, line };
        // Without a server the first take opens the line, after a gap.
        let mut line = watch.line.lock();
        *line = watch.connect().ok();
        drop(line);
        Ok(watch)
    }

    /// See [`RemovalWatch::waiting`](dalsegno_store::RemovalWatch::waiting).
    #[must_use]
    pub fn waiting(&self) -> usize {
        let mut line = self.line.lock();
        match self.ask(&mut line, &Request::Waiting) {
            Ok((Reply::Count { count }, _)) => usize::try_from(count).unwrap_or(usize::MAX),
            // A gap counts as one, if it can be taken.
            _ => usize::from(self.client.enter().is_ok_and(|parts| parts.server().is_ok())),
        }
    }

    /// See [`RemovalWatch::take`](dalsegno_store::RemovalWatch::take).
    #[must_use]
    pub fn take(&self, limit: usize) -> Removals {
        let gap = Removals { blocks: Vec::new(), is_complete: false };
        if self.client.enter().is_err() {
            return gap;
        }
        let mut line = self.line.lock();
        let limit = u32::try_from(limit).unwrap_or(u32::MAX);
        let answered = self.ask(&mut line, &Request::Take { limit });
        if let Ok((Reply::Removals { complete }, tail)) = answered
            && let Ok(blocks) = wire::removals_of(&tail)
        {
            return Removals { blocks, is_complete: complete };
        }
        *line = self.connect().ok();
        gap
    }

    fn ask(
        &self,
        line: &mut Option<Line>,
        request: &Request,
    ) -> std::result::Result<(Reply, Vec<u8>), Lost> {
        // Nobody waits again for a server that is known not to respond. What it notes stays in its queue.
        self.client.enter().map_err(|_| Lost::Away)?.server()?;
        let Some(Line { server, connection }) = line else { return Err(Lost::Away) };
        let answered = server.reach().exchange(connection, &wire::encode(request), &self.call());
        if answered.is_err() {
            *line = None;
        }
        let answer = answered?;
        let (reply, tail) = wire::decode::<Reply>(&answer).map_err(|_| Lost::Away)?;
        Ok((reply, tail.to_vec()))
    }

    fn connect(&self) -> std::result::Result<Line, Lost> {
        let parts = self.client.enter().map_err(|_| Lost::Away)?;
        let server = parts.server()?;
        let mut connection = server.reach().connect(&self.call())?;
        let message = wire::encode(&Request::Watch { capacity: self.capacity });
        let answer = server.reach().exchange(&mut connection, &message, &self.call())?;
        if !matches!(wire::decode(&answer), Ok((Reply::Done, _))) {
            // The server notes no more removals for this process.
            return Err(Lost::Refused);
        }
        Ok(Line { server, connection })
    }

    fn call(&self) -> Call {
        let terms = Terms::within(TIMEOUT);
        self.client.enter().map_or_else(|_| Call::of(Class::Need), |parts| terms.call(&parts.clock))
    }
}
