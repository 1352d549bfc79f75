//! Text for standard output and standard error, whose readers may stop or go away.
//!
//! 1. Adding text never waits for a reader, never fails and never panics. Text that does not fit is lost, and counted.
//! 2. A thread of its own writes, in the order of the calls. Only this thread waits for a reader.
//! 3. A forked child has a queue and a thread of its own. It writes nothing of what waits in its parent.
//! 4. This module takes no lock of the table that [`crate::Process`] is about, so its thread is not counted: a process
//!    that logged something may fork, and open a store in the child.

use std::collections::VecDeque;
use std::os::fd::{BorrowedFd, RawFd};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, Once, OnceLock, PoisonError};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags};
use rustix::io::Errno;

use crate::Process;
use crate::threads::spawn_uncounted;

/// Most texts that wait. With [`MOST_BYTES`] each, they take 8 MiB.
const MOST_WAITING: usize = 2048;
/// Bytes of one text. The rest of a longer one is cut off.
const MOST_BYTES: usize = 4096;
const CUT: &str = " … (cut off)\n";
/// How long the end of the process waits for the readers of both streams together.
const FLUSH_TIMEOUT: Duration = Duration::from_secs(1);

static AT_EXIT: Once = Once::new();
static OUTPUT: LineQueue = LineQueue::new("dalsegno-output", libc::STDOUT_FILENO);
static ERROR: LineQueue = LineQueue::new("dalsegno-log", libc::STDERR_FILENO);

/// A queue of lines before a stream.
#[derive(Debug)]
pub struct LineQueue {
    thread: &'static str,
    stream: RawFd,
    lost: AtomicU64,
    /// Of the first process that used it.
    lines: OnceLock<Box<Lines>>,
}

/// The part of one process.
#[derive(Debug)]
struct Lines {
    process: Process,
    waiting: Mutex<Waiting>,
    added: Condvar,
    written: Condvar,
    /// Of a child that this process forked. Only the child fills it.
    of_child: OnceLock<Box<Lines>>,
}

#[derive(Debug, Default)]
struct Waiting {
    entries: VecDeque<Entry>,
    /// Lines lost since the last entry.
    gap: u64,
    writer: WriterState,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum WriterState {
    /// No thread was started yet, or the system refused it.
    #[default]
    Missing,
    Waiting,
    Writing,
    /// It has been writing one entry for as long as somebody waited for the reader. Nobody waits again meanwhile.
    Stuck,
}

#[derive(Debug)]
enum Entry {
    Text(Vec<u8>),
    /// Where lines were lost, and how many.
    Gap(u64),
}

impl LineQueue {
    const fn new(thread: &'static str, stream: RawFd) -> Self {
        Self { thread, stream, lost: AtomicU64::new(0), lines: OnceLock::new() }
    }

    /// The queue before standard output.
    #[must_use]
    pub fn output() -> &'static Self {
        &OUTPUT
    }

    /// The queue before standard error.
    #[must_use]
    pub fn error() -> &'static Self {
        &ERROR
    }

    /// Adds text, with its line break.
    pub fn add(&'static self, text: &str) {
        let lines = self.own_lines();
        let mut waiting = lines.lock();
        if waiting.writer == WriterState::Missing {
            let started = spawn_uncounted(self.thread, move || self.write_all_lines(lines));
            waiting.writer = if started.is_ok() { WriterState::Writing } else { waiting.writer };
        }
        if waiting.writer == WriterState::Missing || waiting.entries.len() >= MOST_WAITING {
            waiting.gap += 1;
            self.lost.fetch_add(1, Ordering::Relaxed);
            return;
        }
        let gap = std::mem::take(&mut waiting.gap);
        if gap > 0 {
            waiting.entries.push_back(Entry::Gap(gap));
        }
        waiting.entries.push_back(Entry::Text(bounded(text)));
        lines.added.notify_one();
    }

    /// How many lines were lost so far.
    #[must_use]
    pub fn lost(&self) -> u64 {
        self.lost.load(Ordering::Relaxed)
    }

    /// Waits until everything was written, at most `timeout`; not at all for a reader that has taken nothing since it
    /// was waited for.
    pub fn flush(&self, timeout: Duration) {
        // Without lines of this process there is nothing to wait for.
        let mut lines = self.lines.get();
        while let Some(found) = lines {
            if found.process.is_this() {
                let waiting = found.lock();
                let is_busy = |waiting: &mut Waiting| match waiting.writer {
                    WriterState::Writing => true,
                    WriterState::Stuck => false,
                    WriterState::Missing | WriterState::Waiting => !waiting.entries.is_empty(),
                };
                let waited = found.written.wait_timeout_while(waiting, timeout, is_busy);
                let (mut waiting, _) = waited.unwrap_or_else(PoisonError::into_inner);
                if waiting.writer == WriterState::Writing {
                    waiting.writer = WriterState::Stuck;
                }
                return;
            }
            lines = found.of_child.get();
        }
    }

    /// Invariant 3: what another process made is not even locked.
    fn own_lines(&'static self) -> &'static Lines {
        let mut lines = self.lines.get_or_init(|| Box::new(Lines::new()));
        while !lines.process.is_this() {
            lines = lines.of_child.get_or_init(|| Box::new(Lines::new()));
        }
        lines
    }

    fn write_all_lines(&self, lines: &Lines) {
        let mut is_torn = false;
        loop {
            let (mut text, gap) = match lines.next() {
                Entry::Text(text) => (text, 0),
                Entry::Gap(gap) => {
                    (format!("dalsegno: {gap} log lines were lost\n").into_bytes(), gap)
                }
            };
            if is_torn {
                text.insert(0, b'\n');
            }
            let left = write(self.stream, &text);
            is_torn = left > 0 && (is_torn || left < text.len());
            if left == 0 {
                continue;
            }
            // The lines of a gap were counted when it arose.
            lines.lock().gap += gap.max(1);
            self.lost.fetch_add(u64::from(gap == 0), Ordering::Relaxed);
        }
    }
}

impl Lines {
    fn new() -> Self {
        AT_EXIT.call_once(|| {
            // SAFETY: the handler touches only statics, which are never destroyed.
            unsafe { libc::atexit(flush_at_exit) };
        });
        Self {
            process: Process::this(),
            waiting: Mutex::default(),
            added: Condvar::new(),
            written: Condvar::new(),
            of_child: OnceLock::new(),
        }
    }

    fn lock(&self) -> MutexGuard<'_, Waiting> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn next(&self) -> Entry {
        let mut waiting = self.lock();
        loop {
            if let Some(entry) = waiting.entries.pop_front() {
                waiting.writer = WriterState::Writing;
                return entry;
            }
            waiting.writer = WriterState::Waiting;
            self.written.notify_all();
            waiting = self.added.wait(waiting).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

/// Waits for the readers of both streams, about a second.
pub fn flush_lines() {
    ERROR.flush(FLUSH_TIMEOUT / 2);
    OUTPUT.flush(FLUSH_TIMEOUT / 2);
}

extern "C" fn flush_at_exit() {
    flush_lines();
}

fn bounded(text: &str) -> Vec<u8> {
    if text.len() <= MOST_BYTES {
        return text.as_bytes().to_owned();
    }
    let most = MOST_BYTES - CUT.len();
    let end = (0..=most).rev().find(|at| text.is_char_boundary(*at)).unwrap_or(0);
    [&text[..end], CUT].concat().into_bytes()
}

/// Writes to a stream and waits for its reader; returns how many bytes could not be written.
fn write(stream: RawFd, text: &[u8]) -> usize {
    // SAFETY: a number of a standard stream. If the process closed it, writing fails.
    let stream = unsafe { BorrowedFd::borrow_raw(stream) };
    let mut left = text;
    while !left.is_empty() {
        match rustix::io::write(stream, left) {
            Ok(0) => break,
            Ok(count) => left = &left[count..],
            Err(Errno::INTR) => {}
            // Another process with the same pipe or terminal may have set it to that.
            Err(Errno::AGAIN) => {
                let _ = rustix::event::poll(&mut [PollFd::new(&stream, PollFlags::OUT)], None);
            }
            Err(_) => break,
        }
    }
    left.len()
}

#[cfg(test)]
mod tests {
    use dalsegno_core::Clock;
    use std::io::{Read, Write};
    use std::os::fd::{FromRawFd, IntoRawFd, OwnedFd};
    use std::os::unix::net::UnixStream;

    use crate::SystemClock;

    use super::*;

    const LATE: Duration = Duration::from_secs(60);

    fn queue(writer: UnixStream) -> &'static LineQueue {
        Box::leak(Box::new(LineQueue::new("test-log", writer.into_raw_fd())))
    }

    fn read_to_end(mut from: UnixStream) -> Vec<String> {
        let mut text = String::new();
        from.read_to_string(&mut text).unwrap();
        text.lines().map(ToOwned::to_owned).collect()
    }

    fn close(fd: RawFd) {
        // SAFETY: a descriptor that the test gave up before.
        drop(unsafe { OwnedFd::from_raw_fd(fd) });
    }

    #[test]
    fn lines_arrive_in_order_and_long_ones_are_cut_off() {
        let (reader, writer) = UnixStream::pair().unwrap();
        let queue = queue(writer);
        queue.add("first\n");
        queue.add(&format!("{}\n", "é".repeat(MOST_BYTES)));
        queue.add("last\n");
        queue.flush(LATE);
        close(queue.stream);
        let lines = read_to_end(reader);
        assert_eq!((lines.len(), &*lines[0], &*lines[2]), (3, "first", "last"));
        assert!(lines[1].len() < MOST_BYTES && lines[1].ends_with("(cut off)"));
        assert_eq!(queue.lost(), 0);
    }

    #[test]
    fn a_reader_that_stops_costs_lines_and_is_informed_when_it_goes_on() {
        let (mut reader, writer) = UnixStream::pair().unwrap();
        writer.set_nonblocking(true).unwrap();
        while (&writer).write(&[b'.'; 1024]).is_ok() {}
        let queue = queue(writer);
        queue.add("line 0\n");
        while !queue.own_lines().lock().entries.is_empty() {
            std::thread::yield_now();
        }
        for number in 0..MOST_WAITING + 500 {
            queue.add(&format!("line {}\n", number + 1));
        }
        assert_eq!(queue.lost(), 500);
        queue.flush(Duration::from_millis(10));
        let clock = SystemClock::new();
        let begun = clock.now();
        queue.flush(LATE);
        assert!(clock.now().since(begun) < LATE, "it waits for this reader once");
        let reading = std::thread::Builder::new().spawn(move || {
            let mut text = Vec::new();
            let mut part = [0; 4096];
            while !text.ends_with(b"the end\n") {
                let count = reader.read(&mut part).unwrap();
                text.extend_from_slice(&part[..count]);
            }
            String::from_utf8(text).unwrap()
        });
        // The end is lost, too, as long as the queue is full.
        let lost = loop {
            let before = queue.lost();
            queue.add("the end\n");
            if queue.lost() == before {
                break before;
            }
            std::thread::yield_now();
        };
        let text = reading.unwrap().join().unwrap();
        let after = format!("dalsegno: {lost} log lines were lost\nthe end\n");
        assert!(text.contains("line 0\nline 1\n") && text.ends_with(&after), "{text}");
    }

    #[test]
    fn a_reader_that_goes_away_costs_lines_and_nothing_else() {
        let (reader, writer) = UnixStream::pair().unwrap();
        let queue = queue(writer);
        drop(reader);
        for _ in 0..10 {
            queue.add("nobody reads this\n");
            queue.flush(LATE);
        }
        assert_eq!(queue.lost(), 10);
    }
}
