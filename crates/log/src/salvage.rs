//! Reading once more what could not be read, in smaller parts: a bad sector, or the end of a file that was cut, then
//! costs the blocks it lies in and not those that were read along with them.
//!
//! 1. When everything else of a call has ended, each request that failed is asked for again, then its halves, down to
//!    parts of one slice: one at a time, and the first to its end before the next.
//! 2. A call makes at most [`MOST`] such requests. What they do not reach is a miss by the device, and stays stored.
//! 3. Bytes are given up only if the device fails to read them, then reads the first sector of their file or of another
//!    segment, and then fails to read them once more. Otherwise it is the device that fails; nothing is given up then.

use std::collections::HashMap;
use std::sync::Arc;

use dalsegno_io::{Class, FileId, IoError, Memory, Operation};

use crate::error::Cause;
use crate::format::SECTOR;
use crate::log::Core;
use crate::plan::{Chunk, Rules, finish};
use crate::pump::{Pump, Stop, Work};
use crate::read::{InFlight, Reading};
use crate::read_units::gather;
use crate::segment::Pin;

/// Requests of a call beyond those it planned. One bad sector among 512 slices takes about 25.
const MOST: usize = 64;

/// A failed request as one that can be made again; `None` if its memory did not come back, or if the device was not
/// even asked: then its blocks are misses.
pub(crate) fn failed(
    reading: &mut Reading,
    mut work: InFlight,
    memory: Vec<Memory>,
    error: &IoError,
) -> Option<InFlight> {
    tracing::debug!("a read failed: {error}");
    if is_of_device(error) && give_back(reading, &mut work.chunk, memory) {
        return Some(work);
    }
    reading.fail(&work, Cause::of_io(error));
    None
}

fn is_of_device(error: &IoError) -> bool {
    matches!(error, IoError::Short { .. } | IoError::Os { .. })
}

/// Puts the caller's memory, which a direct request gave away, back in its place; `false` if it did not come back.
fn give_back(reading: &Reading, chunk: &mut Chunk, memory: Vec<Memory>) -> bool {
    if !chunk.direct {
        return true;
    }
    if memory.len() != chunk.pieces.len() {
        return false;
    }
    for (piece, memory) in chunk.pieces.iter_mut().zip(memory) {
        piece.memory = Some(memory).filter(|_| !reading.starts_with_header(piece));
    }
    chunk.direct = false;
    true
}

impl Core {
    /// Asks once more for what failed; afterwards each part of it has arrived or is a miss with its cause.
    pub(crate) fn salvage(
        &self,
        pump: &mut Pump<'_>,
        failed: Vec<InFlight>,
        readings: &mut [(usize, Reading)],
    ) -> Result<(), Stop> {
        if failed.is_empty() {
            return Ok(());
        }
        let parts = failed.into_iter().rev().collect();
        Salvage { core: self, pump, readings, parts, left: MOST, known: HashMap::new() }.run()
    }
}

struct Salvage<'a, 'b> {
    core: &'a Core,
    pump: &'a mut Pump<'b>,
    readings: &'a mut [(usize, Reading)],
    /// What is still to be read, the next one last.
    parts: Vec<InFlight>,
    left: usize,
    /// Files of which it is known whether the device reads them.
    known: HashMap<FileId, bool>,
}

impl Salvage<'_, '_> {
    fn run(&mut self) -> Result<(), Stop> {
        while let Some(part) = self.parts.pop() {
            let known = self.known.get(&self.pin_of(&part).segment.file).copied();
            let is_well = match known {
                Some(is_well) => is_well,
                None => self.device_answers(&part)?,
            };
            if self.left == 0 || !is_well {
                self.fail(&part, Cause::Device);
                continue;
            }
            let Some((part, error)) = self.read(part)? else { continue };
            if !is_of_device(&error) {
                self.fail(&part, Cause::of_io(&error));
                continue;
            }
            match halves(part, self.core.rules(false)) {
                Ok(parts) => self.parts.extend(parts.into_iter().rev()),
                Err(part) => self.judge(part)?,
            }
        }
        Ok(())
    }

    /// Reads a part that cannot be smaller for the last time.
    fn judge(&mut self, part: InFlight) -> Result<(), Stop> {
        if !self.device_answers(&part)? {
            self.fail(&part, Cause::Device);
        } else if let Some((part, error)) = self.read(part)? {
            let cause = match Cause::of_io(&error) {
                Cause::Device if error.is_of_medium() => Cause::BadSector,
                cause => cause,
            };
            self.fail(&part, cause);
        }
        Ok(())
    }

    /// Whether the device reads the first sector of the file that a part is of, or else of another segment. That its
    /// own file ends before is an answer, too.
    fn device_answers(&mut self, part: &InFlight) -> Result<bool, Stop> {
        let segment = Arc::clone(&self.pin_of(part).segment);
        let beside = self.core.segments.lock().beside(segment.number);
        let own = self.read_first_sector(segment.file, part)?;
        let is_well = match (own, beside) {
            (Ok(()) | Err(IoError::Short { .. }), _) => true,
            (_, Some(other)) => self.read_first_sector(other, part)?.is_ok(),
            (_, None) => false,
        };
        self.known.insert(segment.file, is_well);
        Ok(is_well)
    }

    /// Not refused where reads are suspended: bad answers of one region may have done that.
    fn read_first_sector(
        &mut self,
        file: FileId,
        part: &InFlight,
    ) -> Result<Result<(), IoError>, Stop> {
        self.left = self.left.saturating_sub(1);
        let memory = vec![self.staging(SECTOR)?];
        let (operation, offset, pin) = (Operation::Read, 0, self.pin_of(part));
        let work = Work { operation, file, offset, memory, tag: 0, guard: Some(pin) };
        self.pump.submit_as(Class::Background, work);
        Ok(self.pump.next()?.result)
    }

    fn pin_of(&self, part: &InFlight) -> Arc<Pin> {
        Arc::clone(&self.readings[part.reading].1.pin)
    }

    /// Reads a part; returns it with the error if that fails.
    fn read(&mut self, part: InFlight) -> Result<Option<(InFlight, IoError)>, Stop> {
        self.left = self.left.saturating_sub(1);
        let number = part.reading;
        let staging = self.staging(part.chunk.bytes)?;
        let pin = self.pin_of(&part);
        let part = self.core.submit_read(self.pump, part, Some(staging), 0, pin);
        let completion = self.pump.next()?;
        if let Err(error) = completion.result {
            return Ok(Some((part, error)));
        }
        let reading = &mut self.readings[number].1;
        self.core.arrive(reading, part, completion.memory);
        self.parts.extend(self.core.units_of(number, reading));
        Ok(None)
    }

    fn staging(&self, len: usize) -> Result<Memory, Stop> {
        Ok(self.pump.staging(len)?.expect("nothing is in flight, so it waited for one"))
    }

    fn fail(&mut self, part: &InFlight, cause: Cause) {
        self.readings[part.reading].1.fail(part, cause);
    }
}

/// Cuts a part in two; gives back what cannot be cut.
fn halves(mut part: InFlight, rules: Rules) -> Result<Vec<InFlight>, InFlight> {
    let reading = part.reading;
    if part.units.len() > 1 {
        let behind = part.units.split_off(part.units.len() / 2);
        let halves = [part.units, behind].into_iter().flat_map(|units| gather(units, rules.limit));
        return Ok(halves.map(|(chunk, units)| InFlight { reading, chunk, units }).collect());
    }
    if part.chunk.pieces.len() > 1 {
        let behind = part.chunk.pieces.split_off(part.chunk.pieces.len() / 2);
        let halves = [part.chunk.pieces, behind].map(|pieces| finish(pieces, rules));
        let half = |chunk| InFlight { reading, chunk, units: Vec::new() };
        return Ok(halves.into_iter().map(half).collect());
    }
    Err(part)
}
