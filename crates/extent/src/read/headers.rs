//! Reads the headers of records of which only the place is known.

use dalsegno_io::Operation;

use crate::call::Call;
use crate::error::Cause;
use crate::format::RecordHeader;
use crate::transfer::{PinnedFile, Pump, PumpStop, SourceIo, Transfer};

/// A header to read.
#[derive(Clone, Debug)]
pub struct HeaderRead {
    /// Where the record is.
    pub pinned: PinnedFile,
    /// Offset of the header in the file.
    pub offset: u64,
    /// Its bytes, whole sectors.
    pub bytes: usize,
}

/// Reads headers in parallel, and returns one result for each, in order. The caller checks that a header is the one
/// that it wanted.
pub fn read_headers(
    io: &SourceIo,
    wanted: &[HeaderRead],
    call: &Call,
) -> Vec<Result<RecordHeader, Cause>> {
    let mut headers = Vec::with_capacity(wanted.len());
    headers.resize_with(wanted.len(), || None);
    let stop = HeaderPump { pump: Pump::new(io, call), wanted, headers: &mut headers }.run();
    let missing = stop.err().map_or(Cause::Device, PumpStop::cause);
    headers.into_iter().map(|header| header.unwrap_or(Err(missing))).collect()
}

struct HeaderPump<'a> {
    pump: Pump<'a>,
    wanted: &'a [HeaderRead],
    headers: &'a mut [Option<Result<RecordHeader, Cause>>],
}

impl HeaderPump<'_> {
    fn run(&mut self) -> Result<(), PumpStop> {
        let mut next = 0;
        while next < self.wanted.len() || !self.pump.is_idle() {
            if next < self.wanted.len()
                && self.pump.can_submit()
                && let Some(staging) = self.pump.staging(self.wanted[next].bytes)?
            {
                let HeaderRead { pinned, offset, .. } = &self.wanted[next];
                self.pump.submit(Transfer {
                    operation: Operation::Read,
                    file: pinned.file,
                    offset: *offset,
                    memory: vec![staging],
                    tag: next as u64,
                    guard: Some(pinned.guard.clone()),
                });
                next += 1;
                continue;
            }
            let completion = self.pump.next()?;
            let at = usize::try_from(completion.tag).expect("an index");
            self.headers[at] = Some(match completion.result {
                Ok(()) => {
                    RecordHeader::decode(completion.memory[0].as_slice()).map_err(Cause::of_format)
                }
                Err(error) => Err(Cause::of_io(&error)),
            });
        }
        Ok(())
    }
}
