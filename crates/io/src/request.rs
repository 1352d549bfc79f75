//! One request to a device, and its completion.

use std::any::Any;
use std::sync::Arc;
use std::time::Duration;

use crossbeam_channel::Sender;
use dalsegno_core::{Class, Deadline, Nanos, SECTOR_BYTES};

use crate::{IoError, Memory};

/// An open file of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct FileId(pub u64);

/// What a request does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    /// Device to memory.
    Read,
    /// Memory to device.
    Write,
    /// `fdatasync`: all completed writes of the file are durable when it completes.
    Sync,
}

impl Operation {
    /// The word for messages and errors.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Read => "read",
            Self::Write => "write",
            Self::Sync => "sync",
        }
    }
}

/// When an engine needs the layers of blocks, of which it computes one after the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DueTimes {
    /// When it needs the first one.
    pub first: Nanos,
    /// How much later it needs each further one.
    pub layer: Duration,
}

impl DueTimes {
    /// From a layer on.
    #[must_use]
    pub fn from(self, layer: u32) -> Self {
        Self { first: self.first.after(self.layer.saturating_mul(layer)), ..self }
    }
}

/// What a request is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Purpose {
    /// Who waits.
    pub class: Class,
    /// When an engine needs it; `None` for as soon as possible.
    pub due: Option<DueTimes>,
    /// Whether it may be refused while the device is suspended. Work that must not be left half-way may not.
    pub is_refusable: bool,
    /// Whether a write is durable when it ends, and not with the next sync.
    pub is_durable: bool,
}

impl Purpose {
    /// Of a class, as soon as possible, not refusable, and durable with the next sync.
    #[must_use]
    pub fn of(class: Class) -> Self {
        Self { class, due: None, is_refusable: false, is_durable: false }
    }
}

/// Observes how requests end.
pub trait Watch: Send + Sync {
    /// A request has ended. Called once per request on the device's thread, before the completion is sent.
    fn ended(&self, result: Result<(), &IoError>);
}

/// Two watches on one request.
struct WatchPair(Arc<dyn Watch>, Arc<dyn Watch>);

impl Watch for WatchPair {
    fn ended(&self, result: Result<(), &IoError>) {
        self.0.ended(result);
        self.1.ended(result);
    }
}

/// One contiguous range of a file and the memory it moves to or from, like one `NVMe` command with a scatter list.
pub struct Request {
    /// What to do.
    pub operation: Operation,
    /// What it is for.
    pub purpose: Purpose,
    /// The file.
    pub file: FileId,
    /// First byte in the file, a multiple of the sector.
    pub offset: u64,
    /// Memory in the order of the file's bytes; the lengths sum to a multiple of the sector. Empty for a sync.
    pub memory: Vec<Memory>,
    /// Returned with the completion.
    pub tag: u64,
    /// After this moment the request is no longer started.
    pub deadline: Deadline,
    /// Kept alive until the device is done, for example a segment's pin.
    pub guard: Option<Arc<dyn Any + Send + Sync>>,
    /// Observes how the request ended, even if the receiver of `reply` is gone. Kept alive until the device is done. A
    /// device that decorates another one adds its own watch with [`Self::add_watch`].
    pub watch: Option<Arc<dyn Watch>>,
    /// Where the completion goes. If the receiver is gone, the completion and its memory are dropped. The channel must
    /// have space for every outstanding completion: a full channel would stall the device's thread.
    pub reply: Sender<Completion>,
}

impl Request {
    /// Bytes it moves.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.memory.iter().map(|m| m.len() as u64).sum()
    }

    /// Adds a watch to those of the request. The watch that was added last, next to the device, is called first.
    pub fn add_watch(&mut self, watch: Arc<dyn Watch>) {
        self.watch = Some(match self.watch.take() {
            None => watch,
            Some(earlier) => Arc::new(WatchPair(watch, earlier)),
        });
    }

    /// Asserts what every engine requires.
    ///
    /// # Panics
    ///
    /// If offset or length are not whole sectors, a read targets read-only memory, or a sync carries memory.
    pub fn check(&self) {
        assert!(self.offset.is_multiple_of(SECTOR_BYTES), "offset {} is not a sector", self.offset);
        let bytes = self.bytes();
        assert!(bytes.is_multiple_of(SECTOR_BYTES), "{bytes} bytes are not whole sectors");
        assert_eq!(
            self.operation == Operation::Sync,
            self.memory.is_empty(),
            "memory of a request"
        );
        if self.operation == Operation::Read {
            assert!(self.memory.iter().all(Memory::is_writable), "read into read-only memory");
        }
    }

    /// Completes a request that the kernel may still execute: memory, guard and watch are never freed.
    pub(crate) fn abandon(mut self, error: IoError) {
        std::mem::forget(std::mem::take(&mut self.memory));
        std::mem::forget(self.guard.take());
        std::mem::forget(self.watch.clone());
        self.complete(Err(error));
    }

    /// Completes the request.
    pub fn complete(self, result: Result<(), IoError>) {
        self.end(result, Vec::new());
    }

    /// Completes a read, of which the source summed each piece of memory as it filled it.
    ///
    /// # Panics
    ///
    /// If there is not one sum for each piece.
    pub fn complete_summed(self, crcs: Vec<u32>) {
        assert_eq!(crcs.len(), self.memory.len(), "one sum for each piece");
        self.end(Ok(()), crcs);
    }

    fn end(self, result: Result<(), IoError>, crcs: Vec<u32>) {
        drop(self.guard);
        if let Some(watch) = self.watch {
            watch.ended(result.as_ref().copied());
        }
        let completion = Completion { tag: self.tag, memory: self.memory, crcs, result };
        // If the caller dropped its receiver, the memory is dropped with the completion.
        drop(self.reply.send(completion));
    }
}

impl std::fmt::Debug for Request {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Request")
            .field("operation", &self.operation)
            .field("file", &self.file)
            .field("offset", &self.offset)
            .field("bytes", &self.bytes())
            .field("tag", &self.tag)
            .finish_non_exhaustive()
    }
}

/// The result of a [`Request`].
#[derive(Debug)]
pub struct Completion {
    /// The request's tag.
    pub tag: u64,
    /// The request's memory. Empty only after an error that leaves it with the kernel permanently.
    pub memory: Vec<Memory>,
    /// The CRC-32C of each piece of memory that a read filled, if its source summed the bytes on their way; else empty.
    pub crcs: Vec<u32>,
    /// Success means that every byte moved.
    pub result: Result<(), IoError>,
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use dalsegno_core::Stopped;

    use super::*;

    /// Appends its name to a log when a request ends.
    struct Recorder(&'static str, Arc<Mutex<Vec<(&'static str, bool)>>>);

    impl Watch for Recorder {
        fn ended(&self, result: Result<(), &IoError>) {
            self.1.lock().unwrap().push((self.0, result.is_ok()));
        }
    }

    #[test]
    fn every_watch_of_a_request_sees_its_end_the_newest_first() {
        let (reply, completions) = crossbeam_channel::unbounded();
        let mut request = Request {
            operation: Operation::Sync,
            purpose: Purpose::of(Class::Need),
            file: FileId(1),
            offset: 0,
            memory: Vec::new(),
            tag: 7,
            deadline: Deadline::Never,
            guard: None,
            watch: None,
            reply,
        };
        let ends = Arc::new(Mutex::new(Vec::new()));
        for name in ["caller", "outer device", "inner device"] {
            request.add_watch(Arc::new(Recorder(name, Arc::clone(&ends))));
        }
        request.complete(Err(Stopped::Busy.into()));
        let expected = [("inner device", false), ("outer device", false), ("caller", false)];
        assert_eq!(*ends.lock().unwrap(), expected);
        assert!(matches!(
            completions.try_recv().unwrap().result,
            Err(IoError::Stopped(Stopped::Busy))
        ));
    }
}
