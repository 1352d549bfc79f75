//! Reads blocks, or layers of blocks, and verifies every slice before it returns them.
//!
//! 1. The requests of all records of one call share one pump, so many small extents are read as fast as one large one.
//! 2. Headers without which a payload cannot be found are requested first.
//! 3. Bytes that cannot be read cost only the blocks that they belong to: see `salvage.rs`.
//! 4. A call may read several sources at a time. While it waits for one, also while failed requests of that are sent
//!    again, requests are sent to the others and their completions are taken.

use std::sync::Arc;
use std::time::Duration;

use dalsegno_core::{Deadline, Nanos, Stopped};
use dalsegno_io::{CANCEL_POLL, Call, Completion};

use super::header_cache::{HeaderCache, HeaderName};
use super::read_pump::{ReadParts, ReadPump};
use super::salvage::salvage;
use super::slice_sink::SliceSink;
use super::wanted::{BlockRead, RecordRead, TrialFiles};
use crate::compress::CodecPool;
use crate::transfer::{LOOK, Pump, SourceIo};

/// Reads the records of a source.
#[derive(Debug)]
pub struct Reader {
    parts: ReadParts,
}

impl Reader {
    /// A reader of records. Without `trials`, a source whose file cannot be read counts as failing.
    #[must_use]
    pub fn new(
        io: Arc<SourceIo>,
        headers: Arc<HeaderCache>,
        codecs: Arc<CodecPool>,
        trials: Option<Arc<dyn TrialFiles>>,
    ) -> Self {
        Self { parts: ReadParts { io, headers, codecs, trials } }
    }

    /// Drops the cached header of a record that is gone.
    pub fn forget(&self, name: HeaderName) {
        self.parts.headers.remove(name);
    }

    /// Plans to read blocks of several records. Nothing is sent yet.
    ///
    /// Without a deadline, the device reads directly into aligned memory, and the memory of a block that is no hit has
    /// undefined contents. With a deadline, it reads directly only into memory that outlives the call. The rest is
    /// copied from staging buffers, and no request uses it after the call.
    pub fn begin<'a>(
        &'a self,
        reads: impl ExactSizeIterator<Item = RecordRead>,
        call: &'a Call,
    ) -> BlocksRead<'a> {
        let began = self.parts.io.clock.now();
        let mut pump = ReadPump::new(&self.parts, call, reads.len());
        let mut lends = false;
        for read in reads {
            lends |= read.targets.iter().any(|target| !target.outlives_call);
            pump.add(read);
        }
        pump.plan();
        let must_drain = lends && !call.must_stage();
        BlocksRead { pump, must_drain, began, state: ReadState::Sending, sink: None }
    }
}

/// Blocks that are being read from one source.
pub struct BlocksRead<'a> {
    pump: ReadPump<'a>,
    /// Whether requests may use memory that the call lent, so that the call cannot end before them.
    must_drain: bool,
    began: Nanos,
    state: ReadState,
    sink: Option<Arc<dyn SliceSink>>,
}

/// How far a read is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ReadState {
    /// Requests are to be sent, or in flight.
    Sending,
    /// All requests have completed, at this moment. Some may have failed, and are sent again by the wait for this read.
    Completed(Nanos),
    /// Nothing more is sent.
    Ended(Nanos, Result<(), Stopped>),
}

impl BlocksRead<'_> {
    /// Reports verified slices to `sink`, and reads layer by layer: first the lowest one of all records. To be called
    /// before the first request is sent.
    ///
    /// # Panics
    ///
    /// If it reports already.
    pub fn report_to(&mut self, sink: &Arc<dyn SliceSink>) {
        self.pump.readings.iter_mut().for_each(|reading| reading.report_to(sink));
        self.pump.order_by_layer();
        self.sink = Some(Arc::clone(sink));
    }

    /// Sends what may be in flight, and takes what has arrived. Does not wait.
    pub fn advance(&mut self) {
        if self.state == ReadState::Sending && self.pump.advance() {
            self.state = ReadState::Completed(self.pump.parts.io.clock.now());
        }
        self.flush();
    }

    fn flush(&self) {
        self.sink.iter().for_each(|sink| sink.flush());
    }

    /// The time from the beginning to the last planned completion, or until now.
    #[must_use]
    pub fn took(&self) -> Duration {
        let until = match self.state {
            ReadState::Sending => self.pump.parts.io.clock.now(),
            ReadState::Completed(at) | ReadState::Ended(at, _) => at,
        };
        until.since(self.began)
    }

    /// Waits for all blocks, and returns one outcome for each target, in the given order.
    pub fn finish(mut self) -> Vec<Vec<BlockRead>> {
        wait_for_first(&mut [&mut self]);
        let ReadState::Ended(_, end) = self.state else { unreachable!("it was waited for") };
        let stats = &self.pump.parts.io.stats;
        let readings = std::mem::take(&mut self.pump.readings).into_iter();
        let results: Vec<_> = readings.map(|reading| reading.verdict(end.err())).collect();
        for cause in results.iter().flatten().filter_map(|read| read.outcome.err()) {
            stats.count_miss(cause, 1);
        }
        results
    }
}

/// Waits for the first of several reads of one call. The others continue, and [`BlocksRead::finish`] waits for them.
pub fn wait_for_first(reads: &mut [&mut BlocksRead<'_>]) {
    let Some((first, others)) = reads.split_first_mut() else { return };
    if matches!(first.state, ReadState::Ended(..)) {
        return;
    }
    let completed = wait_for_completions(first, others);
    let at = first.pump.parts.io.clock.now();
    let end = completed.and_then(|()| {
        let failed = first.pump.take_failed();
        salvage(&mut first.pump, failed, &mut |pump| next_completion(pump, others))
    });
    if let Err(stopped) = end {
        first.pump.give_up(stopped);
        if first.must_drain {
            first.pump.pump.drain();
        }
    }
    let at = if let ReadState::Completed(at) = first.state { at } else { at };
    first.state = ReadState::Ended(at, end);
    first.flush();
}

/// Waits for all of several reads of one call, in their order.
pub fn wait_for_all(reads: &mut [&mut BlocksRead<'_>]) {
    for first in 0..reads.len() {
        wait_for_first(&mut reads[first..]);
    }
}

/// Waits for the next completion of a pump, while the others continue.
fn next_completion(
    pump: &mut Pump<'_>,
    others: &mut [&mut BlocksRead<'_>],
) -> Result<Completion, Stopped> {
    loop {
        pump.check_cancelled()?;
        if let Some(completion) = pump.try_next() {
            return Ok(completion);
        }
        for other in others.iter_mut() {
            other.advance();
        }
        pump.wait(&sending(others))?;
    }
}

/// The pumps of those reads that have requests to send, or in flight.
fn sending<'a, 'b>(reads: &'a [&mut BlocksRead<'b>]) -> Vec<&'a Pump<'b>> {
    let sending = reads.iter().filter(|read| read.state == ReadState::Sending);
    sending.map(|read| &read.pump.pump).collect()
}

/// Waits until the planned requests of `first` have completed, while the others continue.
fn wait_for_completions(
    first: &mut BlocksRead<'_>,
    others: &mut [&mut BlocksRead<'_>],
) -> Result<(), Stopped> {
    let mut throttled: Option<Deadline> = None;
    loop {
        first.advance();
        if first.state != ReadState::Sending {
            return Ok(());
        }
        first.pump.pump.check_cancelled()?;
        for other in others.iter_mut() {
            other.advance();
        }
        let sending = sending(others);
        let pump = &mut first.pump;
        let Some(len) = pump.awaited_staging() else {
            throttled = None;
            pump.pump.wait(&sending)?;
            continue;
        };
        let until = *throttled.get_or_insert_with(|| pump.pump.staging_limit());
        let limit = if sending.is_empty() { CANCEL_POLL } else { LOOK };
        if let Some(staging) = pump.pump.staging_within(len, until, limit)? {
            throttled = None;
            pump.send_next(Some(staging));
        }
    }
}
