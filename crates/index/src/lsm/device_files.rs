//! The index's files on a device.

use std::sync::Arc;

use crossbeam_channel::bounded;
use dalsegno_core::Deadline;
use dalsegno_io::{
    Class, Device, DirEntry, FileId, IoError, Memory, OpenMode, Opened, Operation, Request, lend,
};

use super::file::TableFiles;

/// Index files beside the log, read through the page cache.
#[derive(Debug)]
pub(super) struct DeviceFiles {
    device: Arc<dyn Device>,
    read_only: bool,
}

impl DeviceFiles {
    pub(super) fn new(device: Arc<dyn Device>, read_only: bool) -> Self {
        Self { device, read_only }
    }

    /// Hands a request over and waits for its answer. A device that hangs holds up the index's own thread, nobody else.
    fn wait(
        &self,
        operation: Operation,
        file: FileId,
        offset: u64,
        memory: Vec<Memory>,
    ) -> Result<(), IoError> {
        let (reply, answer) = bounded(1);
        self.device.submit(vec![Request {
            operation,
            class: Class::Background,
            file,
            offset,
            memory,
            tag: 0,
            deadline: Deadline::Never,
            guard: None,
            reply,
        }]);
        answer.recv().map_err(|_| IoError::Closed)?.result
    }
}

impl TableFiles for DeviceFiles {
    fn open(&self, name: &str) -> Result<Opened, IoError> {
        self.device.open_cached(name, OpenMode::Read)
    }

    fn create(&self, name: &str, bytes: u64) -> Result<FileId, IoError> {
        assert!(!self.read_only, "an index that is only looked at is never written");
        Ok(self.device.open_cached(name, OpenMode::Create { bytes })?.file)
    }

    fn read_at(&self, file: FileId, offset: u64, buffer: &mut [u8]) -> Result<(), IoError> {
        self.device.read_at(file, offset, buffer)
    }

    fn write_at(&self, file: FileId, offset: u64, bytes: &[u8]) -> Result<(), IoError> {
        lend(|lender| self.wait(Operation::Write, file, offset, vec![lender.shared(bytes)]))
    }

    fn sync(&self, file: FileId) -> Result<(), IoError> {
        self.wait(Operation::Sync, file, 0, Vec::new())
    }

    fn close(&self, file: FileId) {
        self.device.close(file);
    }

    fn remove(&self, name: &str) -> Result<(), IoError> {
        assert!(!self.read_only, "an index that is only looked at is never changed");
        self.device.remove(name)
    }

    fn sync_names(&self) -> Result<(), IoError> {
        self.device.sync_names()
    }

    fn list(&self) -> Result<Vec<DirEntry>, IoError> {
        self.device.list()
    }
}
