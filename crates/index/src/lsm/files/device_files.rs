//! The index's files on a device.
//!
//! 1. A read with a [`Deadline`] takes what the page cache holds, and waits for the device no longer than that.

use std::sync::Arc;

use crossbeam_channel::bounded;
use dalsegno_core::{Class, Clock, Deadline, Stopped};
use dalsegno_io::{
    Device, DirEntry, FileId, IoError, Memory, OpenMode, Opened, Operation, PageBuffer, Purpose,
    Request, SystemClock, lend,
};

use crate::lsm::files::table_files::{SECTOR, TableFiles};

/// Index files next to the log, read through the page cache.
#[derive(Debug)]
pub(crate) struct DeviceFiles {
    device: Arc<dyn Device>,
    /// The clock of deadlines.
    clock: Arc<dyn Clock>,
    read_only: bool,
}

impl DeviceFiles {
    pub(crate) fn new(device: Arc<dyn Device>, clock: Arc<dyn Clock>, read_only: bool) -> Self {
        Self { device, clock, read_only }
    }

    /// The files of a closed index, which are read without deadlines.
    pub(crate) fn closed(device: Arc<dyn Device>) -> Self {
        Self::new(device, Arc::new(SystemClock::new()), true)
    }

    /// Submits a request and waits for its completion until `deadline`. Without one, a device that hangs holds up the
    /// index's background work.
    fn wait(
        &self,
        operation: Operation,
        file: FileId,
        offset: u64,
        memory: Vec<Memory>,
        deadline: Deadline,
    ) -> Result<Vec<Memory>, IoError> {
        let (reply, answer) = bounded(1);
        // Callers wait for lookups and for syncs.
        let is_needed = deadline.is_bounded() || operation == Operation::Sync;
        let class = if is_needed { Class::Need } else { Class::Save };
        self.device.submit(vec![Request {
            operation,
            purpose: Purpose { is_refusable: deadline.is_bounded(), ..Purpose::of(class) },
            file,
            offset,
            memory,
            tag: 0,
            deadline,
            guard: None,
            watch: None,
            reply,
        }]);
        let answered = match deadline.remaining(self.clock.now()) {
            None => answer.recv().map_err(|_| IoError::Closed)?,
            Some(left) => answer.recv_timeout(left).map_err(|_| Stopped::Deadline)?,
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
        deadline: Deadline,
    ) -> Result<(), IoError> {
        if !deadline.is_bounded() {
            return self.device.read_at(file, offset, buffer);
        }
        if buffer.is_empty() || self.device.try_read_at(file, offset, buffer)? {
            return Ok(());
        }
        // The device may still write into it after the wait.
        let memory = vec![Memory::zeroed(buffer.len())];
        let read = self.wait(Operation::Read, file, offset, memory, deadline)?;
        buffer.copy_from_slice(read[0].as_slice());
        Ok(())
    }

    fn try_sector(&self, name: &str) -> Result<(), IoError> {
        let opened = self.device.open(name, OpenMode::Read)?;
        let mut sector = PageBuffer::default();
        sector.resize(SECTOR);
        let read = lend(|lender| {
            let memory = vec![lender.exclusive(&mut sector)];
            self.wait(Operation::Read, opened.file, 0, memory, Deadline::Never).map(drop)
        });
        self.device.close(opened.file);
        read
    }

    fn write_at(&self, file: FileId, offset: u64, bytes: &[u8]) -> Result<(), IoError> {
        lend(|lender| {
            let memory = vec![lender.shared(bytes)];
            // The device must be done with lent memory when this ends.
            self.wait(Operation::Write, file, offset, memory, Deadline::Never).map(drop)
        })
    }

    fn sync(&self, file: FileId) -> Result<(), IoError> {
        self.wait(Operation::Sync, file, 0, Vec::new(), Deadline::Never).map(drop)
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

#[cfg(test)]
mod tests {
    use std::sync::Mutex;
    use std::time::Duration;

    use dalsegno_core::ManualClock;
    use dalsegno_io::{Geometry, Source, Space};

    use super::*;

    /// Keeps every request and completes none.
    #[derive(Debug, Default)]
    struct Silent(Mutex<Vec<Request>>);

    impl Source for Silent {
        fn submit(&self, requests: Vec<Request>) {
            self.0.lock().unwrap().extend(requests);
        }

        fn geometry(&self) -> Geometry {
            unreachable!("requests without direct I/O")
        }
    }

    impl Device for Silent {
        fn open(&self, _: &str, _: OpenMode) -> Result<Opened, IoError> {
            Err(IoError::Closed)
        }

        fn open_cached(&self, name: &str, mode: OpenMode) -> Result<Opened, IoError> {
            self.open(name, mode)
        }

        fn read_at(&self, _: FileId, _: u64, _: &mut [u8]) -> Result<(), IoError> {
            Err(IoError::Closed)
        }

        fn try_read_at(&self, _: FileId, _: u64, _: &mut [u8]) -> Result<bool, IoError> {
            Ok(false)
        }

        fn close(&self, _: FileId) {}

        fn remove(&self, _: &str) -> Result<(), IoError> {
            Err(IoError::Closed)
        }

        fn sync_names(&self) -> Result<(), IoError> {
            Err(IoError::Closed)
        }

        fn list(&self) -> Result<Vec<DirEntry>, IoError> {
            Ok(Vec::new())
        }

        fn space(&self) -> Result<Space, IoError> {
            Err(IoError::Closed)
        }
    }

    #[test]
    fn a_read_waits_for_a_device_that_hangs_until_its_deadline() {
        let (device, clock) = (Arc::new(Silent::default()), Arc::new(ManualClock::default()));
        let files = DeviceFiles::new(
            Arc::<Silent>::clone(&device),
            Arc::<ManualClock>::clone(&clock),
            true,
        );
        for time in [Duration::ZERO, Duration::from_millis(5)] {
            let deadline = Deadline::At(clock.now().after(time));
            let read = files.read_at(FileId(1), 0, &mut [0; 8], deadline);
            assert!(read.is_err_and(|error| error.is_late()), "{time:?}");
            let request = device.0.lock().unwrap().pop().expect("it was sent");
            assert_eq!((request.purpose.class, request.deadline), (Class::Need, deadline));
        }
    }
}
