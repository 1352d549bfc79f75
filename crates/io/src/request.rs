//! One request to a device, and its completion.

use std::any::Any;
use std::sync::Arc;

use crossbeam_channel::Sender;
use dalsegno_core::{Deadline, SECTOR_BYTES};

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
    /// The word for messages.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Read => "read",
            Self::Write => "write",
            Self::Sync => "sync",
        }
    }
}

/// Who waits for a request; the scheduler above orders by it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Class {
    /// A request of the engine waits.
    Foreground,
    /// Nobody waits: eviction, verification, recovery.
    Background,
}

/// Learns how requests end.
pub trait Watch: Send + Sync {
    /// A request has ended; called once for each, before whoever waits hears of it, on the device's thread.
    fn ended(&self, result: Result<(), &IoError>);
}

/// Two watches of one request.
struct WatchPair(Arc<dyn Watch>, Arc<dyn Watch>);

impl Watch for WatchPair {
    fn ended(&self, result: Result<(), &IoError>) {
        self.0.ended(result);
        self.1.ended(result);
    }
}

/// One contiguous range of a file and the memory it moves to or from: what one `NVMe` command with a scatter list says.
pub struct Request {
    /// What to do.
    pub operation: Operation,
    /// Who waits.
    pub class: Class,
    /// The file.
    pub file: FileId,
    /// First byte in the file, a multiple of the sector.
    pub offset: u64,
    /// Memory in the order of the file's bytes; the lengths sum to a multiple of the sector. Empty for a sync.
    pub memory: Vec<Memory>,
    /// Returned with the completion.
    pub tag: u64,
    /// After this moment the request is not started any more.
    pub deadline: Deadline,
    /// Kept alive until the device is done: a segment's pin, say.
    pub guard: Option<Arc<dyn Any + Send + Sync>>,
    /// Told how it ended, also when nobody listens any more; kept alive until the device is done. A device that stands
    /// before another one adds its own with [`Self::add_watch`].
    pub watch: Option<Arc<dyn Watch>>,
    /// Where the completion goes. If nobody listens any more it is dropped, and with it the memory. The channel must
    /// have room for every completion it may be owed: a full one would stall the device's thread.
    pub reply: Sender<Completion>,
}

impl Request {
    /// Bytes it moves.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.memory.iter().map(|m| m.len() as u64).sum()
    }

    /// Adds a watch to those that the request has. The one that was added last, next to the device, is called first.
    pub fn add_watch(&mut self, watch: Arc<dyn Watch>) {
        self.watch = Some(match self.watch.take() {
            None => watch,
            Some(earlier) => Arc::new(WatchPair(watch, earlier)),
        });
    }

    /// Asserts what every engine relies on.
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

    /// Answers a request that the kernel may still carry out: memory, guard and watch are never freed.
    pub(crate) fn abandon(mut self, error: IoError) {
        std::mem::forget(std::mem::take(&mut self.memory));
        std::mem::forget(self.guard.take());
        std::mem::forget(self.watch.clone());
        self.complete(Err(error));
    }

    /// Answers the request; the only way to consume it.
    pub fn complete(self, result: Result<(), IoError>) {
        drop(self.guard);
        if let Some(watch) = self.watch {
            watch.ended(result.as_ref().copied());
        }
        let completion = Completion { tag: self.tag, memory: self.memory, result };
        // A caller that gave up dropped its end; the memory goes back with the completion.
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

/// The answer to a [`Request`].
#[derive(Debug)]
pub struct Completion {
    /// The request's tag.
    pub tag: u64,
    /// The request's memory, back with the caller. Empty only after an error that left it with the kernel for ever.
    pub memory: Vec<Memory>,
    /// Success means that every byte moved.
    pub result: Result<(), IoError>,
}
