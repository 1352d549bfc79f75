//! The simulated device: completes every request before `submit` returns, or hangs and fails where the plan says so,
//! and loses power at a given operation.

use std::sync::Arc;
use std::time::Duration;

use dalsegno_core::{Clock, ManualClock};
use dalsegno_io::{
    Device, DirEntry, FileId, Geometry, IoError, Memory, OpenMode, Opened, Operation, Request,
    Space,
};
use parking_lot::Mutex;

use crate::disk::{Disk, SECTOR, Torn};
use crate::fault::{EBADF, EIO, ENOENT, Kind, Rule, os_error};
use crate::random::Random;
use crate::state::{Handle, State, check_count};

/// What a simulated device is like.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceOptions {
    /// Decides what chance decides.
    pub seed: u64,
    /// Room for files.
    pub total_bytes: u64,
    /// What a power cut leaves whole: 4096, or 512 for a device that may tear sectors.
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

/// How long a request hangs at least: longer than anybody waits.
const HANG: Duration = Duration::from_secs(61);

/// How the life of a device ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outage {
    /// The process is gone; what it wrote is with the kernel.
    Process,
    /// The machine is gone, and with it what was not synced, or part of it.
    Power,
}

/// A directory of files in memory, as a [`Device`].
#[derive(Debug)]
pub struct SimDevice {
    options: DeviceOptions,
    clock: Arc<ManualClock>,
    state: Mutex<State>,
    /// What hangs.
    held: Mutex<Vec<Request>>,
}

impl SimDevice {
    /// An empty device.
    #[must_use]
    pub fn new(options: DeviceOptions, clock: Arc<ManualClock>) -> Self {
        let (disk, random) = (Disk::new(options.total_bytes), Random::new(options.seed));
        let state = Mutex::new(State::new(disk, random, None));
        Self { options, clock, state, held: Mutex::default() }
    }

    /// Lets operations fail.
    pub fn inject(&self, rule: Rule) {
        self.state.lock().plan.add(rule);
    }

    /// Forgets all rules, and answers what hangs.
    pub fn heal(&self) {
        self.state.lock().plan.clear();
        for mut request in self.let_go() {
            let result = self.serve(&mut request);
            request.complete(result);
        }
    }

    /// What hangs, in any order.
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

    /// How many operations the rules made fail.
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
        self.state.lock().changes
    }

    /// The outage comes while the `change`th operation that changes the disk is under way: whether it takes effect is a
    /// matter of chance, nobody hears of it, and every later one fails as [`IoError::Closed`].
    pub fn fail_at(&self, change: u64) {
        self.state.lock().last_change = change;
    }

    /// Others take room, or give it back, until so much is left.
    pub fn leave_free(&self, bytes: u64) {
        let disk = &mut self.state.lock().disk;
        disk.total_bytes = disk.used_bytes() + bytes;
    }

    /// Whether the outage has come.
    #[must_use]
    pub fn is_down(&self) -> bool {
        self.state.lock().down
    }

    /// Most bytes that files took at once, since the device was started.
    #[must_use]
    pub fn peak_bytes(&self) -> u64 {
        self.state.lock().peak_bytes
    }

    /// From now on operations that change the disk are written down, across outages.
    pub fn start_trace(&self) {
        self.state.lock().trace = Some(Vec::new());
    }

    /// Writes something down between the operations, if they are.
    pub fn note(&self, text: impl FnOnce() -> String) {
        if let Some(trace) = &mut self.state.lock().trace {
            trace.push(text());
        }
    }

    /// What was written down so far, one operation or note a line.
    #[must_use]
    pub fn trace(&self) -> Vec<String> {
        self.state.lock().trace.clone().unwrap_or_default()
    }

    /// Turns one stored bit over in a file whose name starts with `prefix`; says in which file and byte.
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

    /// Ends this device and starts another over what is left of its disk. Also tells which sectors were left to chance:
    /// those that were not synced, or where only the process ends, those that its last operation was about.
    #[must_use]
    pub fn reboot(&self, outage: Outage) -> (Self, Vec<Torn>) {
        // What was on its way arrives, or not.
        for mut request in self.let_go() {
            let arrives = self.state.lock().random.percent(50);
            let result = if arrives { self.serve(&mut request) } else { Err(IoError::Closed) };
            request.complete(result);
        }
        let state = &mut *self.state.lock();
        state.down = true;
        let (disk, torn) = match outage {
            Outage::Process => (state.disk.clone(), state.cut.clone()),
            Outage::Power => {
                let torn = state.disk.unsettled();
                (state.disk.power_cut(self.options.atom_bytes, &mut state.random), torn)
            }
        };
        let random = Random::new(state.random.bits());
        let next = State::new(disk, random, state.trace.take());
        let (options, clock) = (self.options.clone(), Arc::clone(&self.clock));
        (Self { options, clock, state: Mutex::new(next), held: Mutex::default() }, torn)
    }

    /// A device with a copy of the files, as a killed process leaves them. This one goes on as if nothing had happened.
    #[must_use]
    pub fn fork(&self) -> Self {
        let disk = self.state.lock().disk.clone();
        let next = State::new(disk, Random::new(self.options.seed), None);
        let (options, clock) = (self.options.clone(), Arc::clone(&self.clock));
        Self { options, clock, state: Mutex::new(next), held: Mutex::default() }
    }

    /// Whether a request hangs; if nobody would ever stop waiting for it, only the time passes.
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
            return Err(IoError::Deadline);
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
        state.next_handle += 1;
        let file = FileId(state.next_handle);
        let handle = Handle { inode, name: name.to_owned(), writable: mode != OpenMode::Read };
        state.handles.insert(file, handle);
        Ok(Opened { file, bytes: state.disk.bytes(inode) })
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

    fn geometry(&self) -> Geometry {
        Geometry { memory_align: self.options.memory_align, engine: "sim", direct: true }
    }
}
