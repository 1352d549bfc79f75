//! A place beyond the host that keeps objects.
//!
//! 1. No call waits. Each one that asks for something gets one reply, whatever happens, unless the tier itself hangs.
//! 2. An object is written once: publishing never replaces one, and a reader sees a whole object or none.
//! 3. The number of threads, of waiting calls and of open files is bounded.
//!
//! An [`Ask`] has its own deadline and is no [`Call`](dalsegno_io::Call), like a request to a device: nothing
//! cancels it. A caller that is cancelled leaves, and the reply is dropped.

mod directory;
mod file_names;
mod lanes;
mod late_directory;
mod memory;
mod written_packs;

use std::collections::BTreeMap;
use std::time::Duration;

use crossbeam_channel::Sender;
use dalsegno_core::Deadline;
use dalsegno_io::{FileId, IoError, Memory, Source, Space};
use serde::Serialize;

pub use self::directory::{DirectoryTier, DirectoryTierOptions};
pub use self::file_names::FileNames;
pub use self::lanes::{Permission, TierLanes};
pub use self::late_directory::{LocationError, LocationPath};
pub use self::memory::{MemoryLocation, MemoryTier, StopMode};
use crate::names::{Object, ObjectName, WriterId};

/// What a tier is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TierFacts {
    /// `"directory"`, `"memory"`, or the scheme of an object store.
    pub name: &'static str,
    /// Calls that it works on at a time.
    pub workers: u32,
    /// Reads that it takes at a time. More than it has workers if it makes fewer and larger ones of those that wait.
    pub most_reads: u32,
    /// How often to poll it while nobody here uses it, because requests cost money; zero: as often as otherwise.
    pub idle_poll: Duration,
    /// Whether calls can reach it.
    pub state: TierState,
    /// How often another directory was opened in place of the one before, because its path leads there now.
    pub reopened: u64,
}

/// Whether the calls of a tier can reach its location.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TierState {
    /// It has not responded to its opening yet.
    Opening,
    /// It is open, though it may hang or fail.
    Open,
    /// Its directory was removed, or its file system was unmounted. It is looked for by each publication and each
    /// listing of the removals or the writers.
    Away,
}

/// The requests of a location that is not on this host, since it was opened.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct TierRequests {
    /// What was sent, by what it is paid for.
    #[serde(flatten)]
    pub sent: SentRequests,
    /// Requests that were sent again after a failure.
    pub retries: u64,
    /// Requests that failed, by cause; those that never did are left out.
    pub failed: BTreeMap<&'static str, u64>,
    /// Bytes of objects that were read, gaps between wanted ranges included.
    pub read_bytes: u64,
    /// Bytes of objects that were written.
    pub written_bytes: u64,
    /// What one takes.
    #[serde(flatten)]
    pub cost: RequestCost,
}

/// Requests by what they are paid for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct SentRequests {
    /// Reads of objects, and questions for one.
    pub reads: u64,
    /// Writes of objects.
    pub writes: u64,
    /// Pages of listings.
    pub lists: u64,
    /// Removals.
    pub removals: u64,
    /// What else was sent, for credentials.
    pub others: u64,
}

/// What a request takes, about.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct RequestCost {
    /// The time until its response begins.
    pub response_us: u64,
    /// The bytes per second from then on.
    pub request_bytes_per_s: u64,
    /// Two ranges are read as one if no more bytes are between them.
    pub gap_bytes: u64,
}

/// An object as a listing shows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Listed {
    /// Its name in the folder.
    pub object: Object,
    /// Its size.
    pub bytes: u64,
}

/// Where the reply to a call goes. A reply that nobody waits for any more is dropped.
#[derive(Debug)]
pub struct Ask<T> {
    /// Returned with the reply.
    pub tag: u64,
    /// After this moment the call is no longer started.
    pub deadline: Deadline,
    /// Where the reply goes. It must have space for every outstanding reply.
    pub reply: Sender<Reply<T>>,
}

/// A reply.
#[derive(Debug)]
pub struct Reply<T> {
    /// The call's tag.
    pub tag: u64,
    /// How it ended.
    pub result: Result<T, IoError>,
}

impl<T> Ask<T> {
    /// Answers the call.
    pub fn answer(self, result: Result<T, IoError>) {
        // The caller may have left.
        drop(self.reply.send(Reply { tag: self.tag, result }));
    }
}

/// A place that keeps objects. Packs are read with requests, as the files of a device are; a sector is the unit.
pub trait Tier: Source {
    /// What it is.
    fn facts(&self) -> TierFacts;

    /// A name for requests that read this object. Opens nothing: a request fails with `ENOENT` if there is no such
    /// object. The name is valid until [`Tier::forget`].
    fn file(&self, name: ObjectName) -> FileId;

    /// Makes a name for requests invalid. Requests under way still complete.
    fn forget(&self, file: FileId);

    /// Writes an object; creates its folder if needed. It is durable when the reply says so. The memory is
    /// dropped before the reply. Each piece is in whole sectors. Fails with `EEXIST` if the object exists.
    fn publish(&self, name: ObjectName, bytes: Vec<Memory>, ask: Ask<()>);

    /// Reads a whole object of at most `limit` bytes. Fails with `EFBIG` if it is larger, with `ENOENT` if there is
    /// none.
    fn fetch(&self, name: ObjectName, limit: u64, ask: Ask<Vec<u8>>);

    /// Removes an object. Not an error if there is none.
    fn remove(&self, name: ObjectName, ask: Ask<()>);

    /// Removes the empty folder of a writer. Not an error if there is none, or if it is not empty.
    fn remove_writer(&self, writer: WriterId, ask: Ask<()>);

    /// Lists all lists of removals with their sizes, sorted. Empty if there is no folder of them.
    fn removals(&self, ask: Ask<Vec<(ObjectName, u64)>>);

    /// The present time of the tier's clock, since a fixed moment. Fails where nothing can be written to find it out.
    fn now(&self, ask: Ask<Duration>);

    /// When a list of removals last appeared or disappeared, by the clock of [`Tier::now`]; zero if there never was
    /// one. Nothing is written to find it out.
    fn removals_changed(&self, ask: Ask<Duration>);

    /// Lists the writers, sorted.
    fn writers(&self, ask: Ask<Vec<WriterId>>);

    /// Lists the objects of a writer that come after `after` in their order, sorted. Empty if there is no such writer.
    fn list(&self, writer: WriterId, after: Option<Object>, ask: Ask<Vec<Listed>>);

    /// The seconds since an object was published, by the clock of the tier where it has one.
    fn age(&self, name: ObjectName, ask: Ask<Duration>);

    /// The seconds since an object appeared in a writer's folder or was removed from it, where the location notes that,
    /// or since the folder was created; by the same clock. Fails with `ENOENT` if there is no such folder.
    fn writer_age(&self, writer: WriterId, ask: Ask<Duration>);

    /// Space of the location.
    fn space(&self, ask: Ask<Space>);

    /// The requests that it sent, where that is what it costs.
    fn requests(&self) -> Option<TierRequests> {
        None
    }
}
