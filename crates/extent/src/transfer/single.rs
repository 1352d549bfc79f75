//! Transfers of one request, through a staging buffer.

use crossbeam_channel::bounded;
use dalsegno_core::{Class, Deadline};
use dalsegno_io::{Call, Completion, FileId, IoError, OpenMode, Operation, Purpose, Request};

use super::device_io::{DeviceIo, PinnedFile, SourceIo};
use super::pump::Pump;
use crate::format::{SECTOR, STORE_FILE};

/// Fills `bytes` from a file.
pub fn read_at(
    io: &SourceIo,
    file: FileId,
    offset: u64,
    bytes: &mut [u8],
    call: &Call,
) -> Result<(), IoError> {
    let memory = vec![io.pool.take(bytes.len(), call.deadline, io.clock.as_ref())?];
    let completion = run(io, call, |pump| pump.request(Operation::Read, file, offset, memory))?;
    bytes.copy_from_slice(completion.memory[0].as_slice());
    Ok(())
}

/// Writes `bytes` to a file.
pub fn write_at(
    io: &SourceIo,
    file: FileId,
    offset: u64,
    bytes: &[u8],
    call: &Call,
) -> Result<(), IoError> {
    let mut memory = io.pool.take(bytes.len(), call.deadline, io.clock.as_ref())?;
    memory.as_mut_slice().copy_from_slice(bytes);
    let request = |pump: &Pump<'_>| pump.request(Operation::Write, file, offset, vec![memory]);
    run(io, call, request).map(drop)
}

/// Makes completed writes of a file durable. The caller decides what a failure means.
pub fn sync(io: &SourceIo, file: FileId) -> Result<(), IoError> {
    run(io, &io.own_call(), |pump| pump.request(Operation::Sync, file, 0, Vec::new())).map(drop)
}

/// Reads the first sector of a file.
pub fn read_first_sector(io: &DeviceIo, name: &str) -> Result<[u8; SECTOR], IoError> {
    let opened = io.device.open(name, OpenMode::Read)?;
    let mut sector = [0; SECTOR];
    let result = read_at(io, opened.file, 0, &mut sector, &Call::of(Class::Need));
    io.device.close(opened.file);
    result?;
    Ok(sector)
}

/// Makes sure that the device reads the first sector of a file, or else of the store's own header. If it does, bytes
/// that it cannot read elsewhere are bad sectors, and the device itself works.
///
/// # Errors
///
/// How reading the store's header failed.
pub fn check_reads(io: &DeviceIo, file: FileId) -> Result<(), IoError> {
    let mut sector = [0; SECTOR];
    if read_at(io, file, 0, &mut sector, &io.own_call()).is_ok() {
        return Ok(());
    }
    read_first_sector(io, STORE_FILE).map(drop)
}

/// Submits a write without waiting for it. The write is dropped if no staging buffer is free.
pub fn write_unwatched(io: &SourceIo, pinned: PinnedFile, offset: u64, bytes: &[u8]) {
    let Some(mut memory) = io.pool.try_take(bytes.len()) else {
        tracing::debug!(offset, "marker not written: no staging buffer is free");
        return;
    };
    memory.as_mut_slice().copy_from_slice(bytes);
    let request = Request {
        operation: Operation::Write,
        purpose: Purpose::of(Class::Need),
        file: pinned.file,
        offset,
        memory: vec![memory],
        tag: 0,
        deadline: io.own_call().deadline,
        guard: Some(pinned.guard),
        watch: None,
        reply: bounded(1).0,
    };
    request.check();
    io.source.submit(vec![request]);
}

/// Submits a sync of a file and returns the channel of its completion.
pub fn start_sync(io: &SourceIo, file: FileId) -> crossbeam_channel::Receiver<Completion> {
    let (sender, receiver) = bounded(1);
    let request = Request {
        operation: Operation::Sync,
        purpose: Purpose::of(Class::Need),
        file,
        offset: 0,
        memory: Vec::new(),
        tag: 0,
        // Callers other than the one that started it may come to wait for it.
        deadline: Deadline::Never,
        guard: None,
        watch: None,
        reply: sender,
    };
    request.check();
    io.source.submit(vec![request]);
    receiver
}

fn run(
    io: &SourceIo,
    call: &Call,
    request: impl FnOnce(&Pump<'_>) -> Request,
) -> Result<Completion, IoError> {
    // A write that is cancelled in the middle of a header would leave its segment in doubt.
    let call = Call { cancel: None, ..call.clone() };
    let mut pump = Pump::new(io, &call);
    pump.submit(request(&pump));
    let completion = pump.next()?;
    match completion.result {
        Ok(()) => Ok(completion),
        Err(error) => Err(error),
    }
}
