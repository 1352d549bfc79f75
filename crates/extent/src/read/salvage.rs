//! Reads failed requests again in smaller parts. A bad sector, or the end of a truncated file, then costs only the
//! blocks that it holds, and not the other blocks of the request.
//!
//! 1. When all other requests of a call have completed, each failed request is sent again, then its halves, down to
//!    parts of one slice: one at a time, depth first, through staging buffers, so that the memory of a part that fails
//!    is still there for its halves.
//! 2. A read sends at most [`MOST`] such requests. Bytes that they do not reach are a miss because of the device, and
//!    stay stored.
//! 3. Bytes count as damaged only if the device fails to read them, then reads the first sector of their file or of
//!    another segment, and then fails to read them again. Otherwise the device fails, and nothing is damaged.

use std::collections::HashMap;

use dalsegno_core::Stopped;
use dalsegno_io::{Completion, FileId, IoError, Memory, Operation, Purpose, Request};

use super::read_pump::{ReadPump, is_of_device};
use super::units::gather;
use crate::error::Cause;
use crate::format::SECTOR;
use crate::transfer::{Chunk, PinnedFile, PlanRules, Pump, finish};

/// Requests of a read beyond the planned ones. One bad sector among 512 slices takes about 25.
const MOST: usize = 64;

/// Waits for the next completion of a pump.
type Next<'a> = &'a mut dyn FnMut(&mut Pump<'_>) -> Result<Completion, Stopped>;

/// Reads failed requests again, and waits for each with `next`. Afterwards each part has arrived, or is a miss with its
/// cause.
pub(super) fn salvage(
    pump: &mut ReadPump<'_>,
    failed: Vec<Chunk>,
    next: Next<'_>,
) -> Result<(), Stopped> {
    if failed.is_empty() {
        return Ok(());
    }
    let parts = failed.into_iter().rev().collect();
    let mut salvage = Salvage { pump, next, parts, left: MOST, readable: HashMap::new() };
    let end = salvage.run();
    if let Err(stopped) = end {
        let parts = std::mem::take(&mut salvage.parts);
        for part in parts {
            salvage.fail(part, stopped.into());
        }
    }
    end
}

struct Salvage<'a, 'b> {
    pump: &'a mut ReadPump<'b>,
    next: Next<'a>,
    /// The parts still to be read, the next one last.
    parts: Vec<Chunk>,
    left: usize,
    /// Whether the device reads, for each file that was tried.
    readable: HashMap<FileId, bool>,
}

impl Salvage<'_, '_> {
    fn run(&mut self) -> Result<(), Stopped> {
        while let Some(part) = self.parts.pop() {
            let known = self.readable.get(&self.pinned_of(&part).file).copied();
            let is_readable = match known {
                Some(is_readable) => is_readable,
                None => self.left > 0 && self.check_device(&part)?,
            };
            if self.left == 0 || !is_readable {
                self.fail(part, Cause::Device);
                continue;
            }
            let Some((part, error)) = self.read(part)? else { continue };
            if !is_of_device(&error) {
                self.fail(part, Cause::of_io(&error));
                continue;
            }
            match halves(part, self.pump.parts.io.staged_rules()) {
                Ok(parts) => self.parts.extend(parts.into_iter().rev()),
                Err(part) => self.read_for_the_last_time(part)?,
            }
        }
        Ok(())
    }

    /// Reads a part that cannot be smaller once more.
    fn read_for_the_last_time(&mut self, part: Chunk) -> Result<(), Stopped> {
        let is_readable = self.left > 0 && self.check_device(&part)?;
        if !is_readable || self.left == 0 {
            self.fail(part, Cause::Device);
        } else if let Some((part, error)) = self.read(part)? {
            let cause = match Cause::of_io(&error) {
                Cause::Device if error.is_of_medium() => Cause::BadSector,
                cause => cause,
            };
            self.fail(part, cause);
        }
        Ok(())
    }

    /// Whether the device reads the first sector of the part's file, or else of another segment. A file that ends
    /// before its first sector also shows that the device reads.
    fn check_device(&mut self, part: &Chunk) -> Result<bool, Stopped> {
        let file = self.pinned_of(part).file;
        let trials = self.pump.parts.trials.as_ref();
        let other = trials.and_then(|trials| trials.other_file(file));
        let own = self.read_first_sector(file, part)?;
        let is_readable = match (own, other) {
            (Ok(()) | Err(IoError::Short { .. }), _) => true,
            (_, Some(other)) if self.left > 0 => self.read_first_sector(other, part)?.is_ok(),
            _ => false,
        };
        self.readable.insert(file, is_readable);
        Ok(is_readable)
    }

    /// A read that is not refused while reads are suspended: the bad region itself may have suspended them.
    fn read_first_sector(
        &mut self,
        file: FileId,
        part: &Chunk,
    ) -> Result<Result<(), IoError>, Stopped> {
        self.left = self.left.saturating_sub(1);
        let memory = vec![self.staging(SECTOR)?];
        let guard = Some(self.pinned_of(part).guard.clone());
        let request = self.pump.pump.request(Operation::Read, file, 0, memory);
        let purpose = Purpose { is_refusable: false, ..request.purpose };
        self.pump.pump.submit(Request { purpose, guard, ..request });
        Ok((self.next)(&mut self.pump.pump)?.result)
    }

    fn pinned_of(&self, part: &Chunk) -> &PinnedFile {
        self.pump.readings[part.record].pinned()
    }

    /// Reads a part, and returns it with the error if that fails.
    fn read(&mut self, part: Chunk) -> Result<Option<(Chunk, IoError)>, Stopped> {
        self.left = self.left.saturating_sub(1);
        let number = part.record;
        let staging = self.staging(part.bytes)?;
        let part = self.pump.submit(part, Some(staging), 0);
        let completion = (self.next)(&mut self.pump.pump)?;
        if let Err(error) = completion.result {
            return Ok(Some((part, error)));
        }
        self.pump.arrive(part, completion);
        // The memory of a part that fails must still be there, so none is read directly.
        let rules = self.pump.parts.io.staged_rules();
        let payload = self.pump.readings[number].plan_payload(rules);
        self.parts.extend(payload);
        Ok(None)
    }

    fn staging(&self, len: usize) -> Result<Memory, Stopped> {
        Ok(self.pump.pump.staging(len)?.expect("nothing is in flight, so it waited for one"))
    }

    fn fail(&mut self, part: Chunk, cause: Cause) {
        self.pump.readings[part.record].fail(part, cause);
    }
}

/// Cuts a part in two; returns the part itself if it cannot be cut.
fn halves(mut part: Chunk, rules: PlanRules) -> Result<Vec<Chunk>, Chunk> {
    let record = part.record;
    if part.units.len() > 1 {
        let behind = part.units.split_off(part.units.len() / 2);
        let halves = [part.units, behind].into_iter();
        return Ok(halves.flat_map(|units| gather(record, units, rules.limit)).collect());
    }
    if part.pieces.len() > 1 {
        let behind = part.pieces.split_off(part.pieces.len() / 2);
        let halves = [part.pieces, behind].map(|pieces| finish(pieces, rules));
        return Ok(halves.into_iter().map(|chunk| Chunk { record, ..chunk }).collect());
    }
    Err(part)
}
