//! Which operations fail, and how.

use std::io;

use dalsegno_io::IoError;

/// Linux error numbers. The crate that names them belongs to the io crate.
pub(crate) const ENOENT: i32 = 2;
pub(crate) const EIO: i32 = 5;
pub(crate) const EBADF: i32 = 9;
pub(crate) const EEXIST: i32 = 17;
pub(crate) const ENOSPC: i32 = 28;

/// A kind of operation of the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Opens a file that exists.
    Open,
    /// Creates a file.
    Create,
    /// Reads.
    Read,
    /// Writes.
    Write,
    /// Makes a file's writes durable.
    Sync,
    /// Makes created and removed names durable.
    SyncNames,
    /// Removes a file.
    Remove,
}

impl Kind {
    /// The word for messages.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Open => "open",
            Self::Create => "create",
            Self::Read => "read",
            Self::Write => "write",
            Self::Sync | Self::SyncNames => "sync",
            Self::Remove => "remove",
        }
    }
}

/// How an operation fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// `EIO`. Of a write, some sectors still arrive. After a sync, as on Linux, dirty data counts as clean: reads see
    /// it until the file is reopened, and no later sync writes it. The same for names, until the next outage.
    Error,
    /// `ENOSPC`.
    NoSpace,
    /// Some leading sectors move, and the operation reports how many.
    Short,
    /// A write that reports success and stores nothing.
    Lost,
    /// A read that reports success with one bit flipped.
    Flip,
    /// A request that completes only when the device recovers or ends, more than a minute later, with others in any
    /// order. A request without a deadline completes after that minute.
    Hang,
}

/// Makes matching operations fail.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rule {
    /// Operations of this kind.
    pub kind: Kind,
    /// On files whose name starts with this. For [`Kind::SyncNames`] the name is empty.
    pub file: &'static str,
    /// This many matching operations succeed first.
    pub skip: u64,
    /// Then this many fail.
    pub times: u64,
    /// In this way.
    pub fault: Fault,
}

impl Rule {
    /// All operations of a kind fail.
    #[must_use]
    pub fn always(kind: Kind, fault: Fault) -> Self {
        Self { kind, file: "", skip: 0, times: u64::MAX, fault }
    }

    /// One operation of a kind fails, after `skip` successes.
    #[must_use]
    pub fn once(kind: Kind, fault: Fault, skip: u64) -> Self {
        Self { kind, file: "", skip, times: 1, fault }
    }

    /// Restricts the rule to files whose name starts with `file`.
    #[must_use]
    pub fn on(mut self, file: &'static str) -> Self {
        self.file = file;
        self
    }
}

/// The active rules.
#[derive(Debug, Default)]
pub(crate) struct FaultPlan {
    rules: Vec<Rule>,
    pub(crate) fired: u64,
}

impl FaultPlan {
    pub(crate) fn add(&mut self, rule: Rule) {
        self.rules.push(rule);
    }

    pub(crate) fn clear(&mut self) {
        self.rules.clear();
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.rules.is_empty()
    }

    /// How this operation fails, except by hanging.
    pub(crate) fn next(&mut self, kind: Kind, file: &str) -> Option<Fault> {
        self.take(kind, file, |fault| fault != Fault::Hang)
    }

    /// Whether this request hangs.
    pub(crate) fn hangs(&mut self, kind: Kind, file: &str) -> bool {
        self.take(kind, file, |fault| fault == Fault::Hang).is_some()
    }

    fn take(&mut self, kind: Kind, file: &str, which: impl Fn(Fault) -> bool) -> Option<Fault> {
        let matching = |rule: &&mut Rule| {
            rule.kind == kind && file.starts_with(rule.file) && which(rule.fault)
        };
        for rule in self.rules.iter_mut().filter(matching) {
            if rule.skip > 0 {
                rule.skip -= 1;
            } else if rule.times > 0 {
                rule.times -= 1;
                self.fired += 1;
                return Some(rule.fault);
            }
        }
        None
    }
}

pub(crate) fn os_error(kind: Kind, file: &str, number: i32) -> IoError {
    IoError::Os {
        operation: kind.name(),
        file: file.to_owned(),
        source: io::Error::from_raw_os_error(number),
    }
}
