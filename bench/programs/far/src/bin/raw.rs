//! Writes and reads whole files on a mounted file system with threads and direct I/O: the baseline of the bench `far`.
//!
//! `write`: each thread creates a file under a temporary name, writes it request by request, syncs it, renames it, and
//! syncs its folder. `read`: each thread takes the next request of the files in order. Every byte count is checked.
//! Prints one JSON object: bytes, seconds, CPU seconds, of the part between the start and the end of the threads.

#![expect(clippy::disallowed_methods, reason = "without the crate that counts threads")]

use std::fs::File;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Barrier;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

/// Memory for one request, aligned for direct I/O.
struct Buffer {
    start: *mut u8,
    bytes: usize,
}

impl Buffer {
    fn new(bytes: usize) -> Self {
        // SAFETY: a new private mapping of this length.
        let start = unsafe {
            let access = libc::PROT_READ | libc::PROT_WRITE;
            let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_POPULATE;
            libc::mmap(std::ptr::null_mut(), bytes, access, flags, -1, 0)
        };
        assert!(start != libc::MAP_FAILED, "no memory");
        Self { start: start.cast(), bytes }
    }

    fn bytes(&mut self) -> &mut [u8] {
        // SAFETY: the mapping has this length, and only this value refers to it.
        unsafe { std::slice::from_raw_parts_mut(self.start, self.bytes) }
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        // SAFETY: the mapping was made with this length.
        unsafe { libc::munmap(self.start.cast(), self.bytes) };
    }
}

struct Args {
    mode: String,
    dir: PathBuf,
    files: usize,
    file_bytes: usize,
    request_bytes: usize,
    workers: usize,
}

impl Args {
    fn parse() -> Self {
        let text = |name: &str| {
            let given = std::env::args().find_map(|one| one.strip_prefix(name).map(str::to_owned));
            given.unwrap_or_else(|| panic!("{name}VALUE is missing"))
        };
        let number = |name: &str| text(name).parse().unwrap_or_else(|_| panic!("{name}NUMBER"));
        Self {
            mode: text("--mode="),
            dir: text("--dir=").into(),
            files: number("--files="),
            file_bytes: number("--file-bytes="),
            request_bytes: number("--request-bytes="),
            workers: number("--workers="),
        }
    }

    fn path(&self, number: usize) -> PathBuf {
        self.dir.join(format!("{number:08}.raw"))
    }
}

fn open(path: &Path, write: bool) -> std::io::Result<File> {
    let mut options = File::options();
    options.read(!write).write(write).create_new(write).custom_flags(libc::O_DIRECT);
    options.open(path)
}

fn write_file(args: &Args, number: usize, buffer: &mut Buffer) -> std::io::Result<()> {
    let temporary = args.dir.join(format!(".{number:08}.tmp"));
    let file = open(&temporary, true)?;
    for at in (0..args.file_bytes).step_by(args.request_bytes) {
        let count = args.request_bytes.min(args.file_bytes - at);
        file.write_all_at(&buffer.bytes()[..count], at as u64)?;
    }
    file.sync_all()?;
    std::fs::rename(&temporary, args.path(number))?;
    File::open(&args.dir)?.sync_all()
}

fn write_files(args: &Args, next: &AtomicUsize, buffer: &mut Buffer) -> std::io::Result<()> {
    loop {
        let number = next.fetch_add(1, Ordering::Relaxed);
        if number >= args.files {
            return Ok(());
        }
        write_file(args, number, buffer)?;
    }
}

fn read_files(args: &Args, next: &AtomicUsize, buffer: &mut Buffer) -> std::io::Result<()> {
    let of_file = args.file_bytes.div_ceil(args.request_bytes);
    let mut opened: Option<(usize, File)> = None;
    loop {
        let request = next.fetch_add(1, Ordering::Relaxed);
        let (number, at) = (request / of_file, request % of_file * args.request_bytes);
        if number >= args.files {
            return Ok(());
        }
        let file = match opened.take().filter(|(of, _)| *of == number) {
            Some((_, file)) => file,
            None => open(&args.path(number), false)?,
        };
        let count = args.request_bytes.min(args.file_bytes - at);
        file.read_exact_at(&mut buffer.bytes()[..count], at as u64)?;
        opened = Some((number, file));
    }
}

fn cpu_s() -> f64 {
    // SAFETY: the structure is plain numbers, and the call fills it.
    let usage = unsafe {
        let mut usage: libc::rusage = std::mem::zeroed();
        assert_eq!(libc::getrusage(libc::RUSAGE_SELF, &raw mut usage), 0);
        usage
    };
    let seconds = |time: libc::timeval| time.tv_sec as f64 + time.tv_usec as f64 / 1e6;
    seconds(usage.ru_utime) + seconds(usage.ru_stime)
}

fn main() {
    let args = Args::parse();
    let next = AtomicUsize::new(0);
    let started = Barrier::new(args.workers + 1);
    let work = || {
        let mut buffer = Buffer::new(args.request_bytes);
        if args.mode == "write" {
            buffer.bytes().iter_mut().enumerate().for_each(|(at, byte)| *byte = (at * 31) as u8);
        }
        started.wait();
        match args.mode.as_str() {
            "write" => write_files(&args, &next, &mut buffer),
            "read" => read_files(&args, &next, &mut buffer),
            other => panic!("--mode={other}: expected write or read"),
        }
        .unwrap_or_else(|error| panic!("{}: {error}", args.dir.display()));
    };
    let (mut cpu, mut start) = (0.0, Instant::now());
    std::thread::scope(|scope| {
        for _ in 0..args.workers {
            scope.spawn(work);
        }
        cpu = cpu_s();
        start = Instant::now();
        started.wait();
    });
    let (seconds, cpu) = (start.elapsed().as_secs_f64(), cpu_s() - cpu);
    let bytes = args.files * args.file_bytes;
    println!("{}", serde_json::json!({ "bytes": bytes, "s": seconds, "cpu_s": cpu }));
}
