//! Reads the headers of records of which only the place is known.

use dalsegno_core::Stopped;
use dalsegno_io::{Call, Completion, Memory, Operation};

use crate::error::Cause;
use crate::format::RecordHeader;
use crate::transfer::{PinnedFile, Pump, SourceIo, Transfer};

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

/// Headers that are being read in parallel. The caller checks that a header is the one that it wanted.
pub struct HeadersRead<'a> {
    pump: Pump<'a>,
    wanted: Vec<HeaderRead>,
    /// How many were requested.
    requested: usize,
    headers: Vec<Option<Result<RecordHeader, Cause>>>,
}

impl<'a> HeadersRead<'a> {
    /// Plans to read headers. Nothing is sent yet.
    #[must_use]
    pub fn new(io: &'a SourceIo, wanted: Vec<HeaderRead>, call: &'a Call) -> Self {
        let mut headers = Vec::with_capacity(wanted.len());
        headers.resize_with(wanted.len(), || None);
        Self { pump: Pump::new(io, call), wanted, requested: 0, headers }
    }

    /// Sends what may be in flight, and takes what has arrived; returns whether all is done. Does not wait.
    pub fn advance(&mut self) -> bool {
        loop {
            while let Some(next) = self.next()
                && let Some(staging) = self.pump.try_staging(next)
            {
                self.request(staging);
            }
            let Some(completion) = self.pump.try_next() else { return self.is_done() };
            self.take(completion);
        }
    }

    /// Waits for all headers, and returns one result for each, in order.
    pub fn finish(&mut self) -> Vec<Result<RecordHeader, Cause>> {
        let missing = self.run().err().map_or(Cause::Device, Cause::from);
        let headers = std::mem::take(&mut self.headers).into_iter();
        headers.map(|header| header.unwrap_or(Err(missing))).collect()
    }

    fn is_done(&self) -> bool {
        self.requested == self.wanted.len() && self.pump.is_idle()
    }

    fn run(&mut self) -> Result<(), Stopped> {
        while !self.is_done() {
            if let Some(next) = self.next()
                && let Some(staging) = self.pump.staging(next)?
            {
                self.request(staging);
                continue;
            }
            let completion = self.pump.next()?;
            self.take(completion);
        }
        Ok(())
    }

    /// Bytes of the next header, if it may be requested now.
    fn next(&self) -> Option<usize> {
        let next = self.wanted.get(self.requested).filter(|_| self.pump.can_submit())?;
        Some(next.bytes)
    }

    fn request(&mut self, staging: Memory) {
        let HeaderRead { pinned, offset, .. } = &self.wanted[self.requested];
        self.pump.submit(Transfer {
            operation: Operation::Read,
            file: pinned.file,
            offset: *offset,
            memory: vec![staging],
            tag: self.requested as u64,
            guard: Some(pinned.guard.clone()),
        });
        self.requested += 1;
    }

    fn take(&mut self, completion: Completion) {
        let at = usize::try_from(completion.tag).expect("an index");
        self.headers[at] = Some(match completion.result {
            Ok(()) => {
                RecordHeader::decode(completion.memory[0].as_slice()).map_err(Cause::of_format)
            }
            Err(error) => Err(Cause::of_io(&error)),
        });
    }
}
