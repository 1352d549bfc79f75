//! The effects of a simulated device's operations on its disk.
//!
//! 1. Every operation that changes the disk, or tries to, is counted. The outage comes at one of them.

use std::collections::HashMap;

use dalsegno_io::{FileId, IoError};

use crate::disk::{Disk, SECTOR, Torn};
use crate::fault::{EEXIST, EIO, ENOENT, ENOSPC, Fault, FaultPlan, Kind, os_error};
use crate::random::Random;

/// An open file.
#[derive(Debug)]
pub(crate) struct Handle {
    pub(crate) inode: u64,
    pub(crate) name: String,
    pub(crate) writable: bool,
}

/// The state of a device.
#[derive(Debug)]
pub(crate) struct DeviceState {
    pub(crate) disk: Disk,
    pub(crate) handles: HashMap<FileId, Handle>,
    next_handle: u64,
    pub(crate) plan: FaultPlan,
    pub(crate) random: Random,
    pub(crate) changes: Changes,
    pub(crate) down: bool,
    /// Most bytes that files took at any moment.
    pub(crate) peak_bytes: u64,
    /// Sectors with random content because of the operation that the outage interrupted.
    cut: Vec<Torn>,
    /// Operations and notes, one per line, if recorded.
    pub(crate) trace: Option<Vec<String>>,
}

/// Operations that changed the disk, or tried to.
#[derive(Debug)]
pub(crate) struct Changes {
    pub(crate) count: u64,
    /// The number of the one at which the outage comes.
    pub(crate) last: u64,
}

/// The result of an operation that changes the disk.
pub(crate) enum Fate {
    Done,
    /// It is the last one. It may still take effect, but its caller gets no result.
    Last {
        takes_effect: bool,
    },
    Faulty(Fault),
}

impl DeviceState {
    pub(crate) fn new(disk: Disk, random: Random, trace: Option<Vec<String>>) -> Self {
        Self {
            peak_bytes: disk.used_bytes(),
            disk,
            handles: HashMap::new(),
            next_handle: 0,
            plan: FaultPlan::default(),
            random,
            changes: Changes { count: 0, last: u64::MAX },
            down: false,
            cut: Vec::new(),
            trace,
        }
    }

    /// Counts an operation that changes the disk, and returns its fate. `span` is the range of a write.
    pub(crate) fn begin(
        &mut self,
        kind: Kind,
        name: &str,
        span: Option<(u64, usize)>,
    ) -> Result<Fate, IoError> {
        if self.down {
            return Err(IoError::Closed);
        }
        self.changes.count += 1;
        let fate = if self.changes.count >= self.changes.last {
            self.down = true;
            Fate::Last { takes_effect: self.random.percent(50) }
        } else {
            self.plan.next(kind, name).map_or(Fate::Done, Fate::Faulty)
        };
        if let Some(trace) = &mut self.trace {
            let name = if name.is_empty() { "the directory" } else { name };
            let span = span.map_or_else(String::new, |(at, len)| format!(" at {at}, {len} bytes"));
            let number = self.changes.count;
            trace.push(format!("{number:>6} {} {name}{span}{}", kind.name(), fate.words()));
        }
        Ok(fate)
    }

    /// Keeps an open file and returns its handle.
    pub(crate) fn add_handle(&mut self, handle: Handle) -> FileId {
        self.next_handle += 1;
        let file = FileId(self.next_handle);
        self.handles.insert(file, handle);
        file
    }

    /// What the operation tore that the outage interrupted.
    pub(crate) fn torn(&self) -> Vec<Torn> {
        self.cut.clone()
    }

    /// Notes what the outage interrupted.
    fn cut(&mut self, name: &str, offsets: impl IntoIterator<Item = u64>) {
        self.cut.extend(offsets.into_iter().map(|offset| Torn { file: name.to_owned(), offset }));
    }

    /// Bytes of a file. Fewer than wanted at its end, or if a rule says so.
    pub(crate) fn read(
        &mut self,
        inode: u64,
        name: &str,
        offset: u64,
        wanted: usize,
    ) -> Result<Vec<u8>, IoError> {
        let mut bytes = self.disk.read(inode, offset, wanted);
        match self.plan.next(Kind::Read, name) {
            None => {}
            Some(Fault::Flip) => {
                let bit = self.random.below((bytes.len() * 8).max(1));
                if let Some(byte) = bytes.get_mut(bit / 8) {
                    *byte ^= 1 << (bit % 8);
                }
            }
            Some(Fault::Short) => bytes.truncate(self.random.below(wanted / SECTOR) * SECTOR),
            Some(_) => return Err(os_error(Kind::Read, name, EIO)),
        }
        Ok(bytes)
    }

    pub(crate) fn write(
        &mut self,
        inode: u64,
        name: &str,
        offset: u64,
        bytes: &[u8],
    ) -> Result<(), IoError> {
        let fate = self.begin(Kind::Write, name, Some((offset, bytes.len())))?;
        if matches!(fate, Fate::Last { .. }) {
            let sectors = (0..bytes.len() as u64).step_by(SECTOR);
            self.cut(name, sectors.map(|at| offset + at));
        }
        let Self { disk, random, .. } = self;
        match fate {
            Fate::Done => {
                let written = disk.write(inode, offset, bytes, |_| true);
                check_count(Kind::Write, name, bytes.len(), written)
            }
            Fate::Last { .. } => {
                disk.write(inode, offset, bytes, |_| random.percent(50));
                Err(IoError::Closed)
            }
            Fate::Faulty(Fault::Lost) => Ok(()),
            Fate::Faulty(Fault::Short) => {
                let arrived = random.below(bytes.len() / SECTOR);
                disk.write(inode, offset, bytes, |sector| sector < arrived);
                check_count(Kind::Write, name, bytes.len(), arrived * SECTOR)
            }
            Fate::Faulty(Fault::NoSpace) => Err(os_error(Kind::Write, name, ENOSPC)),
            Fate::Faulty(_) => {
                disk.write(inode, offset, bytes, |_| random.percent(50));
                Err(os_error(Kind::Write, name, EIO))
            }
        }
    }

    pub(crate) fn sync(&mut self, inode: u64, name: &str) -> Result<(), IoError> {
        match self.begin(Kind::Sync, name, None)? {
            Fate::Done => {
                self.disk.sync(inode);
                Ok(())
            }
            Fate::Last { takes_effect } => {
                if takes_effect {
                    self.disk.sync(inode);
                }
                Err(IoError::Closed)
            }
            Fate::Faulty(_) => {
                self.disk.fail_sync(inode, &mut self.random);
                Err(os_error(Kind::Sync, name, EIO))
            }
        }
    }

    pub(crate) fn create(&mut self, name: &str, bytes: u64) -> Result<u64, IoError> {
        let inode = self.try_create(name, bytes);
        self.peak_bytes = self.peak_bytes.max(self.disk.used_bytes());
        inode
    }

    fn try_create(&mut self, name: &str, bytes: u64) -> Result<u64, IoError> {
        match self.begin(Kind::Create, name, None)? {
            Fate::Done if self.disk.find(name).is_some() => {
                Err(os_error(Kind::Create, name, EEXIST))
            }
            Fate::Done if bytes > self.disk.free_bytes() => {
                Err(os_error(Kind::Create, name, ENOSPC))
            }
            Fate::Done => Ok(self.disk.create(name, bytes)),
            Fate::Last { takes_effect } => {
                if takes_effect && self.disk.find(name).is_none() {
                    let part = self.disk.create_in_part(name, bytes, &mut self.random);
                    self.cut(name, [0, part]);
                }
                Err(IoError::Closed)
            }
            Fate::Faulty(Fault::NoSpace) => Err(os_error(Kind::Create, name, ENOSPC)),
            Fate::Faulty(_) => Err(os_error(Kind::Create, name, EIO)),
        }
    }

    pub(crate) fn remove(&mut self, name: &str) -> Result<(), IoError> {
        match self.begin(Kind::Remove, name, None)? {
            Fate::Done if self.disk.find(name).is_none() => {
                Err(os_error(Kind::Remove, name, ENOENT))
            }
            Fate::Done => {
                self.disk.remove(name);
                Ok(())
            }
            Fate::Last { takes_effect } => {
                if takes_effect && self.disk.find(name).is_some() {
                    self.disk.remove(name);
                }
                Err(IoError::Closed)
            }
            Fate::Faulty(_) => Err(os_error(Kind::Remove, name, EIO)),
        }
    }

    pub(crate) fn sync_names(&mut self) -> Result<(), IoError> {
        match self.begin(Kind::SyncNames, "", None)? {
            Fate::Done => {
                self.disk.sync_names();
                Ok(())
            }
            Fate::Last { takes_effect } => {
                if takes_effect {
                    self.disk.sync_names();
                }
                Err(IoError::Closed)
            }
            Fate::Faulty(_) => {
                self.disk.fail_sync_names(&mut self.random);
                Err(os_error(Kind::SyncNames, "the directory", EIO))
            }
        }
    }

    pub(crate) fn check_up(&self) -> Result<(), IoError> {
        if self.down { Err(IoError::Closed) } else { Ok(()) }
    }
}

impl Fate {
    /// Its description in a trace.
    fn words(&self) -> String {
        match self {
            Self::Done => String::new(),
            Self::Last { .. } => ": the outage comes".to_owned(),
            Self::Faulty(fault) => format!(": {fault:?}"),
        }
    }
}

/// Fails unless all bytes moved.
pub(crate) fn check_count(
    kind: Kind,
    file: &str,
    expected: usize,
    got: usize,
) -> Result<(), IoError> {
    if expected == got {
        return Ok(());
    }
    let (operation, file) = (kind.name(), file.to_owned());
    Err(IoError::Short { operation, file, expected: expected as u64, got: got as u64 })
}
