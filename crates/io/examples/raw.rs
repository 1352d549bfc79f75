//! The share of a disk's throughput that the engines reach: random reads of one file through the `Device` trait.
//!
//! Usage: `raw DIRECTORY [ENGINE=uring|psync] [REQUEST_KIB=1024] [DEPTH=8] [SECONDS=5] [FILE_MIB=2048]`
//!
//! Prints MB/s and CPU seconds per GB of the whole process. The file `raw.bin` is filled once and kept, so that
//! another tool (fio) can read the same bytes in the same minute: compare ratios, never figures of different runs.

#![expect(clippy::print_stdout, clippy::print_stderr, reason = "a program, not a library")]
#![expect(clippy::cast_precision_loss, reason = "figures for people")]

use std::error::Error;
use std::path::Path;
use std::sync::Arc;

use crossbeam_channel::{Receiver, Sender, unbounded};
use dalsegno_core::{Class, Clock, Deadline, EngineChoice};
use dalsegno_io::{
    BufferPool, Completion, Device, DirectoryOptions, FileId, LocalDirectory, Memory, OpenMode,
    Operation, Purpose, Request, Source, SystemClock,
};

const FILE: &str = "raw.bin";

type Outcome<T> = Result<T, Box<dyn Error>>;

fn main() -> Outcome<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let Some(directory) = arguments.first() else {
        eprintln!("usage: raw DIRECTORY [ENGINE] [REQUEST_KIB] [DEPTH] [SECONDS] [FILE_MIB]");
        return Ok(());
    };
    let number = |at: usize, default: u64| arguments.get(at).map_or(Ok(default), |a| a.parse());
    let engine = match arguments.get(1).map(String::as_str) {
        Some("psync") => EngineChoice::Psync,
        _ => EngineChoice::Uring,
    };
    let run = Run {
        bytes: usize::try_from(number(2, 1024)? << 10)?,
        depth: usize::try_from(number(3, 8)?)?,
        seconds: number(4, 5)?,
        file_bytes: number(5, 2048)? << 20,
    };
    run.run(Path::new(directory), engine)
}

struct Run {
    bytes: usize,
    depth: usize,
    seconds: u64,
    file_bytes: u64,
}

impl Run {
    fn run(&self, directory: &Path, engine: EngineChoice) -> Outcome<()> {
        let pool = BufferPool::new(64 << 20, 1 << 20)?;
        let clock = Arc::new(SystemClock::new());
        // At most `depth` threads: psync would otherwise spread the work over idle ones.
        let depth = u32::try_from(self.depth)?.min(128);
        let options = DirectoryOptions { engine, depth, ..DirectoryOptions::default() };
        let device = LocalDirectory::open(directory, options, &pool, clock.clone())?;
        let file = self.prepare(&device, &pool)?;
        let (reply, completions) = unbounded();
        let (start, busy) = (clock.now(), cpu_seconds());
        let bytes = self.read(&device, &pool, file, (&reply, &completions), &*clock)?;
        let (wall, busy) = (clock.now().since(start).as_secs_f64(), cpu_seconds() - busy);
        let gigabytes = bytes as f64 / 1e9;
        println!(
            "{:5} {:4} KiB depth {:3}: {:6.0} MB/s  {:.4} CPU s/GB  direct {}",
            device.geometry().engine,
            self.bytes >> 10,
            self.depth,
            gigabytes * 1e3 / wall,
            busy / gigabytes,
            device.geometry().direct
        );
        Ok(())
    }

    /// Reads at random until the run ends. Returns the bytes read.
    fn read(
        &self,
        device: &dyn Device,
        pool: &BufferPool,
        file: FileId,
        (reply, completions): (&Sender<Completion>, &Receiver<Completion>),
        clock: &dyn Clock,
    ) -> Outcome<u64> {
        let end = clock.now().after(std::time::Duration::from_secs(self.seconds));
        let slots = self.file_bytes / self.bytes as u64;
        let mut random = 0x9E37_79B9_7F4A_7C15_u64;
        let mut next = |memory: Vec<Memory>| {
            random ^= random << 13;
            random ^= random >> 7;
            random ^= random << 17;
            let offset = random % slots * self.bytes as u64;
            device.submit(vec![request(Operation::Read, file, offset, memory, reply)]);
        };
        for _ in 0..self.depth {
            next(vec![pool.try_take(self.bytes).ok_or("too few buffers for this depth")?]);
        }
        let (mut bytes, mut flying) = (0, self.depth);
        while flying > 0 {
            let done = completions.recv()?;
            done.result?;
            bytes += self.bytes as u64;
            flying -= 1;
            if clock.now() < end {
                next(done.memory);
                flying += 1;
            }
        }
        Ok(bytes)
    }

    fn prepare(&self, device: &dyn Device, pool: &BufferPool) -> Outcome<FileId> {
        if device.list()?.iter().any(|entry| entry.name == FILE && entry.bytes == self.file_bytes) {
            return Ok(device.open(FILE, OpenMode::Read)?.file);
        }
        let file = device.open(FILE, OpenMode::Create { bytes: self.file_bytes })?.file;
        let (reply, completions) = unbounded();
        let mut memory = vec![pool.try_take(1 << 20).ok_or("no buffer")?];
        for offset in (0..self.file_bytes).step_by(1 << 20) {
            for (word, at) in memory[0].as_mut_slice().chunks_exact_mut(8).zip(offset..) {
                word.copy_from_slice(&at.wrapping_mul(0x9E37_79B9_7F4A_7C15).to_le_bytes());
            }
            device.submit(vec![request(Operation::Write, file, offset, memory, &reply)]);
            let done = completions.recv()?;
            done.result?;
            memory = done.memory;
        }
        device.submit(vec![request(Operation::Sync, file, 0, Vec::new(), &reply)]);
        completions.recv()?.result?;
        Ok(file)
    }
}

fn request(
    operation: Operation,
    file: FileId,
    offset: u64,
    memory: Vec<Memory>,
    reply: &Sender<Completion>,
) -> Request {
    Request {
        operation,
        purpose: Purpose::of(Class::Need),
        file,
        offset,
        memory,
        tag: 0,
        deadline: Deadline::Never,
        guard: None,
        watch: None,
        reply: reply.clone(),
    }
}

/// User and system time of all threads of this process.
fn cpu_seconds() -> f64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the call writes one struct, which is ours.
    unsafe { libc::clock_gettime(libc::CLOCK_PROCESS_CPUTIME_ID, &raw mut time) };
    time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
}
