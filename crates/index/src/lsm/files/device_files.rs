//! The index's files on a device.
//!
//! 1. A read with a [`WaitLimit`] takes what the page cache holds, and waits for the device no longer than that.

use std::sync::Arc;

use crossbeam_channel::bounded;
use dalsegno_core::{Deadline, Stopped};
use dalsegno_io::{
    Class, Device, DirEntry, FileId, IoError, Memory, OpenMode, Opened, Operation, PageBuffer,
    Request, WaitLimit, lend,
};

use crate::lsm::files::table_files::{SECTOR, TableFiles};

/// Index files next to the log, read through the page cache.
#[derive(Debug)]
pub(crate) struct DeviceFiles {
    device: Arc<dyn Device>,
    read_only: bool,
}

impl DeviceFiles {
    pub(crate) fn new(device: Arc<dyn Device>, read_only: bool) -> Self {
        Self { device, read_only }
    }

    /// Submits a request and waits for its completion within `wait`. Without a limit, a device that hangs holds up the
    /// index's background work.
    fn wait(
        &self,
        operation: Operation,
        file: FileId,
        offset: u64,
        memory: Vec<Memory>,
        wait: WaitLimit,
    ) -> Result<Vec<Memory>, IoError> {
        let (reply, answer) = bounded(1);
        let (class, deadline) = match wait {
            WaitLimit::Unlimited => (Class::Background, Deadline::Never),
            WaitLimit::Until { deadline, .. } => (Class::Foreground, deadline),
        };
        self.device.submit(vec![Request {
            operation,
            class,
            file,
            offset,
            memory,
            tag: 0,
            deadline,
            guard: None,
            watch: None,
            reply,
        }]);
        let answered = match wait {
            WaitLimit::Unlimited => answer.recv().map_err(|_| IoError::Closed)?,
            WaitLimit::Until { instant, .. } => {
                answer.recv_deadline(instant).map_err(|_| Stopped::Deadline)?
            }
        };
        answered.result.map(|()| answered.memory)
    }
}

impl TableFiles for DeviceFiles {
    fn open(&self, name: &str) -> Result<Opened, IoError> {
        self.device.open_cached(name, OpenMode::Read)
    }

    fn create(&self, name: &str, bytes: u64) -> Result<FileId, IoError> {
        assert!(!self.read_only, "a read-only index is never written");
        Ok(self.device.open_cached(name, OpenMode::Create { bytes })?.file)
    }

    fn read_at(
        &self,
        file: FileId,
        offset: u64,
        buffer: &mut [u8],
        wait: WaitLimit,
    ) -> Result<(), IoError> {
        if wait == WaitLimit::Unlimited {
            return self.device.read_at(file, offset, buffer);
        }
        if buffer.is_empty() || self.device.try_read_at(file, offset, buffer)? {
            return Ok(());
        }
        // The device may still write into it after the wait.
        let memory = vec![Memory::zeroed(buffer.len())];
        let read = self.wait(Operation::Read, file, offset, memory, wait)?;
        buffer.copy_from_slice(read[0].as_slice());
        Ok(())
    }

    fn try_sector(&self, name: &str) -> Result<(), IoError> {
        let opened = self.device.open(name, OpenMode::Read)?;
        let mut sector = PageBuffer::default();
        sector.resize(SECTOR);
        let read = lend(|lender| {
            let memory = vec![lender.exclusive(&mut sector)];
            self.wait(Operation::Read, opened.file, 0, memory, WaitLimit::Unlimited).map(drop)
        });
        self.device.close(opened.file);
        read
    }

    fn write_at(&self, file: FileId, offset: u64, bytes: &[u8]) -> Result<(), IoError> {
        lend(|lender| {
            let memory = vec![lender.shared(bytes)];
            // The device must be done with lent memory when this ends.
            self.wait(Operation::Write, file, offset, memory, WaitLimit::Unlimited).map(drop)
        })
    }

    fn sync(&self, file: FileId) -> Result<(), IoError> {
        self.wait(Operation::Sync, file, 0, Vec::new(), WaitLimit::Unlimited).map(drop)
    }

    fn close(&self, file: FileId) {
        self.device.close(file);
    }

    fn remove(&self, name: &str) -> Result<(), IoError> {
        assert!(!self.read_only, "a read-only index is never changed");
        self.device.remove(name)
    }

    fn sync_names(&self) -> Result<(), IoError> {
        self.device.sync_names()
    }

    fn list(&self) -> Result<Vec<DirEntry>, IoError> {
        self.device.list()
    }
}
