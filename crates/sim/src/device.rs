//! The simulated device. It completes every request before `submit` returns, except where a rule makes it hang or fail,
//! and loses power at a given operation.

use std::sync::Arc;
use std::time::Duration;

use dalsegno_core::{Clock, ManualClock, Stopped};
use dalsegno_io::{
    Device, DirEntry, FileId, Geometry, IoError, Memory, OpenMode, Opened, Operation, Request,
    Source, Space,
};
use parking_lot::Mutex;

use crate::disk::{Disk, SECTOR, Torn};
use crate::fault::{EBADF, EIO, ENOENT, Kind, Rule, os_error};
use crate::random::Random;
use crate::state::{DeviceState, Handle, check_count};

/// Properties of a simulated device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceOptions {
    /// Seed of everything random.
    pub seed: u64,
    /// Space for files.
    pub total_bytes: u64,
    /// The unit that a power cut leaves intact: 4096, or 512 for a device that may tear sectors.
    pub atom_bytes: usize,
    /// Alignment of memory that the device reaches without a copy.
    pub memory_align: usize,
    /// Time that each request takes, on the virtual clock.
    pub latency: Duration,
}

impl Default for DeviceOptions {
    fn default() -> Self {
        Self {
            seed: 1,
            total_bytes: 1 << 30,
            atom_bytes: SECTOR,
            memory_align: 512,
            latency: Duration::ZERO,
        }
    }
}

/// The shortest time that a request hangs: longer than any timeout.
const HANG: Duration = Duration::from_secs(61);

/// How a device goes down.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outage {
    /// The process is killed. The kernel keeps what it wrote.
    Process,
    /// The power is cut. All or part of the unsynced data is lost.
    Power,
}

/// A directory of files in memory, as a [`Device`].
#[derive(Debug)]
pub struct SimDevice {
    options: DeviceOptions,
    clock: Arc<ManualClock>,
    state: Mutex<DeviceState>,
    /// Requests that hang.
    held: Mutex<Vec<Request>>,
}

impl SimDevice {
    /// An empty device.
    #[must_use]
    pub fn new(options: DeviceOptions, clock: Arc<ManualClock>) -> Self {
        let (disk, random) = (Disk::new(options.total_bytes), Random::new(options.seed));
        let state = Mutex::new(DeviceState::new(disk, random, None));
        Self { options, clock, state, held: Mutex::default() }
    }

    /// Adds a rule that makes operations fail.
    pub fn inject(&self, rule: Rule) {
        self.state.lock().plan.add(rule);
    }

    /// Removes all rules, and completes the requests that hang.
    pub fn heal(&self) {
        self.state.lock().plan.clear();
        for mut request in self.let_go() {
            let result = self.serve(&mut request);
            request.complete(result);
        }
    }

    /// Takes the requests that hang, in random order.
    fn let_go(&self) -> Vec<Request> {
        let mut held = std::mem::take(&mut *self.held.lock());
        let state = &mut *self.state.lock();
        for at in (1..held.len()).rev() {
            held.swap(at, state.random.below(at + 1));
        }
        held
    }

    /// How many requests hang.
    #[must_use]
    pub fn held(&self) -> usize {
        self.held.lock().len()
    }

    /// How many operations failed by a rule.
    #[must_use]
    pub fn faults_fired(&self) -> u64 {
        self.state.lock().plan.fired
    }

    /// Whether no rule is in force and the device is up.
    #[must_use]
    pub fn is_healthy(&self) -> bool {
        let is_answering = self.held() == 0;
        let state = self.state.lock();
        is_answering && state.plan.is_empty() && !state.down
    }

    /// How many operations changed the disk so far: create, write, sync, sync of names, remove.
    #[must_use]
    pub fn changes(&self) -> u64 {
        self.state.lock().changes.count
    }

    /// Schedules the outage for the `change`th operation that changes the disk. Whether that operation takes effect is
    /// random. Its caller gets no result, and every later operation fails as [`IoError::Closed`].
    pub fn fail_at(&self, change: u64) {
        self.state.lock().changes.last = change;
    }

    /// Changes the disk's size so that this much space is free.
    pub fn leave_free(&self, bytes: u64) {
        let disk = &mut self.state.lock().disk;
        disk.total_bytes = disk.used_bytes() + bytes;
    }

    /// Whether the outage has come.
    #[must_use]
    pub fn is_down(&self) -> bool {
        self.state.lock().down
    }

    /// Most bytes that files took at any moment since the device was started.
    #[must_use]
    pub fn peak_bytes(&self) -> u64 {
        self.state.lock().peak_bytes
    }

    /// Records operations that change the disk from now on, across outages.
    pub fn start_trace(&self) {
        self.state.lock().trace = Some(Vec::new());
    }

    /// Adds a note between the recorded operations.
    pub fn note(&self, text: impl FnOnce() -> String) {
        if let Some(trace) = &mut self.state.lock().trace {
            trace.push(text());
        }
    }

    /// The recorded operations and notes, one per line.
    #[must_use]
    pub fn trace(&self) -> Vec<String> {
        self.state.lock().trace.clone().unwrap_or_default()
    }

    /// Flips one stored bit in a file whose name starts with `prefix`. Returns the file and the byte.
    pub fn rot(&self, prefix: &str) -> Option<(String, u64)> {
        let state = &mut *self.state.lock();
        state.disk.rot(prefix, &mut state.random)
    }

    /// Removes the files whose names start with `prefix`.
    ///
    /// # Errors
    ///
    /// As [`Device::list`] and [`Device::remove`].
    pub fn lose(&self, prefix: &str) -> Result<(), IoError> {
        let files = self.list()?;
        let mut lost = files.iter().filter(|file| file.name.starts_with(prefix));
        lost.try_for_each(|file| self.remove(&file.name))
    }

    /// Ends this device and starts another over what is left of its disk. Also returns the sectors whose content is
    /// random: unsynced ones, or if only the process ends, those of its last operation.
    #[must_use]
    pub fn reboot(&self, outage: Outage) -> (Self, Vec<Torn>) {
        // Requests in flight arrive or not.
        for mut request in self.let_go() {
            let arrives = self.state.lock().random.percent(50);
            let result = if arrives { self.serve(&mut request) } else { Err(IoError::Closed) };
            request.complete(result);
        }
        let state = &mut *self.state.lock();
        state.down = true;
        let (disk, torn) = match outage {
            Outage::Process => (state.disk.clone(), state.torn()),
            Outage::Power => {
                let torn = state.disk.unsettled();
                (state.disk.power_cut(self.options.atom_bytes, &mut state.random), torn)
            }
        };
        let random = Random::new(state.random.bits());
        let next = DeviceState::new(disk, random, state.trace.take());
        let (options, clock) = (self.options.clone(), Arc::clone(&self.clock));
        (Self { options, clock, state: Mutex::new(next), held: Mutex::default() }, torn)
    }

    /// A device with a copy of the files, as a killed process leaves them. This device continues.
    #[must_use]
    pub fn fork(&self) -> Self {
        let disk = self.state.lock().disk.clone();
        let next = DeviceState::new(disk, Random::new(self.options.seed), None);
        let (options, clock) = (self.options.clone(), Arc::clone(&self.clock));
        Self { options, clock, state: Mutex::new(next), held: Mutex::default() }
    }

    /// Whether a request hangs. If it has no deadline, only time passes.
    fn hangs(&self, request: &Request) -> bool {
        let state = &mut *self.state.lock();
        let Some(handle) = state.handles.get(&request.file) else { return false };
        let name = handle.name.clone();
        if state.down || !state.plan.hangs(kind_of(request.operation), &name) {
            return false;
        }
        self.clock.advance(HANG);
        request.deadline.is_bounded() || request.operation == Operation::Sync
    }

    fn carry_out(&self, request: &mut Request) -> Result<(), IoError> {
        self.clock.advance(self.options.latency);
        if request.deadline.expired(self.clock.now()) {
            return Err(IoError::Stopped(Stopped::Deadline));
        }
        self.serve(request)
    }

    fn serve(&self, request: &mut Request) -> Result<(), IoError> {
        let state = &mut *self.state.lock();
        if state.down {
            return Err(IoError::Closed);
        }
        let kind = kind_of(request.operation);
        let Some(handle) = state.handles.get(&request.file) else {
            return Err(os_error(kind, "a closed file", EBADF));
        };
        let (inode, name, writable) = (handle.inode, handle.name.clone(), handle.writable);
        match kind {
            Kind::Read => {
                let wanted = request.memory.iter().map(Memory::len).sum();
                let bytes = state.read(inode, &name, request.offset, wanted)?;
                let mut rest = &bytes[..];
                for piece in &mut request.memory {
                    let (head, tail) = rest.split_at(piece.len().min(rest.len()));
                    piece.as_mut_slice()[..head.len()].copy_from_slice(head);
                    rest = tail;
                }
                check_count(Kind::Read, &name, wanted, bytes.len())
            }
            _ if !writable => Err(os_error(kind, &name, EBADF)),
            Kind::Write => {
                let parts: Vec<&[u8]> = request.memory.iter().map(Memory::as_slice).collect();
                state.write(inode, &name, request.offset, &parts.concat())
            }
            _ => state.sync(inode, &name),
        }
    }
}

fn kind_of(operation: Operation) -> Kind {
    match operation {
        Operation::Read => Kind::Read,
        Operation::Write => Kind::Write,
        Operation::Sync => Kind::Sync,
    }
}

impl SimDevice {
    fn open_file(&self, name: &str, mode: OpenMode) -> Result<Opened, IoError> {
        let state = &mut *self.state.lock();
        state.check_up()?;
        let inode = if let OpenMode::Create { bytes } = mode {
            state.create(name, bytes)?
        } else {
            if state.plan.next(Kind::Open, name).is_some() {
                return Err(os_error(Kind::Open, name, EIO));
            }
            state.disk.find(name).ok_or_else(|| os_error(Kind::Open, name, ENOENT))?
        };
        let handle = Handle { inode, name: name.to_owned(), writable: mode != OpenMode::Read };
        let file = state.add_handle(handle);
        Ok(Opened { file, bytes: state.disk.bytes(inode) })
    }
}

impl Source for SimDevice {
    fn submit(&self, requests: Vec<Request>) {
        for mut request in requests {
            request.check();
            if self.hangs(&request) {
                self.held.lock().push(request);
                continue;
            }
            let result = self.carry_out(&mut request);
            request.complete(result);
        }
    }

    fn geometry(&self) -> Geometry {
        Geometry {
            memory_align: self.options.memory_align,
            engine: "sim",
            direct: true,
            places: 64,
        }
    }
}

impl Device for SimDevice {
    fn open(&self, name: &str, mode: OpenMode) -> Result<Opened, IoError> {
        let opened = self.open_file(name, mode)?;
        let state = &mut *self.state.lock();
        let inode = state.handles[&opened.file].inode;
        state.disk.forget_cached(inode);
        Ok(opened)
    }

    fn open_cached(&self, name: &str, mode: OpenMode) -> Result<Opened, IoError> {
        self.open_file(name, mode)
    }

    fn read_at(&self, file: FileId, offset: u64, buffer: &mut [u8]) -> Result<(), IoError> {
        self.clock.advance(self.options.latency);
        let state = &mut *self.state.lock();
        state.check_up()?;
        let Some(handle) = state.handles.get(&file) else {
            return Err(os_error(Kind::Read, "a closed file", EBADF));
        };
        let (inode, name) = (handle.inode, handle.name.clone());
        let start = dalsegno_core::sector_down(offset);
        let skip = usize::try_from(offset - start).expect("within a sector");
        let wanted = (skip + buffer.len()).next_multiple_of(SECTOR);
        let bytes = state.read(inode, &name, start, wanted)?;
        let found = bytes.get(skip..).unwrap_or_default();
        check_count(Kind::Read, &name, buffer.len(), found.len().min(buffer.len()))?;
        buffer.copy_from_slice(&found[..buffer.len()]);
        Ok(())
    }

    fn try_read_at(&self, _: FileId, _: u64, _: &mut [u8]) -> Result<bool, IoError> {
        // There is no page cache.
        Ok(false)
    }

    fn close(&self, file: FileId) {
        self.state.lock().handles.remove(&file);
    }

    fn remove(&self, name: &str) -> Result<(), IoError> {
        self.state.lock().remove(name)
    }

    fn sync_names(&self) -> Result<(), IoError> {
        self.state.lock().sync_names()
    }

    fn list(&self) -> Result<Vec<DirEntry>, IoError> {
        let state = self.state.lock();
        state.check_up()?;
        let entry = |(name, bytes): (&String, u64)| DirEntry {
            name: name.clone(),
            bytes,
            allocated_bytes: bytes,
        };
        Ok(state.disk.list().map(entry).collect())
    }

    fn space(&self) -> Result<Space, IoError> {
        let state = self.state.lock();
        state.check_up()?;
        let (free_bytes, total_bytes) = (state.disk.free_bytes(), state.disk.total_bytes);
        Ok(Space { free_bytes, total_bytes })
    }
}
