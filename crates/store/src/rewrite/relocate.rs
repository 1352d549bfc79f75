//! Moving extents out of a segment that is about to be recycled.
//!
//! 1. A moved block is readable at every moment: it is copied first, then the index refers to the copy.
//! 2. A compressed extent that moves alone is copied as it is stored, with its checksums.
//! 3. Neighbours of a lineage move as one extent, so freeing space also merges.
//! 4. Each step inside an extent waits for the device: a late read says nothing about the bytes.

use std::sync::Arc;

use dalsegno_core::{Class, Extent, Stopped};
use dalsegno_extent::{Cause, NewExtent};
use dalsegno_index::Unread;
use dalsegno_io::{Call, IoError, lend};
use dalsegno_log::{Append, Appended, LogError, Payload, SpaceUse};

use crate::blocks::indexed_log::IndexedLog;
use crate::namespaces::table::NamespaceTable;
use crate::rewrite::copy::{compress_again, read_blocks, visible_blocks};
use crate::rewrite::rows::{Spot, part_of, runs_of};

/// Moves extents.
#[derive(Debug)]
pub(crate) struct Relocator {
    pub(crate) stored: Arc<IndexedLog>,
    /// How extents are stored from now on.
    pub(crate) namespaces: Arc<NamespaceTable>,
}

/// How the move of a row ended.
struct Moved {
    /// Bytes written at the new place.
    bytes: u64,
    remainder: Remainder,
}

/// What did not move.
#[derive(PartialEq, Eq)]
enum Remainder {
    /// Nothing, or only blocks that are bad or gone.
    Worthless,
    /// Blocks that could not be read just now.
    Unread,
}

impl Relocator {
    /// The extents of a segment. If the device fails, it is read again once it responds.
    ///
    /// # Errors
    ///
    /// If it still fails, or is too slow.
    pub(super) fn extents_in(&self, segment: u64) -> Result<Vec<Extent>, LogError> {
        let recycler = self.stored.log.recycler();
        let (mut extents, mut failure) = recycler.extents_in(segment);
        if failure.is_some() {
            recycler.check_reads(segment)?;
            (extents, failure) = recycler.extents_in(segment);
        }
        match failure {
            None => Ok(extents),
            Some(LogError::Io(error @ IoError::Stopped(_))) => Err(LogError::Io(error)),
            // A read that fails again while the device responds met bad bytes.
            Some(_) => recycler.check_reads(segment).map(|()| extents),
        }
    }

    /// Those extents of a segment that the index refers to.
    ///
    /// # Errors
    ///
    /// As [`Self::query_index`].
    pub(super) fn live_of<'a>(
        &self,
        segment: u64,
        extents: &'a [Extent],
    ) -> Result<Vec<&'a Extent>, LogError> {
        let mut live_ones = Vec::new();
        for extent in extents {
            let live = self.query_index(segment, || self.stored.index.live_blocks(extent))?;
            live_ones.extend(live.contains(&true).then_some(extent));
        }
        Ok(live_ones)
    }

    /// Queries the index about a segment. If the device fails, it is queried again once the device responds. If that
    /// fails too, files of the index are bad: the store stops writing, and the next open rebuilds the index.
    ///
    /// # Errors
    ///
    /// If the device fails or is too slow, or the store stops.
    fn query_index<R>(
        &self,
        segment: u64,
        query: impl Fn() -> Result<R, Unread>,
    ) -> Result<R, LogError> {
        let check_speed = |error: &Unread| {
            if error.is_put_off() { Err(Stopped::Busy) } else { Ok(()) }
        };
        match query() {
            Ok(answer) => return Ok(answer),
            Err(error) => check_speed(&error)?,
        }
        self.stored.log.recycler().check_reads(segment)?;
        query().or_else(|error| {
            check_speed(&error)?;
            self.stored.care.condemn("files of the index cannot be read");
            Err(LogError::Poisoned)
        })
    }

    /// Moves the visible blocks of a row of neighbours to the open segment. If the device fails to read some, it is
    /// read again once it responds. Returns the bytes written.
    ///
    /// # Errors
    ///
    /// If it still fails. Blocks that could not be read stay where they are.
    pub(super) fn move_all(&self, segment: u64, row: &[&Extent]) -> Result<u64, LogError> {
        let mut bytes = 0;
        for _ in 0..2 {
            let moved = self.move_row(row)?;
            bytes += moved.bytes;
            if moved.remainder == Remainder::Worthless {
                break;
            }
            self.stored.log.recycler().check_reads(segment)?;
        }
        Ok(bytes)
    }

    /// Copies the visible blocks of neighbours to the open segment, as one extent if nothing is missing between them.
    /// Then the index refers to the copy.
    fn move_row(&self, row: &[&Extent]) -> Result<Moved, LogError> {
        let IndexedLog { log, index, .. } = self.stored.as_ref();
        let segment = row[0].location.segment;
        // Taken before the visible blocks are read: blocks removed until now are not copied, and later removals have a
        // larger number. With the number of the first put, one extent that moves again and again would keep every
        // tombstone alive.
        let born = log.segments().born_of_copies();
        let wanted = self.query_index(segment, || visible_blocks(&self.stored, row))?;
        if wanted.is_empty() {
            return Ok(Moved { bytes: 0, remainder: Remainder::Worthless });
        }
        if let Some(bytes) = self.move_compressed(row, &wanted, born)? {
            return Ok(Moved { bytes, remainder: Remainder::Worthless });
        }
        let block_bytes = usize::try_from(row[0].layout.block_bytes()).expect("64-bit addresses");
        let mut bytes = vec![0_u8; wanted.len() * block_bytes];
        let outcomes = read_blocks(log, row, &wanted, &mut bytes, Class::Save);
        let is_late = |cause: Cause| matches!(cause, Cause::Throttled | Cause::Deadline);
        if outcomes.iter().any(|outcome| outcome.is_err_and(is_late)) {
            return Err(Stopped::Busy.into());
        }
        let good: Vec<bool> = outcomes.iter().map(Result::is_ok).collect();
        let may_be_good = |cause: Cause| !cause.is_damage() && cause != Cause::Recycled;
        let is_unread = outcomes.iter().any(|outcome| outcome.is_err_and(may_be_good));
        let remainder = if is_unread { Remainder::Unread } else { Remainder::Worthless };
        let mut new = Vec::new();
        let mut pins = Vec::new();
        let mut written = 0;
        for run in runs_of(row, &wanted, &good) {
            let source = &bytes[run.start * block_bytes..run.end * block_bytes];
            let appended = self.append_copy(row, &wanted[run], born, source)?;
            written += appended.extent.total_bytes();
            new.push(appended.extent);
            pins.push(appended.pin);
        }
        self.query_index(segment, || index.replace(row, new.clone()))?;
        drop(pins);
        Ok(Moved { bytes: written, remainder })
    }

    /// Appends blocks of a row as one extent.
    fn append_copy(
        &self,
        row: &[&Extent],
        run: &[Spot],
        born: Option<u64>,
        bytes: &[u8],
    ) -> Result<Appended, LogError> {
        let part = part_of(row, run, born);
        let compression = self.namespaces.compression(part.namespace);
        let appended = lend(|lender| {
            let blocks = bytes.chunks_exact(bytes.len() / run.len());
            let blocks: Vec<_> = blocks.map(|block| vec![lender.shared(block)]).collect();
            let compressed = compress_again(&self.stored.log, compression, &part, &blocks)?;
            self.append(part, compressed.map_or(Payload::Plain(blocks), Payload::Compressed))
        })?;
        if row.len() > 1 || row[0].is_moved() {
            // An open lets an extent made of several replace them without reading it: see `fill_index.rs`.
            self.stored.log.writer().make_durable(&appended)?;
        }
        Ok(appended)
    }

    /// Appends a copy; it may use the reserve.
    fn append(&self, extent: NewExtent, payload: Payload) -> Result<Appended, LogError> {
        let writer = self.stored.log.writer();
        let place = writer.reserve(payload.total_bytes(&extent), SpaceUse::Reserve)?;
        writer.append(vec![Append::new(extent, payload, place)], &Call::of(Class::Save)).remove(0)
    }

    /// Copies a compressed extent as it is stored, if all of it is visible and its namespace still asks for
    /// compression.
    fn move_compressed(
        &self,
        row: &[&Extent],
        wanted: &[Spot],
        born: Option<u64>,
    ) -> Result<Option<u64>, LogError> {
        let [extent] = row else { return Ok(None) };
        let is_whole = wanted.len() == extent.hashes.len();
        let is_plain = || self.namespaces.compression(extent.namespace).is_plain();
        if !is_whole || !extent.is_compressed() || is_plain() {
            return Ok(None);
        }
        let IndexedLog { log, index, .. } = self.stored.as_ref();
        let Some(compressed) = log.read_compressed(extent) else { return Ok(None) };
        let payload = Payload::Compressed(compressed);
        let appended = self.append(part_of(row, wanted, born), payload)?;
        if extent.is_moved() {
            log.writer().make_durable(&appended)?;
        }
        let Appended { extent: new, pin } = appended;
        let bytes = new.total_bytes();
        let segment = extent.location.segment;
        self.query_index(segment, || index.replace(row, vec![new.clone()]))?;
        drop(pin);
        Ok(Some(bytes))
    }
}
